"""What crosses a Link, as values of our own: every number, name and set from the wire is checked here before anything acts on it. Pure, without gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dcnr import limits
from dcnr.codecs import CODECS
from dcnr.errors import Corrupt, InvalidInput, RemoteFault
from dcnr.ids import VNodeId, check_name
from dcnr.intervals import END, IntervalSet
from dcnr.specs import TensorSpec
from dcnr.tensor import TensorHeader, check_header
from dcnr.v1 import common_pb2, vnode_pb2
from pnode.spool import Frame
from vnode.events import SendAck, SendDurable, SendNeed, SendWindow
from vnode.signed_frames import FrameNumber
from vnode.vocabulary import Lane, Mode

SPLITS: Final = ("train", "validation", "test")
MAX_ROUND: Final = 2**31
MAX_SIGNATURE_BYTES: Final = 80
_MODES: Final[Mapping[Mode, vnode_pb2.Mode.ValueType]] = {
    Mode.TRAIN: vnode_pb2.MODE_TRAIN, Mode.FORWARD_ONLY: vnode_pb2.MODE_FORWARD_ONLY, Mode.EVAL: vnode_pb2.MODE_EVAL,
}  # fmt: skip
_MODE_OF: Final = {number: mode for mode, number in _MODES.items()}


@dataclass(frozen=True, slots=True)
class Expected:
    """What an edge may carry: ``batch_size`` samples of ``spec``; of an evaluation, whose last batch may be smaller, at most so many."""

    spec: TensorSpec
    batch_size: int
    codecs: tuple[str, ...]
    """In which frames of training come."""
    proven: bool = False
    """Whether what arrives is to be kept with its sender's signature (`pnode.arrivals.Arrival`)."""

    def check(self, header: TensorHeader, lane: Lane) -> None:
        """Raises RemoteFault for a tensor that this input does not take, before memory is allocated for it."""
        check_header(header, allowed_codecs=self.codecs if lane.is_train else CODECS)
        shape = header.shape
        fewest = self.batch_size if lane.is_train else 1  # no evidence could be made of less than a whole batch of training
        fits = len(shape) > 0 and fewest <= shape[0] <= self.batch_size and shape[1:] == tuple(self.spec.shape)
        if header.dtype != self.spec.dtype or not fits:
            wanted = f"{'' if lane.is_train else 'at most '}{self.batch_size} of {self.spec.dtype} {list(self.spec.shape)}"
            raise RemoteFault(f"a frame of {header.dtype} {list(shape)}, not {wanted}", code="bad_frame")


def intervals_message(numbers: IntervalSet) -> common_pb2.IntervalSet:
    """The wire form; beyond ``limits.MAX_INTERVALS`` only the lowest intervals travel (each statement is repeated)."""
    pairs = numbers.pairs()[: limits.MAX_INTERVALS]
    return common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=low, end=high) for low, high in pairs])


def intervals_of(message: common_pb2.IntervalSet) -> IntervalSet:
    """The checked set. Raises Corrupt."""
    return IntervalSet.from_pairs((interval.first, interval.end) for interval in message.intervals)


def lane_message(lane: Lane) -> vnode_pb2.Lane:
    """The wire form."""
    return vnode_pb2.Lane(split=lane.split, round=lane.round)


def lane_of(message: vnode_pb2.Lane) -> Lane:
    """The checked lane. Raises RemoteFault."""
    if message.split not in SPLITS or message.round >= MAX_ROUND or (message.split == "train" and message.round):
        raise RemoteFault(f"no such lane: {message.split!r:.20} {message.round}", code="bad_lane")
    return Lane(message.split, message.round)


def number_of(message: int, what: str) -> int:
    """A checked batch number or count. Raises RemoteFault."""
    if message > END:
        raise RemoteFault(f"{what} {message} is out of range", code="bad_number")
    return message


