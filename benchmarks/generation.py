"""Texts over slow links: tokens a second with drafts of the first stage against one token per pass, of the same network and the same text.

Every machine is a network namespace behind an emulated link (`benchmarks.wan`), one more is that of orchestrator, store and client; one PNode per stage,
so that each pass pays every hop. The job is the byte model of examples/text, cut short and trained over quick links; live weights of the finished job write.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.network import BenchNetwork, LocalPNode, running
from benchmarks.result import Options, Result, Row, Target, median_of, rounded
from benchmarks.wan import Links, told_on_last
from dcnr import limits
from dcnr.errors import Unavailable
from dcnr.graph import Graph, stages_of_graph
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.sdk.writing import Write
from dcnr.specs import TensorSpec
from dcnr.texts import Part
from dcnr.v1 import model_pb2
from examples.text.prepare import sequences, texts
from pnode.budget import DAEMON_BYTES
from vnode.costs import replica_cost
from vnode.registry import default_registry

MODEL: Final = "texts"
PROFILES: Final = ("home", "bad")
QUICK_PROFILES: Final = ("lan",)
TRAINED_OVER: Final = "lan"
NUM_STAGES: Final = 4
BATCH: Final = 8
NUM_BATCHES: Final = 800
QUICK_BATCHES: Final = 40
NUM_TOKENS: Final = 64
QUICK_TOKENS: Final = 12
PROMPT: Final = b"def __init__(self, "
LIMIT: Final = 2.0
JOB_S: Final = 240.0
READY_S: Final = 120.0
AGAIN_S: Final = 0.5
TEXT_S: Final = 300.0
RUN_S: Final = 600.0


def run(options: Options) -> Result:
    """For each round a fresh network, trained over quick links; then for each kind of link the text written plainly and with drafts."""
    profiles = QUICK_PROFILES if options.quick else PROFILES
    settings = {
        "profiles": list(profiles), "num_stages": NUM_STAGES, "batches": QUICK_BATCHES if options.quick else NUM_BATCHES,
        "tokens": QUICK_TOKENS if options.quick else NUM_TOKENS, "rounds": options.rounds,
    }  # fmt: skip
    result = Result("generation", "Texts over slow links, drafted against plain", settings)
    for number in range(options.rounds):
        result.rounds.append({"round": number, **measured(profiles, quick=options.quick)})
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, ratios and targets from the rounds alone."""
    result.medians = {key: rounded(median_of(result.rounds, key), 4) for key in result.rounds[0] if key != "round"}
    for profile in result.settings["profiles"]:
        result.ratios[f"{profile}: drafted / plain"] = result.medians[f"{profile}_ratio"]
        result.targets.append(
            Target(
                f"drafted / plain, {profile}",
                result.medians[f"{profile}_ratio"],
                LIMIT,
                "ratio of tokens per second",
                at_least=True,
            )
        )
        differing = sum(row[f"{profile}_differing_tokens"] for row in result.rounds)
        result.targets.append(Target(f"tokens that differ, {profile}", float(differing), 0.0, "tokens", at_least=False))


def measured(profiles: Sequence[str], *, quick: bool) -> Row:
    """What `write` gives."""
    asked = {"profiles": profiles, "quick": quick}
    return told_on_last("benchmarks.generation", asked, count=NUM_STAGES + 1, profile=TRAINED_OVER, within_s=RUN_S)


async def write(addresses: list[str], prefixes: list[list[str]], links: dict[str, Any], profiles: list[str], *, quick: bool) -> Row:
    """One network whose PNodes have these addresses and commands; this process itself has the last."""
    num_batches, num_tokens = (QUICK_BATCHES, QUICK_TOKENS) if quick else (NUM_BATCHES, NUM_TOKENS)
    graph = graph_of(num_batches)
    pnodes = [
        LocalPNode(f"p{number + 1}", 1.0, memory_mb(graph), host=addresses[number], prefix=tuple(prefixes[number]))
        for number in range(NUM_STAGES)
    ]
    async with running(pnodes, num_orchestrators=1, host=addresses[-1]) as bench:
        path = bench.network.directory / "texts.npz"
        await asyncio.to_thread(prepare, path, num_batches)
        await bench.client.stage(Source(str(path), MODEL, "PSF-2.0", "the standard library of this Python"))
        job = await bench.client.submit(graph, [bench.key], JobOptions(idempotency_key=MODEL, checkpoint_s=15.0))
        await asyncio.wait_for(bench.client.wait(job.job_id), JOB_S)
        row: Row = {}
        for profile in profiles:
            Links(**links).become(profile)
            row |= {f"{profile}_{name}": value for name, value in (await texts_of(bench, num_tokens)).items()}
    return row


