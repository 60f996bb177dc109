"""How long a step takes on unlike machines against what the plan said of it: of the first job, predicted from the machines' measured speed alone, and of later
ones, for which steps have been measured.

One network for each size of step: a machine that lends `QUICK_PERCENT` of a core and one that lends a quarter of that, so that together they leave most of the
processor free, and a chain of equal VNodes. The prediction is that of the first plan that a view shows; measured is what the VNode's PNode reports at the
end, the average of its last fifty steps. Whoever had fewer steps than count is left out, and counted.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Final

from benchmarks.jobs import Chain
from benchmarks.network import ATTACH_S, BenchNetwork, LocalPNode, Run, running
from benchmarks.result import Options, Result, Row, Target, median, quantile, rounded
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.offers import PLACEABLE

QUICK_PERCENT: Final = 40.0
SLOW_PERCENT: Final = 10.0
"""Nobody can lend less (`pnode.lent.limits_of`)."""
MEMORY_MB: Final = 2048
NUM_VNODES: Final = 10
SIZES: Final = {"small": (64, 32), "middle": (256, 64), "large": (512, 256)}
"""Width and batch size."""
STEPS: Final = 64
"""Batches of a job; `orchestrator.lending.MEASURED_BATCHES` are enough for a measured step to count."""
LATER_JOBS: Final = 2
ENOUGH_STEPS: Final = 32
WITHIN: Final = 0.30
FIRST_WITHIN: Final = 0.50
CHECKPOINT_S: Final = 600.0
JOB_LIMIT_S: Final = 900.0
KINDS: Final = ("first", "later")


def run(options: Options) -> Result:
    """Each size in a network of its own, as often as there are rounds."""
    sizes = {"quick": (64, 32)} if options.quick else SIZES
    settings = {
        "sizes": sizes, "num_vnodes": 4 if options.quick else NUM_VNODES, "steps": STEPS, "later_jobs": 1 if options.quick else LATER_JOBS,
        "cpu_percent": {"quick": QUICK_PERCENT, "slow": SLOW_PERCENT}, "enough_steps": ENOUGH_STEPS, "within": WITHIN, "first_within": FIRST_WITHIN,
        "component": "linear_block", "objective": "local_ce", "optimizer": "sgd", "rounds": options.rounds,
    }  # fmt: skip
    result = Result("predictions", "Steps on unlike machines, as predicted and as measured", settings)
    for number in range(options.rounds):
        for size in sizes:
            result.rounds += [{"round": number, "size": size, **row} for row in asyncio.run(_size(settings, size))]
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Deviations by size and kind of job, and targets, from the rounds alone."""
    deviations: dict[str, list[float | None]] = {kind: [] for kind in KINDS}
    for size in result.settings["sizes"]:
        for kind in KINDS:
            rows = [row for row in result.rounds if row["size"] == size and (row["job"] > 0) == (kind == "later")]
            counted = [_deviation(row) for row in rows if _counts(row, result)]
            deviations[kind] += counted
            result.medians[f"{size}, {kind}"] = {
                "off_p50": rounded(median(counted)), "off_p90": rounded(quantile(counted, 0.9)),
                "predicted_of_measured": rounded(median(row["predicted_s"] / row["measured_s"] for row in rows if _counts(row, result))),
                "vnodes": len(counted), "left_out": len(rows) - len(counted),
            }  # fmt: skip
    fewer = [
        sum(row["pnode"] == "slow" for row in rows) < sum(row["pnode"] == "quick" for row in rows)
        for rows in _jobs(result).values()
    ]
    first, later = (deviations[kind] for kind in KINDS)
    within = (result.settings["first_within"], result.settings["within"])
    result.targets = [
        Target("|predicted / measured - 1|, first job, median", median(first), within[0], "ratio", at_least=False),
        Target("|predicted / measured - 1|, later jobs, median", median(later), within[1], "ratio", at_least=False),
        Target("|predicted / measured - 1|, later jobs, p90", quantile(later, 0.9), within[1], "ratio", at_least=False),
        Target("jobs in which the slow PNode has less than the quick one", sum(fewer) / len(fewer), 1.0, "all", at_least=True),
    ]


def _jobs(result: Result) -> dict[tuple[object, ...], list[Row]]:
    jobs: dict[tuple[object, ...], list[Row]] = {}
    for row in result.rounds:
        jobs.setdefault((row["round"], row["size"], row["job"]), []).append(row)
    return jobs


def _counts(row: Row, result: Result) -> bool:
    return bool(
        row["steps"] >= result.settings["enough_steps"] and row["measured_s"] > 0 and row["predicted_s"] > 0 and not row["moved"]
    )


def _deviation(row: Row) -> float:
    return abs(float(row["predicted_s"]) / float(row["measured_s"]) - 1)


@dataclass(slots=True)
class _First:
    """What the first plan that was seen says of each VNode: its PNode and its seconds per batch."""

    said: dict[str, tuple[str, float]] = field(default_factory=dict)

    def seen(self, _now_s: float, view: orchestrator_pb2.WatchJobResponse) -> None:
        for item in view.job.vnodes:
            if item.assignment.pnode_id:
                self.said.setdefault(item.vnode, (item.assignment.pnode_id, item.assignment.predicted_step_s))


async def _size(settings: Row, size: str) -> list[Row]:
    width, batch_size = settings["sizes"][size]
    chain = Chain(f"predictions-{size}", settings["num_vnodes"], width, batch_size, batch_size * 16, settings["steps"] // 16)
    pnodes = [
        LocalPNode(name, 1.0, MEMORY_MB, ("--cpu-percent", f"{percent:g}")) for name, percent in settings["cpu_percent"].items()
    ]
    async with running(pnodes, num_orchestrators=1) as bench:
        await bench.stage(chain)
        await bench.until(lambda nodes: sum(node.attached and node.state in PLACEABLE for node in nodes) >= len(pnodes), ATTACH_S)
        return [row for number in range(1 + settings["later_jobs"]) for row in await _job(bench, chain, number)]


async def _job(bench: BenchNetwork, chain: Chain, number: int) -> list[Row]:
    job: Run = await bench.submit(chain, checkpoint_s=CHECKPOINT_S, key=f"-{number}")
    first = _First()
    job.hears.append(first.seen)
    async with job.followed():
        await job.until(lambda: bool(job.job.outcome.job_id), JOB_LIMIT_S, "end of the job")
    assert job.job.state == model_pb2.JOB_STATE_COMPLETED, job.job.outcome
    rows: list[Row] = []
    for item in job.job.vnodes:
        pnode, predicted_s = first.said[item.vnode]
        measured_s = item.report.step_s if math.isfinite(item.report.step_s) else 0.0
        rows.append({
            "job": number, "vnode": item.vnode, "pnode": bench.process_of(pnode).name, "moved": pnode != item.assignment.pnode_id,
            "steps": int(item.report.num_steps), "predicted_s": rounded(predicted_s, 6), "measured_s": rounded(measured_s, 6),
        })  # fmt: skip
    return rows
