"""Sides of kinks in a replay: which values were so near to one that another machine may have gone the other way, and whether that explains a claim.

A replay computes everything anew, and with it the side that each value takes of a ReLU or a pool. One that lies there but for its last bits takes the other
side on another machine, and its gradient is missing or too much: in a stage with few values that is far more than any tolerance. So where a span is
over its tolerance, the values that were nearest are put on their other side, one after another. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

from vnode.checks.tolerances import table

MAX_TRIES: Final = 4
"""Values that are tried, nearest first. Where more are as near as rounding reaches, there are so many in all that none of them is seen alone."""
MAX_SIDES: Final = 3
"""Taken at once: more in one span were never met."""
MAX_GROUPS: Final = 2
"""Groups of equal values that are tried, before single ones: they are rare, and weigh as much as they have values."""
MIN_GROUP: Final = 3
"""Values of one channel that are the same but for rounding: these come of equal inputs, such as what images have around them."""
MIN_GAIN: Final = 0.9
"""To this share of it at least a side has to lower the worst residual, or it was no side: one of three alike leaves 0.82."""
SHORT_FACTOR: Final = 10
"""So many times its own steps may be computed again for a claim of one span: as they are, with two rounds of tries, and with the sides found."""
SHORT_STEPS: Final = 160
"""At most so many for one of a few spans: the same for one of the longest, of 16 steps."""
LONG_FACTOR: Final = 2
"""And so many times its own steps for one of many."""


def searched_steps(num_steps: int) -> int:
    """Steps that may be computed again, in search of sides, for a claim of ``num_steps``: whoever makes claims decides how much of them needs sides."""
    return max(LONG_FACTOR * num_steps, min(SHORT_FACTOR * num_steps, SHORT_STEPS))


class Budget:
    """What of `searched_steps` is left for a claim."""

    def __init__(self, num_steps: int) -> None:
        self._left = searched_steps(num_steps)

    def take(self, num_steps: int) -> bool:
        """Whether so many steps could be had."""
        if self._left < num_steps:
            return False
        self._left -= num_steps
        return True


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
    size: int = 1
    """From `MIN_GROUP` on: all values of its channel that are the same but for rounding go with it."""

    @property
    def place(self) -> tuple[int, str, int]:
        """Of which value it is."""
        return self.batch, self.kink, self.index


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


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of a span, or of its first entries, with given sides."""

    worst: float
    """The largest ratio of a residual to its tolerance."""
    over_at: int
    """The first entry at which anything was over its tolerance; where nothing was, the last."""
    near: Sequence[Side]
    """Which other values were near to a kink."""


Run = Generator[None, None, Ran | None]
"""In pieces; None where it could not be afforded."""


def explaining(run: Callable[[Sides, int], Run], at: int, last: int) -> Generator[None, None, Sides | None]:
    """Sides with which nothing is over its tolerance, or None; in the pieces of the runs that it takes. ``run(sides, end)``: the span as far as entry ``end``.

    ``at``: the first entry at which something is over as it is; ``last``: that of the span. What a step takes changes nothing before it, so as far as ``at``
    has to lie what explains it: no more is run until something does.
    """
    taken: Sides = frozenset()
    found = yield from run(taken, at)
    for _ in range(MAX_SIDES):
        better = (yield from _better(run, taken, found, at)) if found is not None else None
        if better is None:
            return None
        taken, found = better
        if found.worst > 1.0:
            continue
        whole = found if at == last else (yield from run(taken, last))
        if whole is None or whole.worst <= 1.0:
            return taken if whole is not None else None
        at = whole.over_at
        found = yield from run(taken, at)
    return None


def _better(run: Callable[[Sides, int], Run], taken: Sides, found: Ran, at: int) -> Generator[None, None, tuple[Sides, Ran] | None]:
    """One side more, that which helps most; None where none of them does, or no more can be afforded."""
    best: tuple[Sides, Ran] | None = None
    limit, places = found.worst * MIN_GAIN, {side.place for side in taken}
    near = sorted(side for side in set(found.near) if side.place not in places)
    groups = [side for side in near if side.size >= MIN_GROUP][:MAX_GROUPS]
    for side in (*groups, *[side for side in near if side.size < MIN_GROUP][:MAX_TRIES]):
        for one in (side, replace(side, is_above=not side.is_above)) if side.size >= MIN_GROUP else (side,):
            sides = taken | {one}
            tried = yield from run(sides, at)
            if tried is None:
                return best if _is_explained(best) else None
            if tried.worst < limit:
                best, limit = (sides, tried), tried.worst
        # Of a group the better of both: this machine may have some of it on either, and what is within here be over behind.
        if _is_explained(best):
            return best
    return best


def _is_explained(found: tuple[Sides, Ran] | None) -> bool:
    """Whether nothing is over its tolerance with these."""
    return found is not None and found[1].worst <= 1.0
