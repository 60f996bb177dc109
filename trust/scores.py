"""What a PNode's record says about it, for placement and for people: never a reason to check nothing, and a new name never has a better one than an old. Pure.

Credibility: how likely a result of a PNode that passed k spot-checks is right, if a fraction f of all PNodes are bad (Sarmenta 2001, "Sabotage-tolerance
mechanisms for volunteer computing systems", with f = 0.2). Reliability: the average of on-time results, newer ones counting more; late, crashed and gone
lower it, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

from trust.decay import DAY_S, FadedMean

BAD_FRACTION: Final = 0.2
RELIABILITY_HALF_LIFE_S: Final = 7.0 * DAY_S
FULL_SCORE: Final = 100


@dataclass(frozen=True, slots=True)
class Punctuality:
    """How often results came in time."""

    results: FadedMean = field(default_factory=lambda: FadedMean.empty(RELIABILITY_HALF_LIFE_S))

    def on_time(self, now_s: float) -> Punctuality:
        """One more result in time."""
        return replace(self, results=self.results.plus(1.0, now_s))

    def late(self, now_s: float) -> Punctuality:
        """One more that came late or never."""
        return replace(self, results=self.results.plus(0.0, now_s))

    @property
    def reliability(self) -> float:
        """R in [0, 1]; 0 before the first result."""
        return self.results.mean()


@dataclass(frozen=True, slots=True)
class Score:
    """What is shown: the number never without the three it is made of."""

    credibility: float
    reliability: float
    passes: float

    @property
    def shown(self) -> int:
        """round(100 · C · R)."""
        return round(FULL_SCORE * self.credibility * self.reliability)

    def __str__(self) -> str:
        return f"{self.shown} (C {self.credibility:.3f}, R {self.reliability:.3f}, k {self.passes:.1f})"


def credibility(passes: float) -> float:
    """C in [0, 1): grows with the passed audits that still count."""
    return max(0.0, 1.0 - BAD_FRACTION / (1.0 - BAD_FRACTION) / (math.e * max(passes, 1.0)))


def score_of(passes: float, punctuality: Punctuality) -> Score:
    """Both together."""
    return Score(credibility(passes), punctuality.reliability, passes)
