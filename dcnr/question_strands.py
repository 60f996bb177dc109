"""Strands of an Infer stream: further connections to the same worker, over which large messages go in parts (ADR 0078).

A lost packet makes the window of its connection smaller than an activation, for as long as some thirty of them take; each then needs a round trip more. Parts
over several connections are each smaller than what such a window still holds. To the stream they are nothing new: messages arrive whole and in order.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from dcnr import limits
from dcnr.errors import Unavailable
from dcnr.ports import Clock
from dcnr.question_outbox import SIGN_OF_LIFE
from dcnr.v1 import vnode_pb2

STRAND_METADATA: Final = "dcnr-strand-bin"
"""Of a stream: its name. Of a strand: the name of the stream, and one byte more, its number."""
NAME_BYTES: Final = 16
MAX_STRANDS: Final = 7
"""Of one stream at a time,"""
MAX_STRANDS_OUT: Final = 224
"""and of all streams that a process opens."""
MAX_NUMBER: Final = 255
"""No number is used twice: what is on its way over a strand that ended is not taken for what another one brings."""
PART_BYTES: Final = 6 * limits.KIB
"""A message is not cut into smaller parts than what a window still holds that began with ten packets and lost two of them one after the other."""
FAR_S: Final = 0.015
"""A round trip from which on strands are worth what they cost."""
AGAIN_S: Final = 15.0
"""Strands that are missing are opened so long after the last ones were at the earliest."""
TAKES_PARTS: Final = vnode_pb2.InferMessage(takes_parts=True).SerializeToString()

Write = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class Room:
    """For strands of all streams of a process."""

    free: int = MAX_STRANDS_OUT


class Strands:
    """Of one stream that is opened here. They are opened with the second large message, where the other side is far; what is missing later, with a later one.

    ``dial``: a further connection of its own to the same worker; ``infer``: the method.
    """

    def __init__(self, dial: Callable[[], Awaitable[Any]], infer: str, clock: Clock, room: Room) -> None:
        self._dial, self._infer, self._clock, self._room = dial, infer, clock, room
        self._name, self._began_s = secrets.token_bytes(NAME_BYTES), clock.monotonic()
        self._round_trip_s: float | None = None
        """The shortest that was seen: whoever is busy answers late, too."""
        self._open: dict[int, Any] = {}
        self._num_kept, self._last_number, self._num_large = 0, 0, 0
        self._tried_s: float | None = None
        self._are_good = True
        """False: the other side is an older node, or near after all."""
        self._wanted = asyncio.Event()

    def begins(self) -> tuple[tuple[str, bytes], ...]:
        """The call of the stream, now: what goes with it, beside the metadata of its session."""
        self._began_s = self._clock.monotonic()
        return ((STRAND_METADATA, self._name),)

    def heard(self) -> None:
        """The other side said something over the stream; it does at once when the stream begins."""
        if self._round_trip_s is None:
            self._round_trip_s = self._clock.monotonic() - self._began_s

    async def run(self) -> None:
        """Until cancelled. Never raises what the other side did."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                if not self._open:
                    await self._begun(group)  # alone: many at once would keep both sides busy, and look far where nobody is
                while self._open and self._num_kept < MAX_STRANDS and self._last_number < MAX_NUMBER:
                    self._begun(group)

    async def write(self, whole: Write, message: bytes) -> None:
        """The message, in parts if that is worth it; ``whole`` writes over the stream. Raises what that does, and Unavailable where a strand broke with a part:
        the message may not arrive then, nor anything after it.
        """
        self._want(message)
        count = min(1 + len(self._open), len(message) // PART_BYTES)
        if count < 2:
            await whole(message)
            return
        size = -(-len(message) // count)
        parts = [message[begin : begin + size] for begin in range(0, len(message), size)]
        numbers = sorted(self._open)[: len(parts) - 1]
        further = [self._over(self._open[number], data) for number, data in zip(numbers, parts[1:], strict=True)]
        await asyncio.gather(_said(whole, vnode_pb2.InferPart(strands=numbers, data=parts[0])), *further)

    def _want(self, message: bytes) -> None:
        self._num_large += len(message) > limits.WARM_BYTES
        missing = self._num_kept < MAX_STRANDS and self._last_number < MAX_NUMBER
        if self._num_large > 1 and missing and self._are_good and self._is_far:
            now_s = self._clock.monotonic()
            if self._tried_s is None or now_s - self._tried_s >= AGAIN_S:
                self._tried_s = now_s
                self._wanted.set()

    @property
    def _is_far(self) -> bool:
        return self._round_trip_s is not None and self._round_trip_s >= FAR_S

    async def _over(self, call: Any, data: bytes) -> None:
        try:
            await _said(call.write, vnode_pb2.InferPart(data=data))
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise Unavailable("a strand of the stream broke", code="link_broken") from error
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise Unavailable("a strand of the stream was closed", code="link_broken") from error  # gRPC says that so

    def _begun(self, group: asyncio.TaskGroup) -> asyncio.Future[None]:
        """One more; done when it is open, or cannot be had."""
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_number += 1
        self._num_kept += 1
        group.create_task(self._kept(self._last_number, tried)).add_done_callback(lambda _: self._ended(tried))
        return tried

    def _ended(self, tried: asyncio.Future[None]) -> None:
        self._num_kept -= 1
        if not tried.done():
            tried.set_result(None)

    async def _kept(self, number: int, tried: asyncio.Future[None]) -> None:
        """From the dial to its end."""
        if not self._room.free:
            return
        self._room.free -= 1
        try:
            connection = await self._dial()
            try:
                await self._used(number, connection, tried)
            finally:
                await connection.close()
        except Exception:  # noqa: BLE001  RPC boundary: whatever one worker does ends no more than a strand
            return
        finally:
            self._room.free += 1

    async def _used(self, number: int, connection: Any, tried: asyncio.Future[None]) -> None:
        name, began_s = (STRAND_METADATA, self._name + bytes([number])), self._clock.monotonic()
        call: Any = connection.channel.stream_stream(self._infer)(metadata=(*connection.metadata, name))
        try:
            async with asyncio.timeout(limits.CALL_TIMEOUT_S):  # a stopped worker takes connections, and says nothing
                said = await call.read()
            self._round_trip_s = min(self._clock.monotonic() - began_s, self._round_trip_s or FAR_S)
            if said != TAKES_PARTS or not (self._is_far or self._open):  # those that are used stay
                self._are_good = False
                return
            self._open[number] = call
            tried.set_result(None)
            while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
                pass  # nothing is said over it
        finally:
            self._open.pop(number, None)
            call.cancel()


async def _said(write: Write, part: vnode_pb2.InferPart) -> None:
    """Something empty follows, so that its last packet has one behind it: where that one arrives alone TCP knows after a round trip, else after a timeout."""
    await write(vnode_pb2.InferMessage(part=part).SerializeToString())
    await write(SIGN_OF_LIFE)
