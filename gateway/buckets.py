"""Rate limits as clients are told them: what an API key, or the subnet of who has none, has left. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from trust.rates import TokenBuckets

MAX_BUCKETS: Final = 10_000
"""Of keys, and as many of subnets: a flood of names costs memory for so many of them, no more."""


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


def take(buckets: TokenBuckets, name: str, now: float) -> Allowance:
    """Takes one token of that name's bucket if there is one."""
    wait_s, level, rate = buckets.wait_s(name, now), buckets.level(name, now), buckets.rate
    return Allowance(int(rate.burst), int(level), (rate.burst - level) / rate.per_s, wait_s)
