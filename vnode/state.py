"""The state file of one VNode: safetensors bytes in exactly one form, so that equal states have equal digests and nothing else
is accepted.

Tensors: ``w/<parameter>``, ``b/<buffer>``, ``o/<parameter>/<slot>`` and ``lineage`` (int64 [k, 2], half-open intervals); where deltas are merged around a
centre (`vnode.clipping`) also ``m/<parameter>`` and ``m/distances``, all of them or none; everything else is in the
metadata. `parse` checks the bytes against the schema (names, shapes, dtypes of the stage) before it makes
arrays of them: the header must be, byte for byte, the one that `serialise` would write for this schema and metadata.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dcnr.errors import Corrupt, DcnrError
from dcnr.ids import check_name
from dcnr.intervals import IntervalSet
from dcnr.limits import MAX_INTERVALS, MAX_OBJECT_BYTES, MAX_SAFETENSORS_HEADER_BYTES
from dcnr.specs import DTYPE_BYTES

Array = npt.NDArray[Any]

FORMAT = "dcnr-state-1"
LINEAGE = "lineage"
DISTANCES = "m/distances"
NUM_DISTANCES = 16
"""Of the deltas taken in last; 0 where there was none."""
_CODES: Mapping[str, str] = {"float32": "F32", "int64": "I64", "uint8": "U8"}
_HEX64_OR_EMPTY = re.compile(r"(?:[0-9a-f]{64})?")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
MAX_NUMBER = 2**63 - 1
"""Of what a state counts."""
NO_VALUES = "bad_state_values"
"""Code of what no tensor of a state may hold."""
_NUMBERS = ("epoch", "step", "num_batches", "seed", "updates")
_KEYS = frozenset({"format", "vnode", "model", "graph", "parent", *_NUMBERS})


@dataclass(frozen=True, slots=True)
class StateInfo:
    """What a state says about itself. ``parent`` is the digest of the state it descends from ("" for checkpoint 0)."""

    vnode: str
    model: str
    graph: str
    parent: str
    epoch: int
    step: int
    """Commits of the active job's chain up to this state."""
    num_batches: int
    seed: int
    lineage: IntervalSet
    updates: int = 0
    """Optimiser updates since the slots were zero; kept by the compute adapter."""


def counted(number: int) -> int:
    """One more, up to `MAX_NUMBER`: whoever goes on from a state that says so counts no further, else nothing that it learns could be written down."""
    return min(number + 1, MAX_NUMBER)


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """dtype and whole shape of one tensor in a state."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Raw bytes."""
        return self.num_values * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a state, checked. ``info`` has no lineage yet: that is a tensor."""

    info: StateInfo
    slots: tuple[tuple[str, TensorSlot], ...]
    """Names and kinds of the tensors in the order in which they follow, without gaps."""
    body_at: int
    """Offset of the first tensor."""

    @property
    def size_bytes(self) -> int:
        """Of the whole state."""
        return self.body_at + sum(slot.num_bytes for _, slot in self.slots)


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Exactly the tensors that a state of ``vnode`` holds, besides its lineage."""

    vnode: str
    tensors: Mapping[str, TensorSlot]
    may_hold_centre: bool = False
    """Whether what merges remember may be there beside these."""

    def holding(self, names: Collection[str]) -> StateSchema:
        """With the centre of merges, if ``names`` say that it is there."""
        if not self.may_hold_centre or DISTANCES not in names:
            return self
        centre = {f"m/{name[2:]}": slot for name, slot in self.tensors.items() if name.startswith("w/")}
        return StateSchema(self.vnode, {**self.tensors, **centre, DISTANCES: TensorSlot("float32", (NUM_DISTANCES,))})


def anchor_schema(schema: StateSchema) -> StateSchema:
    """What an anchor holds of such a state: weights and running statistics, no optimiser slots."""
    return StateSchema(schema.vnode, {name: slot for name, slot in schema.tensors.items() if not name.startswith("o/")})


