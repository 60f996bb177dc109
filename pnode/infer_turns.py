"""Calls for the questions that wait at one place (`pnode.infer_together`): as many as what waits needs, and whoever was computed together hears it at once.

So questions that were computed together also go on together, in one message (`dcnr.question_outbox`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from pnode.infer_places import Computed, Wish
from pnode.infer_together import Together, Waiting
from pnode.infer_words import Travelling

AT_ONCE: Final = 4
"""Calls that a place queues on its thread: at a training replica a step waits for so many calls of a batch's samples at most, and a question for one step."""


class Turns:
    """``call`` has `Together.work` run on the thread of the place. One event loop only."""

    def __init__(self, together: Together, call: Callable[[], Awaitable[Sequence[Waiting]]]) -> None:
        self._together, self._call = together, call
        self._waiting: dict[Waiting, asyncio.Future[None]] = {}
        self._num_turns = 0
        """Turns that will look once more for who waits: a turn is none any more in the very step in which it found nobody."""
        self._turns: set[asyncio.Task[None]] = set()

    async def computed(self, inputs: Sequence[Travelling], wish: Wish) -> Computed:
        """What was computed for one question. Raises what went wrong with it, or with the call."""
        one = self._together.enter(inputs, wish)
        done = self._waiting[one] = asyncio.get_running_loop().create_future()
        if self._num_turns < AT_ONCE and self._together.reserve():
            self._num_turns += 1
            turn = asyncio.create_task(self._turn())
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)
        try:
            await done
        finally:
            self._together.leave(one)
            del self._waiting[one]
        return one.result()

    async def _turn(self) -> None:
        try:
            while True:
                self._tell(await self._call())
                if not self._together.reserve():
                    return
        except Exception as error:  # noqa: BLE001  raised where the questions are waited for
            self._tell(self._together.give_up(error))
        finally:
            self._num_turns -= 1

    def _tell(self, found: Sequence[Waiting]) -> None:
        for one in found:
            done = self._waiting.get(one)
            if done is not None and not done.done():
                done.set_result(None)
