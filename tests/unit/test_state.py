"""Goal: exactly one encoding of a state is accepted; hand-made bad files and mutations are refused with a typed error, never a
crash.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from dcnr.errors import Corrupt
from dcnr.intervals import IntervalSet
from vnode.state import StateInfo, StateSchema, TensorSlot, for_new_job, parse, serialise

SCHEMA = StateSchema(
    "conv1",
    {
        "w/weight": TensorSlot("float32", (3, 2)),
        "w/scale": TensorSlot("float32", ()),
        "o/weight/momentum": TensorSlot("float32", (3, 2)),
        "o/scale/momentum": TensorSlot("float32", ()),
        "b/running_var": TensorSlot("float32", (2,)),
        "b/num_batches_tracked": TensorSlot("int64", ()),
    },
)
INFO = StateInfo("conv1", "mnist", "ab" * 32, "cd" * 32, 3, 7, 100, 5, IntervalSet.of((0, 5), (9, 11)), 7)
TENSORS = {
    name: np.full(slot.shape, 2, dtype=slot.dtype)
    if name[0] == "b"
    else np.arange(6, dtype=slot.dtype)[: max(1, 6 * len(slot.shape))].reshape(slot.shape)
    for name, slot in SCHEMA.tensors.items()
}
GOOD = serialise(SCHEMA, INFO, TENSORS)
LENGTH = int.from_bytes(GOOD[:8], "little")
HEADER: dict[str, Any] = json.loads(GOOD[8 : 8 + LENGTH])
BODY = GOOD[8 + LENGTH :]


def packed(header: object, body: bytes = BODY) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def test_a_state_comes_back_and_the_library_reads_it() -> None:
    info, tensors = parse(GOOD, SCHEMA)
    assert info == INFO
    assert tensors.keys() == TENSORS.keys()
    assert all(np.array_equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert serialise(SCHEMA, info, tensors) == GOOD
    assert packed(HEADER) == GOOD
    assert load(GOOD)["lineage"].tolist() == [[0, 5], [9, 11]]


def test_a_new_job_keeps_weights_only() -> None:
    data = for_new_job(GOOD, SCHEMA, num_batches=9, seed=1, graph="12" * 32, parent="ef" * 32)
    info, tensors = parse(data, SCHEMA)
    assert (len(info.lineage), info.num_batches, info.seed, info.updates, info.step) == (0, 9, 1, 0, 0)
    assert (info.graph, info.parent) == ("12" * 32, "ef" * 32)
    assert np.array_equal(tensors["w/weight"], TENSORS["w/weight"])
    assert not tensors["o/weight/momentum"].any()


def _header_edits() -> Iterator[Callable[[dict[str, Any]], object]]:
    """Each changes a fresh copy of the header."""
    names = [name for name in HEADER if name != "__metadata__"]
    for name in names:
        yield lambda h, n=name: h.pop(n)
        yield lambda h, n=name: h.update({n + "x": h.pop(n)})
        yield lambda h, n=name: h[n].update(dtype="F64")
        yield lambda h, n=name: h[n].update(dtype="BF16")
        yield lambda h, n=name: h[n].update(shape=[*h[n]["shape"], 1])
        yield lambda h, n=name: h[n].update(shape=[-1])
        yield lambda h, n=name: h[n].update(shape=[2**62, 2**62])
        yield lambda h, n=name: h[n].update(shape="3")
        yield lambda h, n=name: h[n].update(data_offsets=[0, 2**63])
        yield lambda h, n=name: h[n].update(data_offsets=[h[n]["data_offsets"][0], h[n]["data_offsets"][1] + 4])
        yield lambda h, n=name: h[n].update(data_offsets=[h[n]["data_offsets"][0] - 4, h[n]["data_offsets"][1]])
        yield lambda h, n=name: h[n].update(data_offsets=[4, 4])
        yield lambda h, n=name: h[n].update(extra=1)
        yield lambda h, n=name: h.update({n: None})
        yield lambda h, n=name: h.update({n: []})
    for key in HEADER["__metadata__"]:
        yield lambda h, k=key: h["__metadata__"].pop(k)
        yield lambda h, k=key: h["__metadata__"].update({k: 1})
        yield lambda h, k=key: h["__metadata__"].update({k: "-1"})
        yield lambda h, k=key: h["__metadata__"].update({k: "0X"})
        yield lambda h, k=key: h["__metadata__"].update({k: " 1"})
        yield lambda h, k=key: h["__metadata__"].update({k: "9" * 400})
        yield lambda h, k=key: h["__metadata__"].update({k: "../../x"})
        yield lambda h, k=key: h["__metadata__"].update({k: "\ud800"})
    yield lambda h: h["__metadata__"].update(pickle="x")
    yield lambda h: h["__metadata__"].update(vnode="conv2")
    yield lambda h: h["__metadata__"].update(num_batches="10")
    yield lambda h: h["__metadata__"].update(step="1_0")
    yield lambda h: h["__metadata__"].update(step="٣")
    yield lambda h: h.pop("__metadata__")
    yield lambda h: h.update(__metadata__=[])
    yield lambda h: h.update(more=h["w/weight"])
    yield lambda h: h["lineage"].update(shape=[2.0, 2])
    yield lambda h: h["lineage"].update(shape=[True, 2])
    yield lambda h: h["lineage"].update(shape=[10**9, 2])
    yield lambda h: h["lineage"].update(shape=[1, 4])
    yield lambda h: h.update(lineage=h.pop("lineage"))  # the same, in another order


def _bad_files() -> Iterator[bytes]:
    for edit in _header_edits():
        header = json.loads(json.dumps(HEADER))
        edit(header)
        yield packed(header)
    text = GOOD[8 : 8 + LENGTH].rstrip()
    yield from (b"", b"\0" * 7, b"\0" * 8, b"\xff" * 8, GOOD[:-1], GOOD + b"\0", GOOD[:8], GOOD[: 8 + LENGTH])
    yield from ((n).to_bytes(8, "little") + GOOD[8:] for n in (0, 1, LENGTH - 8, LENGTH + 8, 2**20 + 8, 2**32, 2**63, 2**64 - 1))
    for raw in (
        b"[]",
        b"null",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        text[:-1] + b',"w/weight":{}}',
        text + b"x",
        b"\xef\xbb\xbf" + text,
    ):
        yield packed(raw)
    yield packed(text + b" " * 8)
    yield packed(b" " * 8 + text)
    yield packed(text.replace(b":", b": "))
    yield packed(text.replace(b'"F32"', b'"\\u0046\\u0033\\u0032"', 1))
    for pairs in (
        [[5, 5], [9, 11]],
        [[9, 11], [0, 5]],
        [[0, 9], [9, 11]],
        [[-1, 5], [9, 11]],
        [[0, 5], [9, 101]],
        [[0, 6], [5, 11]],
    ):
        yield _with_values("lineage", np.array(pairs, dtype="<i8"))
    for name in ("w/weight", "o/weight/momentum", "b/running_var"):
        for value in (np.nan, np.inf, -np.inf):
            for index in range(SCHEMA.tensors[name].shape[0]):
                array = TENSORS[name].copy()
                array[index] = value
                yield _with_values(name, array)
    yield _with_values("b/num_batches_tracked", np.array(-1, dtype="<i8"))
    yield _with_values("b/running_var", np.array([1, -1], dtype="<f4"))


def _with_values(name: str, array: np.ndarray) -> bytes:
    low, high = HEADER[name]["data_offsets"]
    body = bytearray(BODY)
    body[low:high] = array.tobytes()
    return packed(HEADER, bytes(body))


def test_hand_made_bad_files_are_refused() -> None:
    files = list(_bad_files())
    assert len(files) >= 200
    for index, data in enumerate(files):
        assert data != GOOD
        try:
            parse(data, SCHEMA)
        except Corrupt:
            continue
        pytest.fail(f"file {index} was accepted: {data[8:400]!r}")


def test_mutations_are_refused_or_are_honest_numbers() -> None:
    """A mutated header is never accepted; a mutated body only as other finite values
    (its digest differs), and then it has one encoding again.
    """
    rng = random.Random(20)
    for _ in range(3000):
        data = bytearray(GOOD)
        in_header = rng.random() < 0.7
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(8 + LENGTH) if in_header else rng.randrange(8 + LENGTH, len(data))
            data[at] = rng.randrange(256)
        if bytes(data) == GOOD:
            continue
        try:
            info, tensors = parse(bytes(data), SCHEMA)
        except Corrupt:
            continue
        assert serialise(SCHEMA, info, tensors) == data
        # Digits or names in the metadata: another statement, valid in itself; the digest in the manifest names the right one.
        if in_header:
            assert replace(info, model="", graph="", parent="", epoch=0, step=0, seed=0, updates=0, num_batches=0) == replace(
                INFO, model="", graph="", parent="", epoch=0, step=0, seed=0, updates=0, num_batches=0
            )


def test_only_whole_and_finite_states_are_written() -> None:
    for bad in ({**TENSORS, "w/x": TENSORS["w/weight"]}, {**TENSORS, "w/weight": TENSORS["w/weight"] * np.nan}):
        with pytest.raises(Corrupt):
            serialise(SCHEMA, INFO, bad)
    with pytest.raises(Corrupt):
        serialise(SCHEMA, replace(INFO, num_batches=10), TENSORS)
    with pytest.raises(Corrupt):
        serialise(SCHEMA, replace(INFO, vnode="conv2"), TENSORS)
