"""What the networks under chaos learn: a chain of small linear VNodes on four clouds of points, and a byte-level language model on Python's own sources."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dcnr.graph import Graph
from dcnr.specs import TensorSpec
from dcnr.v1 import model_pb2

USES: Final = ("train", "validation", "test")
NUM_CLOUDS: Final = 4
MERGE_EVERY: Final = 4
"""Small states: what a primary has not handed on when it dies is learned again."""
MAX_TEXT_BYTES: Final = 8_000_000


@dataclass(frozen=True, slots=True)
class Clouds:
    """``num_vnodes`` linear VNodes. Small: what takes time is everything else."""

    name: str
    num_vnodes: int = 3
    passes: int = 10
    width: int = 32
    batch_size: int = 8
    samples: int = 320
    replicas: int = 1
    seed: int = 1

    @property
    def num_batches(self) -> int:
        """Of the whole job."""
        return self.passes * (self.samples // self.batch_size)

    @property
    def vnodes(self) -> tuple[str, ...]:
        """In the order of the chain."""
        return tuple(f"v{number + 1}" for number in range(self.num_vnodes))

    def graph(self) -> model_pb2.ModelGraph:
        """The model graph."""
        train = {
            "passes": self.passes,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "codec": "raw",
            "merge_every": MERGE_EVERY,
        }
        graph = Graph(
            self.name, input=TensorSpec("float32", (self.width,)), target=TensorSpec("int64", ()), num_classes=NUM_CLOUDS, train=train,
            data={use: f"dataset:{self.name}#{use}" for use in USES},
        )  # fmt: skip
        before = "input"
        for vnode in self.vnodes:
            graph.vnode(
                vnode, "linear", {"out_features": self.width}, inputs=[before], replicas=self.replicas,
                objective={"name": "local_ce", "config": {}}, optimizer={"name": "sgd", "lr": 0.01},
            )  # fmt: skip
            before = vnode
        built: model_pb2.ModelGraph = graph.build()
        return built

    def write(self, path: Path) -> None:
        """The data set as an npz."""
        rng = np.random.default_rng(0)
        centres = 2 * rng.standard_normal((NUM_CLOUDS, self.width)).astype(np.float32)
        arrays: dict[str, Any] = {}
        for use, count in zip(USES, (self.samples, 4 * self.batch_size, 4 * self.batch_size), strict=True):
            arrays[f"{use}_y"] = rng.integers(0, NUM_CLOUDS, count)
            noise = rng.standard_normal((count, self.width))
            arrays[f"{use}_x"] = (centres[arrays[f"{use}_y"]] + noise).astype(np.float32)
        np.savez(path, **arrays)


@dataclass(frozen=True, slots=True)
class Text:
    """A language model over bytes: an embedding with a transformer block, then one block per VNode, every one with an exit of its own."""

    name: str
    num_vnodes: int = 8
    passes: int = 1
    width: int = 32
    length: int = 64
    batch_size: int = 4
    samples: int = 16_000
    replicas: int = 4
    seed: int = 1

    @property
    def num_batches(self) -> int:
        """Of the whole job."""
        return self.passes * (self.samples // self.batch_size)

    @property
    def vnodes(self) -> tuple[str, ...]:
        """In the order of the chain."""
        return tuple(f"block{number + 1}" for number in range(self.num_vnodes))

    def graph(self) -> model_pb2.ModelGraph:
        """The model graph."""
        tokens = TensorSpec("uint8", (self.length,))
        graph = Graph(
            self.name, input=tokens, target=tokens, num_classes=256,
            train={"passes": self.passes, "batch_size": self.batch_size, "seed": self.seed, "codec": "auto", "merge_every": MERGE_EVERY},
            data={use: f"dataset:{self.name}#{use}" for use in USES},
        )  # fmt: skip
        before = "input"
        for vnode in self.vnodes:
            first = before == "input"
            graph.vnode(
                vnode, "byte_embedding" if first else "transformer_block",
                {"width": self.width, "blocks": 1, "heads": 4} if first else {"heads": 4}, inputs=[before], replicas=self.replicas,
                objective={"name": "local_ce", "config": {}}, optimizer={"name": "adamw", "lr": 2e-3, "clip": 1.0},
            )  # fmt: skip
            before = vnode
        built: model_pb2.ModelGraph = graph.build()
        return built

    def write(self, path: Path) -> None:
        """Sequences of the running Python's standard library as an npz; the last twentieths are held out."""
        data = _sources(MAX_TEXT_BYTES)
        count = (len(data) - 1) // self.length
        x = data[: count * self.length].reshape(count, self.length)
        y = data[1 : count * self.length + 1].reshape(count, self.length)
        ends = {"train": (0, count * 18 // 20, self.samples), "validation": (count * 18 // 20, count * 19 // 20, 64),
                "test": (count * 19 // 20, count, 256)}  # fmt: skip
        arrays: dict[str, Any] = {}
        for use, (first, end, wanted) in ends.items():
            chosen = np.linspace(first, end - 1, num=wanted).round().astype(np.int64)
            arrays[f"{use}_x"], arrays[f"{use}_y"] = x[chosen], y[chosen]
        np.savez_compressed(path, **arrays)


Work = Clouds | Text


def _sources(max_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    pieces: list[bytes] = []
    total = 0
    for path in sorted(root.glob("*.py")) + sorted(root.glob("*/*.py")):
        if total < max_bytes and "site-packages" not in path.parts:
            pieces.append(path.read_bytes())
            total += len(pieces[-1])
    return np.frombuffer(b"\n".join(pieces), dtype=np.uint8)
