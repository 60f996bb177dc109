"""How fast a job is to learn at most: when each of its batches is due, in network time. Pure.

A schedule, not a throttle: who fell behind finds everything due that should have been learned meanwhile, and learns it as fast as it can. Only replicas of
sources ask for it (`vnode.due`); all others take what comes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dcnr import limits
from dcnr.errors import InvalidInput
from dcnr.v1 import model_pb2

LATEST_S: Final = 1e11
"""No schedule begins later, so seconds stay exact enough to count batches by."""


def check_rate(batches_per_s: float) -> float:
    """The rate, 0 for none. Raises InvalidInput (``bad_tempo``) for one that no job could keep to."""
    if batches_per_s == 0 or limits.MIN_BATCHES_PER_S <= batches_per_s <= limits.MAX_BATCHES_PER_S:
        return batches_per_s
    raise InvalidInput(
        f"batches_per_s is {batches_per_s!r}: no job learns so many batches per second", code="bad_tempo",
        remedy=f"0 for no limit, or from {limits.MIN_BATCHES_PER_S:g} to {limits.MAX_BATCHES_PER_S:g}", field="batches_per_s",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tempo:
    """Batch ``from_batch`` is due at ``from_s``, each further one 1 / ``batches_per_s`` later. Raises InvalidInput (``bad_tempo``)."""

    batches_per_s: float
    from_s: float
    """Network time."""
    from_batch: int = 0

    def __post_init__(self) -> None:
        if not check_rate(self.batches_per_s):
            raise InvalidInput("a tempo of no batches", code="bad_tempo", field="batches_per_s")
        if not 0 <= self.from_s <= LATEST_S:
            raise InvalidInput(f"no tempo begins {self.from_s!r} s after 1970", code="bad_tempo", field="from_unix_ms")
        if self.from_batch < 0:
            raise InvalidInput("no batch has a number below 0", code="bad_tempo", field="from_batch")

    @staticmethod
    def of(message: model_pb2.Tempo) -> Tempo:
        """From the wire. Raises InvalidInput (``bad_tempo``)."""
        return Tempo(message.batches_per_s, message.from_unix_ms / 1000, int(message.from_batch))

    def message(self) -> model_pb2.Tempo:
        """As it travels; the beginning in whole milliseconds."""
        from_unix_ms = round(self.from_s * 1000)
        return model_pb2.Tempo(batches_per_s=self.batches_per_s, from_unix_ms=from_unix_ms, from_batch=self.from_batch)

    def due_s(self, batch: int) -> float:
        """When a batch may be begun; those below ``from_batch`` might long ago."""
        return self.from_s + (batch - self.from_batch) / self.batches_per_s

    def end(self, now_s: float) -> int:
        """Batches from here on are not due yet."""
        end = self.from_batch + max(-self.from_batch, math.floor((now_s - self.from_s) * self.batches_per_s) + 1)
        while end > 0 and self.due_s(end - 1) > now_s:  # what rounding took or added
            end -= 1
        while self.due_s(end) <= now_s:
            end += 1
        return end
