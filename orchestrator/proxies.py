"""Places for bytes that pass through an orchestrator. Nobody keeps others out by reading or sending slowly: places are apart for reads, for hosts' writes and
for other writes; a caller and a subnet have part of them; and who moves nothing worth speaking of for a few seconds loses the place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dcnr import limits
from dcnr.errors import Unavailable
from orchestrator.signal import Signal

PER_CALLER: Final = 2
"""Objects of one caller in a lane, those that wait included."""
WAIT_S: Final = 30.0
"""For a place."""
GRACE_S: Final = limits.CALL_TIMEOUT_S
"""A passage may rest so long, and no longer whatever it moved before."""
SLOWEST_BYTES_S: Final = limits.SLOWEST_BYTES_S
"""Who takes or gives bytes more slowly than this, over any `GRACE_S`, loses the place."""


class Lane(Enum):
    """What passes."""

    READ = "read"
    HOSTED = "hosted"
    """States, commits and bundles of evidence by who hosts the VNode, or did."""
    OTHER = "other"
    """What maintainers make, and fault records."""


@dataclass(frozen=True, slots=True)
class Room:
    """Places of a lane; fewer for one subnet, so that another one finds some."""

    places: int
    per_subnet: int


ROOMS: Final = {Lane.READ: Room(4, 3), Lane.HOSTED: Room(3, 2), Lane.OTHER: Room(2, 1)}
"""An object takes at most `datarpc.MAX_PROXIED_BYTES` of memory while it passes."""


class Passage:
    """An object of at most ``max_bytes`` that passes: tell it what moves."""

    def __init__(self, limit: asyncio.Timeout, max_bytes: int) -> None:
        self._limit, self._now = limit, asyncio.get_running_loop().time
        self._until_s = self._now() + limits.BULK_TIMEOUT_S + max_bytes / SLOWEST_BYTES_S
        self.rest()

    def rest(self) -> None:
        """From now on the other side has to move."""
        self._reschedule(self._now() + GRACE_S)

    def moved(self, num_bytes: int) -> None:
        """The other side took or gave so many bytes: that gains their time, up to a whole rest."""
        due_s = self._limit.when() or self._now()
        self._reschedule(min(self._now() + GRACE_S, due_s + num_bytes / SLOWEST_BYTES_S))

    def ours(self, num_bytes: int) -> None:
        """From now on the store has to move that much, and nobody else can slow it."""
        self._reschedule(self._now() + GRACE_S + num_bytes / SLOWEST_BYTES_S)

    def _reschedule(self, due_s: float) -> None:
        self._limit.reschedule(min(self._until_s, due_s))


class Proxies:
    """Of one orchestrator."""

    def __init__(self) -> None:
        self._taken: Counter[Lane] = Counter()
        self._subnets: Counter[tuple[Lane, str]] = Counter()
        self._callers: Counter[tuple[Lane, str]] = Counter()
        self._freed = Signal()

    @asynccontextmanager
    async def passing(self, lane: Lane, caller: str, subnet: str, max_bytes: int) -> AsyncIterator[Passage]:
        """A place. Raises Unavailable (``overloaded``): at once where the caller has its part, else when there was no place, or the bytes were too slow."""
        if self._callers[lane, caller] >= PER_CALLER:
            raise Unavailable(f"{PER_CALLER} objects of yours are passing through already", code="overloaded")
        self._callers[lane, caller] += 1
        try:
            async with asyncio.timeout(WAIT_S) as limit, self._place(lane, subnet):
                yield Passage(limit, max_bytes)
        except TimeoutError:
            raise Unavailable("there was no place, or the bytes were too slow", code="overloaded") from None
        finally:
            _less(self._callers, (lane, caller))

    @asynccontextmanager
    async def _place(self, lane: Lane, subnet: str) -> AsyncIterator[None]:
        room, seen = ROOMS[lane], self._freed.version
        while self._taken[lane] >= room.places or self._subnets[lane, subnet] >= room.per_subnet:
            seen = await self._freed.wait(seen, WAIT_S)
        self._taken[lane] += 1
        self._subnets[lane, subnet] += 1
        try:
            yield
        finally:
            self._taken[lane] -= 1
            _less(self._subnets, (lane, subnet))
            self._freed.fire()


def _less(counter: Counter[tuple[Lane, str]], key: tuple[Lane, str]) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
