"""What crosses an Infer stream, checked before anything acts on it: questions, answers, and their tensors as they arrive. Pure, without gRPC."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from dcnr import codecs, limits
from dcnr.errors import DcnrError, InvalidInput, RemoteFault
from dcnr.ids import check_name, check_node_id
from dcnr.question_tensors import header_of
from dcnr.question_wire import ID_BYTES
from dcnr.tensor import EncodedTensor, Payload, TensorAssembler, TensorHeader, check_header, encode_final
from dcnr.tokens import drawing_of
from dcnr.v1 import common_pb2, vnode_pb2
from pnode.outbox import QUICK_BYTES, as_array, is_at_hand
from trust.delegation import MAX_DELEGATION_BYTES

_HOP_CODECS: Final = frozenset(("", *codecs.CODECS))
MAX_TEXT: Final = 200
"""Characters of a failure's message."""


class Travelling(Protocol):
    """A tensor of a question: as it came, or as it was computed here. Both methods may take a while: not for the event loop."""

    @property
    def name(self) -> str:
        """Whose output it is."""
        ...

    @property
    def layout(self) -> tuple[str, tuple[int, ...]]:
        """Its dtype and shape, as they are before encoding."""
        ...

    def values(self) -> Any:
        """For the compute port. Raises RemoteFault (``not_finite``, ``norm_bound``), Corrupt."""
        ...

    def encoded(self) -> EncodedTensor:
        """As it goes on."""
        ...

    @property
    def is_quick(self) -> bool:
        """Whether `encoded` takes less than the way to another thread."""
        ...


@dataclass(frozen=True, slots=True)
class Arrived:
    """A whole tensor out of a stream: it goes on in the very bytes in which it came."""

    name: str
    assembler: TensorAssembler

    @property
    def layout(self) -> tuple[str, tuple[int, ...]]:
        """As announced."""
        return self.assembler.header.dtype, self.assembler.header.shape

    def values(self) -> Any:
        """The decoded array, every value finite, its norm bounded."""
        return self.assembler.finite_array()

    def encoded(self) -> EncodedTensor:
        """As it came."""
        return self.assembler.finish()

    @property
    def is_quick(self) -> bool:
        """It is there."""
        return True


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that was computed here, which nobody will write to any more."""

    name: str
    tensor: Any
    codec: str = "raw"

    @property
    def layout(self) -> tuple[str, tuple[int, ...]]:
        """As computed."""
        return str(self.tensor.dtype).removeprefix("torch."), tuple(self.tensor.shape)

    def values(self) -> Any:
        """As it is."""
        return self.tensor

    def encoded(self) -> EncodedTensor:
        """In its codec, or raw where that cannot hold it. Raises InvalidInput for what may not travel at all."""
        array = as_array(self.tensor)
        try:
            return encode_final(array, self.codec if array.dtype.name == "float32" else "raw")
        except InvalidInput:
            return encode_final(array, "raw")

    @property
    def is_quick(self) -> bool:
        """Raw, small and in main memory."""
        return self.codec == "raw" and self.tensor.nbytes <= QUICK_BYTES and is_at_hand(self.tensor)


@dataclass(slots=True)
class Arriving:
    """A request or an answer with its tensors while their chunks come: memory is taken once, for headers that were checked."""

    message: vnode_pb2.InferRequest | vnode_pb2.InferAnswer
    headers: dict[str, TensorHeader]
    _assemblers: dict[str, TensorAssembler] = field(init=False)

    def __post_init__(self) -> None:
        self._assemblers = {name: TensorAssembler(header) for name, header in self.headers.items()}

    @property
    def id(self) -> bytes:
        """Of the question."""
        return self.message.id

    @property
    def num_bytes(self) -> int:
        """Memory of the tensors, as they came."""
        return sum(header.encoded_bytes for header in self.headers.values())

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing any more."""
        return all(assembler.missing_bytes == 0 for assembler in self._assemblers.values())

    def add(self, chunk: Payload) -> None:
        """Takes the next chunk: of the first tensor that is not whole. Raises RemoteFault for a wrong size, Corrupt for a wrong digest."""
        for assembler in self._assemblers.values():
            if assembler.missing_bytes:
                assembler.add(chunk)
                if not assembler.missing_bytes:
                    assembler.finish()
                return
        raise RemoteFault("a chunk after the last tensor", code="bad_chunk_size")

    def tensors(self) -> dict[str, Travelling]:
        """All of them, once they are whole."""
        return {name: Arrived(name, assembler) for name, assembler in self._assemblers.items()}


