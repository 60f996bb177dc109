"""Rate of training a chain on a whole network on this machine, against the same local-loss training in one process with the same cores.

The network is complete: object store, three orchestrators, one PNode per stage, a data set staged into it, checkpoints. Its rate is what all VNodes
learned from the moment when every one had begun until the last was done; the first batches and the settling are left out, waiting for stragglers is not.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

from benchmarks.jobs import Chain
from benchmarks.machine import ROOT
from benchmarks.network import BenchNetwork, LocalPNode, Run, family, running
from benchmarks.profiles import sample, summary, thread_cpu_s, thread_table
from benchmarks.result import Options, Result, Row, Target, median, median_of, ratio, rounded

CHAIN: Final = Chain("training", num_stages=4, width=1024, batch_size=256, samples=12_800, passes=8)
QUICK: Final = Chain("training", num_stages=2, width=64, batch_size=16, samples=320, passes=50)
WANTED_RATIO: Final = 0.60
REACH_RATIO: Final = 0.85
CPU_LIMIT_MS: Final = 0.82
CHECKPOINT_S: Final = 60.0
TRAIN_LIMIT_S: Final = 600.0
REFERENCE_LIMIT_S: Final = 600.0
REFERENCE_BATCHES: Final = 150
QUICK_REFERENCE_BATCHES: Final = 20
THREADS: Final = (1, 2)
PROFILE_S: Final = 10.0
KINDS: Final = ("worker", "pnode", "orchestrator", "store", "client")


def run(options: Options) -> Result:
    """Rounds of: one process with each number of threads, then the network."""
    chain = QUICK if options.quick else CHAIN
    settings = {
        **chain.settings(),
        "num_pnodes": chain.num_stages,
        "memory_mb": chain.memory_mb_for_one(),
        "num_orchestrators": _num_orchestrators(options),
        "checkpoint_s": CHECKPOINT_S,
        "rounds": options.rounds,
    }
    result = Result("training", "Training on a whole network on loopback against one process", settings)
    for number in range(options.rounds):
        row: Row = {"round": number}
        for threads in THREADS:
            measured = reference(chain, threads, QUICK_REFERENCE_BATCHES if options.quick else REFERENCE_BATCHES)
            row[f"one_process_{threads}_threads_samples_s"] = round(measured["samples_s"], 1)
            row[f"one_process_{threads}_threads_cpu_ms_per_sample"] = round(measured["cpu_ms_per_sample"], 4)
        trained, profile = asyncio.run(train(chain, _num_orchestrators(options), profile=options.profile and number == 0))
        row |= trained
        result.profile = result.profile or profile
        row["ratio"] = rounded(ratio(row["network_samples_s"], best(row)))
        result.rounds.append(row)
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, ratio and targets from the rounds alone."""
    result.medians = {key: rounded(median_of(result.rounds, key), 4) for key in result.rounds[0] if key != "round"}
    result.medians["one_process_best_samples_s"] = rounded(median(best(row) for row in result.rounds))
    share = ratio(result.medians["network_samples_s"], result.medians["one_process_best_samples_s"])
    result.ratios = {"network / one process": rounded(share)}
    result.targets = [
        Target("network / one process, samples per second", share, WANTED_RATIO, "ratio", at_least=True),
        Target("network / one process, to be reached", share, REACH_RATIO, "ratio", at_least=True),
        Target(
            "CPU of the whole network", result.medians["network_cpu_ms_per_sample"], CPU_LIMIT_MS, "ms per sample", at_least=False
        ),
    ]


def best(row: Row) -> float:
    """The reference: the better number of threads."""
    return float(max(row[f"one_process_{threads}_threads_samples_s"] for threads in THREADS))


def reference(chain: Chain, threads: int, num_batches: int) -> Any:
    """One process with that many threads of torch."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training_reference", str(threads), str(num_batches)], input=json.dumps(asdict(chain)), text=True,
        capture_output=True, timeout=REFERENCE_LIMIT_S, check=True, cwd=ROOT,
    )  # fmt: skip
    return json.loads(done.stdout)


def _num_orchestrators(options: Options) -> int:
    return 1 if options.quick else 3


async def train(chain: Chain, num_orchestrators: int, *, profile: bool) -> tuple[Row, str]:
    """A fresh network from start to the last learned batch, and where its time went; the latter only if asked."""
    seen = ""
    pnodes = [LocalPNode(f"p{number + 1}", cores=1.0, memory_mb=chain.memory_mb_for_one()) for number in range(chain.num_stages)]
    async with running(pnodes, num_orchestrators=num_orchestrators) as bench:
        await bench.stage(chain)
        job = await bench.submit(chain, checkpoint_s=CHECKPOINT_S)
        async with job.followed():
            await job.training()
            before, from_batches = bench.cpu_s(), _learned(job)
            if profile:
                seen = await profile_of(bench, job)
                before, from_batches = bench.cpu_s(), _learned(job)
            await job.until(lambda: job.meter.ended_s is not None, TRAIN_LIMIT_S, "end of training")
            after, to_batches = bench.cpu_s(), _learned(job)
            placed = {vnode: bench.process_of(job.place_of(vnode)).name for vnode in job.meter.vnodes}
    assert job.meter.began_s is not None
    assert job.meter.ended_s is not None
    rate = job.meter.rate(job.meter.began_s, job.meter.ended_s)
    samples = (to_batches - from_batches) * chain.batch_size
    cpu = {kind: 1e3 * (after[kind] - before[kind]) / samples for kind in KINDS} if samples else {}
    total = sum(value for kind, value in cpu.items() if kind != "client") if cpu else None
    row = {
        "network_samples_s": rounded(rate * chain.batch_size if rate else None, 1), "network_cpu_ms_per_sample": rounded(total, 4),
        **{f"network_cpu_ms_per_sample_{kind}": rounded(value, 4) for kind, value in cpu.items()},
        "placed_on": len(set(placed.values())),
    }  # fmt: skip
    return row, seen


def _learned(job: Run) -> float:
    return sum(job.meter.learned(vnode) for vnode in job.meter.vnodes) / len(job.meter.vnodes)


async def profile_of(bench: BenchNetwork, job: Run) -> str:
    """Samples the worker of a middle stage while the network trains: where its time goes, and what the other processes take."""
    middle = job.meter.vnodes[len(job.meter.vnodes) // 2]
    daemon = bench.process_of(job.place_of(middle))
    pid = next(item.pid for item in family(daemon.pid) if item.pid != daemon.pid)
    cpu, threads, learned = bench.cpu_s(), thread_cpu_s(pid), _learned(job)
    stacks = await asyncio.to_thread(sample, pid, PROFILE_S)
    spent = {kind: seconds - cpu[kind] for kind, seconds in bench.cpu_s().items()}
    after, done = thread_cpu_s(pid), max(1.0, _learned(job) - learned)
    kinds = "\n".join(
        f"  {1e3 * seconds / done:8.2f}  {kind}" for kind, seconds in sorted(spent.items(), key=lambda item: -item[1])
    )
    parts = [
        f"Where the time goes while the chain trains ({PROFILE_S:.0f} s, {done:.0f} batches through the chain).",
        f"== all processes, CPU ms per batch through the chain\n{kinds}",
        f"== the worker of {middle}\n" + thread_table(threads, after, done, "batch"),
        f"== the worker of {middle}\n" + summary(stacks),
    ]
    return "\n\n".join(parts)
