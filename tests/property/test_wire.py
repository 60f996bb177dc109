"""Goal: the bytes of a Link made and read by hand are protobuf's: what one side writes the other reads, and no bytes mean two things."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr import limits
from dcnr.errors import Corrupt
from dcnr.v1 import vnode_pb2
from pnode.wire import Heard, chunk_bytes, frame_bytes, read_message

EDGES = st.sampled_from([0, 1, 127, 128, 1 << 14, (1 << 28) - 1, 1 << 28, (1 << 32) - 1])
NUMBERS = st.sampled_from([0, 1, 127, 300, 1 << 28, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
CHUNKS = st.binary(max_size=300) | st.sampled_from([bytes(1 << 14), bytes(limits.MAX_CHUNK_BYTES)])
HEADERS = st.builds(
    vnode_pb2.FrameHeader,
    lane=st.none() | st.builds(vnode_pb2.Lane, split=st.sampled_from(["train", "", "tést"]), round=st.integers(0, 300)),
    batch=NUMBERS,
    mode=st.integers(0, 5),
    dtype=st.sampled_from(["float32", ""]),
    shape=st.lists(NUMBERS, max_size=9),
    codec=st.sampled_from(["raw", ""]),
    encoded_bytes=NUMBERS,
    digest=st.binary(max_size=40),
    signature=st.binary(max_size=200),
    step=NUMBERS,
)
OTHERS = st.sampled_from(
    [
        vnode_pb2.LinkMessage(),
        vnode_pb2.LinkMessage(edge=3, open=vnode_pb2.OpenEdge(model="m")),
        vnode_pb2.LinkMessage(edge=4, need=vnode_pb2.Need(sequence=7)),
        vnode_pb2.LinkMessage(edge=5, closed=vnode_pb2.EdgeClosed(code="not_here")),
    ]
)


def whole(heard: Heard) -> vnode_pb2.LinkMessage:
    """The message with its chunk inside, as protobuf reads it."""
    message = vnode_pb2.LinkMessage()
    message.CopyFrom(heard.message)
    match message.WhichOneof("kind"):
        case "frame":
            message.frame.chunk = bytes(heard.chunk)
        case "chunk":
            message.chunk.chunk = bytes(heard.chunk)
        case _:
            assert len(heard.chunk) == 0
    return message


def same_as_protobuf(data: bytes) -> None:
    """Whatever the bytes are, both readers agree on them."""
    try:
        expected = vnode_pb2.LinkMessage.FromString(data)
    except DecodeError:
        with pytest.raises(Corrupt):
            read_message(data)
        return
    assert whole(read_message(data)) == expected


@given(EDGES, HEADERS, CHUNKS)
def test_a_frame_is_what_protobuf_makes_of_it(edge: int, header: vnode_pb2.FrameHeader, chunk: bytes) -> None:
    data = frame_bytes(edge, header, memoryview(chunk))
    expected = vnode_pb2.LinkMessage(edge=edge, frame=header)
    expected.frame.chunk = chunk
    assert vnode_pb2.LinkMessage.FromString(data) == expected
    for form in (data, expected.SerializeToString()):
        heard = read_message(form)
        assert (heard.message.edge, heard.message.frame, bytes(heard.chunk)) == (edge, header, chunk)


@given(EDGES, CHUNKS)
def test_a_chunk_is_what_protobuf_makes_of_it(edge: int, chunk: bytes) -> None:
    data = chunk_bytes(edge, memoryview(chunk))
    expected = vnode_pb2.LinkMessage(edge=edge)
    expected.chunk.chunk = chunk
    assert vnode_pb2.LinkMessage.FromString(data) == expected
    for form in (data, expected.SerializeToString()):
        heard = read_message(form)
        assert (heard.message.edge, heard.message.WhichOneof("kind"), bytes(heard.chunk)) == (edge, "chunk", chunk)


def test_a_chunk_is_not_copied_out_of_what_came() -> None:
    for data in (
        chunk_bytes(1, memoryview(b"abc")),
        frame_bytes(1, vnode_pb2.FrameHeader(batch=1 << 40, encoded_bytes=1 << 28), memoryview(b"abc")),
    ):
        assert read_message(data).chunk.obj is data


@settings(max_examples=400)
@given(st.data(), EDGES, HEADERS, st.binary(max_size=40), OTHERS)
def test_changed_bytes_mean_the_same_to_both_readers(
    draw: st.DataObject, edge: int, header: vnode_pb2.FrameHeader, chunk: bytes, other: vnode_pb2.LinkMessage
) -> None:
    pieces = [frame_bytes(edge, header, memoryview(chunk)), chunk_bytes(edge, memoryview(chunk)), other.SerializeToString()]
    data = bytearray(b"".join(draw.draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=2))))
    for _ in range(draw.draw(st.integers(0, 3))):
        if data:
            at = draw.draw(st.integers(0, min(len(data), 24) - 1))
            match draw.draw(st.sampled_from(["set", "cut", "put"])):
                case "set":
                    data[at] = draw.draw(st.integers(0, 255))
                case "cut":
                    del data[at]
                case _:
                    data.insert(at, draw.draw(st.integers(0, 255)))
    same_as_protobuf(bytes(data))


@settings(max_examples=200)
@given(EDGES, HEADERS, st.binary(max_size=20), st.binary(max_size=20))
def test_doubled_and_unknown_fields_mean_the_same_to_both_readers(
    edge: int, header: vnode_pb2.FrameHeader, first: bytes, second: bytes
) -> None:
    one, two = vnode_pb2.FrameHeader(chunk=first), vnode_pb2.FrameHeader(chunk=second)
    for parts in ((one, header, two), (two, header), (header, one)):
        body = b"".join(part.SerializeToString() for part in parts) + b"\x78\x05"  # field 15, a number
        message = vnode_pb2.LinkMessage(edge=edge).SerializeToString() + b"\x52" + _size(len(body)) + body
        same_as_protobuf(message)
        same_as_protobuf(message + b"\x08\x09")


def _size(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7])


@given(st.binary(max_size=60))
def test_any_bytes_mean_the_same_to_both_readers(data: bytes) -> None:
    same_as_protobuf(data)
