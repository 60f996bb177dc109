"""An input together with what its sender signed about it: what proves later, to others, that this is what came. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcnr.tensor import Array, EncodedTensor
from dcnr.v1 import identity_pb2, model_pb2
from vnode.signed_frames import FrameNumber
from vnode.vocabulary import Mode, Peer, TensorHandle


@dataclass(frozen=True, slots=True)
class Arrival:
    """A frame whose digest and signature were found right: its values, and its bytes as they came."""

    tensor: Array
    encoded: EncodedTensor
    number: FrameNumber
    source: Peer
    target: Peer
    step: int
    signature: bytes
    delegation: identity_pb2.Envelope
    """Binds the key that signed it."""

    def proof(self, *, with_delegation: bool) -> model_pb2.FrameProof:
        """What the signature covers, besides the batch, the size and the digest of the bytes (`vnode.signed_frames.statement`)."""
        header = self.encoded.header
        return model_pb2.FrameProof(
            source_replica=self.source.replica, source_incarnation=self.source.incarnation, target_replica=self.target.replica,
            target_incarnation=self.target.incarnation, step=self.step, dtype=header.dtype, shape=header.shape, codec=header.codec,
            signature=self.signature, delegation=self.delegation if with_delegation else None,
            forward_only=self.number.mode is Mode.FORWARD_ONLY,
        )  # fmt: skip


def tensors_of(handles: Sequence[TensorHandle]) -> tuple[TensorHandle, ...]:
    """What computing needs of inputs, however they came."""
    return tuple(handle.tensor if isinstance(handle, Arrival) else handle for handle in handles)
