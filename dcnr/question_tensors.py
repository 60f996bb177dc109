"""Headers of the tensors of questions and answers as messages, and back: the same for who asks and who computes."""

from __future__ import annotations

from dcnr.tensor import TensorHeader
from dcnr.v1 import vnode_pb2


def tensor_message(name: str, header: TensorHeader) -> vnode_pb2.InferTensor:
    """The wire form of a header."""
    return vnode_pb2.InferTensor(
        vnode=name, dtype=header.dtype, shape=header.shape, codec=header.codec, encoded_bytes=header.encoded_bytes,
        digest=bytes.fromhex(header.digest),
    )  # fmt: skip


def header_of(message: vnode_pb2.InferTensor) -> TensorHeader:
    """What a message says, unchecked (`dcnr.tensor.check_header`); who reads one bounds its rank before."""
    return TensorHeader(message.dtype, tuple(message.shape), message.codec, message.encoded_bytes, message.digest.hex())
