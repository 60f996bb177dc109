"""How much that is wrong a release may hold without anybody having noticed, as far as it follows from the rates at which its intervals were drawn. Pure.

A life of a PNode ends when a cheat of it is found, and with each interval that could not be verified, since that may have been a cheat whose evidence was
withheld.

- A life that is over: with s steps in the interval at which it ended, drawn at rate p, and d the share of checked cheats that are caught,
  s · (1 - d·p) / (d·p) bad steps came in unnoticed on average, whenever its owner chose to cheat. A cheat brings in (1 - d·p)·s on average and is found with
  probability d·p, so what is found, weighed by the odds, counts what is not (Horvitz and Thompson 1952; over a PNode's own choices it is a martingale).
- A life that goes on was never found out. What the best cheat could have expected to bring in is an optimal stopping problem, interval by interval:

    V(j) = max(V(j+1), (1 - d·p) · (s + V(j+1))),     V(end) = 0.

  At a constant rate that is at most s · (1 - d·p) / (d·p) too, however long it goes on.

Both leave out that a failure also takes back what came after the last passed audit. It is an expectation: few rarely drawn intervals scatter around it. Ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dcnr.errors import InvalidInput

CAUGHT: Final = 0.99
"""Share of cheats that a check of their interval finds: the figure that checks are held to."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One interval of a release: its steps, and the rate at which it was drawn."""

    num_steps: int
    rate: float


@dataclass(frozen=True, slots=True)
class Life:
    """The intervals of a PNode, in order, since it joined or since its last life ended."""

    intervals: Sequence[Drawn]
    is_over: bool
    """Whether a cheat was found in the last of them, or that one could not be verified."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """What is shown with a release: steps that may be wrong unnoticed, out of how many, if a share of those never found out cheats as well as it can."""

    undetected_steps: float
    num_steps: int
    cheaters: float

    @property
    def share(self) -> float:
        """Expected share of bad steps, at most."""
        return self.undetected_steps / self.num_steps if self.num_steps else 0.0


def together(exposures: Sequence[Exposure]) -> Exposure:
    """Of a release that is made of these jobs."""
    return Exposure(sum(one.undetected_steps for one in exposures), sum(one.num_steps for one in exposures), cheaters=1.0)


def undetected_steps(life: Life, caught: float = CAUGHT) -> float:
    """Bad steps of one life that nobody noticed: expected where it is over, expected at most where it goes on. Raises InvalidInput."""
    if not 0.0 < caught <= 1.0:
        raise InvalidInput(f"checks catch a share in (0, 1], not {caught!r}", code="bad_rate")
    for one in life.intervals:
        if not 0.0 < one.rate <= 1.0 or one.num_steps < 0:
            raise InvalidInput(f"an interval of {one.num_steps} steps drawn at rate {one.rate!r}", code="bad_rate")
    if life.is_over:
        if not life.intervals:
            raise InvalidInput("a life that is over ended at an interval", code="bad_rate")
        last = life.intervals[-1]
        return last.num_steps * (1.0 - caught * last.rate) / (caught * last.rate)
    value = 0.0
    for one in reversed(life.intervals):
        value = max(value, (1.0 - caught * one.rate) * (one.num_steps + value))
    return value


def exposure_of(lives: Iterable[Life], *, cheaters: float = 1.0, caught: float = CAUGHT) -> Exposure:
    """Of a release made of these lives. ``cheaters``: the share of those never found out that is taken to be cheats; 1: all. Raises InvalidInput."""
    if not 0.0 <= cheaters <= 1.0:
        raise InvalidInput(f"a share of cheaters lies in [0, 1], not {cheaters!r}", code="bad_rate")
    steps, total = 0.0, 0
    for life in lives:
        steps += (1.0 if life.is_over else cheaters) * undetected_steps(life, caught)
        total += sum(one.num_steps for one in life.intervals)
    return Exposure(steps, total, cheaters)


def intervals_until_caught(rate: float, confidence: float = 0.99) -> int:
    """Within so many intervals a cheat in every one of them is audited, with that confidence: ln(1 - confidence) / ln(1 - rate). Raises InvalidInput."""
    if not (0.0 < rate <= 1.0 and 0.0 < confidence < 1.0):
        raise InvalidInput("a rate in (0, 1] and a confidence in (0, 1) are needed", code="bad_rate")
    return 1 if rate == 1.0 else max(1, math.ceil(math.log1p(-confidence) / math.log1p(-rate)))
