"""When a hosted replica's core is told that time has passed: often enough for everything that waits, exactly when a batch is due, and never in a busy loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dcnr.ports import Clock
from vnode.due import NetworkTime
from vnode.events import Event, Tick
from vnode.replica_config import STATEMENT_GAP_S

TICK_S: Final = 0.25
"""And once when nothing else has happened for `STATEMENT_GAP_S`: a statement that waits for its gap does not wait for a whole tick."""
MOVED_S: Final = 0.02
"""Network time is told again where it moved by so much against the clock of events."""


class Ticking:
    """Of one replica; ``post`` takes its events. ``clock`` shows network time."""

    def __init__(self, clock: Clock, post: Callable[[Event], None]) -> None:
        self._clock, self._post = clock, post
        self._ticked_s = self._stirred_s = float("-inf")
        self._due: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until cancelled."""
        told_s = float("inf")
        try:
            while True:
                now_s = self._clock.monotonic()
                ahead_s = self._clock.wall() - now_s
                if abs(ahead_s - told_s) >= MOVED_S:
                    told_s = ahead_s
                    self._post(NetworkTime(now_s, ahead_s))
                if now_s - self._ticked_s >= TICK_S:
                    self._tick(now_s)
                await asyncio.sleep(self._ticked_s + TICK_S - now_s)
        finally:
            for timer in (self._due, self._quiet):
                if timer is not None:
                    timer.cancel()

    def stirred(self) -> None:
        """Something else than a tick was handled."""
        self._stirred_s = self._clock.monotonic()
        if self._quiet is None:  # one timer, however many events come
            self._quiet = asyncio.get_running_loop().call_later(STATEMENT_GAP_S, self._look)

    def wake(self, at_s: float) -> None:
        """A tick at that moment and not before it, instead of the one that was asked for last."""
        if self._due is not None:
            self._due.cancel()
        delay_s = max(0.0, at_s - self._clock.monotonic())
        self._due = asyncio.get_running_loop().call_later(delay_s, lambda: self._tick(max(at_s, self._clock.monotonic())))

    def _look(self) -> None:
        """Whether nothing has happened for `STATEMENT_GAP_S`."""
        self._quiet, now_s = None, self._clock.monotonic()
        if (left_s := self._stirred_s + STATEMENT_GAP_S - now_s) > 0.0:
            self._quiet = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            self._tick(now_s)

    def _tick(self, now_s: float) -> None:
        self._ticked_s = now_s
        self._post(Tick(now_s))
