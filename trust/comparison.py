"""What a check of somebody's work came to: residuals against tolerances, and the first step over. Pure: no tensors, no torch.

A check (`vnode.checks`) yields comparisons in the order of the steps; who judges them may stop at the first that is over. A residual says how
far what was claimed lies from what the checker found, in the unit of its part; the tolerances are measured (`vnode.checks.tolerances`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trust.findings import DOUBT_FACTOR, finding_of
from trust.overturned import Finding

PARTS: Final = ("rate", "lineage", "map", "input_gradient", "output", "loss", "weights", "wander", "slots", "buffers", "bulk")
"""Learning rate, what a state says it holds, a map's product (or what is before a kink), the gradient of its input, output, loss, the parts of a state, and
most values of its weights and slots."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure claimed against one found. ``step`` counts the interval's entries from 0; a state belongs to the entry before it."""

    step: int
    part: str
    name: str
    """Which of several: a tensor of the state, a map; empty where there is one."""
    residual: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """Residual in units of the tolerance; infinite for a residual that is no number or negative, or a tolerance that is not positive."""
        if not (self.residual >= 0 and self.tolerance > 0):
            return math.inf
        return self.residual / self.tolerance

    @property
    def is_over(self) -> bool:
        """Whether no honest machine was measured to come so far."""
        return self.ratio > 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A check's comparisons in short. One that compared nothing has not passed."""

    num_compared: int
    worst: Comparison | None
    """Of the greatest ratio."""
    first_over: Comparison | None
    """Where what was claimed leaves what can be: the accused step, or the one after it."""

    @property
    def passed(self) -> bool:
        """Whether everything compared was within its tolerance."""
        return self.num_compared > 0 and self.first_over is None

    @property
    def finding(self) -> Finding:
        """Pass, doubt or fault, from the worst. Raises InvalidInput where nothing was compared."""
        return finding_of(math.nan if self.worst is None else self.worst.ratio, 1.0)


def judge(comparisons: Iterable[Comparison], *, to_the_end: bool = False) -> Outcome:
    """The outcome of comparisons in the order of their steps; reads no further than the first that is a fault unless ``to_the_end``."""
    count = 0
    worst: Comparison | None = None
    first: Comparison | None = None
    for comparison in comparisons:
        count += 1
        if worst is None or comparison.ratio > worst.ratio:
            worst = comparison
        if comparison.is_over and first is None:
            first = comparison
        if comparison.ratio > DOUBT_FACTOR and not to_the_end:
            break
    return Outcome(count, worst, first)
