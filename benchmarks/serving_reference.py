"""The serving benchmark's peer: the same stages in one process, asked as fast as they answer; prints one JSON line.

``python -m benchmarks.serving_reference THREADS`` reads the chain, the seconds and how many samples are computed together as JSON from standard input.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from benchmarks.jobs import SEED, Chain
from dcnr.graph import graph_digest, stages_of_graph
from vnode.registry import default_registry
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state
from vnode.vocabulary import Mode


def main() -> None:
    """Answers for so many seconds, after a tenth of them as warm-up."""
    threads, asked = int(sys.argv[1]), json.load(sys.stdin)
    chain, registry = Chain(**asked["chain"]), default_registry()
    graph = chain.graph()
    computes = []
    for stage in stages_of_graph(graph, registry):
        state = initial_state(
            stage, registry, seed=SEED, model=chain.name, graph=graph_digest(graph), num_batches=chain.num_batches
        )
        computes.append(TorchCompute(stage, registry, num_batches=chain.num_batches, seed=SEED, threads=threads))
        computes[-1].serve(state)
    size = int(asked["samples"])
    question = np.random.default_rng(SEED).standard_normal((size, chain.width), dtype=np.float32)

    def answer() -> None:
        output = question
        for compute in computes:
            output = compute.forward(0, [output], Mode.INFER).output
        computes[-1].readout(output).numpy()

    seconds, count = float(asked["seconds"]), 0
    warm_until = time.perf_counter() + seconds / 10
    while time.perf_counter() < warm_until:
        answer()
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or not count:
        answer()
        count += 1
    sys.stdout.write(json.dumps({"samples_s": count * size / (time.perf_counter() - begun)}) + "\n")


if __name__ == "__main__":
    main()
