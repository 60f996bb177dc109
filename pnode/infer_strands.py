"""Strands that others open for their Infer streams to this worker (`dcnr.question_strands`): parts that came over them are read where the stream names them.

A part waits in its connection until then: nothing is kept here, and what a strand may bring is bounded by gRPC's flow control.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import DecodeError

from dcnr import limits
from dcnr.errors import Corrupt, Refused, RemoteFault, Unavailable
from dcnr.ids import NodeId
from dcnr.question_outbox import SIGN_OF_LIFE
from dcnr.question_strands import MAX_NUMBER, MAX_STRANDS, NAME_BYTES, STRAND_METADATA, TAKES_PARTS
from dcnr.v1 import vnode_pb2
from pnode.exchange import Stream
from pnode.links import CallStream

MAX_STRANDS_IN: Final = 224
"""Of all streams to one worker; who finds no room has fewer."""
MAX_STRANDS_OF_ONE: Final = 2 * MAX_STRANDS
"""Of these, whoever it is: one stream is enough, until another one that broke is noticed."""
_PART: Final = bytes([vnode_pb2.InferMessage.PART_FIELD_NUMBER << 3 | 2])


@dataclass(slots=True)
class _Stream:
    """One stream, and its strands by number; ``joined``: the numbers of all that it ever had."""

    strands: dict[int, Stream] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class StrandDesk:
    """All streams to this worker that may have strands."""

    def __init__(self) -> None:
        self._streams: dict[tuple[NodeId, bytes], _Stream] = {}
        self._num_strands = 0

    @contextmanager
    def stream(self, context: Any, node_id: NodeId) -> Iterator[Stream]:
        """The call as a stream, which its strands may join until it ends. Raises Refused for a second one of that name."""
        name = _named(context)
        if not name:
            yield CallStream(context)
            return
        if (node_id, name) in self._streams:
            raise Refused("there is a stream of that name", code="bad_strand")
        one = self._streams[node_id, name] = _Stream()
        try:
            yield _InParts(CallStream(context), one)
        finally:
            del self._streams[node_id, name]
            one.over.set()

    async def strand(self, context: Any, node_id: NodeId) -> bool:
        """Whether the call is a strand; then until it or its stream ends. Raises Refused (``bad_strand``), Unavailable (``overloaded``)."""
        name = _named(context)
        if len(name) != NAME_BYTES + 1:
            return False
        one, number = self._streams.get((node_id, name[:NAME_BYTES])), name[NAME_BYTES]
        if one is None or not 1 <= number <= MAX_NUMBER or number in one.joined or len(one.strands) >= MAX_STRANDS:
            raise Refused("no such stream, or it has or had that strand, or enough", code="bad_strand")
        if self._num_strands >= MAX_STRANDS_IN or self._num_of(node_id) >= MAX_STRANDS_OF_ONE:
            raise Unavailable("too many strands", code="overloaded")
        self._num_strands += 1
        one.joined.add(number)
        call = one.strands[number] = CallStream(context)
        try:
            with contextlib.suppress(Unavailable):
                await call.write(TAKES_PARTS)
                await one.over.wait()
        finally:
            del one.strands[number]
            self._num_strands -= 1
        return True

    def _num_of(self, node_id: NodeId) -> int:
        return sum(len(one.strands) for (peer_id, _), one in self._streams.items() if peer_id == node_id)


class _InParts:
    """A stream whose messages may come in parts."""

    def __init__(self, call: Stream, one: _Stream) -> None:
        self._call, self._one = call, one

    async def read(self) -> bytes | None:
        """The next message, whole. Raises Unavailable, also where a strand ends with a part of it; Corrupt, RemoteFault for what is no such message."""
        data = await self._call.read()
        if data is None or data[:1] != _PART:
            return data
        part = _part(data)
        strands = [self._one.strands.get(number) for number in part.strands[: MAX_STRANDS + 1]]
        if not strands or len(strands) > MAX_STRANDS or len(set(part.strands)) != len(strands):
            raise RemoteFault(f"parts over 1 to {MAX_STRANDS} strands, each once", code="bad_message")
        further = await asyncio.gather(*(_data_of(strand) for strand in strands))
        if len(part.data) + sum(len(data) for data in further) > limits.MAX_MESSAGE_BYTES:
            raise RemoteFault("parts of too large a message", code="bad_message")
        return b"".join((part.data, *further))

    async def write(self, message: bytes) -> None:
        """What goes back is small, and goes whole."""
        await self._call.write(message)


async def _data_of(strand: Stream | None) -> bytes:
    data: bytes | None = SIGN_OF_LIFE
    while data == SIGN_OF_LIFE and strand is not None:
        data = await strand.read()
    if not data:
        raise Unavailable("a strand of the stream ended", code="link_broken")
    return _part(data).data


def _part(data: bytes) -> vnode_pb2.InferPart:
    try:
        message = vnode_pb2.InferMessage.FromString(data)
    except DecodeError as error:
        raise Corrupt("not a message of an Infer stream", code="malformed_message") from error
    if message.WhichOneof("kind") != "part":
        raise RemoteFault("a strand carries parts, and nothing else", code="bad_message")
    return message.part


def _named(context: Any) -> bytes:
    """What the call says of strands; empty: nothing."""
    found = next((value for key, value in context.invocation_metadata() if key == STRAND_METADATA), b"")
    return found if isinstance(found, bytes) and len(found) in (NAME_BYTES, NAME_BYTES + 1) else b""
