"""Questions to a network of one PNode per stage: what a hop adds to an answer, and how many samples a second come back, against one process.

Live weights of a finished job answer, so every stage is on a machine of its own and every hop crosses the network. What a hop adds is what is left of the
time to the last exit, less that to the first, when computing and queues, as the hops say, are taken off. Samples a second are measured with small
questions, which stages compute together as they meet, and with questions of a whole batch.

The one process is measured twice: bare, computing one array again and again, which is what its cores can do at most; and *served*, asked by the same
client with the same call over the same transport, computing together who waits. Only the second does what the network does: who asks, and what it costs to
carry an answer there, are in both arms, and what is left is the price of stages that are apart. The target is held against that; both ratios are told.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import numpy as np
import psutil

from benchmarks.jobs import SEED, Chain
from benchmarks.machine import ROOT
from benchmarks.network import BenchNetwork, LocalPNode, running
from benchmarks.result import Options, Result, Row, Target, median, median_of, ratio, rounded
from dcnr.client import Orchestrators
from dcnr.errors import Unavailable
from dcnr.rpc.dialer import Dialer
from dcnr.sdk.asking import Answer, Ask, answer_of, request_of
from dcnr.system import SystemClock
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from trust.identity import NodeKey

CHAIN: Final = Chain("serving", num_stages=4, width=1024, batch_size=256, samples=2_560, passes=2)
QUICK: Final = Chain("serving", num_stages=2, width=64, batch_size=32, samples=320, passes=4)
SMALL: Final = 16
"""Samples of a small question: an activation of 64 KiB at every hop."""
QUESTIONS: Final = 200
QUICK_QUESTIONS: Final = 5
ASKERS: Final = {"small": 48, "large": 16}
"""Who ask at once: for small questions enough for three calls of a whole batch, so that stages have something to do while others compute."""
SIZES: Final = ("small", "large")
ASK_S: Final = 10.0
QUICK_ASK_S: Final = 0.5
THREADS: Final = (1, 2)
BATCHES: Final = (1, 16)
"""Of the one process: a small question at a time, and so many together."""
CHECKPOINT_S: Final = 5.0
READY_S: Final = 120.0
REFERENCE_LIMIT_S: Final = 300.0
STOP_S: Final = 10.0
HOP_LIMIT_MS: Final = 3.0
WANTED_RATIO: Final = 0.7


def run(options: Options) -> Result:
    """Rounds of: one process with each number of threads, then a fresh network."""
    chain = QUICK if options.quick else CHAIN
    settings = {
        **chain.settings(),
        "small_askers": ASKERS["small"],
        "large_askers": ASKERS["large"],
        "questions": QUESTIONS,
        "ask_s": ASK_S,
        "rounds": options.rounds,
    }
    result = Result("serving", "Questions to a network on loopback against one process", settings)
    for number in range(options.rounds):
        row: Row = {"round": number}
        for threads in THREADS[:1] if options.quick else THREADS:
            for together in BATCHES:
                row[f"one_process_{threads}_threads_{together}_together_samples_s"] = round(
                    reference(chain, threads, together, options), 1
                )
            row |= asyncio.run(served(chain, threads, options))
        row |= asyncio.run(ask(chain, options))
        result.rounds.append(row)
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, ratio and targets from the rounds alone."""
    result.medians = {key: rounded(median_of(result.rounds, key), 4) for key in result.rounds[0] if key != "round"}
    result.medians["one_process_best_samples_s"] = rounded(median(best(row, "one_process_") for row in result.rounds))
    result.targets = [
        Target("added by a hop, 64 KiB activations", result.medians["hop_p50_ms"], HOP_LIMIT_MS, "ms", at_least=False)
    ]
    for size in SIZES:
        network = result.medians[f"network_{size}_samples_s"]
        served_s = rounded(median(best(row, f"served_{size}_") for row in result.rounds))
        result.medians[f"served_{size}_best_samples_s"] = served_s
        result.ratios[f"network / bare process, {size} questions"] = rounded(
            ratio(network, result.medians["one_process_best_samples_s"])
        )
        share = ratio(network, served_s)
        result.ratios[f"network / served process, {size} questions"] = rounded(share)
        result.targets.append(
            Target(f"network / one process, samples per second, {size} questions", share, WANTED_RATIO, "ratio", at_least=True)
        )
    result.notes = [
        "The bare process is the best of its numbers of threads and of questions together, the served one of its numbers of threads; the target is held "
        "against the served one, which answers the same client over the same transport.",
        "cpu_ms: of one question, by kind of process.",
    ]


