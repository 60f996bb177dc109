"""The tolerances of all checks: a committed table that ``python -m benchmarks tolerances`` measures and writes. Torch-free.

Each is the largest residual of honest machines that were measured (CPU capabilities, kernels, thread counts, widths, components), or a floor where that is
larger, times the margin that the table states. The floors are a decision (ADR 0073): what other data would have given was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from dcnr.errors import InvariantBroken
from trust.comparison import Comparison

FILE = "tolerances.json"


@dataclass(frozen=True, slots=True)
class Tolerances:
    """For one kind of check of one kind of stage."""

    span_steps: int
    """A replay starts anew from the worker's own state after at most this many entries."""
    by_part: Mapping[str, float]

    def comparison(self, step: int, part: str, residual: float, name: str = "") -> Comparison:
        """The residual with its tolerance. A part that was never measured is an error of ours."""
        if part not in self.by_part:
            raise InvariantBroken(f"no tolerance was measured for {part!r}", code="no_tolerance", part=part)
        return Comparison(step, part, name, residual, self.by_part[part])


def tolerances_for(level: str, optimizer: str, *, smooth: bool) -> Tolerances:
    """From the committed table. Raises InvariantBroken for what was never measured."""
    return read(table(), level, optimizer, smooth=smooth)


def table() -> dict[str, Any]:
    """The committed table: margin, exact parts, by level, optimiser and kind of function the span and the tolerances, and that of a stage's answer, which
    learns nothing."""
    loaded: dict[str, Any] = json.loads(resources.files("vnode.checks").joinpath(FILE).read_text("utf-8"))
    return loaded


def read(values: Mapping[str, Any], level: str, optimizer: str, *, smooth: bool) -> Tolerances:
    """One row of such a table."""
    row = values["rows"].get(f"{level} {optimizer} {'smooth' if smooth else 'kinked'}")
    if row is None:
        raise InvariantBroken(f"no tolerances were measured for {optimizer!r}", code="no_tolerance", level=level)
    return Tolerances(int(row["span_steps"]), {**values["exact"], **row["by_part"]})
