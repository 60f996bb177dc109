"""The work that the benchmarks give to a network: chains of `linear_block` stages with local losses, and separable points to learn from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dcnr import limits
from dcnr.graph import Graph, stages_of_graph
from dcnr.specs import TensorSpec
from dcnr.v1 import model_pb2
from pnode.budget import DAEMON_BYTES
from vnode.costs import replica_cost
from vnode.registry import default_registry

NUM_CLASSES: Final = 10
DATASET: Final = "points"
SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Chain:
    """``num_stages`` of LayerNorm-Linear-GELU-Linear with a residual, one VNode each."""

    name: str
    num_stages: int
    width: int
    batch_size: int
    samples: int
    passes: int
    codec: str = "auto"

    @property
    def num_batches(self) -> int:
        """Of the whole job."""
        return self.passes * (self.samples // self.batch_size)

    def graph(self) -> model_pb2.ModelGraph:
        """The model graph."""
        graph = Graph(
            self.name,
            input=TensorSpec("float32", (self.width,)),
            target=TensorSpec("int64", ()),
            num_classes=NUM_CLASSES,
            train={"passes": self.passes, "batch_size": self.batch_size, "seed": SEED, "codec": self.codec},
            data={use: f"dataset:{DATASET}#{use}" for use in ("train", "validation", "test")},
        )
        before = "input"
        for number in range(1, self.num_stages + 1):
            graph.vnode(
                f"s{number}", "linear_block", {}, inputs=[before],
                objective={"name": "local_ce", "config": {}}, optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
            )  # fmt: skip
            before = f"s{number}"
        built: model_pb2.ModelGraph = graph.build()
        return built

    def memory_mb_for_one(self) -> int:
        """MiB that a PNode lends so that it can host one stage and not two: every hop of the chain crosses a Link."""
        registry = default_registry()
        largest = max(
            replica_cost(stage, registry, self.batch_size).memory_bytes for stage in stages_of_graph(self.graph(), registry)
        )
        return (DAEMON_BYTES + largest + largest // 2) // limits.MIB

    def write_points(self, path: Path) -> None:
        """The data set as an npz."""
        rng = np.random.Generator(np.random.Philox(key=SEED))
        centres = rng.standard_normal((NUM_CLASSES, self.width), dtype=np.float32)
        arrays: dict[str, Any] = {}
        for split, count in (("train", self.samples), ("validation", self.batch_size), ("test", self.batch_size)):
            target = rng.integers(0, NUM_CLASSES, count)
            arrays[f"{split}_x"] = centres[target] + rng.standard_normal((count, self.width), dtype=np.float32)
            arrays[f"{split}_y"] = target.astype(np.int64)
        np.savez(path, **arrays)

    def settings(self) -> dict[str, Any]:
        """For the file."""
        return {
            "num_stages": self.num_stages, "width": self.width, "batch_size": self.batch_size, "samples": self.samples, "passes": self.passes,
            "num_batches": self.num_batches, "codec": self.codec, "component": "linear_block", "objective": "local_ce", "optimizer": "sgd",
        }  # fmt: skip
