"""A training replica that answers: questions are computed between its steps, on its own thread, so weights are never read in the middle of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from dcnr.ports import Clock
from pnode.host import ReplicaHost
from pnode.hosting import Prepared
from pnode.infer_places import Computed, Wish, unless_gone
from pnode.infer_reads import Asking
from pnode.infer_together import Together, Waiting
from pnode.infer_turns import Turns
from pnode.infer_words import Travelling
from pnode.pace import Pace


class LivePlace:
    """An `infer_places.Place`. Questions that wait are computed together (`infer_turns`)."""

    def __init__(self, prepared: Prepared, host: ReplicaHost, pace: Pace, clock: Clock) -> None:
        self.asking = Asking(prepared.stage.id, prepared.reads, prepared.batch_size)
        self.model = host.model
        self._together = Together(prepared.compute, prepared.batch_size, clock)
        self._host, self._pace = host, pace
        self._turns, self._never = Turns(self._together, self._call), asyncio.Event()

    async def compute(self, inputs: Sequence[Travelling], wish: Wish) -> Computed:
        """See `Place`."""
        return await self._turns.computed(inputs, wish)

    async def _call(self) -> Sequence[Waiting]:
        await self._pace.rest(self._never)
        step = self._host.num_learned
        found, _ = await unless_gone(lambda: self._host.on_thread(lambda: self._together.work(step)))
        return cast(Sequence[Waiting], found)
