"""Finds the network of a home that knows none: asks the bootstrap nodes until one answers, and tells the owner at any moment why none does. In the same way
a machine is waited for that has no address yet.

Silence is waited out with growing pauses; an answer that is wrong (another network, another node than named) is an error at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog

from dcnr import limits
from dcnr.errors import Unavailable
from dcnr.ids import NodeId
from dcnr.ports import Clock
from dcnr.v1 import local_pb2
from pnode.local import LocalDoor
from pnode.reasons import SOFTWARE

RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 30.0
T = TypeVar("T")
_NEXT: Final = "check --bootstrap and this machine's network, and that a node runs there; it is tried again by itself"
_log = structlog.get_logger("pnode")


class Joining:
    """One search. ``stop`` ends it."""

    def __init__(self, node_id: NodeId, clock: Clock, stop: asyncio.Event) -> None:
        self._node_id, self._clock, self._stop = node_id, clock, stop
        self._started = clock.monotonic()
        self._trouble = "no bootstrap node has answered yet"

    async def find(self, ask: Callable[[], Awaitable[T]], socket: Path) -> T | None:
        """What was asked for, or None if it was stopped first. Raises what is wrong with an answer."""
        door = LocalDoor(status=self._status, why=self._why, stop=self._end)
        await door.open(socket)
        pause_s = RETRY_FIRST_S
        try:
            while not self._stop.is_set():
                try:
                    return await self._unless_stopped(ask)
                except Unavailable as error:
                    self._not_found(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._stop.wait()
                pause_s = min(RETRY_LONGEST_S, 2 * pause_s)
            return None
        finally:
            await door.close()
            socket.unlink(missing_ok=True)

    async def _unless_stopped(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        asking, stopped = asyncio.ensure_future(ask()), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((asking, stopped), return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()
            stopped.cancel()
            await asyncio.wait((asking, stopped))

    def _not_found(self, error: Unavailable) -> None:
        if error.message != self._trouble:
            _log.warning("nobody_found", reason=error.message, next=_NEXT)
        self._trouble = error.message

    def _end(self, hand_over: bool) -> float:
        self._stop.set()
        return limits.CALL_TIMEOUT_S

    def _why(self) -> list[local_pb2.WhyLine]:
        return [local_pb2.WhyLine(code="nobody_found", reason=self._trouble, change=_NEXT)]

    def _status(self) -> local_pb2.StatusResponse:
        return local_pb2.StatusResponse(
            node_id=self._node_id, software=SOFTWARE, uptime_s=self._clock.monotonic() - self._started, state="joining", reason=self._trouble,
            next_action=_NEXT, reachable="unknown", pid=os.getpid(),
        )  # fmt: skip
