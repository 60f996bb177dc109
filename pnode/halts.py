"""Carries the owner's pauses out: work is handed over for a few seconds, then the worker ends and its memory is free; a resumed one starts anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from dataservice.tidying import tidied
from pnode.pausing import Pausing
from pnode.supervisor import Supervisor
from pnode.telling import Condition

HAND_OVER_S: Final = 2.0
"""What a pause waits for others to take over what is hosted here."""
GRACE_S: Final = 0.5
"""And no longer than this beyond it: a worker that stands still is not even told."""
WORKER_END_S: Final = 1.0
WITHIN_S: Final = 5.0
"""No VNode computes any more after this."""
REVIEW_S: Final = 1.0


class Halts:
    """``hand_over`` tries to hand everything over within its argument, in seconds; ``tell`` records an event and tells everybody what is lent now."""

    def __init__(
        self, pausing: Pausing, supervisor: Supervisor, condition: Condition, *, hand_over: Callable[[float], Awaitable[None]],
        tell: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._pausing, self._supervisor, self._condition = pausing, supervisor, condition
        self._hand_over, self._tell = hand_over, tell
        self._changed = asyncio.Event()
        if pausing.is_paused:
            supervisor.hold_back()

    async def pause(self, for_s: float) -> float:
        """Begins a pause (0: until `resume`), and returns when the disk took note of it: seconds after which no VNode computes any more. Raises InvalidInput,
        and Unavailable as `Pausing.keep`.
        """
        self._pausing.begin(for_s)
        self._changed.set()
        await asyncio.to_thread(self._pausing.keep)
        return WITHIN_S

    async def resume(self) -> None:
        """Ends a pause. Raises Unavailable as `Pausing.keep`."""
        self._pausing.end()
        await asyncio.to_thread(self._pausing.keep)
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled: the worker runs, or does not, as the owner wants it."""
        if not self._pausing.is_paused:
            await tidied(self._pausing.tidy)
        while True:
            self._changed.clear()
            if self._pausing.is_paused and not self._supervisor.is_held:
                await self._halt()
            elif not self._pausing.is_paused and self._supervisor.is_held:
                self._supervisor.go_on()
                self._tell("resumed", "it works again")
                await tidied(self._pausing.tidy)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REVIEW_S):
                    await self._changed.wait()

    async def _halt(self) -> None:
        self._condition.halting = True
        self._tell("paused", self._pausing.reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S + GRACE_S):
                await self._hand_over(HAND_OVER_S)
        await self._supervisor.hold(within_s=WORKER_END_S)
        self._condition.halting = False
        self._tell("halted", "no VNode computes here")
