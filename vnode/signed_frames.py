"""What a sender's signature over a frame covers: who sends (replica and incarnation) to whom, which batch of which lane, and how the encoded bytes (by
their digest) are to be read. A relay can therefore neither alter a frame nor pass it off as another, and an auditor sees later who sent it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.ids import ReplicaId
from dcnr.tensor import TensorHeader
from vnode.vocabulary import Lane, Mode, Peer


@dataclass(frozen=True, slots=True)
class FrameNumber:
    """Which tensor: lane and batch, and what for."""

    lane: Lane
    batch: int
    mode: Mode


def statement(source: Peer, target: ReplicaId, number: FrameNumber, header: TensorHeader, step: int) -> bytes:
    """The bytes that a frame's signature covers. Fields have fixed alphabets without the separator, so no two frames share one statement."""
    fields = (
        "dcnr frame 2", source.replica, source.incarnation, target, number.lane.split, number.lane.round, number.batch, number.mode.name,
        header.dtype, "x".join(str(length) for length in header.shape), header.codec, header.encoded_bytes, header.digest, step,
    )  # fmt: skip
    return "\0".join(str(field) for field in fields).encode()
