"""What replicas of one VNode exchange, in torch: how far a contributor's weights moved, and the outer step that takes that in.

A delta travels as the displacement of the weights, tensor after tensor in the order of their names, each in the codec, then the running
statistics where they arrived, raw. Its size follows from the schema and the codec alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dcnr.codecs import NUMPY_DTYPES, decode_values, encode_values, encoded_bytes
from dcnr.errors import Corrupt, InvalidInput, InvariantBroken
from trust.commits import DELTA_CODECS
from vnode.clipping import Centre, bounded, clipped
from vnode.state import Array, StateSchema, check_values


@dataclass(frozen=True, slots=True)
class DeltaValues:
    """How far a contributor's weights moved, by parameter, and where its running statistics arrived, by buffer."""

    weights: Mapping[str, Array]
    buffers: Mapping[str, Array]


def encode(delta: DeltaValues, codec: str) -> bytes:
    """The one encoding of a delta. Raises InvalidInput for a codec that is none or values that it cannot hold."""
    _check_codec(codec)
    parts = [encode_values(codec, np.ascontiguousarray(delta.weights[name]).ravel()) for name in sorted(delta.weights)]
    parts += [encode_values("raw", np.ascontiguousarray(delta.buffers[name]).ravel()) for name in sorted(delta.buffers)]
    return b"".join(part.tobytes() for part in parts)


def decode(data: bytes, codec: str, schema: StateSchema) -> DeltaValues:
    """What `encode` was given, up to what the codec lost. Raises InvalidInput (codec), Corrupt (size, values that are not finite)."""
    _check_codec(codec)
    slots = {name: schema.tensors[name] for name in (*_names(schema, "w/"), *_names(schema, "b/"))}
    codecs = {name: codec if name.startswith("w/") else "raw" for name in slots}
    sizes = {name: encoded_bytes(codecs[name], slot.dtype, slot.num_values) for name, slot in slots.items()}
    if len(data) != sum(sizes.values()):
        raise Corrupt(f"a delta of {len(data)} bytes, not {sum(sizes.values())}", code="bad_delta")
    arrays: dict[str, Array] = {}
    payload, offset = np.frombuffer(data, np.uint8), 0
    for name, slot in slots.items():
        part = payload[offset : offset + sizes[name]].copy()
        array = decode_values(codecs[name], slot.dtype, part, slot.num_values).reshape(slot.shape)
        check_values(name, array)
        arrays[name[2:]] = array
        offset += sizes[name]
    return DeltaValues(
        {name[2:]: arrays[name[2:]] for name in _names(schema, "w/")}, {name[2:]: arrays[name[2:]] for name in _names(schema, "b/")}
    )


@dataclass(frozen=True, slots=True)
class Merged:
    """Weights, running statistics and what merges remember, by name; without a centre deltas are bounded only."""

    weights: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    centre: Centre | None = None


def outer_step(before: Merged, delta: DeltaValues, num_batches: int, share: float) -> Merged:
    """The state after one merge: w + share * displacement, as far as that counts, and r + share * (r' - r). In place nothing changes.

    Of a displacement counts what `vnode.clipping` leaves of it.
    Running statistics go part of the way to the contributor's, so that a variance stays one. Integers count batches: they grow by
    ``num_batches``. Raises InvariantBroken (``not_finite``).
    """
    displacement = {name: _like(value, delta.weights[name]) for name, value in before.weights.items()}
    if not all(bool(torch.isfinite(value).all()) for value in displacement.values()):
        raise InvariantBroken("a delta that is not finite", code="not_finite")
    counts, centre = bounded(displacement, before.weights), before.centre
    if centre is not None:
        counts, centre = clipped(counts, num_batches, centre)
    moved = {name: value + share * counts[name] for name, value in before.weights.items()}
    settled = {
        name: torch.lerp(value, _like(value, delta.buffers[name]), share) if value.is_floating_point() else value + num_batches
        for name, value in before.buffers.items()
    }
    if not all(bool(torch.isfinite(value).all()) for value in (*moved.values(), *settled.values())):
        raise InvariantBroken("a merge would give weights that are not finite", code="not_finite")
    return Merged(moved, settled, centre)


def measured(
    own: Mapping[str, Array], buffers: Mapping[str, Array], anchor: Mapping[str, Array], codec: str, schema: StateSchema
) -> tuple[bytes, Mapping[str, Array]]:
    """How far these weights are from an anchor's tensors, encoded, and what nobody will decode of that, by parameter. Raises InvalidInput."""
    moved = {name: value - anchor[f"w/{name}"] for name, value in own.items()}
    data = encode(DeltaValues(moved, buffers), codec)
    if codec == "raw":
        return data, {}
    decoded = decode(data, codec, schema).weights
    return data, {name: value - decoded[name] for name, value in moved.items()}


def _check_codec(codec: str) -> None:
    if codec not in DELTA_CODECS:
        raise InvalidInput(f"a delta travels in {' or '.join(DELTA_CODECS)}, not {codec!r:.40}", code="bad_codec", field="codec")


def _names(schema: StateSchema, prefix: str) -> list[str]:
    return sorted(name for name in schema.tensors if name.startswith(prefix))


def _like(value: Tensor, array: Array) -> Tensor:
    return torch.from_numpy(array.astype(NUMPY_DTYPES[str(value.dtype).removeprefix("torch.")], copy=False)).to(value.device)
