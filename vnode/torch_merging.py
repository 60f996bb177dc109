"""What replicas of one VNode exchange, in torch: displacements of the weights, and the outer step that takes them in.

A contributor's weights are base + what was learned after it; the base is an anchor, plus the open displacement if there is one. A
displacement travels as its weights, tensor after tensor in the order of their names, each in the codec, then the running statistics as
they are, raw. Its size follows from the schema and the codec alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dcnr.codecs import NUMPY_DTYPES, decode_values, encode_values, encoded_bytes
from dcnr.errors import Corrupt, InvalidInput, InvariantBroken
from vnode.state import Array, StateSchema, check_values

CODECS = ("raw", "int8")


@dataclass(frozen=True, slots=True)
class Displacement:
    """How far the weights moved, by parameter, and the running statistics where they arrived, by buffer."""

    weights: Mapping[str, Array]
    buffers: Mapping[str, Array]


def encode(displacement: Displacement, codec: str) -> bytes:
    """The one encoding of a displacement. Raises InvalidInput for a codec that is none or values that it cannot hold."""
    _check_codec(codec)
    parts = [
        encode_values(codec, np.ascontiguousarray(displacement.weights[name]).ravel()) for name in sorted(displacement.weights)
    ]
    parts += [
        encode_values("raw", np.ascontiguousarray(displacement.buffers[name]).ravel()) for name in sorted(displacement.buffers)
    ]
    return b"".join(part.tobytes() for part in parts)


def decode(data: bytes, codec: str, schema: StateSchema) -> Displacement:
    """What `encode` was given, up to what the codec lost. Raises InvalidInput (codec), Corrupt (size, values that are not finite)."""
    _check_codec(codec)
    slots = {name: schema.tensors[name] for name in (*_names(schema, "w/"), *_names(schema, "b/"))}
    codecs = {name: codec if name.startswith("w/") else "raw" for name in slots}
    sizes = {name: encoded_bytes(codecs[name], slot.dtype, slot.num_values) for name, slot in slots.items()}
    if len(data) != sum(sizes.values()):
        raise Corrupt(f"a displacement of {len(data)} bytes, not {sum(sizes.values())}", code="bad_displacement")
    arrays: dict[str, Array] = {}
    payload, offset = np.frombuffer(data, np.uint8), 0
    for name, slot in slots.items():
        part = payload[offset : offset + sizes[name]].copy()
        array = decode_values(codecs[name], slot.dtype, part, slot.num_values).reshape(slot.shape)
        check_values(name, array)
        arrays[name[2:]] = array
        offset += sizes[name]
    return Displacement(
        {name[2:]: arrays[name[2:]] for name in _names(schema, "w/")}, {name[2:]: arrays[name[2:]] for name in _names(schema, "b/")}
    )


def outer_step(
    weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], displacement: Displacement, num_batches: int, num_replicas: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights and running statistics after one merge; nothing is changed in place. Raises InvariantBroken (``not_finite``).

    Weights move by the displacement divided by the number of replicas. Running statistics move by the same share towards those of
    the contributor, so that a variance stays one; counts grow by the number of batches.
    """
    share = 1.0 / num_replicas
    moved = {name: value + share * _like(value, displacement.weights[name]) for name, value in weights.items()}
    settled = {
        name: value.lerp(_like(value, displacement.buffers[name]), share) if value.is_floating_point() else value + num_batches
        for name, value in buffers.items()
    }
    if not all(bool(torch.isfinite(value).all()) for value in (*moved.values(), *settled.values())):
        raise InvariantBroken("a merge would give weights that are not finite", code="not_finite")
    return moved, settled


class Base:
    """What a contributor stands on: the weights that its next displacement is measured from, and the open displacement in them."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._base = [value.detach().clone() for value in weights]
        self._open: list[Tensor] | None = None

    def moved(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """How far ``weights`` are from the base."""
        return [value.detach() - base for value, base in zip(weights, self._base, strict=True)]

    def set_apart(self, displacement: Sequence[Tensor]) -> None:
        """``displacement``, as others will decode it, is open from here on, in place of an older one."""
        self._open = list(displacement)
        self._base = [base + part for base, part in zip(self._base, displacement, strict=True)]

    def rebase(self, anchor: Sequence[Tensor], after: Sequence[Tensor], *, keep_open: bool, keep_after: bool) -> list[Tensor]:
        """The weights on a new anchor; ``after`` is what `moved` gives."""
        if not keep_open:
            self._open = None
        kept = self._open if self._open is not None else [torch.zeros_like(value) for value in anchor]
        self._base = [value + part for value, part in zip(anchor, kept, strict=True)]
        return [base + part if keep_after else base.clone() for base, part in zip(self._base, after, strict=True)]


def _check_codec(codec: str) -> None:
    if codec not in CODECS:
        raise InvalidInput(f"a displacement travels in {' or '.join(CODECS)}, not {codec!r:.40}", code="bad_codec", field="codec")


def _names(schema: StateSchema, prefix: str) -> list[str]:
    return sorted(name for name in schema.tensors if name.startswith(prefix))


def _like(value: Tensor, array: Array) -> Tensor:
    return torch.from_numpy(array.astype(NUMPY_DTYPES[str(value.dtype).removeprefix("torch.")], copy=False)).to(value.device)