def serialise(schema: StateSchema, info: StateInfo, tensors: Mapping[str, Array]) -> bytes:
    """The one encoding of this state. Raises Corrupt if the tensors are not the schema's or not finite."""
    schema = schema.holding(tensors)
    if set(tensors) != set(schema.tensors):
        raise _bad("the tensors are not those of the schema", "names")
    metadata = _metadata(schema, info)
    header, order = _header(schema, metadata, len(info.lineage.pairs()))
    pieces = [len(header).to_bytes(8, "little"), header]
    for name in order:
        if name == LINEAGE:
            array: Array = np.array(info.lineage.pairs(), dtype="<i8").reshape(-1, 2)
        else:
            array = tensors[name]
            slot = schema.tensors[name]
            if array.dtype != np.dtype(slot.dtype) or array.shape != slot.shape:
                raise _bad(f"{name} is {array.dtype} {array.shape}, not {slot.dtype} {slot.shape}", "shape")
            check_values(name, array)
        pieces.append(np.ascontiguousarray(array).tobytes())
    return b"".join(pieces)


def parse(data: bytes, schema: StateSchema) -> tuple[StateInfo, dict[str, Array]]:
    """The state in ``data``, as read-only views of it.

    Raises Corrupt with a code for the first rule broken; allocates nothing before the header is whole.
    """
    head = read_head(data, schema)
    if len(data) != head.size_bytes:
        raise _bad(f"{len(data) - head.body_at} bytes of tensors, not {head.size_bytes - head.body_at}", "size")
    arrays: dict[str, Array] = {}
    at = head.body_at
    for name, slot in head.slots:
        array = np.frombuffer(data, np.dtype(slot.dtype), slot.num_values, at).reshape(slot.shape)
        check_values(name, array)
        array.flags.writeable = False
        arrays[name] = array
        at += slot.num_bytes
    return replace(head.info, lineage=lineage_in(arrays.pop(LINEAGE), head.info.num_batches)), arrays


def read_head(data: bytes, schema: StateSchema) -> Head:
    """What the first bytes of a state say, however many of them are there, as long as the whole header is. Raises Corrupt."""
    schema, metadata, num_intervals, body_at = _checked_header(data, schema)
    expected, order = _header(schema, metadata, num_intervals)
    info = _info(metadata, schema)
    if data[8:body_at] != expected:
        raise _bad("the header is not the one that belongs to this VNode", "header")
    return Head(info, tuple((name, _slot(schema, name, num_intervals)) for name in order), body_at)


def for_new_job(data: bytes, schema: StateSchema, *, num_batches: int, seed: int, graph: str, parent: str) -> bytes:
    """The state with which a later job starts: the same weights and running statistics, empty lineage, optimiser slots zero, no centre.

    ``graph`` is the digest of the later job's graph, ``parent`` that of ``data``. Raises Corrupt as `parse`.
    """
    info, tensors = parse(data, schema)
    fresh = {
        name: np.zeros_like(array) if name.startswith("o/") else array
        for name, array in tensors.items()
        if not name.startswith("m/")
    }
    empty = IntervalSet.empty()
    info = replace(info, num_batches=num_batches, seed=seed, graph=graph, parent=parent, lineage=empty, updates=0, step=0)
    return serialise(schema, info, fresh)


