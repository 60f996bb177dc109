"""When a new snapshot is asked for after one was refused: later and later for a replica that keeps being refused, so that it never fills the store. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

ANEW_FIRST_S = 1.0
ANEW_LONGEST_S = 120.0


@dataclass(slots=True)
class _Refused:
    pause_s: float
    due_s: float
    why: str


class Refusals:
    """Refusals in a row, by replica. Times in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._refused: dict[str, _Refused] = {}

    def refused(self, replica: str, why: str, now_s: float) -> None:
        """One more: the next snapshot is due after a pause that doubles from `ANEW_FIRST_S` to `ANEW_LONGEST_S`."""
        before = self._refused.get(replica)
        pause_s = ANEW_FIRST_S if before is None else min(ANEW_LONGEST_S, before.pause_s * 2)
        self._refused[replica] = _Refused(pause_s, now_s + pause_s, why)

    def named(self, replica: str) -> None:
        """A checkpoint was named: refusals begin anew."""
        self._refused.pop(replica, None)

    def due(self, now_s: float) -> list[tuple[str, str]]:
        """Replicas whose snapshot is due, each once, with the reason of the refusal."""
        found = [(replica, item.why) for replica, item in sorted(self._refused.items()) if item.due_s <= now_s]
        for replica, _ in found:
            self._refused[replica].due_s = math.inf
        return found

    def next_in_s(self, now_s: float) -> float:
        """Seconds until one is due; infinite if none is."""
        return min((item.due_s - now_s for item in self._refused.values()), default=math.inf)
