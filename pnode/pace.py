"""The processor time that a worker may use: whoever computed waits until what the whole process used is paid for, at so many seconds per second.

Counted is the time of the whole process, so encoding and answering neighbours are paid for with the computations that cause them, and all replicas of
a worker share one limit. Only computations wait; what a worker does between them (restoring, waking up) counts up to a small amount.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dcnr.ports import Clock

CREDIT_S: Final = 0.25
"""Time without work that may be caught up on."""
OVERHEAD_S: Final = 0.05
"""Processor time used between two computations that counts at most."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A computation under way: when it began, and the time that all computations had taken together by then."""

    at_s: float
    together_s: float


class Pace:
    """``used_s``: processor time of this process so far. Without a limit nobody waits. One event loop only."""

    def __init__(self, clock: Clock, used_s: Callable[[], float]) -> None:
        self._clock, self._used_s = clock, used_s
        self._cores = 0.0
        self._paid_at_s = float("-inf")
        self._counted_s = used_s()
        self._under_way = 0
        self._together_s = 0.0
        self._changed_s = clock.monotonic()

    def limit(self, cores: float) -> None:
        """From now on ``cores`` seconds of processor time per second; 0: no limit."""
        self._cores = max(0.0, cores)

    def begin(self) -> Begun:
        """A computation begins."""
        if not self._under_way:
            self._counted_s = max(self._counted_s, self._used_s() - OVERHEAD_S)
        now_s = self._changed()
        self._under_way += 1
        return Begun(now_s, self._together_s)

    def end(self, begun: Begun) -> float:
        """That computation has ended: the seconds that it takes of this worker, so that those of all replicas add up to the time that passes.

        Time that several took together is shared out, and the pause that pays for it belongs to it, also where credit spares that pause: who has little to
        do is no quicker for it when there is more.
        """
        passed_s = self._changed() - begun.at_s
        self._under_way -= 1
        together_s = self._together_s - begun.together_s
        alone_s = passed_s * passed_s / together_s if together_s > 0 else passed_s
        used_s = self._used_s()
        counted_s, self._counted_s = used_s - self._counted_s, used_s
        if not self._cores:
            return alone_s
        due_s = counted_s / self._cores
        self._paid_at_s = max(self._paid_at_s, begun.at_s - CREDIT_S) + due_s
        return max(alone_s, due_s)

    def owed_s(self) -> float:
        """Seconds until everything used is paid for."""
        return max(0.0, self._paid_at_s - self._clock.monotonic()) if self._cores else 0.0

    async def rest(self, until: asyncio.Event) -> None:
        """Until the limit is kept again, or ``until`` is set: who leaves has no time to rest."""
        owed_s = self.owed_s()
        if owed_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(owed_s):
                    await until.wait()

    def _changed(self) -> float:
        """Counts the time since the last change of how many compute; the time now."""
        now_s = self._clock.monotonic()
        self._together_s += self._under_way * (now_s - self._changed_s)
        self._changed_s = now_s
        return now_s
