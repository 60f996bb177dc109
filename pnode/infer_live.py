"""A training replica that answers: questions are computed between its steps, on its own thread, so weights are never read in the middle of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from dcnr.ports import Clock
from pnode.host import ReplicaHost
from pnode.hosting import Prepared
from pnode.infer_places import Computed, Wish, unless_gone
from pnode.infer_reads import Asking
from pnode.infer_together import Together
from pnode.infer_words import Travelling
from pnode.pace import Pace

AT_ONCE: Final = 4
"""Turns at once: a question that has one waits for one training step at most, and a training step for at most so many calls of a batch's samples each."""


class LivePlace:
    """An `infer_places.Place`. Whoever has a turn takes along who waits (`infer_together`)."""

    def __init__(self, prepared: Prepared, host: ReplicaHost, pace: Pace, clock: Clock) -> None:
        self.asking = Asking(prepared.stage.id, prepared.reads, prepared.batch_size)
        self.model = host.model
        self._together = Together(prepared.compute, prepared.batch_size, clock)
        self._host, self._pace = host, pace
        self._turn, self._never = asyncio.Semaphore(AT_ONCE), asyncio.Event()

    async def compute(self, inputs: Sequence[Travelling], wish: Wish) -> Computed:
        """See `Place`."""
        one = self._together.enter(inputs, wish)
        try:
            async with self._turn:
                if one.found is None:
                    await self._pace.rest(self._never)
                if one.found is None:
                    step = self._host.num_learned
                    await unless_gone(lambda: self._host.on_thread(lambda: self._together.work(one, step)))
        finally:
            self._together.leave(one)
        return one.result()
