"""Goal: messages of Infer streams written by hand are protobuf's, several in one are read as what they are, and any other bytes are a typed error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import DcnrError, RemoteFault
from dcnr.question_wire import MAX_SEVERAL, Chunk, Heard, Words, joined, read_messages
from dcnr.tensor import encode
from dcnr.v1 import vnode_pb2

IDS = st.binary(min_size=16, max_size=16)
SAID = st.builds(
    lambda question, num_values: Words(
        vnode_pb2.InferMessage(answer=vnode_pb2.InferAnswer(id=question)),
        [encode(np.arange(num_values, dtype=np.float32), "raw")] if num_values else [],
    ),
    IDS,
    st.sampled_from([0, 1, 31, 32, 33, 5000, 300_000]),
)


def as_protobuf(one: Heard) -> bytes:
    if isinstance(one, Chunk):
        one = vnode_pb2.InferMessage(chunk=vnode_pb2.InferChunk(id=one.id, chunk=bytes(one.payload)))
    return one.SerializeToString()


@given(st.lists(SAID, min_size=1, max_size=5))
def test_several_messages_are_what_protobuf_reads_and_what_was_said(said: list[Words]) -> None:
    pieces = [piece for words in said for piece in words.pieces()]
    data = joined(pieces)
    heard = [as_protobuf(one) for one in read_messages(data)]
    assert heard == [b"".join(piece) for piece in pieces]
    whole = vnode_pb2.InferMessage.FromString(data)
    by_protobuf = whole.several.messages if len(pieces) > 1 else [whole]
    assert heard == [one.SerializeToString() for one in by_protobuf]


@given(st.lists(SAID, min_size=1, max_size=3), st.data())
def test_any_bytes_are_messages_or_a_typed_error(said: list[Words], data: st.DataObject) -> None:
    made = bytearray(joined([piece for words in said for piece in words.pieces()]))
    for _ in range(data.draw(st.integers(1, 3))):
        made[data.draw(st.integers(0, min(len(made) - 1, 80)))] = data.draw(st.integers(0, 255))
    try:
        heard = read_messages(bytes(made[: data.draw(st.integers(0, len(made)))]))
    except DcnrError:
        return
    assert all(isinstance(one, Chunk) or one.WhichOneof("kind") != "several" for one in heard)


@given(IDS, st.binary(max_size=40))
def test_a_chunk_in_another_form_is_left_to_protobuf(question: bytes, payload: bytes) -> None:
    turned = vnode_pb2.InferChunk(chunk=payload).SerializeToString() + vnode_pb2.InferChunk(id=question).SerializeToString()
    data = bytes([vnode_pb2.InferMessage.CHUNK_FIELD_NUMBER << 3 | 2, len(turned)]) + turned
    (heard,) = read_messages(data)
    assert isinstance(heard, Chunk)
    assert (heard.id, bytes(heard.payload)) == (question, payload)


@pytest.mark.parametrize(
    "message",
    [
        vnode_pb2.InferMessage(several=vnode_pb2.InferMessages(messages=[vnode_pb2.InferMessage()] * (MAX_SEVERAL + 1))),
        vnode_pb2.InferMessage(
            several=vnode_pb2.InferMessages(
                messages=[vnode_pb2.InferMessage(several=vnode_pb2.InferMessages(messages=[vnode_pb2.InferMessage()]))]
            )
        ),
        vnode_pb2.InferMessage(cancel=vnode_pb2.InferCancel(id=b"short")),
        vnode_pb2.InferMessage(chunk=vnode_pb2.InferChunk(id=b"short", chunk=b"bytes")),
        vnode_pb2.InferMessage(part=vnode_pb2.InferPart(data=b"of a message")),
        vnode_pb2.InferMessage(
            several=vnode_pb2.InferMessages(messages=[vnode_pb2.InferMessage(part=vnode_pb2.InferPart(strands=[1]))])
        ),
    ],
)
def test_what_nobody_may_say_is_a_fault(message: vnode_pb2.InferMessage) -> None:
    with pytest.raises(RemoteFault):
        read_messages(message.SerializeToString())


def test_nothing_at_all_is_a_sign_of_life() -> None:
    (heard,) = read_messages(b"")
    assert isinstance(heard, vnode_pb2.InferMessage)
    assert heard.WhichOneof("kind") is None
