"""Goal: the share of unnoticed bad steps that is shown with a release is what the best cheat could expect, no less, and falls with every higher rate."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvalidInput
from trust.draw import floors_of, rate
from trust.exposure import CAUGHT, Drawn, Life, exposure_of, intervals_until_caught, undetected_steps
from trust.standing import State

LIVES = st.lists(st.builds(Drawn, st.integers(0, 256), st.floats(0.01, 1.0)), max_size=8)


def alive(intervals: list[Drawn]) -> Life:
    return Life(intervals, is_over=False)


def expected(life: list[Drawn], cheats: tuple[bool, ...], caught: float) -> float:
    """Bad steps that come in on average, if the first cheat that is found ends everything."""
    alive, total = 1.0, 0.0
    for one, cheat in zip(life, cheats, strict=True):
        if cheat:
            alive *= 1 - caught * one.rate
            total += alive * one.num_steps
    return total


@given(LIVES, st.floats(0.1, 1.0))
def test_it_is_the_best_of_all_ways_to_cheat(life: list[Drawn], caught: float) -> None:
    best = max(expected(life, cheats, caught) for cheats in itertools.product((False, True), repeat=len(life)))
    assert undetected_steps(alive(life), caught) == pytest.approx(best)


@given(LIVES, st.floats(0.0, 1.0))
def test_higher_rates_and_shorter_lives_never_show_more(life: list[Drawn], up: float) -> None:
    stricter = [Drawn(one.num_steps, one.rate + up * (1 - one.rate)) for one in life]
    shown = undetected_steps(alive(life))
    assert undetected_steps(alive(stricter)) <= shown + 1e-9
    assert undetected_steps(alive(life[1:])) <= shown + 1e-9
    assert shown <= sum(one.num_steps for one in life)


def test_however_long_a_life_the_floor_bounds_it() -> None:
    for p in (0.01, 0.05, 0.5):
        bound = 256 * (1 - CAUGHT * p) / (CAUGHT * p)
        shown = undetected_steps(alive([Drawn(256, p)] * 5_000))
        assert shown <= bound * (1 + 1e-9)
        assert shown == pytest.approx(bound, rel=1e-3)
        assert undetected_steps(Life([Drawn(1, 1.0), Drawn(256, p)], is_over=True)) == pytest.approx(bound)


@pytest.mark.parametrize("patience", [0, 3, 30])
def test_what_is_found_counts_what_is_not(patience: int) -> None:
    """Lives of a cheat that is honest for a while between cheats, at rates that fall: what was shown for those found is right on average."""
    rng, kept, shown = random.Random(patience), 0.0, 0.0
    for _ in range(1_500):
        life: list[Drawn] = []
        for number in itertools.count():
            life.append(Drawn(10 + number % 7, max(0.1, 2 / (2 + number))))
            if number % (patience + 1) != patience:
                continue
            if rng.random() < CAUGHT * life[-1].rate:
                break
            kept += life[-1].num_steps
        shown += undetected_steps(Life(life, is_over=True))
    assert shown == pytest.approx(kept, rel=0.1)


def test_a_release_adds_up_its_lives_and_says_what_it_assumes() -> None:
    lives = [alive([Drawn(100, 0.5)] * 50), alive([Drawn(100, 0.05)] * 50)]
    whole, part = exposure_of(lives), exposure_of(lives, cheaters=0.3)
    assert whole.undetected_steps == pytest.approx(sum(undetected_steps(life) for life in lives))
    assert (whole.num_steps, part.cheaters) == (10_000, 0.3)
    assert part.share == pytest.approx(0.3 * whole.share)
    over = Life([Drawn(100, 0.5)], is_over=True)
    assert exposure_of([over], cheaters=0.0).undetected_steps == undetected_steps(over) > 0, "who was found out is no assumption"
    assert exposure_of([]).share == 0.0
    assert exposure_of([alive([Drawn(100, 1.0)])], caught=1.0).share == 0.0, "where everything is checked nothing is left"


def test_cheats_of_many_kinds_stay_under_the_share_that_is_shown() -> None:
    """Thirty of a hundred nodes cheat at their own frequency and begin anew when found; the rest are honest. Rates follow the passed audits."""
    rng, floors = random.Random(11), floors_of(0.0)
    bad_steps = total = 0
    lives: list[Life] = []
    for number in range(100):
        frequency = rng.choice((0.002, 0.01, 0.05, 0.3, 1.0)) if number < 30 else 0.0
        passes, life = 0, list[Drawn]()
        for _ in range(400):
            p = rate(passes, State.ACTIVE, floors, trusted=False)
            cheats, drawn = rng.random() < frequency, rng.random() < p
            life.append(Drawn(256, p))
            total += 256
            if cheats and drawn and rng.random() < CAUGHT:
                lives.append(Life(life, is_over=True))
                passes, life = 0, []
                continue
            passes += drawn
            bad_steps += 256 * cheats
        lives.append(alive(life))
    shown = exposure_of(lives, cheaters=0.3)
    assert shown.num_steps == total
    assert 0 < bad_steps / total < shown.share < exposure_of(lives).share


def test_intervals_until_caught_is_the_stated_formula() -> None:
    assert [intervals_until_caught(p) for p in (1.0, 0.999, 0.5, 0.05, 0.01)] == [1, 1, 7, 90, 459]
    assert intervals_until_caught(0.05) == math.ceil(math.log(0.01) / math.log(0.95))


@pytest.mark.parametrize("p", [0.0, -0.1, 1.1, math.nan])
def test_a_rate_of_zero_is_never_taken(p: float) -> None:
    with pytest.raises(InvalidInput):
        undetected_steps(alive([Drawn(1, p)]))
    with pytest.raises(InvalidInput):
        intervals_until_caught(p)
    with pytest.raises(InvalidInput):
        undetected_steps(alive([]), caught=p)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.1, 1.1, math.nan])
def test_a_confidence_is_neither_nothing_nor_certain(confidence: float) -> None:
    with pytest.raises(InvalidInput):
        intervals_until_caught(0.5, confidence)


def test_no_interval_has_fewer_steps_than_none() -> None:
    with pytest.raises(InvalidInput):
        undetected_steps(alive([Drawn(-1, 0.5)]))
    assert undetected_steps(alive([Drawn(0, 0.5)])) == 0.0


def test_a_life_ends_at_an_interval() -> None:
    with pytest.raises(InvalidInput):
        undetected_steps(Life([], is_over=True))


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_of_cheaters_is_a_share(share: float) -> None:
    with pytest.raises(InvalidInput):
        exposure_of([], cheaters=share)
