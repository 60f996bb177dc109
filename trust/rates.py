"""Token buckets by name, in bounded memory: who asks too often waits, whoever else asks does not notice.

Pure: time comes with every call. When there are too many names the least recently used is forgotten first, so a new name starts with a full burst.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MAX_NAMES: Final = 8192


@dataclass(frozen=True, slots=True)
class Rate:
    """So many per second on average, so many at once."""

    per_s: float
    burst: float


class TokenBuckets:
    """One bucket of ``rate`` for each name."""

    def __init__(self, rate: Rate, *, max_names: int = MAX_NAMES) -> None:
        self.rate, self._max = rate, max_names
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def level(self, name: str, now: float) -> float:
        """What is in the bucket of ``name``; nothing is taken, and nothing remembered."""
        level, since = self._left.get(name, (self.rate.burst, now))
        return min(self.rate.burst, level + max(0.0, now - since) * self.rate.per_s)

    def wait_s(self, name: str, now: float, *, cost: float = 1.0) -> float:
        """0 when ``name`` may act now (that is taken from its bucket), else the seconds until it may."""
        level = self.level(name, now)
        admitted = level >= cost
        self._left[name] = (level - cost if admitted else level, now)
        self._left.move_to_end(name)
        if len(self._left) > self._max:
            self._left.popitem(last=False)
        return 0.0 if admitted else (cost - level) / self.rate.per_s
