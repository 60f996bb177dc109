"""How many bytes PNodes may bring into the store: so many an hour, since every object that they name is written, and swept only later. Pure.

An object is paid for once: whoever tries it again, because the store or the line was away, pays nothing. Time comes with every call.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dcnr import limits
from dcnr.errors import Unavailable
from trust.rates import Rate, TokenBuckets

HOUR_S: Final = 3600.0
MAX_PAID: Final = 16_384
"""Objects remembered as paid; what was forgotten is paid for again."""
BURST_H: Final = 0.5


class WriteBudget:
    """One per orchestrator."""

    def __init__(self) -> None:
        self._hours = TokenBuckets(Rate(per_s=1.0 / HOUR_S, burst=BURST_H))
        """Of each PNode, in hours of what it may write."""
        self._records = TokenBuckets(_hourly(limits.RECORD_BYTES_H))
        self._subnets = TokenBuckets(_hourly(limits.SUBNET_RECORD_BYTES_H))
        self._paid: OrderedDict[tuple[str, str], float] = OrderedDict()

    def write(self, pnode_id: str, key: str, size_bytes: int, hourly_bytes: int, now_s: float) -> None:
        """Takes an object out of what this PNode may write. Raises Unavailable (``rate_limited``)."""
        if not self._is_paid(pnode_id, key, now_s):
            self._take(self._hours, pnode_id, size_bytes / hourly_bytes, now_s)
            self._pay(pnode_id, key, now_s)

    def record(self, pnode_id: str, subnet: str, key: str, size_bytes: int, now_s: float) -> None:
        """The same for a fault record of somebody who hosts nothing there."""
        if not self._is_paid(pnode_id, key, now_s):
            self._take(self._records, pnode_id, size_bytes, now_s)
            self._take(self._subnets, subnet, size_bytes, now_s)
            self._pay(pnode_id, key, now_s)

    def _take(self, buckets: TokenBuckets, name: str, cost: float, now_s: float) -> None:
        wait_s = buckets.wait_s(name, now_s, cost=cost)
        if wait_s:
            raise Unavailable(
                "more bytes than may be written in an hour", code="rate_limited", retry_after_s=wait_s, remedy="write less"
            )

    def _is_paid(self, pnode_id: str, key: str, now_s: float) -> bool:
        paid_s = self._paid.get((pnode_id, key))
        return paid_s is not None and now_s < paid_s + HOUR_S

    def _pay(self, pnode_id: str, key: str, now_s: float) -> None:
        self._paid[(pnode_id, key)] = now_s
        self._paid.move_to_end((pnode_id, key))
        while len(self._paid) > MAX_PAID:
            self._paid.popitem(last=False)


def _hourly(num_bytes: int) -> Rate:
    return Rate(per_s=num_bytes / HOUR_S, burst=BURST_H * num_bytes)
