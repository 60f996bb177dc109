"""Goal: large answers are kept within bounds, for whom they were made and no longer; bodies mean to us what JSON says; lists cost no memory."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvalidInput, NotFound, Unavailable
from dcnr.v1 import orchestrator_pb2
from gateway.asking import ForwardIn, referred, request_of
from gateway.bodies import parsed
from gateway.results import KEPT_S, MAX_KEPT_BYTES, MAX_KEY_BYTES, Results


class Hand:
    """A clock moved by hand, and its own dice."""

    def __init__(self) -> None:
        self.now = 0.0
        self.thrown = 0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1e9 + self.now

    def dice(self, num_bytes: int) -> bytes:
        self.thrown += 1
        return self.thrown.to_bytes(num_bytes, "big")


@given(st.lists(st.tuples(st.sampled_from("abcdefghijk"), st.integers(1, 9), st.floats(0.0, 200.0)), max_size=80))
def test_what_is_kept_is_bounded_and_belongs_to_one_key(asked: list[tuple[str, int, float]]) -> None:
    hand, part = Hand(), bytearray(MAX_KEY_BYTES // 8)
    results, made = Results(hand, hand.dice), {}
    for key, size, pause in asked:
        hand.now += pause
        content: Any = memoryview(part)[: max(1, len(part) * size // 8)]
        try:
            one = results.keep(key, content)
        except Unavailable:
            assert results.num_bytes + len(content) > MAX_KEPT_BYTES
            continue
        made[one.id] = one
        kept = [one for one in made.values() if _found(results, one.key, one.id)]
        assert one in kept
        assert all(one.until_s > hand.now for one in kept)
        assert sum(len(one.content) for one in kept) <= results.num_bytes <= MAX_KEPT_BYTES
        for name in "abcdefghijk":
            assert sum(len(one.content) for one in kept if one.key == name) <= MAX_KEY_BYTES
            assert name == key or not _found(results, name, one.id)
    hand.now += KEPT_S
    assert not any(_found(results, one.key, one.id) for one in made.values())


def _found(results: Results, key: str, result_id: str) -> bool:
    try:
        return results.find(key, result_id).id == result_id
    except NotFound:
        return False


def test_a_large_answer_is_told_without_its_bytes() -> None:
    hand = Hand()
    results = Results(hand, hand.dice)
    found = orchestrator_pb2.ForwardResponse(exit="top", degraded=True)
    found.output.data, found.output.dtype = bytes(range(256)), "uint8"
    found.output.shape.append(256)
    told = referred(found, results, "a")
    assert (told["output"]["data"], told["output"]["shape"], told["exit"], told["degraded"]) == ("", [256], "top", True)
    reference = told["output_ref"]
    assert reference["size_bytes"] == 256
    assert reference["expires_unix_ms"] == int(1000 * (1e9 + KEPT_S))
    assert results.find("a", reference["href"].rpartition("/")[2]).content == bytes(range(256))
    assert found.output.data, "what was answered is not touched"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(JSON)
def test_what_is_json_is_read(value: Any) -> None:
    assert parsed(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "body",
    ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "\\u0061": 2}}]', "NaN", "[Infinity]", '{"a": -Infinity}', "", "{", '{"a": 1}}', "1" * 5000, "\x00", "'a'"],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_what_is_no_json_is_not(body: str) -> None:
    with pytest.raises(ValueError):
        parsed(body.encode())


def test_nesting_without_end_is_an_error_and_no_crash() -> None:
    with pytest.raises(RecursionError):
        parsed(b"[" * 1_000_000)


@pytest.mark.parametrize(
    "values",
    [["x" * 100_000, *["y"] * 100_000], [["x" * 100_000], *[["y"]] * 100_000], [1, [1]], [[], 1], ["1"], [{}], [[[None]]]],
    ids=lambda values: repr(values[0])[:12],
)
def test_texts_among_numbers_cost_no_memory(values: list[Any]) -> None:
    body = ForwardIn(inputs=[{"values": values}])  # type: ignore[list-item]
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput):
            request_of(body)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