def vnode_name(text: str) -> VNodeId:
    """A checked VNode name, or none. Raises RemoteFault."""
    try:
        return VNodeId(check_name(text) if text else "")
    except InvalidInput as error:
        raise RemoteFault(error.message, code="bad_name") from error


def header_message(number: FrameNumber, frame: Frame, signature: bytes) -> vnode_pb2.FrameHeader:
    """The beginning of a frame, without its first chunk."""
    header = frame.encoded.header
    return vnode_pb2.FrameHeader(
        lane=lane_message(number.lane),
        batch=number.batch,
        mode=_MODES[number.mode],
        dtype=header.dtype,
        shape=header.shape,
        codec=header.codec,
        encoded_bytes=header.encoded_bytes,
        digest=bytes.fromhex(header.digest),
        signature=signature,
        step=frame.step,
    )


def header_of(message: vnode_pb2.FrameHeader, expected: Expected) -> tuple[FrameNumber, TensorHeader]:
    """The checked beginning of a frame. Raises RemoteFault for a mode, number, size or type that this edge does not take."""
    mode = _MODE_OF.get(message.mode)
    lane = lane_of(message.lane)
    if mode is None or (mode is Mode.EVAL) is lane.is_train:
        raise RemoteFault(f"a frame of mode {message.mode} in lane {lane.split}", code="bad_mode")
    if len(message.digest) != 32 or not 0 < len(message.signature) <= MAX_SIGNATURE_BYTES:
        raise RemoteFault("digest or signature of a wrong size", code="bad_frame")
    if len(message.shape) > limits.MAX_TENSOR_RANK:
        raise RemoteFault(f"a tensor of rank {len(message.shape)}", code="bad_frame")
    header = TensorHeader(message.dtype, tuple(message.shape), message.codec, message.encoded_bytes, message.digest.hex())
    expected.check(header, lane)
    number_of(message.step, "step")
    return FrameNumber(lane, number_of(message.batch, "batch"), mode), header


def statement_message(edge: int, said: SendNeed | SendWindow | SendAck | SendDurable) -> vnode_pb2.LinkMessage:
    """What a receiver states over an edge."""
    match said:
        case SendNeed():
            need = vnode_pb2.Need(
                sequence=said.sequence,
                lane=lane_message(said.lane),
                wanted=intervals_message(said.wanted),
                forward_only=intervals_message(said.forward_only),
                evicted=intervals_message(said.evicted),
            )
            return vnode_pb2.LinkMessage(edge=edge, need=need)
        case SendWindow():
            window = vnode_pb2.Window(sequence=said.sequence, lane=lane_message(said.lane), end=min(said.end, END))
            return vnode_pb2.LinkMessage(edge=edge, window=window)
        case SendAck():
            ack = vnode_pb2.Ack(
                sequence=said.sequence, num_learned=said.num_learned, floor=min(said.floor, END), floor_vnode=said.floor_vnode
            )
            return vnode_pb2.LinkMessage(edge=edge, ack=ack)
        case SendDurable():
            return vnode_pb2.LinkMessage(edge=edge, durable=vnode_pb2.Durable(batches=intervals_message(said.batches)))


def merged_need(older: vnode_pb2.Need, newer: vnode_pb2.Need) -> vnode_pb2.Need:
    """``newer``, which replaces an unsent ``older``, without losing what that said about evicted batches."""
    evicted = (intervals_of(older.evicted) | intervals_of(newer.evicted)) & (
        intervals_of(newer.wanted) | intervals_of(newer.forward_only)
    )
    result = vnode_pb2.Need()
    result.CopyFrom(newer)
    result.evicted.CopyFrom(intervals_message(evicted))
    return result


def check_reason(closed: vnode_pb2.EdgeClosed) -> str:
    """A code from the wire that may be logged. Raises Corrupt for one that is no code."""
    code = closed.code
    if not 0 < len(code) <= 40 or not code.replace("_", "a").isalnum() or not code.isascii():
        raise Corrupt("an edge closed without a readable reason", code="bad_close")
    return code
