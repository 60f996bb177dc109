"""Goal: what no replica could restore is found out from the bytes alone, in pieces of any size, and what it could restore passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import Corrupt
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from vnode.state import StateInfo, StateSchema, TensorSlot, parse, serialise
from vnode.state_scan import StateScan, schema_in

SCHEMA = StateSchema(
    "a",
    {
        "w/weight": TensorSlot("float32", (3, 5)), "o/weight/momentum": TensorSlot("float32", (3, 5)), "b/num": TensorSlot("int64", (1,)),
        "b/running_var": TensorSlot("float32", (3,)), "b/mask": TensorSlot("uint8", (7,)),
    },
)  # fmt: skip
LINEAGE = IntervalSet.of((0, 3), (5, 9))


def state(lineage: IntervalSet = LINEAGE, schema: StateSchema = SCHEMA, **changes: float) -> bytes:
    tensors = {name: np.ones(slot.shape, slot.dtype) for name, slot in schema.tensors.items()}
    for name, value in changes.items():
        tensors[f"w/{name}"][0, 0] = value
    info = StateInfo("a", "m", "1" * 64, "2" * 64, 1, 2, 10, 7, lineage)
    return serialise(schema, info, tensors)


def scanned(data: bytes, step: int = 8, first: int = 4096) -> StateScan:
    scan = StateScan(schema_in("a", state(IntervalSet.empty())), data[:first])
    while scan.taken < len(data):
        scan.feed(data[scan.taken : scan.taken + step])
    return scan


GOOD = state()
HEADER = 8 + int.from_bytes(GOOD[:8], "little")


@pytest.mark.parametrize("lineage", [IntervalSet.empty(), IntervalSet.span(0, 10), LINEAGE])
@pytest.mark.parametrize("first", [HEADER, HEADER + 8, 1 << 20])
@pytest.mark.parametrize("step", [8, 24, 4096])
def test_a_state_passes_in_pieces_of_any_size(lineage: IntervalSet, first: int, step: int) -> None:
    data = state(lineage)
    first += 8 + int.from_bytes(data[:8], "little") - HEADER
    scan = scanned(data, step, first)
    assert scan.info == parse(data, SCHEMA)[0]
    assert (scan.size_bytes, scan.digest) == (len(data), digest_of(data))
    assert scan.lineage_end <= len(data)


def test_the_tensors_are_those_of_the_state_that_is_known() -> None:
    assert schema_in("a", GOOD) == replace(SCHEMA, may_hold_centre=True)
    other = StateSchema("a", {**SCHEMA.tensors, "w/weight": TensorSlot("float32", (5, 3))})
    with pytest.raises(Corrupt):
        scanned(state(schema=other))
    for data in (b"", b"state of a", GOOD[:40], GOOD[:8] + b"[]" + GOOD[10:]):
        with pytest.raises(Corrupt):
            schema_in("a", data)


def test_what_is_cut_or_longer_is_no_state() -> None:
    short = scanned(GOOD[:-7])
    assert short.taken < short.size_bytes
    with pytest.raises(Corrupt):
        scanned(GOOD[:-8])
    with pytest.raises(Corrupt):
        scanned(GOOD + bytes(8))
    with pytest.raises(Corrupt):
        scanned(GOOD[: HEADER - 8])
    with pytest.raises(Corrupt):
        _ = scanned(GOOD[:HEADER]).info


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_it_refuses_exactly_what_restoring_would(at: int, flip: int) -> None:
    data = bytearray(GOOD)
    data[at] ^= flip
    try:
        expected = parse(bytes(data), SCHEMA)[0]
    except Corrupt:
        with pytest.raises(Corrupt):
            _ = scanned(bytes(data), first=1 << 20).info
    else:
        assert scanned(bytes(data), first=1 << 20).info == expected
