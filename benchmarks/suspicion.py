"""How often a living PNode is suspected, and how often taken for gone, over home links on a bad day, and how soon a dead one is: `simulation.liveness` in
virtual time. A suspect keeps what it has; whoever is taken for gone loses it (`orchestrator.offers`). So that is held against limits, here as in `failure`.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Final

from benchmarks.result import Options, Result, Row, Target, largest, median_of, rounded
from dcnr import limits
from simulation.liveness import Tally, tally

NODES: Final = 25
DAYS: Final = 1.0
LIMIT_PER_NODE_DAY: Final = 1.0
LIMIT_S: Final = 7.0
VIRTUAL: Final = "Virtual time: the figures are those of the seeds, whatever the machine does meanwhile."
LINKS: Final = (
    "The line is that of a bad day (`simulation.home_line.HomeLink`): half a per cent of packets lost, six times an hour two fifths of them for up to 3 s, "
    "once an hour all of them for up to 3 s. Over the same lines go looks at whoever has missed a beat, the orchestrator's and those of three helpers, and the "
    "connections of four neighbours, which tell with their beats whom they cannot reach (ADR 0018). "
    "`false_suspect` counts silences of two told intervals, which such a line has by itself: "
    "a suspect gets nothing new until its next beat, and nothing is moved."
)


def run(options: Options) -> Result:
    """A round is a history of its own seed."""
    nodes, days = (2, 0.02) if options.quick else (NODES, DAYS)
    result = Result(
        "suspicion", "Living machines taken for gone over home links", {
            "nodes": nodes, "days": days, "rounds": options.rounds, "heartbeat_s": limits.HEARTBEAT_S, "silent_beats": limits.SILENT_BEATS,
        },
    )  # fmt: skip
    asked = [(seed, nodes, days) for seed in range(options.rounds)]
    with multiprocessing.get_context("spawn").Pool(min(options.rounds, os.cpu_count() or 1)) as pool:
        result.rounds = pool.map(_row, asked)
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians and targets from the rounds alone."""
    rows = result.rounds
    node_days = sum(row["node_days"] for row in rows)
    result.medians = {
        name: rounded(median_of(rows, name), 4)
        for name in (
            "false_suspect",
            "false_offline",
            "false_by_witness",
            "failed_looks",
            "broken_links",
            "detected_p50_s",
            "detected_max_s",
        )
    }
    for name in ("false_suspect", "false_offline"):
        result.medians[f"{name}_per_node_day"] = rounded(sum(row[name] for row in rows) / node_days, 4)
    result.medians["node_days_in_all"] = rounded(node_days, 2)
    result.targets = [
        Target("living machines taken for gone", sum(row["false_offline"] for row in rows) / node_days, LIMIT_PER_NODE_DAY, "per node and day", at_least=False),
        Target("silent machine known to be gone, slowest", largest(row["detected_max_s"] for row in rows), LIMIT_S, "s", at_least=False),
    ]  # fmt: skip
    result.notes = [VIRTUAL, LINKS]


def _row(asked: tuple[int, int, float]) -> Row:
    seed, nodes, days = asked
    found: Tally = tally(seed, num_nodes=nodes, days=days)
    detected = sorted(found.detected_s)
    return {
        "round": seed, "node_days": round(found.node_days, 4), "false_suspect": found.num_false_suspect, "false_offline": found.num_false_offline,
        "false_by_witness": found.num_by_witness, "failed_looks": found.num_failed_looks, "broken_links": found.num_broken,
        "detected_p50_s": round(detected[len(detected) // 2], 3), "detected_max_s": round(detected[-1], 3),
    }  # fmt: skip
