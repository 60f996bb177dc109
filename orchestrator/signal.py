"""News for many waiters: each sees every change at least once, nobody holds up who tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """``version`` grows with every `fire`; a waiter names the version that it has seen."""

    def __init__(self) -> None:
        self.version = 0
        self._event = asyncio.Event()
        self._others: list[Signal] = []

    def pass_on(self, other: Signal) -> Callable[[], None]:
        """From now on ``other`` fires whenever this does; the result ends that."""
        self._others.append(other)
        return lambda: self._others.remove(other)

    @property
    def num_others(self) -> int:
        """To how many it is passed on."""
        return len(self._others)

    def fire(self) -> None:
        """Wakes everybody who waits now."""
        self.version += 1
        event, self._event = self._event, asyncio.Event()
        event.set()
        for other in self._others:
            other.fire()

    async def wait(self, seen: int, timeout_s: float) -> int:
        """The current version, as soon as it differs from ``seen`` or the time is over."""
        if self.version == seen:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._event.wait()
            except TimeoutError:
                pass
        return self.version
