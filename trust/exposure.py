"""How much that is wrong a release may hold without anybody having noticed, as far as it follows from the rates at which its intervals were drawn. Pure.

A PNode that is free to cheat in any interval, and knows every rate, loses its place with the first cheat that is audited. What it can expect to bring in is
bounded by an optimal stopping problem: with s steps in an interval that was drawn at rate p, and d the share of checked cheats that are caught,

    V(j) = max(V(j+1), (1 - d·p) · (s + V(j+1))),     V(end) = 0.

The bound leaves out that a failure also takes back what came after the last passed audit, so it is high, not low. At a constant rate it is (1 - d·p) / (d·p)
intervals, however long a PNode goes on.

A life ends with a quarantine, and with each interval that could not be verified: it may have been a cheat whose evidence was withheld. Ours.
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
class Exposure:
    """What is shown with a release: steps that may be wrong unnoticed, out of how many, if a share of the contributors cheats as well as it can."""

    undetected_steps: float
    num_steps: int
    cheaters: float

    @property
    def share(self) -> float:
        """Expected share of bad steps, at most."""
        return self.undetected_steps / self.num_steps if self.num_steps else 0.0


def undetected_steps(life: Sequence[Drawn], caught: float = CAUGHT) -> float:
    """Bad steps that one life of a PNode can be expected to bring in at most; ``life`` in the order of its intervals. Raises InvalidInput."""
    if not 0.0 < caught <= 1.0:
        raise InvalidInput(f"checks catch a share in (0, 1], not {caught!r}", code="bad_rate")
    value = 0.0
    for one in reversed(life):
        if not 0.0 < one.rate <= 1.0 or one.num_steps < 0:
            raise InvalidInput(f"an interval of {one.num_steps} steps drawn at rate {one.rate!r}", code="bad_rate")
        value = max(value, (1.0 - caught * one.rate) * (one.num_steps + value))
    return value


def exposure_of(lives: Iterable[Sequence[Drawn]], *, cheaters: float = 1.0, caught: float = CAUGHT) -> Exposure:
    """Of a release made of these lives. ``cheaters``: the share of lives taken to be cheats; 1: all of them. Raises InvalidInput."""
    if not 0.0 <= cheaters <= 1.0:
        raise InvalidInput(f"a share of cheaters lies in [0, 1], not {cheaters!r}", code="bad_rate")
    steps, total = 0.0, 0
    for life in lives:
        steps += undetected_steps(life, caught)
        total += sum(one.num_steps for one in life)
    return Exposure(cheaters * steps, total, cheaters)


def intervals_until_caught(rate: float, confidence: float = 0.99) -> int:
    """Within so many intervals a cheat in every one of them is audited, with that confidence: ln(1 - confidence) / ln(1 - rate). Raises InvalidInput."""
    if not (0.0 < rate <= 1.0 and 0.0 < confidence < 1.0):
        raise InvalidInput("a rate in (0, 1] and a confidence in (0, 1) are needed", code="bad_rate")
    return 1 if rate == 1.0 else max(1, math.ceil(math.log1p(-confidence) / math.log1p(-rate)))
