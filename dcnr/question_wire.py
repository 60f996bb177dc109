"""Messages of Infer streams as bytes, and back: a chunk is copied once into the bytes that are sent, and not at all out of those that came.

The bytes are protobuf's (`vnode.proto`); protobuf itself would copy a chunk several times at each end. Only the plain form of a chunk is read by hand; whatever
else came is left to protobuf, which means the same by it. Several messages travel as one (`joined`), and are read as what they are (`read_messages`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from dcnr.errors import Corrupt, RemoteFault
from dcnr.tensor import EncodedTensor, Payload, chunks
from dcnr.v1 import vnode_pb2
from dcnr.varints import read_size, varint

ID_BYTES: Final = 16
MAX_SEVERAL: Final = 256
"""Messages that travel as one."""
_BYTES: Final = 2
"""Wire type of bytes, texts and messages."""
_CHUNK: Final = bytes([vnode_pb2.InferMessage.CHUNK_FIELD_NUMBER << 3 | _BYTES])
_SEVERAL: Final = bytes([vnode_pb2.InferMessage.SEVERAL_FIELD_NUMBER << 3 | _BYTES])
_ONE_OF_SEVERAL: Final = bytes([vnode_pb2.InferMessages.MESSAGES_FIELD_NUMBER << 3 | _BYTES])
_ID: Final = bytes([vnode_pb2.InferChunk.ID_FIELD_NUMBER << 3 | _BYTES, ID_BYTES])
_PAYLOAD: Final = bytes([vnode_pb2.InferChunk.CHUNK_FIELD_NUMBER << 3 | _BYTES])
_ID_END: Final = len(_ID) + ID_BYTES

Piece = Sequence[Payload]
"""One message, in parts that follow each other."""


class Chunk(NamedTuple):
    """A part of the tensors of a question or an answer; a view of the bytes that came."""

    id: bytes
    payload: memoryview


Heard = vnode_pb2.InferMessage | Chunk


@dataclass(frozen=True, slots=True)
class Words:
    """Something whole to be said: a message, and the tensors that it announces."""

    message: vnode_pb2.InferMessage
    tensors: Sequence[EncodedTensor] = ()

    @property
    def num_bytes(self) -> int:
        """Of the tensors."""
        return sum(len(tensor.payload) for tensor in self.tensors)

    @property
    def question(self) -> bytes:
        """Which it is about."""
        question: bytes = getattr(self.message, self.message.WhichOneof("kind") or "").id
        return question

    def pieces(self) -> Iterator[Piece]:
        """The message, then its chunks."""
        yield (self.message.SerializeToString(),)
        if self.tensors:
            question = self.question
            for tensor in self.tensors:
                for chunk in chunks(tensor):
                    yield _chunk_piece(question, chunk)


def size_of(piece: Piece) -> int:
    """Bytes of it."""
    return sum(len(part) for part in piece)


def joined(pieces: Sequence[Piece]) -> bytes:
    """These messages as one; a single one as it is."""
    if len(pieces) == 1:
        return b"".join(pieces[0])
    parts: list[Payload] = []
    for piece in pieces:
        parts += (_ONE_OF_SEVERAL, varint(size_of(piece)), *piece)
    return b"".join((_SEVERAL, varint(size_of(parts)), *parts))


def read_messages(data: bytes) -> list[Heard]:
    """The messages in ``data``, in order. Raises Corrupt for what is none, RemoteFault for too many, and for one about no question."""
    view = memoryview(data)
    if data[:1] != _SEVERAL:
        return [_read(view)]
    size, at = read_size(view, 1)
    if at + size != len(view):
        raise _malformed()
    found: list[Heard] = []
    while at < len(view):
        if view[at : at + 1] != _ONE_OF_SEVERAL:
            raise _malformed()
        size, at = read_size(view, at + 1)
        one = view[at : at + size]
        if len(one) != size:
            raise _malformed()
        found.append(_read(one))
        at += size
        if len(found) > MAX_SEVERAL:
            raise RemoteFault(f"more than {MAX_SEVERAL} messages in one", code="bad_message")
    return found


def _chunk_piece(question: bytes, chunk: memoryview) -> Piece:
    before = b"".join((_ID, question, _PAYLOAD, varint(len(chunk))))
    return (b"".join((_CHUNK, varint(len(before) + len(chunk)), before)), chunk)


def _read(view: memoryview) -> Heard:
    chunk = _plain_chunk(view) if view[:1] == _CHUNK else None
    if chunk is not None:
        return chunk
    try:
        message = vnode_pb2.InferMessage.FromString(bytes(view))
    except DecodeError as error:
        raise _malformed() from error
    kind = message.WhichOneof("kind")
    if kind == "several":
        raise RemoteFault("several messages within several, or in another form than theirs", code="bad_message")
    if kind == "part":
        raise RemoteFault("a part of a message where no strands were taken", code="bad_message")
    if kind is not None and len(getattr(message, kind).id) != ID_BYTES:
        raise RemoteFault(f"the id of a question has {ID_BYTES} bytes", code="bad_message")
    return Chunk(message.chunk.id, memoryview(message.chunk.chunk)) if kind == "chunk" else message


def _plain_chunk(view: memoryview) -> Chunk | None:
    """None for any other form than `_chunk_piece` makes."""
    try:
        size, at = read_size(view, 1)
        end = at + _ID_END
        if at + size != len(view) or view[at : at + len(_ID)] != _ID or view[end : end + 1] != _PAYLOAD:
            return None
        size, begin = read_size(view, end + 1)
    except Corrupt:
        return None
    return Chunk(bytes(view[at + len(_ID) : end]), view[begin:]) if begin + size == len(view) else None


def _malformed() -> Corrupt:
    return Corrupt("not a message of an Infer stream", code="malformed_message")
