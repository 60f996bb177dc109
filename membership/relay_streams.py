"""One Relay stream, from either end, and the bytes between it and a socket of this machine. What the other side sends is bounded before it goes on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, Protocol

import grpc

from dcnr import limits
from dcnr.errors import RemoteFault, TimedOut, Unavailable
from dcnr.rpc.errors import error_from_rpc
from dcnr.v1 import membership_pb2

NUMBER_BYTES: Final = 16
MAX_DATA_BYTES: Final = 64 * limits.KIB
IDLE_S: Final = 60.0
"""A connection over which nothing goes for so long is ended; those of this network are never silent for more than a few seconds."""
LAST_BYTES_S: Final = 2.0
"""Once one side has said its last, what is still on its way has so long to arrive."""


class RelayStream(Protocol):
    """Either end of a Relay stream."""

    async def read(self) -> membership_pb2.RelayMessage | None:
        """The next message, None at the end. Raises the other side's typed error, or Unavailable."""
        ...

    async def write(self, message: membership_pb2.RelayMessage) -> None:
        """Waits while the other side takes nothing. Raises like `read`."""
        ...


class CallStream:
    """A Relay call, or its servicer's context, as a `RelayStream`."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> membership_pb2.RelayMessage | None:
        """See `RelayStream`."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise _broken() from error
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
            return None
        result: membership_pb2.RelayMessage = message
        return result

    async def write(self, message: membership_pb2.RelayMessage) -> None:
        """See `RelayStream`."""
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise _broken() from error

    async def done(self) -> None:
        """Of a call: says that nothing more comes from here."""
        with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            await self._call.done_writing()

    def cancel(self) -> None:
        """Of a call: ends it at once."""
        self._call.cancel()


async def first_of(stream: RelayStream, within_s: float) -> membership_pb2.RelayMessage:
    """The first message. Raises TimedOut, Unavailable, and what `RelayStream.read` raises."""
    try:
        async with asyncio.timeout(within_s):
            message = await stream.read()
    except TimeoutError:
        raise TimedOut(f"a Relay stream without a word for {within_s:g} s", code="silent") from None
    if message is None:
        raise _broken()
    return message


async def next_data(stream: RelayStream) -> bytes | None:
    """The next bytes, None at the end. Raises TimedOut (``silent``), RemoteFault (``bad_message``), and what `RelayStream.read` raises."""
    try:
        async with asyncio.timeout(IDLE_S):
            message = await stream.read()
    except TimeoutError:
        raise TimedOut(f"nothing came for {IDLE_S:g} s", code="silent") from None
    if message is None:
        return None
    if message.WhichOneof("kind") != "data" or not 0 < len(message.data) <= MAX_DATA_BYTES:
        raise RemoteFault("a connection carries bytes, in parts of bounded size", code="bad_message")
    return message.data


async def pump(call: CallStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carries bytes both ways until one side ends, and ends both. Raises what `next_data` raises."""
    up, down = (asyncio.ensure_future(work) for work in (_from_socket(call, reader), _to_socket(call, writer)))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if not down.done():
            await call.done()
            await asyncio.wait({down}, timeout=LAST_BYTES_S)
        if down.done():
            await _flushed(writer)
    finally:
        call.cancel()
        writer.transport.abort()
        await ended(up, down)
    for task in (up, down):
        if not task.cancelled():
            task.result()


async def ended(*tasks: asyncio.Future[None]) -> None:
    """Cancels those that still run, and waits for all."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _from_socket(call: CallStream, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):  # a reset is an end
        while data := await reader.read(MAX_DATA_BYTES):
            await call.write(membership_pb2.RelayMessage(data=data))


async def _to_socket(call: CallStream, writer: asyncio.StreamWriter) -> None:
    while (data := await next_data(call)) is not None:
        try:
            writer.write(data)
            await writer.drain()
        except OSError:
            return


async def _flushed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LAST_BYTES_S):
            await writer.wait_closed()


def _broken() -> Unavailable:
    return Unavailable("the relay ended the stream", code="relay_broken")