def best(row: Row, prefix: str) -> float:
    """Of the one process."""
    return float(max(value for key, value in row.items() if key.startswith(prefix) and value is not None))


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


async def served(chain: Chain, threads: int, options: Options) -> Row:
    """Samples a second of one process with that many threads of torch that answers the client's questions."""
    key = NodeKey.generate()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.serving_reference", str(threads), cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({"chain": asdict(chain), "serve": key.node_id}).encode() + b"\n")
        async with asyncio.timeout(REFERENCE_LIMIT_S):
            said = json.loads(await process.stdout.readline())
        orchestrators = Orchestrators(
            Dialer(key, key.node_id, clock=SystemClock(), rng=secrets.token_bytes), lambda: [(said["node_id"], [said["address"]])]
        )
        row: Row = {}
        for size, asked in questions(chain).items():

            async def one(asked: Any = asked) -> Answer:
                answer = await orchestrators.call(OrchestratorServiceStub, "Forward", request_of(asked, Ask(chain.name)))
                return answer_of(answer)

            await one()
            before_s = [cpu_s(pid) for pid in (process.pid, None)]
            samples_s, count = await throughput(one, ASKERS[size], len(asked), options)
            row[f"served_{size}_{threads}_threads_samples_s"] = round(samples_s, 1)
            for kind, pid, used_s in zip(("server", "client"), (process.pid, None), before_s, strict=True):
                row[f"cpu_ms_served_{size}_{threads}_threads_{kind}"] = rounded(1e3 * (cpu_s(pid) - used_s) / count, 2)
        await orchestrators.close()
        return row
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def cpu_s(pid: int | None) -> float:
    """Processor time of a process so far; None: of this one."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def questions(chain: Chain) -> dict[str, Any]:
    """The small one and the large one."""
    whole = np.random.default_rng(SEED).standard_normal((chain.batch_size, chain.width), dtype=np.float32)
    return {"small": whole[:SMALL], "large": whole}


async def ask(chain: Chain, options: Options) -> Row:
    """A fresh network, trained for a moment, then asked."""
    pnodes = [LocalPNode(f"p{number + 1}", cores=1.0, memory_mb=chain.memory_mb_for_one()) for number in range(chain.num_stages)]
    asked = questions(chain)["small"]
    first, last = Ask(chain.name, "live", exit="s1"), Ask(chain.name, "live", full_depth=True)
    num_questions = QUICK_QUESTIONS if options.quick else QUESTIONS
    async with running(pnodes, num_orchestrators=1) as bench:
        await bench.stage(chain)
        job = await bench.submit(chain, checkpoint_s=CHECKPOINT_S)
        await bench.client.wait(job.job_id)
        warm = await ready(bench, asked, last)
        shallow = [away_s(await bench.client.forward(asked, first)) for _ in range(num_questions)]
        answers = [await bench.client.forward(asked, last) for _ in range(num_questions)]
        rates: Row = {}
        for size, samples in questions(chain).items():
            before_s = bench.cpu_s()
            rates[f"network_{size}_samples_s"], count = await throughput(
                partial(bench.client.forward, samples, last), ASKERS[size], len(samples), options
            )
            for kind, used_s in bench.cpu_s().items():
                rates[f"cpu_ms_network_{size}_{kind}"] = 1e3 * (used_s - before_s[kind]) / count
    hops = len({stage.pnode_id for stage in warm.stages}) - 1
    added_s = float(np.median([away_s(item) for item in answers]) - np.median(shallow))
    return {
        "hops": hops, "first_exit_p50_ms": round(1e3 * float(np.median(shallow)), 3), "hop_p50_ms": round(1e3 * added_s / max(1, hops), 3),
        "answer_p50_ms": round(1e3 * float(np.median([item.total_s for item in answers])), 3),
        **{key: rounded(value, 2) for key, value in rates.items()},
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


async def throughput(ask: Callable[[], Awaitable[Answer]], askers: int, size: int, options: Options) -> tuple[float, int]:
    """Samples a second while so many ask questions of that size at once, and how many questions were answered."""
    seconds, began, count = QUICK_ASK_S if options.quick else ASK_S, time.monotonic(), 0

    async def asker() -> None:
        nonlocal count
        while time.monotonic() - began < seconds:
            await ask()
            count += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(askers):
            group.create_task(asker())
    return count * size / (time.monotonic() - began), count


def away_s(answer: Answer) -> float:
    """Time that neither computing nor a queue took."""
    return answer.total_s - sum(stage.computed_s + stage.waited_s for stage in answer.stages)
