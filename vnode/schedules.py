"""The learning rate as a pure function of how much of the job a state has learned: never of wall clock, never of call counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcnr.specs import Fields

SCHEDULES = ("constant", "one_cycle", "cosine")
ONE_CYCLE_START = 1 / 25
ONE_CYCLE_END = 1e-4
_DEFAULT_WARMUP = {"constant": 0.0, "one_cycle": 0.3, "cosine": 0.05}


@dataclass(frozen=True, slots=True)
class Schedule:
    """``one_cycle``: cosine from lr/25 up to lr, then down to lr/10⁴ (Smith & Topin 2018).

    ``cosine``: linear warm-up, then cosine to 0.

    ``constant``: linear warm-up, then lr. ``warmup`` is a fraction of the job's batches.
    """

    kind: str
    lr: float
    warmup: float

    @classmethod
    def read(cls, fields: Fields) -> Schedule:
        """Reads ``lr``, ``schedule`` and ``warmup``. Raises InvalidInput."""
        lr = fields.number("lr", low=0.0, high=10.0)
        kind = fields.choice("schedule", "constant", options=SCHEDULES)
        return cls(kind, lr, fields.number("warmup", _DEFAULT_WARMUP[kind], low=0.0, high=0.9))

    def rate(self, num_learned: int, num_batches: int) -> float:
        """The rate for the step of a state whose lineage holds ``num_learned`` of ``num_batches`` batches."""
        done = min(max(num_learned, 0), num_batches)
        warm = self.warmup * num_batches
        if self.kind == "one_cycle":
            if done < warm:
                return self.lr * _cosine(ONE_CYCLE_START, 1.0, done / warm)
            return self.lr * _cosine(1.0, ONE_CYCLE_END, (done - warm) / max(num_batches - warm, 1.0))
        if done + 1 < warm:
            return self.lr * (done + 1) / warm
        if self.kind == "cosine":
            return self.lr * _cosine(1.0, 0.0, (done - warm) / max(num_batches - warm, 1.0) if done > warm else 0.0)
        return self.lr


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(part, 1.0))) / 2
