"""What it costs to begin and to be there: seconds of the commands, from `pnode start` to attached, memory and CPU of a daemon."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Final

import psutil

from benchmarks.jobs import Chain
from benchmarks.machine import ROOT
from benchmarks.network import LocalPNode, family, running
from benchmarks.result import Options, Result, Row, Target, largest, median_of, rounded

COMMANDS: Final = {
    "python_nothing": ("-c", "pass"),
    "pnode_help": ("-m", "dcnr.cli.pnode", "--help"),
    "dcnr_help": ("-m", "dcnr.cli.dcnr", "--help"),
}
HELP_LIMIT_S: Final = 0.4
ATTACH_LIMIT_S: Final = 5.0
RSS_LIMIT_MIB: Final = 120.0
IDLE_CPU_LIMIT_PERCENT: Final = 1.0
SETTLE_S: Final = 5.0
IDLE_S: Final = 20.0
CHAIN: Final = Chain("startup", num_stages=2, width=256, batch_size=64, samples=6_400, passes=1000)


def run(options: Options) -> Result:
    """Rounds of all commands, each with a fresh home; memory and CPU once per round."""
    idle_s = 1.0 if options.quick else IDLE_S
    result = Result("startup", "Start, attachment, and cost of being there", {"rounds": options.rounds, "idle_s": idle_s})
    result.rounds = [
        {"round": number, **{f"{name}_s": command_s(arguments) for name, arguments in COMMANDS.items()}}
        for number in range(options.rounds)
    ]
    asyncio.run(daemons(result.rounds, idle_s, settle_s=0.5 if options.quick else SETTLE_S))
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians and targets from the rounds alone; memory is judged by its largest value."""
    result.medians = {key: rounded(median_of(result.rounds, key)) for key in result.rounds[0] if key != "round"}
    result.targets = [
        Target("pnode --help", result.medians["pnode_help_s"], HELP_LIMIT_S, "s", at_least=False),
        Target("dcnr --help", result.medians["dcnr_help_s"], HELP_LIMIT_S, "s", at_least=False),
        Target("pnode start to attached", result.medians["attach_s"], ATTACH_LIMIT_S, "s", at_least=False),
        Target(
            "memory of an idle daemon",
            largest(row["daemon_idle_rss_mib"] for row in result.rounds),
            RSS_LIMIT_MIB,
            "MiB",
            at_least=False,
        ),
        Target(
            "memory of a hosting daemon",
            largest(row["daemon_hosting_rss_mib"] for row in result.rounds),
            RSS_LIMIT_MIB,
            "MiB",
            at_least=False,
        ),
        Target(
            "CPU of an idle daemon",
            result.medians["daemon_idle_cpu_percent"],
            IDLE_CPU_LIMIT_PERCENT,
            "% of a core",
            at_least=False,
        ),
    ]


def command_s(arguments: tuple[str, ...]) -> float:
    """Seconds of one command from start to end."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60, cwd=ROOT)
    return round(time.perf_counter() - begun, 4)


async def daemons(rounds: list[Row], idle_s: float, settle_s: float) -> None:
    """Starts one PNode per round in one network, then lets two of them host."""
    async with running([], num_orchestrators=1) as bench:
        for row in rounds:
            begun = time.perf_counter()
            process = await asyncio.to_thread(bench.network.add_pnode, LocalPNode(f"n{row['round']}", cores=1.0, memory_mb=1024))
            await bench.until(lambda nodes, wanted=process.node_id: any(n.node_id == wanted and n.attached for n in nodes), 60.0)  # type: ignore[misc]
            row["attach_s"] = round(time.perf_counter() - begun, 3)
        await asyncio.sleep(settle_s)
        daemons = [psutil.Process(process.pid) for process in bench.network.pnodes]
        before = [sum(item.cpu_times()[:2]) for item in daemons]
        await asyncio.sleep(idle_s)
        for row, item, cpu_s in zip(rounds, daemons, before, strict=True):
            row["daemon_idle_cpu_percent"] = round(100 * (sum(item.cpu_times()[:2]) - cpu_s) / idle_s, 3)
            row["daemon_idle_rss_mib"] = round(item.memory_info().rss / 2**20, 1)
            row["worker_idle_rss_mib"] = _below(item.pid)
        await bench.stage(CHAIN)
        job = await bench.submit(CHAIN, checkpoint_s=5.0)
        async with job.followed():
            await job.training()
            await asyncio.sleep(settle_s)
            hosts = {job.place_of(vnode) for vnode in job.meter.vnodes}
            pids = [process.pid for process in bench.network.pnodes if process.node_id in hosts]
        for row, pid in zip(rounds, pids * len(rounds), strict=False):
            row["daemon_hosting_rss_mib"] = round(psutil.Process(pid).memory_info().rss / 2**20, 1)
            row["worker_hosting_rss_mib"] = _below(pid)


def _below(pid: int) -> float:
    return round(sum(item.memory_info().rss for item in family(pid)[1:]) / 2**20, 1)
