"""Whether bytes are a state that a replica could restore, found out in one pass without torch and without holding them: what `vnode.state.parse`
would refuse is refused here.

The tensors that a state must have are read off a state of the same VNode that is known to be good (`schema_in`): all states of a VNode have the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from dcnr.errors import Corrupt
from dcnr.ids import Digest
from dcnr.intervals import IntervalSet
from dcnr.limits import MAX_SAFETENSORS_HEADER_BYTES
from vnode.state import LINEAGE, Head, StateInfo, StateSchema, TensorSlot, check_values, lineage_in, read_head

HEAD_BYTES: Final = 8 + MAX_SAFETENSORS_HEADER_BYTES
"""The header of a state ends before this offset."""
_DTYPES: Final[Mapping[str, str]] = {"F32": "float32", "I64": "int64", "U8": "uint8"}


def schema_in(vnode: str, data: bytes) -> StateSchema:
    """The tensors of a state that is known to be good, by its first `HEAD_BYTES`. Raises Corrupt."""
    try:
        length = int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(data[8 : 8 + min(length, MAX_SAFETENSORS_HEADER_BYTES)])
        tensors = {
            name: TensorSlot(_DTYPES[entry["dtype"]], tuple(int(size) for size in entry["shape"]))
            for name, entry in header.items()
            if name not in ("__metadata__", LINEAGE) and not name.startswith("m/")
        }
        schema = StateSchema(vnode, tensors, may_hold_centre=True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"the state that {vnode} goes by is none: {error}", code="bad_state_header") from error
    read_head(data, schema)
    return schema


class StateScan:
    """Takes a state piece by piece, in order; every piece but the last must end at a multiple of 8 bytes.

    ``first``: the beginning, with the whole header. Raises Corrupt as soon as something is wrong.
    """

    def __init__(self, schema: StateSchema, first: bytes) -> None:
        self._head: Head = read_head(first, schema)
        self._lineage = None if dict(self._head.slots)[LINEAGE].num_bytes else IntervalSet.empty()
        self._rows = bytearray()
        self._hash = hashlib.sha256()
        self._taken = 0
        self.feed(first)

    @property
    def size_bytes(self) -> int:
        """Of the whole state, by its header."""
        return self._head.size_bytes

    @property
    def taken(self) -> int:
        """Bytes that have come so far."""
        return self._taken

    @property
    def lineage_end(self) -> int:
        """Offset at which the lineage is whole."""
        end = self._head.body_at
        for name, slot in self._head.slots:
            end += slot.num_bytes
            if name == LINEAGE:
                break
        return end

    @property
    def digest(self) -> Digest:
        """Of what has come so far."""
        return Digest(self._hash.hexdigest())

    @property
    def info(self) -> StateInfo:
        """What the state says, once its lineage has come."""
        if self._lineage is None:
            raise Corrupt("state refused: it ends before its lineage", code="bad_state_size")
        return replace(self._head.info, lineage=self._lineage)

    def feed(self, piece: bytes) -> None:
        """The bytes that follow."""
        begin, end = self._taken, self._taken + len(piece)
        self._hash.update(piece)
        self._taken = end
        if end > self.size_bytes:
            raise Corrupt(f"state refused: more than {self.size_bytes} bytes", code="bad_state_size")
        view, at = memoryview(piece), self._head.body_at
        for name, slot in self._head.slots:
            low, high = max(begin, at), min(end, at + slot.num_bytes)
            if low < high:
                self._part(name, slot, view[low - begin : high - begin])
            at += slot.num_bytes

    def _part(self, name: str, slot: TensorSlot, part: memoryview) -> None:
        if name != LINEAGE:
            dtype = np.dtype(slot.dtype)
            if len(part) % dtype.itemsize:
                raise Corrupt(f"state refused: it ends within a value of {name}", code="bad_state_size")
            check_values(name, np.frombuffer(part, dtype))
            return
        self._rows += part
        if len(self._rows) == slot.num_bytes:
            rows = np.frombuffer(bytes(self._rows), "<i8").reshape(slot.shape)
            self._lineage = lineage_in(rows, self._head.info.num_batches)
