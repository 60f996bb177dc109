"""Goal: everybody is audited at a rate that falls with a record and never to zero, by draws that nobody can foresee and anybody with the key repeats."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr.errors import InvalidInput
from trust.draw import CANARY_RATE, FIRST_PASSES, LOWEST_FLOOR, Floors, Secret, Task, floors_of, is_drawn, rate, task_of
from trust.exposure import intervals_until_caught
from trust.standing import PLACEABLE, State

SECRET = Secret(b"k" * 32)
FLOORS = floors_of(0.0)
MIDDLE = st.floats(0.0, 1e6)


def names(count: int, seed: int = 0) -> list[str]:
    """Digests of intervals."""
    rng = random.Random(seed)
    return [rng.randbytes(32).hex() for _ in range(count)]


# ---- rates ----------------------------------------------------------------------------------------------------------------------


def test_the_rate_follows_the_record_down_to_the_floor() -> None:
    shown = [rate(k, State.ACTIVE, FLOORS, trusted=False) for k in (10, 19, 39, 99, 399, 10_000)]
    assert shown == [1.0, 1.0, 0.5, 0.2, 0.05, 0.05]
    assert rate(10_000, State.ACTIVE, FLOORS, trusted=True) == 0.01
    assert [rate(k, State.ACTIVE, FLOORS, trusted=True) for k in (10, 39, 99)] == [0.2, 0.1, 0.04]
    assert rate(0, State.PROBATION, FLOORS, trusted=True) == 0.2, "whom maintainers vouch for is checked less from the beginning"


@pytest.mark.parametrize("state", [state for state in State if state not in PLACEABLE])
@pytest.mark.parametrize("trusted", [True, False])
def test_whoever_is_under_suspicion_is_always_audited(state: State, trusted: bool) -> None:
    assert rate(1e6, state, FLOORS, trusted=trusted) == 1.0


def test_whom_nobody_knows_is_always_audited() -> None:
    assert rate(1e6, State.PROBATION, FLOORS, trusted=False) == 1.0


@given(MIDDLE, MIDDLE, st.sampled_from(State), st.floats(0.0, 1.0), st.booleans())
def test_rates_are_never_zero_and_never_rise_with_a_better_record(
    one: float, other: float, state: State, floor: float, trusted: bool
) -> None:
    floors = floors_of(floor)
    worse, better = sorted((one, other))
    low, high = (rate(k, state, floors, trusted=trusted) for k in (better, worse))
    assert LOWEST_FLOOR <= (floors.trusted if trusted else floors.untrusted) <= low <= high <= 1.0
    assert rate(one, state, floors, trusted=True) <= rate(one, state, floors, trusted=False)


def test_a_document_raises_and_lowers_floors_within_bounds() -> None:
    assert floors_of(0.0) == Floors(0.05, 0.01)
    assert floors_of(0.5) == Floors(0.5, 0.1)
    assert floors_of(1e-9) == Floors(0.01, 0.01)
    assert floors_of(1.0) == Floors(1.0, 0.2)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(InvalidInput):
            floors_of(wrong)


# ---- the draw -------------------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=64), st.text(max_size=80), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_draw_repeats_and_a_higher_rate_draws_whatever_a_lower_one_drew(
    key: bytes, interval: str, one: float, other: float
) -> None:
    low, high = sorted((max(one, 1e-9), max(other, 1e-9)))
    assert is_drawn(Secret(key), interval, low) == is_drawn(Secret(key), interval, low)
    assert is_drawn(Secret(key), interval, high) or not is_drawn(Secret(key), interval, low)
    assert is_drawn(Secret(key), interval, 1.0)


def test_draws_come_at_their_rate_and_secrets_do_not_agree() -> None:
    intervals, other = names(4_000), Secret(b"o" * 32)
    for p in (0.01, 0.05, 0.5):
        mine = [is_drawn(SECRET, one, p) for one in intervals]
        spread = math.sqrt(p * (1 - p) / len(intervals))
        assert abs(sum(mine) / len(intervals) - p) < 5 * spread
        both = sum(a and is_drawn(other, one, p) for a, one in zip(mine, intervals, strict=True))
        assert abs(both / len(intervals) - p * p) < 5 * math.sqrt(p * p / len(intervals))


def test_names_do_not_run_into_each_other_and_purposes_are_apart() -> None:
    assert SECRET.number(b"x", "ab", "c") != SECRET.number(b"x", "a", "bc")
    assert SECRET.number(b"x", "a") != SECRET.number(b"x\0\0\0\1a")
    assert SECRET.number(b"x", "a") != SECRET.number(b"y", "a")


@pytest.mark.parametrize("key", [b"", b"k" * 31, b"k" * 1025])
def test_short_and_endless_secrets_are_refused(key: bytes) -> None:
    with pytest.raises(InvalidInput):
        Secret(key)


def test_a_secret_is_not_told() -> None:
    assert "kkkk" not in repr(SECRET)


@pytest.mark.parametrize("p", [0.0, -1.0, 1.5, math.nan])
def test_no_rate_outside_its_range_is_taken(p: float) -> None:
    with pytest.raises(InvalidInput):
        is_drawn(SECRET, "a", p)


@pytest.mark.parametrize("p", [0.01, 0.05, 0.2, 0.9])
def test_a_cheat_in_every_interval_is_drawn_within_the_stated_number_in_99_of_100_lives(p: float) -> None:
    """One life per secret; the number of lives that get away is binomial, at most one in a hundred on average."""
    within, lives, intervals = intervals_until_caught(p), 400, names(500)
    rng = random.Random(7)
    escaped = sum(
        not any(is_drawn(secret, one, p) for one in intervals[:within])
        for secret in (Secret(rng.randbytes(32)) for _ in range(lives))
    )
    assert escaped <= lives * 0.01 + 4 * math.sqrt(lives * 0.01 * 0.99)
    if within > 10:
        sooner = within // 2
        assert 1 - (1 - p) ** sooner < 0.95, "the number is not stated too high"


# ---- canaries -------------------------------------------------------------------------------------------------------------------


@settings(max_examples=5)
@given(st.binary(min_size=32, max_size=32))
def test_one_audit_in_twenty_is_a_canary(key: bytes) -> None:
    tasks = [task_of(Secret(key), one, "auditor", 1) for one in names(2_000)]
    assert abs(tasks.count(Task.CANARY) - len(tasks) * CANARY_RATE) < 6 * math.sqrt(len(tasks) * CANARY_RATE)


def test_a_canary_is_drawn_for_each_auditor_and_attempt_and_apart_from_the_audit() -> None:
    intervals = names(2_000)
    kinds = {
        (auditor, attempt): [task_of(SECRET, one, auditor, attempt) for one in intervals] for auditor in "ab" for attempt in (1, 2)
    }
    assert len({tuple(kind) for kind in kinds.values()}) == 4
    drawn = [one for one in intervals if is_drawn(SECRET, one, 0.05)]
    assert any(task_of(SECRET, one, "a", 1) is Task.REAL for one in drawn), "what is drawn is not all canary"


def test_what_lies_at_a_rate_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, canary = SECRET.number(b"dcnr/draw/v1\0", "i"), SECRET.number(b"dcnr/canary/v1\0", "i", "a", "0")
    assert [is_drawn(SECRET, "i", at) for at in (drawn, math.nextafter(drawn, 1.0))] == [False, True]
    for canaries, task in ((canary, Task.REAL), (math.nextafter(canary, 1.0), Task.CANARY)):
        monkeypatch.setattr("trust.draw.CANARY_RATE", canaries)
        assert task_of(SECRET, "i", "a", 0) is task


def test_half_of_an_auditors_first_passes_are_canaries_and_what_is_drawn_later_would_have_been_then() -> None:
    intervals = names(2_000)
    first, later = (
        [task_of(SECRET, one, "a", 0, num_passes) for one in intervals] for num_passes in (FIRST_PASSES - 1, FIRST_PASSES)
    )
    assert abs(sum(one is not Task.REAL for one in first) - 1_000) < 200
    assert all(one is other for one, other in zip(first, later, strict=True) if other is not Task.REAL)


def test_who_waves_everything_through_among_cheats_is_found_within_its_first_passes_and_costs_four_replays_more() -> None:
    """Three of ten intervals are wrong, and an auditor passes them all: it is found at the first of them that the verifier repeats."""
    found, repeated = {True: 0, False: 0}, {True: 0, False: 0}
    for auditor in names(500):
        for sooner in (True, False):
            looks = [
                task_of(SECRET, f"{auditor} {at}", auditor, 0, at if sooner else FIRST_PASSES) is not Task.REAL
                for at in range(FIRST_PASSES)
            ]
            found[sooner] += any(look and at_most(f"{auditor} {at}", 0.3) for at, look in enumerate(looks))
            repeated[sooner] += sum(looks)
    assert found[True] / 500 > 0.65
    assert found[False] / 500 < 0.2
    assert (repeated[True] - repeated[False]) / 500 < 4.0


def at_most(name: str, share: float) -> bool:
    """Whether an interval is one of so many that are wrong."""
    return SECRET.number(b"wrong", name) < share