async def texts_of(bench: BenchNetwork, num_tokens: int) -> Row:
    """Tokens a second, passes and drafts over the links as they are."""
    await ready(bench)
    plain_s, plain = await written(bench, num_tokens, plain=True)
    drafted_s, drafted = await written(bench, num_tokens, plain=False)
    last = drafted[-1].said
    one, other = (b"".join(part.said.text for part in parts) for parts in (plain, drafted))
    return {
        "plain_tokens_s": round(num_tokens / plain_s, 3), "drafted_tokens_s": round(num_tokens / drafted_s, 3), "ratio": round(plain_s / drafted_s, 3),
        "passes": last.num_passes, "drafted": last.num_drafted, "accepted": last.num_accepted, "close": last.num_close,
        "differing_tokens": sum(a != b for a, b in zip(one, other, strict=True)),
    }  # fmt: skip


async def ready(bench: BenchNetwork) -> None:
    """Once a text has been written over warm streams."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            await written(bench, 2, plain=True)
            return
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(AGAIN_S)


async def written(bench: BenchNetwork, num_tokens: int, *, plain: bool, weights: str = "live") -> tuple[float, list[Part]]:
    """Seconds, and the parts of the text."""
    wanted = Write(MODEL, num_tokens, weights=weights, full_depth=True, deadline_s=TEXT_S, plain=plain)
    began = time.monotonic()
    parts = [part async for part in bench.client.generate(PROMPT, wanted)]
    return time.monotonic() - began, parts


def graph_of(num_batches: int) -> model_pb2.ModelGraph:
    """That of examples/text."""
    graph = Graph(
        MODEL, input=TensorSpec("uint8", (128,)), target=TensorSpec("uint8", (128,)), num_classes=256,
        train={"passes": 1, "batch_size": BATCH, "seed": 7, "codec": "auto"},
        data={use: f"dataset:{MODEL}#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    both: dict[str, Any] = {
        "objective": {"name": "local_ce", "config": {}},
        "optimizer": {
            "name": "adamw",
            "lr": 4e-3,
            "beta1": 0.9,
            "beta2": 0.95,
            "weight_decay": 0.05,
            "clip": 1.0,
            "schedule": "cosine",
        },
    }
    graph.vnode("block1", "byte_embedding", {"width": 64, "blocks": 1, "heads": 4}, inputs=["input"], **both)
    for number in range(2, NUM_STAGES + 1):
        graph.vnode(f"block{number}", "transformer_block", {"heads": 4}, inputs=[f"block{number - 1}"], **both)
    built: model_pb2.ModelGraph = graph.build()
    return built


def memory_mb(graph: model_pb2.ModelGraph) -> int:
    """MiB that a PNode lends so that it can host one stage and not two."""
    registry = default_registry()
    costs = [replica_cost(stage, registry, BATCH).memory_bytes for stage in stages_of_graph(graph, registry)]
    return (DAEMON_BYTES + max(costs) + min(costs) // 2) // limits.MIB


def prepare(path: Path, num_batches: int) -> None:
    """The data set as an npz."""
    import sysconfig

    arrays: dict[str, Any] = {}
    for split, text in texts(Path(sysconfig.get_paths()["stdlib"])).items():
        x, y = sequences(text)
        count = num_batches * BATCH if split == "train" else BATCH
        chosen = np.linspace(0, len(x) - 1, num=count).round().astype(np.int64)
        arrays[f"{split}_x"], arrays[f"{split}_y"] = x[chosen], y[chosen]
    np.savez(path, **arrays)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(write(**json.load(sys.stdin)))))
