"""What a run is held against, from its rows and figures alone: each limit says itself whether it is met. Pure.

A run without faults is what others are compared with, and held to nothing. What was not measured is not met.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.result import Target

Row = dict[str, Any]
RATE_KEPT: Final = 0.98
CONTRIBUTING: Final = 0.9
"""Of the replicas on machines without a fault, at any moment; a machine counts from the instant at which its fault is over."""
FREE_PERCENT: Final = 40.0
GAP_S: Final = 1.0
"""Where a VNode has several replicas."""
ELSEWHERE_S: Final = 10.0
"""Where it has one: until it learns elsewhere, in the middle."""
START_S: Final = 30.0
"""From the start of a process, or the end of another fault, to a batch learned there."""
JOINERS_RATE: Final = 0.8
"""Of the rate before, that is kept while others join."""


def of_run(document: Row, figures: Row) -> list[Row]:
    """Those of a run of a schedule."""
    faults, settings = document["faults"], document["settings"]
    if not faults:
        return []
    targets = [
        Target("pairs of windows that the job outlasted", len(figures["pairs"]), settings["pairs"], "pairs", at_least=True),
        Target("rate kept with faults, median of pairs", figures["rate_kept"], RATE_KEPT, "ratio", at_least=True),
        Target("replicas on machines without a fault that contribute, least at any time", figures["contributing_least"], CONTRIBUTING, "share", at_least=True),
        Target("processor free in the windows with faults, on average", figures["free_with_percent"], FREE_PERCENT, "%", at_least=True),
    ]  # fmt: skip
    for kind in dict.fromkeys(row["kind"] for row in faults):
        rows = [row for row in faults if row["kind"] == kind and row["hosted"]]
        if rows:
            targets += _of_kind(kind, rows, figures["by_kind"][kind], replicated=settings["replicas_per_vnode"] > 1)
    return [target.row() for target in targets]


def _of_kind(kind: str, rows: Sequence[Row], figures: Row, *, replicated: bool) -> list[Target]:
    """A gap that was not seen to close, and a machine that was not seen to come back, count as endless."""
    back = Target(
        f"{kind}: its machine contributes again, slowest of {len(rows)}", _longest(rows, "back_s"), START_S, "s", at_least=False
    )
    if replicated:
        name = f"{kind}: no replica of its VNodes learns, longest of {len(rows)}"
        return [Target(name, _longest(rows, "gap_s"), GAP_S, "s", at_least=False), back]
    name = f"{kind}: its VNodes learn elsewhere, median of {len(rows)}"
    return [Target(name, figures["learning_s"]["p50"], ELSEWHERE_S, "s", at_least=False), back]


def _longest(rows: Sequence[Row], name: str) -> float | None:
    """The longest; None where one has no end."""
    longest = max((math.inf if row.get(name) is None else row[name] for row in rows), default=math.inf)
    return longest if math.isfinite(longest) else None


def of_joining(document: Row, figures: Row) -> list[Row]:
    """Those of machines that join at once."""
    times = document["contributed_s"]
    slowest = None if None in times else max(times, default=None)
    targets = [
        Target(f"from process start to the first contribution, slowest of {len(times)}", slowest, START_S, "s", at_least=False),
        Target("of the rate before, kept while they come: least of any ten seconds", figures["kept_least"], JOINERS_RATE, "ratio", at_least=True),
    ]  # fmt: skip
    return [target.row() for target in targets]


def missed(figures: Row) -> list[str]:
    """Names of the limits that are not met."""
    return [row["name"] for row in figures["targets"] if not row["met"]]


def table(rows: Sequence[Row]) -> str:
    """As the page shows them; empty without any."""
    if not rows:
        return ""
    lines = ["| held against | value | limit | met |", "|---|---|---|---|"]
    for row in rows:
        value = "not seen" if row["value"] is None else f"{row['value']:.4g}"
        limit = f">= {row['at_least']:g}" if "at_least" in row else f"<= {row['at_most']:g}"
        lines.append(f"| {row['name']} | {value} | {limit} {row['unit']} | {'yes' if row['met'] else '**no**'} |")
    return "\n".join(lines)
