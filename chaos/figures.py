"""The figures of a run from its raw rows alone: rates in pairs of windows, recovery by kind of fault, shares. Pure; a test recomputes committed files."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from chaos.targets import of_run

Row = dict[str, Any]
Points = Sequence[Sequence[float]]
TIMES = ("gap_s", "suspected_s", "gone_s", "learning_s", "back_s")
"""Of a fault's row: the longest gap in what any replica of its VNodes learned, and how long the rest took."""
OLD_NAMES: Final = {"suspected_s": "detected_s"}
"""As results up to 7483bc86 call them: they did not tell the suspected from those that were taken for gone."""
ENOUGH_FOR_P99: Final = 100
"""With fewer values the 99th percentile is the largest of them, and is not told."""


def conclude(document: Row) -> Row:
    """``figures`` of a document with ``settings``, ``learned`` ([second, batches of all VNodes]), ``faults``, ``shares`` and ``outcome``."""
    settings, faults = document["settings"], document["faults"]
    pairs = [pair for number in range(settings["pairs"]) if (pair := _pair(document, number)) is not None]
    kept = [pair["kept"] for pair in pairs if pair["kept"] is not None]
    figures: Row = {
        "pairs": pairs,
        "rate_without": rounded(median(pair["without"] for pair in pairs), 2),
        "rate_with": rounded(median(pair["with"] for pair in pairs), 2),
        "rate_kept": rounded(median(kept), 4),
        "rate_kept_together": rounded(_together(pairs), 4),
        "contributing": rounded(contributing(document["shares"], settings), 4),
        "contributing_least": rounded(contributing_least(document["shares"], settings), 4),
        **_settled(document["shares"], settings),
        "num_faults": len(faults),
        "by_kind": {kind: _kind([row for row in faults if row["kind"] == kind]) for kind in kinds_of(faults)},
        "longest_gap_s": rounded(longest_gap(document["learned"]), 2),
        "untold": sum(row.get("told") is False for row in faults),
        "lineages_exact": document["outcome"]["lineages_exact"],
        "completed": document["outcome"]["state"] == "completed",
        "final_loss": document["outcome"]["loss"],
        "free_with_percent": rounded(free_percent(document), 1),
    }
    return {**figures, "targets": of_run(document, figures)}


def kinds_of(faults: Sequence[Row]) -> list[str]:
    """The three of every schedule first, whether there were any or not, then the others that there were."""
    return list(dict.fromkeys(["kill", "partition", "pause", *(row["kind"] for row in faults)]))


def free_percent(document: Row) -> float | None:
    """Of the processor, on average over the windows with faults: what nobody used."""
    window_s, length_s = document["settings"]["window_s"], 2 * document["settings"]["pairs"] * document["settings"]["window_s"]
    rows = document.get("load", [])
    free = [100.0 - row[1] for row in rows if 0 <= row[0] < length_s and int(row[0] // window_s) % 2 == 1]
    return statistics.fmean(free) if free else None


def _pair(document: Row, number: int) -> Row | None:
    """The rates of one pair of windows, in batches per second over all VNodes; None where the job ended before."""
    window_s = document["settings"]["window_s"]
    begin_s, points = 2 * number * window_s, document["learned"]
    if not points or points[-1][0] < begin_s + 2 * window_s:
        return None
    without = rate(points, begin_s, begin_s + window_s)
    with_faults = rate(points, begin_s + window_s, begin_s + 2 * window_s)
    kept = with_faults / without if without else None
    count = sum(begin_s + window_s <= row["at_s"] < begin_s + 2 * window_s for row in document["faults"])
    return {"without": rounded(without, 2), "with": rounded(with_faults, 2), "kept": rounded(kept, 4), "faults": count}


def _kind(rows: Sequence[Row]) -> Row:
    """Counts, medians and largest values of one kind of fault; times only where something was hosted."""
    hosting = [row for row in rows if row["hosted"]]
    found: Row = {"faults": len(rows), "hosting": len(hosting)}
    for name in TIMES:
        told = [row.get(name, row.get(OLD_NAMES.get(name, name))) for row in hosting]
        values = [value for value in told if value is not None]
        p99 = at_least_of(values, 0.99) if len(values) >= ENOUGH_FOR_P99 else None
        found[name] = {
            "p50": rounded(median(values), 2), "p99": rounded(p99, 2), "max": rounded(max(values, default=None), 2), "seen": len(values),
        }  # fmt: skip
    return found


def rate(points: Points, from_s: float, to_s: float) -> float:
    """Batches per second between two moments; what lies between two points is taken in proportion."""
    return (at(points, to_s) - at(points, from_s)) / (to_s - from_s) if to_s > from_s else 0.0


def at(points: Points, moment_s: float) -> float:
    """Batches learned by then."""
    after = bisect_right(points, moment_s, key=lambda point: point[0])
    if after == 0:
        return 0.0
    low_s, low = points[after - 1][:2]
    if after == len(points):
        return float(low)
    high_s, high = points[after][:2]
    return float(low + (high - low) * (moment_s - low_s) / (high_s - low_s))


def longest_gap(points: Points) -> float | None:
    """The longest time in which no VNode learned anything."""
    moments = [point[0] for index, point in enumerate(points) if index == 0 or point[1] > points[index - 1][1]]
    return max((later - earlier for earlier, later in pairwise(moments)), default=None)


def contributing(shares: Points, settings: Row) -> float | None:
    """Of the replicas on machines without a fault, the share that contributes, averaged over the windows with faults."""
    window_s = settings["window_s"]
    chosen = [(living, good) for second, living, good, *_ in shares if living and int(second // window_s) % 2 == 1]
    return sum(good for _, good in chosen) / sum(living for living, _ in chosen) if chosen else None


def contributing_least(shares: Points, settings: Row) -> float | None:
    """The least share at any moment of the windows with faults."""
    window_s = settings["window_s"]
    return min((good / living for second, living, good, *_ in shares if living and int(second // window_s) % 2 == 1), default=None)


def _settled(shares: Points, settings: Row) -> Row:
    """Both again without the machines that are back for less time than it is asked whether a replica has learned something; none where that was not counted."""
    rows = [(second, *counts) for second, _, _, *counts in shares if counts]
    if not rows:
        return {}
    return {"settled": rounded(contributing(rows, settings), 4), "settled_least": rounded(contributing_least(rows, settings), 4)}


def _together(pairs: Sequence[Row]) -> float | None:
    """What all windows with faults together kept of all those without."""
    without = sum(pair["without"] for pair in pairs)
    return sum(pair["with"] for pair in pairs) / without if without else None


def median(values: Iterable[float | None]) -> float | None:
    """Of the values that are there."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def at_least_of(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is not exceeded by this share of them."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def rounded(value: float | None, digits: int) -> float | None:
    """For the file."""
    return None if value is None else round(value, digits)
