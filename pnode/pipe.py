"""Whole messages between a daemon and its worker over an inherited socket: length first, bounded before they are parsed.

Each message is four bytes of length (big endian) and a serialised protobuf of at most ``limits.MAX_MESSAGE_BYTES``. The end of the stream is how a
worker learns that its daemon is gone, and the other way round.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from dcnr import limits
from dcnr.errors import Corrupt, InvariantBroken, TimedOut, Unavailable

Incoming = TypeVar("Incoming", bound=Message)
_LENGTH_BYTES = 4
CLOSE_S: Final = 0.5
"""What an end that closes gives the other one to take what was sent before."""


class LocalPipe(Generic[Incoming]):
    """One end. ``receive`` gives messages of one class; ``send`` takes any, in order, and waits while the other side is slow."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, incoming: type[Incoming]) -> None:
        self._reader, self._writer, self._incoming = reader, writer, incoming
        self._sending = asyncio.Lock()

    @classmethod
    async def over(cls, end: socket.socket, incoming: type[Incoming]) -> LocalPipe[Incoming]:
        """Takes over a connected stream socket (one end of ``socket.socketpair()``)."""
        end.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=end, limit=limits.MAX_MESSAGE_BYTES)
        return cls(reader, writer, incoming)

    async def send(self, message: Message, *, timeout_s: float = limits.CALL_TIMEOUT_S) -> None:
        """Raises Unavailable once the other end is gone, TimedOut if it does not read, InvariantBroken for a message over the bound."""
        data = message.SerializeToString()
        if len(data) > limits.MAX_MESSAGE_BYTES:
            raise InvariantBroken(f"a local message of {len(data)} bytes", code="message_too_large")
        try:
            async with asyncio.timeout(timeout_s), self._sending:
                self._writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
                await self._writer.drain()
        except TimeoutError as error:
            raise TimedOut("the other end of the local pipe does not read", code="pipe_stuck") from error
        except (OSError, RuntimeError) as error:
            raise Unavailable("the other end of the local pipe is gone", code="pipe_closed") from error

    async def receive(self) -> Incoming | None:
        """The next message, however long it takes; None once the other end is gone. Raises Corrupt for bytes that are no message."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            if length > limits.MAX_MESSAGE_BYTES:
                raise Corrupt(f"a local message of {length} bytes", code="message_too_large")
            data = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None
        message = self._incoming()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise Corrupt("bytes on the local pipe are no message", code="bad_message") from error
        return message

    async def close(self) -> None:
        """Ends this side within `CLOSE_S`, whatever the other one does; it reads what it can of what was sent before, then None."""
        self._writer.close()
        closed = asyncio.ensure_future(self._writer.wait_closed())
        try:
            await asyncio.wait({closed}, timeout=CLOSE_S)
        finally:
            if not closed.done():
                self._writer.transport.abort()
        await asyncio.wait({closed})
        closed.exception()  # the other end went first
