"""Drives one `HeadCore` with the real store: one request at a time, each bounded, every answer given back to the core as what it is.

A request that is given up on after its time may still reach the store; the core counts such an answer as unknown and reads the head back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, NotFound, Stale, TimedOut
from dcnr.ports import Clock, ObjectStore
from dcnr.v1 import model_pb2
from orchestrator.changes import Change
from orchestrator.head import HeadCore
from orchestrator.head_events import (
    Dropped,
    Get,
    GetAbsent,
    GetAnswered,
    GetFailed,
    HeadEvent,
    HeadInstruction,
    HeadShown,
    Landed,
    Put,
    PutAnswered,
    PutUnknown,
    Tick,
)

TICK_S: Final = 0.1
DECIDE_TIMEOUT_S: Final = 2 * limits.HEAD_TTL_S
"""A change that is in no known head after this long is given up on by who proposed it; the head tells what became of it."""


class HeadLoop:
    """``on_news`` receives every instruction that is not a request, in order."""

    def __init__(
        self,
        core: HeadCore,
        store: ObjectStore,
        key: str,
        clock: Clock,
        on_news: Callable[[HeadInstruction], None],
        *,
        request_timeout_s: float,
    ) -> None:
        self.core = core
        self._store, self._key, self._clock, self._on_news = store, key, clock, on_news
        self._request_timeout_s = request_timeout_s
        self._wake = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[model_pb2.Head]] = {}
        self._shown: model_pb2.Head | None = None
        self._noted: tuple[model_pb2.Head, ...] = ()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._wake.clear()
            heads = [(one, False) for one in self._noted] + ([(self._shown, True)] if self._shown is not None else [])
            if self.core.known is not None:  # else they wait for what they are held against
                self._noted, self._shown = (), None
                for head, has_stayed in heads:
                    now = self._clock.monotonic()
                    await self._step(HeadShown(now, int(head.epoch), int(head.sequence), head.holder, has_stayed))
            await self._step(Tick(self._clock.monotonic(), int(self._clock.wall() * 1000)))
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def is_holder(self) -> bool:
        """Whether this process may decide right now."""
        return self.core.is_holder(self._clock.monotonic())

    def shown(self, head: model_pb2.Head) -> None:
        """A PNode has this verified head, which the store's does not follow: the next term is above it."""
        self._shown = head
        self._wake.set()

    def noted(self, heads: Iterable[model_pb2.Head]) -> None:
        """PNodes have these, which the store may show in a moment: whoever takes over before goes by their numbers already."""
        self._noted = tuple(heads)

    async def decide(self, change: Change) -> model_pb2.Head:
        """The acknowledged or read-back head that contains the change.

        Raises Stale (not the holder, or the change no longer fits), Unavailable (queue full), TimedOut (what became of it, the head tells).
        """
        ticket = self.core.propose(change, self._clock.monotonic())
        future: asyncio.Future[model_pb2.Head] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._wake.set()
        try:
            async with asyncio.timeout(DECIDE_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise TimedOut("the head was not written in time", code="head_timeout") from None
        finally:
            self._waiting.pop(ticket, None)

    async def _step(self, event: HeadEvent) -> None:
        """Feeds one event, and then the answers to whatever it asks for."""
        pending: HeadEvent | None = event
        while pending is not None:
            request: Get | Put | None = None
            for item in self.core.step(pending):
                if isinstance(item, Get | Put):
                    request = item
                else:
                    self._news(item)
            pending = await self._ask(request) if request is not None else None

    def _news(self, item: HeadInstruction) -> None:
        if isinstance(item, Landed):
            for ticket in item.tickets:
                future = self._waiting.get(ticket)
                if future is not None and not future.done():
                    future.set_result(item.head)
        elif isinstance(item, Dropped):
            future = self._waiting.get(item.ticket)
            if future is not None and not future.done():
                future.set_exception(Stale(item.reason, code="head_moved"))
        self._on_news(item)

    async def _ask(self, request: Get | Put) -> HeadEvent:
        try:
            async with asyncio.timeout(self._request_timeout_s):
                if isinstance(request, Get):
                    found = await self._store.get(self._key, max_bytes=limits.MAX_HEAD_BYTES)
                    return GetAnswered(self._clock.monotonic(), found.data, found.etag)
                reached("head.composed")
                etag = await self._store.put(
                    self._key, request.data, if_match=request.if_match, if_none_match=request.if_match is None
                )
                reached("head.written")
                return PutAnswered(self._clock.monotonic(), etag)
        except NotFound:
            if isinstance(request, Get):
                return GetAbsent(self._clock.monotonic())
            return PutUnknown(self._clock.monotonic(), "404")
        except (DcnrError, TimeoutError) as error:
            reason = str(error) or "timeout"
            if isinstance(request, Get):
                if isinstance(error, Corrupt):
                    reason = f"the head is too large or damaged: {reason}"
                return GetFailed(self._clock.monotonic(), reason)
            return PutUnknown(self._clock.monotonic(), reason)
