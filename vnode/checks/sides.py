"""Sides of kinks in a replay: which values were so near to one that another machine may have gone the other way, and whether that explains a claim.

A replay computes everything anew, and with it the side that each value takes of a ReLU or a pool. One that lies there but for its last bits takes the other
side on another machine, and its gradient is missing or too much: in a stage with few values that is far more than any tolerance. So where a span is
over its tolerance, the values that were nearest are put on their other side, one after another. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from vnode.checks.tolerances import table

MAX_TRIES: Final = 8
"""Values that are tried, nearest first. Where more are as near as rounding reaches, there are so many in all that none of them is seen alone."""
MAX_SIDES: Final = 3
"""Taken at once: more in one span were never met."""
MIN_GAIN: Final = 0.9
"""To this share of it at least a side has to lower the worst residual, or it was no side: one of three alike leaves 0.82."""


@dataclass(frozen=True, slots=True, order=True)
class Side:
    """A value before a kink: which it is, and where it is to lie. The nearest come first."""

    distance: float
    """From the kink, in units of the rms of all that it reads."""
    batch: int
    kink: str
    index: int
    is_above: bool
    """Above zero before a ReLU; above its neighbours in a pool."""


Sides = frozenset[Side]


@runtime_checkable
class TwoSided(Protocol):
    """A `vnode.compute.Compute` whose steps can be made to take given sides."""

    def take(self, sides: Sides, *, looking: bool) -> None:
        """From now on, until the next call, what is learned takes these sides; ``looking``: and what is near a kink is remembered."""
        ...

    def near(self) -> Sequence[Side]:
        """The other sides of values that lay within `window` of a kink, in all that was learned since `take`: those of each step that were nearest."""
        ...


def window() -> float:
    """How near to a kink a value has to be, in units of the rms: as far as the values of two machines' forward passes part, as the committed table has it."""
    return float(table()["answer"])


def explaining(ratio_with: Callable[[Sides], tuple[float, Sequence[Side]]]) -> Sides | None:
    """Sides with which nothing is over its tolerance, or None. ``ratio_with``: the worst ratio with these sides, and which other values were near then."""
    taken: Sides = frozenset()
    worst, near = ratio_with(taken)
    for _ in range(MAX_SIDES):
        best: tuple[float, Sides, Sequence[Side]] = (worst * MIN_GAIN, taken, ())
        for side in sorted(near)[:MAX_TRIES]:
            ratio, others = ratio_with(taken | {side})
            if ratio <= 1.0:
                return taken | {side}
            if ratio < best[0]:
                best = (ratio, taken | {side}, others)
        if best[1] == taken:
            return None
        worst, taken, near = best
    return None
