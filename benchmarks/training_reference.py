"""The training benchmark's limit: the same stages with the same local losses in one process, prints one JSON line.

``python -m benchmarks.training_reference THREADS BATCHES`` reads the chain's settings as JSON from standard input.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import SEED, Chain
from dataservice.batches import BatchIndex
from dcnr.graph import stages_of_graph
from vnode.reference import LocalReference
from vnode.registry import default_registry


def main() -> None:
    """Trains ``BATCHES`` batches after a tenth of them as warm-up."""
    threads, wanted = int(sys.argv[1]), int(sys.argv[2])
    chain = Chain(**json.load(sys.stdin))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "points.npz"
        chain.write_points(path)
        with np.load(path, allow_pickle=False) as file:
            x, y = file["train_x"], file["train_y"]
    registry = default_registry()
    stages = stages_of_graph(chain.graph(), registry)
    index = BatchIndex(SEED, (chain.samples,), chain.batch_size, chain.passes)

    def batches(split: str, number: int) -> tuple[Any, Any]:
        chosen = index.indices(number)
        return x[chosen], y[chosen]

    reference = LocalReference(stages, registry, num_batches=chain.num_batches, seed=SEED, threads=threads)
    warm = max(1, wanted // 10)
    begun, cpu = time.perf_counter(), time.process_time()
    for progress in reference.train(batches):
        if progress.batch + 1 == warm:
            begun, cpu = time.perf_counter(), time.process_time()
        if progress.batch + 1 >= min(wanted, chain.num_batches):
            break
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    samples = (min(wanted, chain.num_batches) - warm) * chain.batch_size
    sys.stdout.write(json.dumps({"samples_s": samples / seconds, "cpu_ms_per_sample": 1e3 * cpu_s / samples}) + "\n")


if __name__ == "__main__":
    main()
