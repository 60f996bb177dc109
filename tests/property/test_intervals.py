"""Goal: an `IntervalSet` behaves like a Python set of ints, is always canonical, and takes nothing else from the wire."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput
from dcnr.intervals import END, IntervalSet

NUMBERS = st.integers(0, 40)
SETS = st.sets(NUMBERS)
PLACES = st.integers(0, 600)
SCATTERED = st.sets(PLACES, max_size=200)
"""Hundreds of intervals: what a replica owns and lacks where units are shared out among several."""


def build(numbers: set[int]) -> IntervalSet:
    """The interval set of ``numbers``, checked."""
    made = IntervalSet.of(*((n, n + 1) for n in numbers))
    made.check()
    return made


@given(SETS, SETS)
def test_algebra_agrees_with_sets_and_is_canonical(a: set[int], b: set[int]) -> None:
    x, y = build(a), build(b)
    for made, wanted in ((x | y, a | b), (x & y, a & b), (x - y, a - b)):
        made.check()
        assert set(made) == wanted
        assert made == build(wanted)
        assert hash(made) == hash(build(wanted))
    assert x.isdisjoint(y) == a.isdisjoint(b)


def agree(a: set[int], b: set[int]) -> None:
    """What two sets make together, each way round, is what Python's own sets make of them, and canonical."""
    for one, other in ((a, b), (b, a)):
        x, y = build(one), build(other)
        for made, wanted in ((x | y, one | other), (x & y, one & other), (x - y, one - other)):
            made.check()
            assert set(made) == wanted


@given(SCATTERED, st.lists(st.tuples(PLACES, st.integers(0, 4)), max_size=4))
def test_sets_that_are_nearly_the_same_agree_with_sets(a: set[int], changes: list[tuple[int, int]]) -> None:
    b = set(a)
    for place, length in changes:
        b ^= set(range(place, place + length))
    agree(a, b)


@given(SCATTERED, SCATTERED, PLACES, PLACES)
def test_parts_of_scattered_sets_agree_with_sets(a: set[int], b: set[int], low: int, high: int) -> None:
    agree(a, b)
    agree(a, {number for number in b if low <= number < high})
    agree(a, a - set(range(low, high)))


@given(SETS, SETS)
def test_the_highest_numbers_are_like_any_other(a: set[int], b: set[int]) -> None:
    top = END - 41
    agree({top + number for number in a}, {top + number for number in b})


@given(SETS, NUMBERS)
def test_queries_agree_with_sets(a: set[int], n: int) -> None:
    x, ordered = build(a), sorted(a)
    assert list(x) == ordered
    assert len(x) == len(a)
    assert bool(x) == bool(a)
    assert (n in x) == x.contains(n) == (n in a)
    assert x.lowest() == min(a, default=None)
    assert x.highest() == max(a, default=None)
    assert x.lowest_absent() == min({*range(len(a) + 1)} - a)
    assert x.nth(n) == (ordered[n] if n < len(ordered) else None)
    for made, wanted in (
        (x.add(n), a | {n}),
        (x.first(n), set(ordered[:n])),
        (x.above(n), {m for m in a if m > n}),
        (x.complement(3, n), set(range(3, n)) - a),
    ):
        made.check()
        assert set(made) == wanted


@given(SETS, NUMBERS, NUMBERS)
def test_is_exactly(a: set[int], lo: int, hi: int) -> None:
    assert build(a).is_exactly(lo, hi) == (a == set(range(lo, hi)))
    assert IntervalSet.span(lo, hi).is_exactly(lo, hi)


@given(st.lists(st.tuples(NUMBERS, NUMBERS)))
def test_of_takes_pairs_in_any_order(pairs: list[tuple[int, int]]) -> None:
    made = IntervalSet.of(*pairs)
    made.check()
    assert set(made) == {n for lo, hi in pairs for n in range(lo, hi)}


@given(SETS)
def test_pairs_round_trip(a: set[int]) -> None:
    assert IntervalSet.from_pairs(build(a).pairs()) == build(a)


@given(st.lists(st.tuples(st.integers(-3, 12), st.integers(-3, 12)), max_size=4))
def test_the_wire_form_is_accepted_exactly_when_canonical(pairs: list[tuple[int, int]]) -> None:
    flat = [n for pair in pairs for n in pair]
    canonical = all(n >= 0 for n in flat) and all(a < b for a, b in pairwise(flat))
    if canonical:
        assert IntervalSet.from_pairs(pairs).pairs() == tuple(pairs)
    else:
        with pytest.raises(Corrupt):
            IntervalSet.from_pairs(pairs)


def test_bounds_of_the_wire() -> None:
    assert IntervalSet.from_pairs([(0, END)]).highest() == END - 1
    with pytest.raises(Corrupt):
        IntervalSet.from_pairs([(0, END + 1)])
    with pytest.raises(Corrupt):
        IntervalSet.from_pairs([(True, 5)])
    endless = ((2 * n, 2 * n + 1) for n in range(10**12))
    with pytest.raises(Corrupt, match=str(limits.MAX_INTERVALS)):
        IntervalSet.from_pairs(endless)
    assert next(endless)[0] == 2 * (limits.MAX_INTERVALS + 1), "reads no further than it must"


def test_wrong_numbers_are_refused() -> None:
    for number in (-1, END):
        with pytest.raises(InvalidInput):
            IntervalSet.empty().add(number)
    with pytest.raises(InvalidInput):
        IntervalSet.span(-1, 3)
    with pytest.raises(InvalidInput):
        IntervalSet.of((0, END + 1))
    assert IntervalSet.empty().add(END - 1).highest() == END - 1
    assert len(IntervalSet.span(0, END)) == END


def test_a_million_batches_stay_cheap() -> None:
    lineage = IntervalSet.of(*((3 * n, 3 * n + 1) for n in range(16)), (100, 1_000_000))
    begin = time.process_time()
    for number in range(1_000_000, 1_010_000):
        lineage = lineage.add(number)
        assert number in lineage
    assert time.process_time() - begin < 1.0, "10,000 steps must cost far less than a second of the processor"
    assert lineage.highest() == 1_009_999
    assert len(lineage.pairs()) == 17
