"""LinkMessages as bytes, and back: a chunk is copied once into the bytes that are sent, and not at all out of those that came.

The bytes are protobuf's (`vnode.proto`); protobuf itself would copy a chunk two or three times at each end. Only the plain form of a message with
a chunk is read by hand: the edge, then one frame or chunk. Whatever else came is left to protobuf, which means the same by it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from dcnr.errors import Corrupt
from dcnr.v1 import vnode_pb2
from dcnr.varints import read_size, varint

_NUMBER: Final = 0
_BYTES: Final = 2
"""Wire types: of numbers, and of bytes, texts and messages."""
_MAX_TAG: Final = 0x80
"""From here on a tag takes two bytes."""
_MAX_NUMBER_BYTES: Final = 9
_EDGE: Final = bytes([vnode_pb2.LinkMessage.EDGE_FIELD_NUMBER << 3])
_FRAME: Final = bytes([vnode_pb2.LinkMessage.FRAME_FIELD_NUMBER << 3 | _BYTES])
_CHUNK: Final = bytes([vnode_pb2.LinkMessage.CHUNK_FIELD_NUMBER << 3 | _BYTES])
_CHUNK_OF_FRAME: Final = bytes([vnode_pb2.FrameHeader.CHUNK_FIELD_NUMBER << 3 | _BYTES])
_CHUNK_OF_CHUNK: Final = bytes([vnode_pb2.FrameChunk.CHUNK_FIELD_NUMBER << 3 | _BYTES])


class Heard(NamedTuple):
    """A message whose chunk, if it is a frame or a chunk, lies beside it: a view of the bytes that came."""

    message: vnode_pb2.LinkMessage
    chunk: memoryview


class _NotPlain(Exception):
    """Left to protobuf."""


def frame_bytes(edge: int, header: vnode_pb2.FrameHeader, chunk: memoryview) -> bytes:
    """The first message of a frame. ``header`` has no chunk."""
    return _with_chunk(edge, _FRAME, header.SerializeToString(), _CHUNK_OF_FRAME, chunk)


def chunk_bytes(edge: int, chunk: memoryview) -> bytes:
    """A further message of a frame."""
    return _with_chunk(edge, _CHUNK, b"", _CHUNK_OF_CHUNK, chunk)


def read_message(data: bytes) -> Heard:
    """The message in ``data``. Raises Corrupt for what is none."""
    try:
        try:
            return _plain(data)
        except (_NotPlain, IndexError, Corrupt):
            message = vnode_pb2.LinkMessage.FromString(data)
    except DecodeError as error:
        raise Corrupt("not a message of a Link", code="malformed_message") from error
    chunk = b""
    match message.WhichOneof("kind"):
        case "frame":
            chunk = message.frame.chunk
            message.frame.ClearField("chunk")
        case "chunk":
            chunk = message.chunk.chunk
            message.chunk.ClearField("chunk")
    return Heard(message, memoryview(chunk))


def _with_chunk(edge: int, kind: bytes, header: bytes, tag: bytes, chunk: memoryview) -> bytes:
    before = header + tag + varint(len(chunk))
    edge_part = _EDGE + varint(edge) if edge else b""
    return b"".join((edge_part, kind, varint(len(before) + len(chunk)), before, chunk))


def _plain(data: bytes) -> Heard:
    """Raises _NotPlain, Corrupt or IndexError for any other form, DecodeError for a header that is none."""
    at, edge = 0, 0
    if data[:1] == _EDGE:
        edge, at = read_size(data, 1)
    kind = data[at : at + 1]
    if kind not in (_FRAME, _CHUNK):
        raise _NotPlain
    size, at = read_size(data, at + 1)
    if at + size != len(data):
        raise _NotPlain
    message = vnode_pb2.LinkMessage(edge=edge)
    view = memoryview(data)
    if kind == _CHUNK:
        if data[at : at + 1] != _CHUNK_OF_CHUNK:
            raise _NotPlain
        size, at = read_size(data, at + 1)
        if at + size != len(data):
            raise _NotPlain
        message.chunk.SetInParent()
        return Heard(message, view[at:])
    field, begin, end = _chunk_of_frame(data, at)
    message.frame.SetInParent()
    message.frame.MergeFromString(data[at:field] + data[end:])
    return Heard(message, view[begin:end])


def _chunk_of_frame(data: bytes, at: int) -> tuple[int, int, int]:
    """Where the only chunk of a FrameHeader is that begins at ``at`` and fills the rest: its field, its first byte, its end."""
    found: tuple[int, int, int] | None = None
    while at < len(data):
        field, tag = at, data[at]
        if tag >= _MAX_TAG or tag & 7 not in (_NUMBER, _BYTES):
            raise _NotPlain
        if tag & 7 == _NUMBER:
            at = _behind_number(data, at + 1)
            continue
        size, begin = read_size(data, at + 1)
        at = begin + size
        if tag == _CHUNK_OF_FRAME[0]:
            if found is not None:
                raise _NotPlain
            found = (field, begin, at)
    if found is None or at > len(data):
        raise _NotPlain
    return found


def _behind_number(data: bytes, at: int) -> int:
    """Where the next byte is. Raises _NotPlain for a number of more than 63 bits, IndexError at the end."""
    for index in range(_MAX_NUMBER_BYTES):
        if data[at + index] < 0x80:
            return at + index + 1
    raise _NotPlain
