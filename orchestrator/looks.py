"""Looks at the store on behalf of callers: however many ask, one look at a time, and none begins sooner after another than it may.

A call that the store does not answer holds one of its threads, also where whoever asked has gone: heads are renewed by the same threads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable


class Looks:
    """Of one kind. ``look`` is what is done, at most once in ``every_s``."""

    def __init__(self, look: Callable[[], Awaitable[None]], every_s: float = 0.0) -> None:
        self._look, self._every_s = look, every_s
        self._began_s = -math.inf
        self._next: asyncio.Task[None] | None = None
        """Has not begun: whoever asks now is in time for it."""
        self._newest: asyncio.Task[None] | None = None

    async def anew(self) -> None:
        """Returns when a look has ended that began after this call, and raises what that raises; a caller that goes away ends nobody else's look."""
        if self._next is None or self._next.done():
            self._next = self._newest = asyncio.ensure_future(self._begin(self._newest))
            self._next.add_done_callback(_noted)
        await asyncio.shield(self._next)

    async def _begin(self, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._began_s + self._every_s - now()))
        self._next, self._began_s = None, now()
        await self._look()


def _noted(done: asyncio.Task[None]) -> None:
    """Also where whoever asked is gone."""
    if not done.cancelled():
        done.exception()
