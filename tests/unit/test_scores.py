"""Goal: scores are Sarmenta's credibility times fading reliability, within bounds, and a new name never looks better than an old one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvalidInput
from trust.decay import DAY_S, Faded, FadedMean
from trust.scores import Punctuality, credibility, score_of

T = 1_000_000.0
TIMES = st.floats(0.0, 1e9)


def test_credibility_is_sarmentas() -> None:
    assert credibility(1.0) == credibility(0.0) == pytest.approx(1 - 0.25 / math.e)
    assert credibility(100.0) == pytest.approx(1 - 0.25 / (100 * math.e))


@given(st.floats(0.0, 1e9), st.floats(0.0, 1e9))
def test_credibility_grows_and_never_reaches_certainty(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0.0 <= credibility(low) <= credibility(high) <= 1.0
    assert credibility(1e6) < 1.0


def test_reliability_counts_newer_results_more() -> None:
    results = Punctuality()
    assert results.reliability == 0.0
    assert results.on_time(T).reliability == 1.0
    for day in range(4):
        results = results.late(T + day * DAY_S)
    for day in range(4):
        results = results.on_time(T + (20 + day) * DAY_S)
    assert 0.8 < results.reliability < 1.0
    assert Punctuality().on_time(T).late(T).reliability == 0.5
    assert Punctuality().on_time(T).late(T + 7 * DAY_S).reliability == pytest.approx(1 / 3)


def test_the_shown_score_is_the_product_and_shows_its_parts() -> None:
    score = score_of(9.0, Punctuality().on_time(T).late(T))
    assert score.shown == round(100 * credibility(9.0) * 0.5) == 49
    assert str(score) == "49 (C 0.990, R 0.500, k 9.0)"


@given(st.floats(0.0, 1e6), st.lists(st.tuples(TIMES, st.booleans()), max_size=20))
def test_a_new_name_is_never_better_than_an_old_one(passes: float, results: list[tuple[float, bool]]) -> None:
    record = Punctuality()
    for at_s, in_time in results:
        record = record.on_time(at_s) if in_time else record.late(at_s)
    assert 0 <= score_of(0.0, Punctuality()).shown <= score_of(passes, record).shown <= 100


# ---- what fades -----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(TIMES, st.floats(0.0, 100.0)), max_size=20), st.floats(1.0, 1e8))
def test_a_fading_sum_stays_between_nothing_and_everything_and_only_falls_with_time(
    added: list[tuple[float, float]], half_life_s: float
) -> None:
    found = Faded(half_life_s)
    for at_s, amount in added:
        found = found.plus(amount, at_s)
    seen = [found.seen(found.at_s + wait_s) for wait_s in (0.0, 1.0, half_life_s, 3 * half_life_s)]
    assert seen == sorted(seen, reverse=True)
    assert 0.0 <= seen[0] <= sum(amount for _, amount in added) * (1 + 1e-9)
    assert seen[2] == pytest.approx(found.amount / 2)
    assert found.seen(found.at_s - 1e9) == found.amount, "a clock that goes back fades nothing"


def test_what_is_told_late_counts_as_if_told_now() -> None:
    late = Faded(10.0).plus(1.0, 100.0).plus(1.0, 50.0)
    assert (late.amount, late.at_s) == (2.0, 100.0)


def test_what_cannot_be_added_is_refused() -> None:
    with pytest.raises(InvalidInput):
        Faded(1.0).plus(5.0, T).plus(-1.0, T)
    with pytest.raises(InvalidInput):
        FadedMean.empty(1.0).plus(1.1, T)
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidInput):
            Faded(1.0).plus(wrong, T)
        with pytest.raises(InvalidInput):
            FadedMean.empty(1.0).plus(wrong, T)
    for half_life_s in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidInput):
            Faded(half_life_s)
    for amount, at_s in ((-1.0, 0.0), (math.inf, 0.0), (math.nan, 0.0), (1.0, math.inf), (1.0, math.nan)):
        with pytest.raises(InvalidInput):
            Faded(1.0, amount, at_s)