def check_request(request: vnode_pb2.InferRequest, network_id: str) -> dict[str, TensorHeader]:
    """The headers of a question's tensors, by name. Raises RemoteFault (``bad_question``, ``bad_shape``)."""
    if request.network_id != network_id:
        raise _bad("a question of another network")
    hops = request.hops[: limits.MAX_QUESTION_HOPS + 1]
    try:
        check_name(request.model)
        check_node_id(request.caller)
        names = {check_name(hop.vnode) for hop in hops}
        drawing_of(hops[0].drawing if hops else common_pb2.Drawing())
    except DcnrError as error:
        raise _bad(error.message) from error
    if not 0 < len(hops) <= limits.MAX_QUESTION_HOPS or len(names) != len(hops) or not hops[-1].answers:
        raise _bad(f"a way has 1 to {limits.MAX_QUESTION_HOPS} hops, each once, and the last one answers")
    for number, hop in enumerate(hops):
        _check_hop(hop, 0 if number else limits.MAX_DRAFT)
    _check_session(request)
    if not (math.isfinite(request.deadline_s) and 0 < request.deadline_s <= limits.MAX_QUESTION_S):
        raise _bad(f"a deadline of {request.deadline_s} s; at most {limits.MAX_QUESTION_S:g}")
    _check_timings(request.timings)
    return _headers(request.tensors)


def _check_hop(hop: vnode_pb2.InferHop, most_drafts: int) -> None:
    if bool(hop.replica) is bool(hop.state_digest):
        raise _bad("a hop names either a replica or a state")
    if hop.draft > most_drafts:
        raise _bad(f"only the first hop drafts, at most {limits.MAX_DRAFT} tokens")
    if hop.codec not in _HOP_CODECS or hop.delegation.ByteSize() > MAX_DELEGATION_BYTES:
        raise _bad("a hop without a known codec, or with too large a delegation")


def check_answer(answer: vnode_pb2.InferAnswer) -> dict[str, TensorHeader]:
    """The headers of an answer's tensors, by name. Raises RemoteFault."""
    _check_timings(answer.timings)
    return _headers(answer.tensors)


def failure_message(question: bytes, vnode: str, pnode_id: str, error: DcnrError) -> vnode_pb2.InferFailure:
    """How a hop says that it could not."""
    code = {"bad_frame": "bad_shape", "bad_tensor_header": "bad_shape"}.get(error.code, error.code)
    return vnode_pb2.InferFailure(id=question, vnode=vnode, pnode_id=pnode_id, code=code, message=error.message[:MAX_TEXT])


def _check_session(request: vnode_pb2.InferRequest) -> None:
    """Only named states keep anything: live weights change between two passes."""
    if request.session and (len(request.session) != ID_BYTES or any(hop.replica for hop in request.hops)):
        raise _bad(f"a session has an id of {ID_BYTES} bytes, and is one of named states")
    if request.offset and not request.session:
        raise _bad("an offset without a session")


def _check_timings(timings: Sequence[vnode_pb2.InferTiming]) -> None:
    if len(timings) > limits.MAX_QUESTION_HOPS or any(len(timing.drafted) > limits.MAX_DRAFT for timing in timings):
        raise _bad("too many timings, or too many drafts in one")


def _headers(tensors: Sequence[vnode_pb2.InferTensor] | Iterable[vnode_pb2.InferTensor]) -> dict[str, TensorHeader]:
    headers: dict[str, TensorHeader] = {}
    room = limits.MAX_QUESTION_BYTES
    for number, tensor in enumerate(tensors):
        if number >= limits.MAX_QUESTION_TENSORS or tensor.vnode in headers:
            raise _bad(f"more than {limits.MAX_QUESTION_TENSORS} tensors, or one of them twice")
        if len(tensor.shape) > limits.MAX_TENSOR_RANK or not tensor.vnode:
            raise RemoteFault(f"a tensor of rank {len(tensor.shape)}", code="bad_shape")
        header = header_of(tensor)
        try:
            check_header(header, max_bytes=max(1, room))
        except RemoteFault as fault:
            raise RemoteFault(fault.message, code="bad_shape") from fault
        room -= max(header.decoded_bytes, header.encoded_bytes)
        if not header.num_values or room < 0:
            raise RemoteFault(
                f"a tensor without values, or more than {limits.MAX_QUESTION_BYTES} bytes of tensors", code="bad_shape"
            )
        headers[tensor.vnode] = header
    if not headers:
        raise _bad("a question or an answer without a tensor")
    return headers


def _bad(message: str) -> RemoteFault:
    return RemoteFault(message, code="bad_question")
