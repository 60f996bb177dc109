"""End-to-end backprop on a graph and an npz, for comparison: ``python -m dcnr.demo.reference GRAPH NPZ`` prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dataservice.batches import BatchIndex, eval_indices, num_eval_batches
from dcnr.graph import graph_from_toml, num_batches, stages_of_graph
from vnode.reference import train_backprop
from vnode.registry import default_registry


def main() -> None:
    """Trains with as many threads as the machine has cores, and evaluates every exit on the test split."""
    graph = graph_from_toml(Path(sys.argv[1]).read_text())
    with np.load(sys.argv[2], allow_pickle=False) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    registry = default_registry()
    stages = stages_of_graph(graph, registry)
    samples, batch_size = len(arrays["train_y"]), int(graph.train.batch_size)
    count = num_batches(graph, samples)
    index = BatchIndex(int(graph.train.seed), (samples,), batch_size, int(graph.train.passes))

    def batches(split: str, number: int) -> tuple[Any, Any]:
        chosen = index.indices(number) if split == "train" else eval_indices(number, len(arrays[f"{split}_y"]), batch_size)
        x = arrays[f"{split}_x"][chosen]
        return (x if x.dtype == np.uint8 and graph.input.dtype == "uint8" else x.astype(graph.input.dtype)), arrays[f"{split}_y"][
            chosen
        ]

    threads = os.cpu_count() or 1
    started = time.perf_counter()
    exits = train_backprop(
        stages, registry, batches, num_batches=count, seed=int(graph.train.seed), split="test",
        num_eval_batches=num_eval_batches(len(arrays["test_y"]), batch_size), threads=threads,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    rows = [{"vnode": item.vnode, "accuracy": item.accuracy, "loss": item.loss} for item in exits]
    sys.stdout.write(json.dumps({"exits": rows, "seconds": seconds, "threads": threads}) + "\n")


if __name__ == "__main__":
    main()
