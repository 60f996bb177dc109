"""Batches whose computation failed: tried again, later each time. Pure."""

from __future__ import annotations

from typing import Final

from dcnr.intervals import IntervalSet
from vnode.replica_config import backoff_s
from vnode.vocabulary import Lane

_MAX_BATCHES: Final = 1024


class Retries:
    """How often each batch failed in a row, and when it is due; further batches than fit are tried again at once."""

    def __init__(self) -> None:
        self._failures: dict[tuple[Lane, int], tuple[int, float]] = {}

    def failed(self, lane: Lane, batch: int, now_s: float) -> None:
        """One more failure."""
        count = self._failures.get((lane, batch), (0, 0.0))[0] + 1
        if len(self._failures) < _MAX_BATCHES:
            self._failures[lane, batch] = (count, now_s + backoff_s(count))

    def done(self, lane: Lane, batch: int) -> None:
        """It went well."""
        self._failures.pop((lane, batch), None)

    def is_due(self, lane: Lane, batch: int, now_s: float) -> bool:
        """Whether it may be tried now."""
        return now_s >= self._failures.get((lane, batch), (0, 0.0))[1]

    def failing(self) -> IntervalSet:
        """Train batches that failed and have not gone well since."""
        return IntervalSet.of(*((batch, batch + 1) for lane, batch in self._failures if lane.is_train))
