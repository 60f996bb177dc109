"""The form of a measurement: settings, raw rounds, medians, and targets that say themselves whether they are met."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FORMAT: Final = "dcnr-benchmark-1"
PROFILE: Final = "_profile.txt"
"""Ends the name of a profile; its first line is the machine of the result beside it."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """How a benchmark is to run. ``quick``: the short form of the tests, whose figures mean nothing. ``kept``: where a long one keeps its rows as they come."""

    rounds: int
    scratch: Path
    quick: bool = False
    profile: bool = False
    kept: Path | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A figure against its limit; ``at_least`` says which side of the limit is good. ``value`` None: could not be measured, so not met."""

    name: str
    value: float | None
    limit: float
    unit: str
    at_least: bool

    @property
    def met(self) -> bool:
        """Whether the figure is on the good side."""
        if self.value is None or not math.isfinite(self.value):
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def row(self) -> Row:
        """As it is stored."""
        value = None if self.value is None else round(self.value, 4)
        bound = {"at_least" if self.at_least else "at_most": self.limit}
        return {"name": self.name, "value": value, **bound, "unit": self.unit, "met": self.met}


@dataclass(slots=True)
class Result:
    """One benchmark's outcome."""

    benchmark: str
    title: str
    settings: Row
    rounds: list[Row] = field(default_factory=list)
    medians: Row = field(default_factory=dict)
    ratios: Row = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    profile: str = ""
    """Where the time went in this run; empty: nobody asked."""

    def document(self, machine: Row) -> Row:
        """Everything, as it is written."""
        return {
            "format": FORMAT, "benchmark": self.benchmark, "title": self.title, "machine": machine, "settings": self.settings,
            "rounds": self.rounds, "medians": self.medians, "ratios": self.ratios, "targets": [target.row() for target in self.targets],
            "notes": self.notes,
        }  # fmt: skip

    def write(self, directory: Path, machine: Row) -> Path:
        """Writes ``<benchmark>.json``, and beside it the profile of the same run under the same machine and commit; that of an earlier run goes."""
        directory.mkdir(parents=True, exist_ok=True)
        path, profile = directory / f"{self.benchmark}.json", directory / f"{self.benchmark}{PROFILE}"
        path.write_text(json.dumps(self.document(machine), indent=1) + "\n")
        profile.unlink(missing_ok=True)
        if self.profile:
            profile.write_text(f"{json.dumps(machine)}\n\n{self.profile}\n")
        return path


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are there."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def median_of(rows: Sequence[Row], key: str) -> float | None:
    """The median of one figure over the rounds that have it."""
    return median(row.get(key) for row in rows)


def quantile(values: Iterable[float | None], share: float) -> float | None:
    """The least of the values that are there that at least that share of them do not exceed."""
    there = sorted(value for value in values if value is not None)
    return there[max(0, math.ceil(share * len(there)) - 1)] if there else None


def largest(values: Iterable[float | None]) -> float | None:
    """The largest of the values that are there."""
    return max((value for value in values if value is not None), default=None)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """``ours / theirs`` where both are known."""
    return ours / theirs if ours is not None and theirs else None


def rounded(value: float | None, digits: int = 3) -> float | None:
    """For the file."""
    return None if value is None else round(value, digits)
