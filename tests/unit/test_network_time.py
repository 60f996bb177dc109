"""Goal: network time follows the others whatever happens to this machine's wall clock, and a stranger's word counts only where no partner's does."""

from __future__ import annotations

import pytest

from membership.network_time import MAX_NODES, STEP_S, UNSURE_S, NetworkTime, Said

NOW = 1_800_000_000.0


class Clock:
    """A machine's clocks, both moved by the test alone."""

    def __init__(self) -> None:
        self.now, self.ahead_s = 100.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return NOW + self.now + self.ahead_s


def said(clock: Clock, ahead_s: float = 0.0, *, took_s: float = 0.0) -> Said:
    """By a node whose clock is that wrong, at the middle of the time that the answer took until now."""
    return Said(NOW + clock.now - took_s / 2 + ahead_s, clock.now - took_s, clock.now)


@pytest.mark.parametrize("step_s", [250.0, -250.0, 10.0])
def test_what_was_heard_before_the_clock_was_set_does_not_move_it_after(step_s: float) -> None:
    clock = Clock()
    clock.ahead_s = -step_s
    time = NetworkTime(clock)
    for name in "abc":
        time.note(name, step_s)
    assert time.wall() == NOW + clock.now
    clock.now += 1.5
    clock.ahead_s = 0.0
    assert time.wall() == NOW + clock.now, "the clock is right now: so is network time"
    assert time.trouble == ""


def test_a_clock_that_is_set_wrong_is_mended_by_the_next_three_partners() -> None:
    clock = Clock()
    time = NetworkTime(clock)
    for name in "abc":
        time.heard(name, said(clock))
    assert not time.is_unsure
    clock.now += 1.5
    clock.ahead_s = 600.0
    assert time.is_unsure, "nothing is thrown away by that time"
    clock.now += 1.5
    for name in "abc":
        assert time.is_unsure
        time.heard(name, said(clock))
    assert (time.wall(), time.is_unsure) == (NOW + clock.now, False)
    assert "600 s ahead of the network" in time.trouble


def test_who_is_heard_by_too_few_after_a_step_believes_its_own_clock_soon() -> None:
    clock = Clock()
    time = NetworkTime(clock)
    assert not time.is_unsure, "nor does a start wait for anybody"
    clock.ahead_s = 3600.0
    assert time.is_unsure
    time.heard("a", said(clock))
    clock.now += UNSURE_S
    assert (time.is_unsure, time.offset_s) == (False, 0.0)


def test_an_answer_to_what_was_asked_before_a_sleep_is_no_news() -> None:
    """The monotonic clock stands still in a sleep: nobody can tell how old such an answer is."""
    clock = Clock()
    time = NetworkTime(clock)
    answers = [said(clock, took_s=0.5) for _ in "abc"]
    assert time.offset_s == 0.0
    clock.ahead_s = 3600.0
    for name, answer in zip("abc", answers, strict=True):
        time.heard(name, answer)
    assert time.offset_s == 0.0


def test_clocks_that_run_apart_slowly_are_no_step() -> None:
    clock = Clock()
    time = NetworkTime(clock)
    for name in "abc":
        time.note(name, 100.0)
    for _ in range(100):
        clock.now += 60.0
        clock.ahead_s += min(STEP_S, 3.0)
        assert time.offset_s == 100.0


def test_the_middle_of_the_question_counts_and_a_clock_that_is_not_told_does_not() -> None:
    clock = Clock()
    time = NetworkTime(clock)
    for name in "abc":
        time.heard(name, said(clock, 40.0, took_s=3.0))
    assert time.offset_s == pytest.approx(40.0)
    clock.now += 7.0
    answers = {name: said(clock, 50.0, took_s=3.0) for name in "abc"}
    clock.now += 2.0  # until they are looked at
    for name, answer in answers.items():
        time.heard(name, answer)
        time.heard(name, Said(0.0, clock.now, clock.now))
    assert time.offset_s == pytest.approx(50.0)


def test_strangers_count_until_three_partners_were_heard_and_never_again() -> None:
    clock = Clock()
    time = NetworkTime(clock)
    time.met("s0", said(clock, 600.0))
    assert (time.offset_s, time.trouble) == (0.0, "this machine's clock is 600 s behind the one node that answers: set it")
    for number in range(200):
        time.met(f"s{number}", said(clock, 600.0))
    assert time.offset_s == pytest.approx(600.0)
    for name in "abc":
        time.heard(name, said(clock, 5.0))
    assert time.offset_s == pytest.approx(5.0), "however many strangers"
    for number in range(MAX_NODES):
        time.met(f"t{number}", said(clock, -600.0))
    assert time.offset_s == pytest.approx(5.0)
