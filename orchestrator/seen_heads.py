"""Which heads one process has seen, and whether an older one was read late or the store has gone back. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.head_events import HeadTimes

Place = tuple[int, int]
"""Of a head among the others: epoch and sequence."""
MAX_AHEAD: Final[Place] = (1000, 1 << 32)
"""No backup is so old: what lies further ahead of the store's head is no news of a store that went back."""


@dataclass(slots=True)
class Watch:
    """How long one ETag has been seen."""

    etag: str
    since: float
    last: float


class SeenHeads:
    """Of one model."""

    def __init__(self, times: HeadTimes) -> None:
        self._times = times
        self.newest: Place = (0, 0)
        """The highest epoch, and the highest sequence, of any: a takeover is above both, since nobody may take one for older than another."""
        self.floor: Place = (0, 0)
        """What is older was read late, unless the store has gone back: then from there on the head that it has counts."""
        self._older: Watch | None = None
        """How long nothing but older heads has been read."""
        self.num_back = 0
        """How often the store went back for good."""

    def learned(self, place: Place) -> None:
        """A head that counts."""
        self.newest, self.floor = _above(self.newest, place), max(self.floor, place)

    def shown(self, place: Place, known: Place) -> bool:
        """Somebody else has seen that head, while the store shows ``known``. Returns whether it is above that, and not too far to be believed."""
        if any(one > has + most for one, has, most in zip(place, known, MAX_AHEAD, strict=True)):
            return False
        self.newest = _above(self.newest, place)
        return any(one > has for one, has in zip(place, known, strict=True))

    def unchanged(self) -> None:
        """The head that counts was read again."""
        self._older = None

    def is_late(self, place: Place, sent_at: float, now: float) -> bool:
        """Whether a read, sent then, brought what is older than a head seen before, and nothing says yet that the store has gone back.

        One that shows nothing newer for as long as any taker waits was restored, also where somebody who never saw the newer head writes on from there; what
        passes was a stale read.
        """
        if place < self.floor:
            if self._older is None or sent_at - self._older.last > self._times.gap_s:
                self._older = Watch("", now, now)
            self._older.last = now
            if sent_at - self._older.since < self._times.take_s:
                return True
            self.floor, self.num_back = place, self.num_back + 1
        self._older = None
        return False


def _above(one: Place, other: Place) -> Place:
    return max(one[0], other[0]), max(one[1], other[1])