def check_values(name: str, array: Array) -> None:
    """Raises Corrupt where a tensor of that name cannot hold these values."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise _bad(f"{name} is not finite", "values")
    if name.startswith("b/") and array.dtype.kind == "i" and array.size and int(array.min()) < 0:
        raise _bad(f"{name} counts below zero", "values")
    if (name == DISTANCES or name.endswith(("/square", "running_var"))) and array.size and float(array.min()) < 0:
        raise _bad(f"{name} is negative", "values")


def _bad(message: str, code: str) -> Corrupt:
    return Corrupt(f"state refused: {message}", code=f"bad_state_{code}")


def _slot(schema: StateSchema, name: str, num_intervals: int) -> TensorSlot:
    return TensorSlot("int64", (num_intervals, 2)) if name == LINEAGE else schema.tensors[name]


def _header(schema: StateSchema, metadata: Mapping[str, str], num_intervals: int) -> tuple[bytes, list[str]]:
    """Header bytes and the order of the tensors: widest dtype first (alignment), then by name."""
    names = [*schema.tensors, LINEAGE]
    order = sorted(names, key=lambda name: (-DTYPE_BYTES[_slot(schema, name, num_intervals).dtype], name))
    entries: dict[str, object] = {"__metadata__": {key: metadata[key] for key in sorted(metadata)}}
    offset = 0
    for name in order:
        slot = _slot(schema, name, num_intervals)
        entries[name] = {
            "dtype": _CODES[slot.dtype],
            "shape": list(slot.shape),
            "data_offsets": [offset, offset + slot.num_bytes],
        }
        offset += slot.num_bytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=True).encode()
    return text + b" " * (-len(text) % 8), order


def _checked_header(data: bytes, schema: StateSchema) -> tuple[StateSchema, dict[str, str], int, int]:
    """(the tensors that are there, metadata, rows of the lineage, offset of the body); sizes are checked before anything is decoded."""
    if len(data) < 8 or len(data) > MAX_OBJECT_BYTES:
        raise _bad(f"{len(data)} bytes", "size")
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(MAX_SAFETENSORS_HEADER_BYTES, len(data) - 8):
        raise _bad(f"a header of {length} bytes", "size")
    try:
        header = json.loads(data[8 : 8 + length].decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise _bad("the header is not JSON", "header") from error
    schema = schema.holding(header) if isinstance(header, dict) else schema
    if not isinstance(header, dict) or set(header) != {"__metadata__", LINEAGE, *schema.tensors}:
        raise _bad("the tensors are not those of this VNode", "names")
    metadata, lineage = header["__metadata__"], header[LINEAGE]
    shape = lineage.get("shape") if isinstance(lineage, dict) else None
    if not isinstance(shape, list) or len(shape) != 2 or type(shape[0]) is not int or not 0 <= shape[0] <= MAX_INTERVALS:
        raise _bad("a lineage of wrong shape", "lineage")
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _bad("metadata must be strings", "metadata")
    return schema, metadata, shape[0], 8 + length


def _metadata(schema: StateSchema, info: StateInfo) -> dict[str, str]:
    """Metadata as strings, checked in the way in which a reader will."""
    result = {"format": FORMAT, "vnode": info.vnode, "model": info.model, "graph": info.graph, "parent": info.parent}
    result.update({name: str(getattr(info, name)) for name in _NUMBERS})
    _info(result, schema)
    highest = info.lineage.highest()
    if highest is not None and highest >= info.num_batches:
        raise _bad("the lineage holds batches that the job does not have", "lineage")
    return result


def _info(metadata: Mapping[str, str], schema: StateSchema) -> StateInfo:
    if set(metadata) != _KEYS or metadata["format"] != FORMAT or metadata["vnode"] != schema.vnode:
        raise _bad("metadata of another format or VNode", "metadata")
    if any(_HEX64_OR_EMPTY.fullmatch(metadata[key]) is None for key in ("graph", "parent")):
        raise _bad("a digest in the metadata is not one", "metadata")
    if any(_NUMBER.fullmatch(metadata[key]) is None or int(metadata[key]) > MAX_NUMBER for key in _NUMBERS):
        raise _bad("a number in the metadata is not one", "metadata")
    try:
        model = check_name(metadata["model"])
    except DcnrError as error:
        raise _bad("the model's name is not one", "metadata") from error
    numbers = {key: int(metadata[key]) for key in _NUMBERS}
    empty = IntervalSet.empty()
    return StateInfo(vnode=schema.vnode, model=model, graph=metadata["graph"], parent=metadata["parent"], lineage=empty, **numbers)


def lineage_in(rows: Array, num_batches: int) -> IntervalSet:
    """The lineage that the tensor of that name holds. Raises Corrupt."""
    pairs = [(int(low), int(high)) for low, high in rows.tolist()]
    if pairs and pairs[-1][1] > num_batches:
        raise _bad("the lineage holds batches that the job does not have", "lineage")
    return IntervalSet.from_pairs(pairs)
