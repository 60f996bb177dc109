"""A home's line on a bad day: jitter, packets lost singly and in bursts (Gilbert 1960), and a radio link that is away for a few seconds now and then.

What travels is a stream: when a packet is lost, it and all behind it wait for the retransmission, whose timer doubles (RFC 6298, least 0.2 s).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

KEPT_S = 60.0
"""Spells that are over for so long are forgotten: no retransmission goes back there."""


@dataclass(frozen=True, slots=True)
class HomeLink:
    """A wireless home behind a domestic line, on a bad day."""

    latency_s: tuple[float, float] = (0.02, 0.12)
    loss: float = 0.005
    burst_loss: float = 0.4
    burst_s: tuple[float, float] = (0.2, 3.0)
    bursts_per_hour: float = 6.0
    away_s: tuple[float, float] = (0.3, 3.0)
    away_per_hour: float = 1.0
    least_rto_s: float = 0.2


class Home:
    """The line of one machine: all its streams suffer the same spells."""

    def __init__(self, link: HomeLink, rng: random.Random) -> None:
        self.link, self.rng = link, rng
        self._bursts = _Spells(rng, link.bursts_per_hour, link.burst_s)
        self._aways = _Spells(rng, link.away_per_hour, link.away_s)

    def is_lost(self, at_s: float) -> bool:
        """Whether a packet sent then is lost."""
        if self._aways.has(at_s):
            return True
        return self.rng.random() < (self.link.burst_loss if self._bursts.has(at_s) else self.link.loss)

    def arrival_s(self, sent_s: float, after_s: float = 0.0) -> float:
        """When something sent then arrives, not before ``after_s``, when what was sent before it on the same stream has."""
        at_s, rto_s = sent_s, self.link.least_rto_s
        while self.is_lost(at_s):
            at_s += rto_s
            rto_s *= 2
        return max(after_s, at_s + self.rng.uniform(*self.link.latency_s))


class _Spells:
    """Spells of one kind, drawn as time goes on."""

    def __init__(self, rng: random.Random, per_hour: float, length_s: tuple[float, float]) -> None:
        self._rng, self._rate, self._length_s = rng, per_hour / 3600.0, length_s
        self._drawn_s = 0.0
        self._spells: list[tuple[float, float]] = []
        self._next_s = self._begin()

    def _begin(self) -> float:
        self._drawn_s += self._rng.expovariate(self._rate)
        return self._drawn_s

    def has(self, at_s: float) -> bool:
        """Whether that moment lies in one."""
        while self._next_s <= at_s:
            self._spells.append((self._next_s, self._next_s + self._rng.uniform(*self._length_s)))
            self._next_s = self._begin()
        if not self._spells:
            return False
        if self._spells[0][1] < at_s - KEPT_S:
            del self._spells[0]
        return any(first <= at_s < end for first, end in self._spells)
