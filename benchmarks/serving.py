"""Questions to a network of one PNode per stage: what a hop adds to an answer, and how many samples a second come back, against one process.

Live weights of a finished job answer, so every stage is on a machine of its own and every hop crosses the network. What a hop adds is what is left of the
time to the last exit, less that to the first, when computing and queues, as the hops say, are taken off. Samples a second are measured with small
questions, which stages compute together as they meet, and with questions of a whole batch.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from benchmarks.jobs import SEED, Chain
from benchmarks.machine import ROOT
from benchmarks.network import BenchNetwork, LocalPNode, running
from benchmarks.result import Options, Result, Row, Target, median, median_of, ratio, rounded
from dcnr.errors import Unavailable
from dcnr.sdk.asking import Answer, Ask

CHAIN: Final = Chain("serving", num_stages=4, width=1024, batch_size=256, samples=2_560, passes=2)
QUICK: Final = Chain("serving", num_stages=2, width=64, batch_size=32, samples=320, passes=4)
SMALL: Final = 16
"""Samples of a small question: an activation of 64 KiB at every hop."""
QUESTIONS: Final = 200
QUICK_QUESTIONS: Final = 5
ASKERS: Final = 16
SIZES: Final = ("small", "large")
ASK_S: Final = 10.0
QUICK_ASK_S: Final = 0.5
THREADS: Final = (1, 2)
BATCHES: Final = (1, 16)
"""Of the one process: a small question at a time, and so many together."""
CHECKPOINT_S: Final = 5.0
READY_S: Final = 120.0
REFERENCE_LIMIT_S: Final = 300.0
HOP_LIMIT_MS: Final = 3.0
WANTED_RATIO: Final = 0.7


def run(options: Options) -> Result:
    """Rounds of: one process with each number of threads, then a fresh network."""
    chain = QUICK if options.quick else CHAIN
    settings = {**chain.settings(), "askers": ASKERS, "questions": QUESTIONS, "ask_s": ASK_S, "rounds": options.rounds}
    result = Result("serving", "Questions to a network on loopback against one process", settings)
    for number in range(options.rounds):
        row: Row = {"round": number}
        for threads in THREADS:
            for together in BATCHES:
                row[f"one_process_{threads}_threads_{together}_together_samples_s"] = round(
                    reference(chain, threads, together, options), 1
                )
        row |= asyncio.run(ask(chain, options))
        result.rounds.append(row)
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, ratio and targets from the rounds alone."""
    result.medians = {key: rounded(median_of(result.rounds, key), 4) for key in result.rounds[0] if key != "round"}
    result.medians["one_process_best_samples_s"] = rounded(median(best(row) for row in result.rounds))
    result.targets = [
        Target("added by a hop, 64 KiB activations", result.medians["hop_p50_ms"], HOP_LIMIT_MS, "ms", at_least=False)
    ]
    for size in SIZES:
        share = ratio(result.medians[f"network_{size}_samples_s"], result.medians["one_process_best_samples_s"])
        result.ratios[f"network / one process, {size} questions"] = rounded(share)
        result.targets.append(
            Target(f"network / one process, samples per second, {size} questions", share, WANTED_RATIO, "ratio", at_least=True)
        )
    result.notes = ["The one process is the best of its numbers of threads and of questions together."]


def best(row: Row) -> float:
    """Of the one process."""
    return float(max(value for key, value in row.items() if key.startswith("one_process_") and value is not None))


def reference(chain: Chain, threads: int, together: int, options: Options) -> float:
    """Samples a second of one process with that many threads of torch and so many questions computed together."""
    asked = json.dumps(
        {"chain": asdict(chain), "seconds": QUICK_ASK_S if options.quick else ASK_S / 2, "samples": together * SMALL}
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving_reference", str(threads)], input=asked, text=True, capture_output=True,
        timeout=REFERENCE_LIMIT_S, check=True, cwd=ROOT,
    )  # fmt: skip
    return float(json.loads(done.stdout)["samples_s"])


async def ask(chain: Chain, options: Options) -> Row:
    """A fresh network, trained for a moment, then asked."""
    pnodes = [LocalPNode(f"p{number + 1}", cores=1.0, memory_mb=chain.memory_mb_for_one()) for number in range(chain.num_stages)]
    whole = np.random.default_rng(SEED).standard_normal((chain.batch_size, chain.width), dtype=np.float32)
    asked, seconds = whole[:SMALL], QUICK_ASK_S if options.quick else ASK_S
    first, last = Ask(chain.name, "live", exit="s1"), Ask(chain.name, "live", full_depth=True)
    count = QUICK_QUESTIONS if options.quick else QUESTIONS
    async with running(pnodes, num_orchestrators=1) as bench:
        await bench.stage(chain)
        job = await bench.submit(chain, checkpoint_s=CHECKPOINT_S)
        await bench.client.wait(job.job_id)
        warm = await ready(bench, asked, last)
        shallow = [away_s(await bench.client.forward(asked, first)) for _ in range(count)]
        answers = [await bench.client.forward(asked, last) for _ in range(count)]
        small, large = [await throughput(bench, samples, last, seconds) for samples in (asked, whole)]
    hops = len({stage.pnode_id for stage in warm.stages}) - 1
    added_s = float(np.median([away_s(item) for item in answers]) - np.median(shallow))
    return {
        "hops": hops, "first_exit_p50_ms": round(1e3 * float(np.median(shallow)), 3), "hop_p50_ms": round(1e3 * added_s / max(1, hops), 3),
        "answer_p50_ms": round(1e3 * float(np.median([item.total_s for item in answers])), 3), "network_small_samples_s": round(small, 1),
        "network_large_samples_s": round(large, 1),
    }  # fmt: skip


async def ready(bench: BenchNetwork, asked: Any, wanted: Ask) -> Answer:
    """The first answer of full depth; streams are open then."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            return await bench.client.forward(asked, wanted)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def throughput(bench: BenchNetwork, asked: Any, wanted: Ask, seconds: float) -> float:
    """Samples a second while many ask at once."""
    began = time.monotonic()
    counts = [0] * ASKERS

    async def asker(number: int) -> None:
        while time.monotonic() - began < seconds:
            await bench.client.forward(asked, wanted)
            counts[number] += len(asked)

    async with asyncio.TaskGroup() as group:
        for number in range(ASKERS):
            group.create_task(asker(number))
    return sum(counts) / (time.monotonic() - began)


def away_s(answer: Answer) -> float:
    """Time that neither computing nor a queue took."""
    return answer.total_s - sum(stage.computed_s + stage.waited_s for stage in answer.stages)
