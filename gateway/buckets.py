"""Rate limits: a token bucket per name (an API key, or the subnet of who has none), as many as are kept. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MAX_BUCKETS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a name has left. ``reset_s``: until the bucket is full again; ``wait_s``: until one more request is let in, 0 where it was."""

    limit: int
    remaining: int
    reset_s: float
    wait_s: float

    @property
    def allowed(self) -> bool:
        """Whether this request is let in."""
        return self.wait_s <= 0.0

    def headers(self) -> dict[str, str]:
        """As clients are told."""
        told = {"RateLimit-Limit": str(self.limit), "RateLimit-Remaining": str(self.remaining), "RateLimit-Reset": str(math.ceil(self.reset_s))}  # fmt: skip
        return told if self.allowed else {**told, "Retry-After": str(max(1, math.ceil(self.wait_s)))}


class Buckets:
    """One bucket per name. The longest unused one is forgotten when there are too many: a flood of names costs memory for `MAX_BUCKETS` of them, no more."""

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self._max = max_buckets
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, *, rate_per_s: float, burst: int, now: float) -> Allowance:
        """Takes one token of that name's bucket if there is one."""
        level, since = self._levels.get(name, (float(burst), now))
        level = min(float(burst), level + max(0.0, now - since) * rate_per_s)
        let_in = level >= 1.0
        level -= 1.0 if let_in else 0.0
        self._levels[name] = (level, now)
        self._levels.move_to_end(name)
        if len(self._levels) > self._max:
            self._levels.popitem(last=False)
        return Allowance(burst, int(level), (burst - level) / rate_per_s, 0.0 if let_in else (1.0 - level) / rate_per_s)
