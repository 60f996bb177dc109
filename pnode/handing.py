"""The last act of a replica: what others must have before it may go, so that nothing it did is done again. Waits for facts; the caller bounds the time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from dcnr.intervals import IntervalSet
from vnode.replica_view import ReplicaView
from vnode.vocabulary import Role

HAND_OVER_S: Final = 15.0
"""How long a release waits at most."""


class HandingOver:
    """One per replica. ``stored``: the lineage of the newest state on disk (`kept`). `moved` is called after every event of the replica, `end` at its end."""

    def __init__(self, stored: IntervalSet) -> None:
        self.stored, self._step = stored, -1
        self._ended = False
        self._moved = asyncio.Event()

    def kept(self, step: int, lineage: IntervalSet) -> None:
        """The state with which the commit of that number ended lies on the disk. A later one may lie there already: the disk takes several at once."""
        if step >= self._step:
            self._step, self.stored = step, lineage
        self.moved()

    def moved(self) -> None:
        """Something may have changed."""
        self._moved.set()

    def end(self) -> None:
        """The replica has ended, whatever is open."""
        self._ended = True
        self._moved.set()

    async def over(self, view: Callable[[], ReplicaView], *, until_taken: bool) -> bool:
        """Waits until everything learned is on disk (at a contributor: merged) and, with ``until_taken``, until it is durable and the successors have
        every frame made here. False if it took longer than `HAND_OVER_S`. The replica learns nothing meanwhile.
        """
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await self._until(lambda: self._is_given(view(), until_taken))
                await self._until(lambda: not until_taken or _is_durable(view()) or view().role is not Role.PRIMARY)
        except TimeoutError:
            return False
        return True

    async def given(self, view: Callable[[], ReplicaView], within_s: float) -> bool:
        """Waits until everything learned is durable; and, for `HAND_OVER_S` more at most, until the successors have every frame made here: what they lack
        then is computed again. False if the first took longer than ``within_s``. The replica learns nothing meanwhile.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._until(lambda: self._is_given(view(), until_taken=False) and _is_durable(view()))
        except TimeoutError:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                await self._until(lambda: not view().owed)
        return not self._ended

    async def caught_up(self, view: Callable[[], ReplicaView], before: Sequence[Callable[[], ReplicaView]]) -> None:
        """Waits until this replica has learned all that those before it have, which learn no more."""
        await self._until(lambda: all(_is_taken(look(), view()) for look in before))

    def _is_given(self, view: ReplicaView, until_taken: bool) -> bool:
        is_kept = view.lineage == self.stored if view.role is Role.PRIMARY else not view.unmerged
        return view.learns_no_more and is_kept and not (until_taken and view.owed)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not self._ended and not holds():
            self._moved.clear()
            await self._moved.wait()


def _is_taken(before: ReplicaView, view: ReplicaView) -> bool:
    return before.learns_no_more and not before.lineage - view.lineage


def _is_durable(view: ReplicaView) -> bool:
    return not view.lineage - view.durable
