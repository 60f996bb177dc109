"""Counts that fade: what was seen one half-life ago counts half. Pure; times are seconds of network time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from dcnr.errors import InvalidInput

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Faded:
    """A sum of amounts, each halved every ``half_life_s`` since it was added. A clock that goes back fades nothing."""

    half_life_s: float
    amount: float = 0.0
    at_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 < self.half_life_s < math.inf and 0.0 <= self.amount < math.inf and math.isfinite(self.at_s)):
            raise InvalidInput("a fading sum has a half-life, an amount that is not negative, and a time", code="bad_decay")

    def seen(self, now_s: float) -> float:
        """What is left of it at that time."""
        age_s = max(0.0, now_s - self.at_s)
        return self.amount * math.exp2(-age_s / self.half_life_s)

    def plus(self, amount: float, now_s: float) -> Faded:
        """The sum with ``amount`` more, added at that time; at a time before the last one, as if at the last one. Raises InvalidInput."""
        if not amount >= 0.0:
            raise InvalidInput(f"only amounts from 0 on are added, not {amount!r}", code="bad_decay")
        return replace(self, amount=self.seen(now_s) + amount, at_s=max(self.at_s, now_s))


@dataclass(frozen=True, slots=True)
class FadedMean:
    """The average of values in [0, 1], each weighing half as much every half-life."""

    total: Faded
    weight: Faded

    @classmethod
    def empty(cls, half_life_s: float) -> FadedMean:
        """Of nothing yet."""
        return cls(Faded(half_life_s), Faded(half_life_s))

    def plus(self, value: float, now_s: float) -> FadedMean:
        """With one value more. Raises InvalidInput for one outside [0, 1]."""
        if not 0.0 <= value <= 1.0:
            raise InvalidInput(f"a value in [0, 1] is averaged, not {value!r}", code="bad_decay")
        return FadedMean(self.total.plus(value, now_s), self.weight.plus(1.0, now_s))

    def mean(self) -> float:
        """The average; 0 of nothing. It changes with new values only, not with time."""
        return min(1.0, self.total.amount / self.weight.amount) if self.weight.amount > 0.0 else 0.0
