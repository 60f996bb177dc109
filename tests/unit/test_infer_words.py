"""Goal: what comes over an Infer stream is refused with a typed error before memory is taken for it, and whole tensors arrive as they were sent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr import limits
from dcnr.errors import Corrupt, DcnrError, RemoteFault
from dcnr.question_tensors import tensor_message
from dcnr.question_wire import Chunk, read_messages
from dcnr.tensor import EncodedTensor, chunks, encode
from dcnr.v1 import vnode_pb2
from pnode.infer_reads import Asking, Reads
from pnode.infer_words import Arriving, Made, check_answer, check_request

NETWORK, CALLER = "5" * 40, "6" * 40
ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def request(*tensors: tuple[str, EncodedTensor], num_hops: int = 2) -> vnode_pb2.InferRequest:
    hops = [vnode_pb2.InferHop(vnode=f"s{number}", state_digest="d" * 64) for number in range(num_hops)]
    hops[-1].answers = True
    sent = tensors or (("s0", encode(ARRAY, "raw")),)
    return vnode_pb2.InferRequest(
        id=b"i" * 16, network_id=NETWORK, model="m", caller=CALLER, hops=hops, deadline_s=1.0,
        tensors=[tensor_message(name, tensor.header) for name, tensor in sent],
    )  # fmt: skip


def changed(change: Callable[[vnode_pb2.InferRequest], object]) -> vnode_pb2.InferRequest:
    made = request()
    change(made)
    return made


def huge(made: vnode_pb2.InferRequest) -> None:
    made.tensors[0].shape[:] = [1, limits.MAX_QUESTION_BYTES // 4 + 1]
    made.tensors[0].encoded_bytes = limits.MAX_QUESTION_BYTES + 4


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda made: made.ClearField("hops"), "bad_question"),
        (lambda made: made.hops.extend([made.hops[0]] * 300), "bad_question"),
        (lambda made: made.hops.append(made.hops[0]), "bad_question"),
        (lambda made: setattr(made.hops[-1], "answers", False), "bad_question"),
        (lambda made: setattr(made.hops[0], "replica", "s0.1"), "bad_question"),
        (lambda made: setattr(made.hops[0], "codec", "zip"), "bad_question"),
        (lambda made: setattr(made.hops[0].delegation, "payload", b"x" * 9000), "bad_question"),
        (lambda made: setattr(made, "network_id", "0" * 40), "bad_question"),
        (lambda made: setattr(made, "caller", "me"), "bad_question"),
        (lambda made: setattr(made, "model", "../m"), "bad_question"),
        (lambda made: setattr(made, "deadline_s", float("nan")), "bad_question"),
        (lambda made: setattr(made, "deadline_s", limits.MAX_QUESTION_S + 1), "bad_question"),
        (lambda made: made.ClearField("tensors"), "bad_question"),
        (lambda made: made.tensors.append(made.tensors[0]), "bad_question"),
        (lambda made: setattr(made.tensors[0], "digest", b"short"), "bad_shape"),
        (lambda made: setattr(made.tensors[0], "dtype", "object"), "bad_shape"),
        (lambda made: setattr(made.tensors[0], "encoded_bytes", 47), "bad_shape"),
        (lambda made: made.tensors[0].shape.extend([1] * 9), "bad_shape"),
        (lambda made: made.tensors[0].shape.__setitem__(0, 0), "bad_shape"),
        (huge, "bad_shape"),
    ],
)
def test_what_a_question_must_not_be(change: Callable[[vnode_pb2.InferRequest], object], code: str) -> None:
    with pytest.raises(RemoteFault) as refused:
        check_request(changed(change), NETWORK)
    assert refused.value.code == code


def test_tensors_together_stay_within_the_bound() -> None:
    half = encode(np.zeros((1, limits.MAX_QUESTION_BYTES // 8), np.float32), "raw")
    both = request(("a", half), ("b", half))
    assert set(check_request(both, NETWORK)) == {"a", "b"}
    small = encode(np.zeros((1, 1), np.float32), "raw")
    with pytest.raises(RemoteFault, match="tensor"):
        check_request(request(("a", half), ("b", half), ("c", small)), NETWORK)


@pytest.mark.parametrize("codec", ["raw", "bf16", "int8"])
def test_tensors_arrive_as_they_were_sent_and_go_on_in_the_same_bytes(codec: str) -> None:
    sent = {name: encode(ARRAY + number, codec) for number, name in enumerate(("s0", "other"))}
    made = request(*sent.items())
    arriving = Arriving(made, check_request(made, NETWORK))
    for tensor in sent.values():
        assert not arriving.is_whole
        for chunk in chunks(tensor, chunk_bytes=7):
            arriving.add(bytes(chunk))
    assert arriving.is_whole
    for name, arrived in arriving.tensors().items():
        assert bytes(arrived.encoded().payload) == bytes(sent[name].payload)
        assert arrived.encoded().header == sent[name].header
        assert arrived.values().shape == ARRAY.shape
    with pytest.raises(RemoteFault):
        arriving.add(b"more")


def test_other_bytes_than_announced_are_refused() -> None:
    made = request()
    arriving = Arriving(made, check_request(made, NETWORK))
    with pytest.raises(Corrupt):
        arriving.add(bytes(ARRAY.nbytes))


def test_an_output_that_its_codec_cannot_hold_goes_on_raw() -> None:
    assert Made("a", np.full((1, 2), 1e30, np.float32), "fp16").encoded().header.codec == "raw"
    assert Made("a", ARRAY, "fp16").encoded().header.codec == "fp16"


def test_a_hop_takes_what_its_vnode_reads_and_no_more_samples_than_a_batch() -> None:
    reads = Reads({"s0": ("s0",), "s1": ("s0",), "s2": ("s0", "s1")})
    headers = check_request(request(), NETWORK)
    Asking("s0", reads, 3).check(headers)
    with pytest.raises(RemoteFault, match="samples"):
        Asking("s0", reads, 2).check(headers)
    with pytest.raises(RemoteFault, match="did not come"):
        Asking("s2", reads, 3).check(headers)
    assert reads.needed(["s2"]) == {"s0", "s1"}
    with pytest.raises(RemoteFault):
        reads.needed(["s3"])


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    try:
        for message in read_messages(data):
            if isinstance(message, Chunk):
                continue
            if message.WhichOneof("kind") == "request":
                check_request(message.request, NETWORK)
            elif message.WhichOneof("kind") == "answer":
                check_answer(message.answer)
    except DcnrError:
        pass


@given(st.data())
def test_a_question_with_any_byte_changed_is_one_or_a_typed_error(data: st.DataObject) -> None:
    made = bytearray(vnode_pb2.InferMessage(request=request()).SerializeToString())
    made[data.draw(st.integers(0, len(made) - 1))] = data.draw(st.integers(0, 255))
    try:
        for message in read_messages(bytes(made)):
            if not isinstance(message, Chunk) and message.WhichOneof("kind") == "request":
                check_request(message.request, NETWORK)
    except DcnrError:
        pass
