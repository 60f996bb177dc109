"""Goal: the uplink is what the best upload of an hour shows, whoever uploads what and when; what says little of the line does not count; pacing never
measures itself.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.pacing import BYTES_PER_MBIT, Outgoing, Pace, Sent
from dcnr.limits import MIB, UPLINK_SHARE
from pnode.measured import MAX_HELD, MIN_SENT_BYTES, WINDOW_S, MeasuredUplink, rounded


def took(mbit: float, num_bytes: int = 8 * MIB, *, held: float = 0.0) -> Sent:
    """An upload at that rate, held back for that part of its time."""
    seconds = num_bytes / (mbit * BYTES_PER_MBIT)
    return Sent(num_bytes, seconds, held * seconds)


def test_the_largest_of_the_hour_counts() -> None:
    uplink = MeasuredUplink()
    assert (uplink.mbit(0.0), uplink.is_fresh(0.0)) == (0.0, False)
    for at_s, mbit in ((0.0, 20.0), (600.0, 50.0), (1200.0, 10.0), (1800.0, 40.0), (2400.0, 30.0)):
        assert uplink.uploaded(took(mbit), at_s)
    for now_s, largest in ((2400.0, 50.0), (4200.0, 50.0), (4201.0, 40.0), (5400.0, 40.0), (5401.0, 30.0)):
        assert (uplink.mbit(now_s), uplink.is_fresh(now_s)) == (largest, True)


@pytest.mark.parametrize(
    "sent",
    [
        took(50.0, MIN_SENT_BYTES - 1),
        took(50.0, held=MAX_HELD + 0.01),
        Sent(8 * MIB, 0.0, 0.0),
        Sent(0, 1.0, 0.0),
    ],
    ids=["small", "held back", "no time", "nothing sent"],
)
def test_what_says_little_of_the_line_does_not_count(sent: Sent) -> None:
    uplink = MeasuredUplink()
    assert not uplink.uploaded(sent, 0.0)
    assert uplink.mbit(0.0) == 0.0
    uplink.uploaded(took(10.0), 1.0)
    assert not uplink.uploaded(sent, 2.0)
    assert uplink.mbit(2.0) == 10.0


def test_an_hour_later_the_next_upload_is_free_and_the_last_rate_stands_until_then() -> None:
    uplink = MeasuredUplink()
    uplink.uploaded(took(50.0), 0.0)
    uplink.uploaded(took(20.0), 100.0)
    assert uplink.is_fresh(100.0 + WINDOW_S)
    after_s = 101.0 + WINDOW_S
    assert not uplink.is_fresh(after_s)
    assert uplink.mbit(after_s) == 20.0
    uplink.uploaded(took(8.0), after_s)
    assert (uplink.is_fresh(after_s), uplink.mbit(after_s)) == (True, 8.0), "what is older than an hour is not believed against it"


RATES = st.lists(st.tuples(st.floats(0.0, 3000.0), st.floats(0.01, 1e5)), max_size=40)


@given(RATES)
def test_it_is_the_maximum_over_the_window_and_remembers_little(steps: list[tuple[float, float]]) -> None:
    uplink, seen, now_s = MeasuredUplink(), list[tuple[float, float]](), 0.0
    for after_s, mbit in steps:
        now_s += after_s
        uplink.uploaded(took(mbit), now_s)
        seen.append((now_s, rounded(8 * MIB / took(mbit).seconds / BYTES_PER_MBIT)))
        assert uplink.mbit(now_s) == max(rate for at_s, rate in seen if at_s >= now_s - WINDOW_S)
        rates = [rate for _, rate in uplink._rates._figures]
        assert rates == sorted(set(rates), reverse=True)


class Clock:
    def __init__(self) -> None:
        self.now_s = 500.0

    def monotonic(self) -> float:
        return self.now_s


def upload(clock: Clock, line_mbit: float, *paces: Pace, num_bytes: int = 8 * MIB) -> Sent:
    """One after the other: what the pace asks for, and what the line takes for a block."""
    outgoing, left = Outgoing(Pace(0.0, clock.monotonic), *paces), num_bytes
    free_s = clock.now_s
    while left:
        block = min(left, outgoing.block_bytes)
        clock.now_s += outgoing.wait_s(block)
        free_s = clock.now_s = max(clock.now_s, free_s) + block / (line_mbit * BYTES_PER_MBIT)
        left -= block
    return outgoing.answered()


def test_a_day_of_paced_uploads_neither_measures_the_pace_nor_forgets_the_line() -> None:
    """A line of 40 Mbit/s that becomes one of 4 at noon, and of 80 in the evening."""
    clock, uplink = Clock(), MeasuredUplink()
    share = Pace(0.0, clock.monotonic)
    told: dict[float, set[float]] = {40.0: set(), 4.0: set(), 80.0: set()}
    for hour, line_mbit in enumerate([40.0] * 8 + [4.0] * 8 + [80.0] * 8):
        for minute in range(60):
            clock.now_s = max(clock.now_s, 500.0 + 3600.0 * hour + 60.0 * minute)
            fresh = uplink.is_fresh(clock.now_s)
            share.limit(UPLINK_SHARE * uplink.mbit(clock.now_s) * BYTES_PER_MBIT if fresh else 0.0)
            sent = upload(clock, line_mbit, *([share] if fresh else []))
            uplink.uploaded(sent, clock.now_s)
            if hour % 8 >= 2:
                told[line_mbit].add(uplink.mbit(clock.now_s))
                assert not fresh or sent.num_bytes / sent.seconds <= 1.25 * share.limit_bytes_s
    assert told == {40.0: {40.0}, 4.0: {4.0}, 80.0: {80.0}}


def test_the_slowest_pace_of_an_upload_is_kept_and_all_of_them_hear_of_its_bytes() -> None:
    clock = Clock()
    own, share = Pace(16.0, clock.monotonic), Pace(4.0, clock.monotonic)
    outgoing = Outgoing(own, share)
    assert outgoing.block_bytes == share.block_bytes < own.block_bytes
    assert outgoing.seconds(MIB) == share.seconds(MIB)
    sent = upload(clock, 1e6, own, share, num_bytes=4 * MIB)
    assert sent.num_bytes == own.num_bytes == share.num_bytes == 4 * MIB
    assert sent.seconds == pytest.approx(4 * MIB / (4.0 * BYTES_PER_MBIT), rel=0.05)
    assert sent.held_s == pytest.approx(sent.seconds, rel=0.05)
    share.limit(0.0)
    assert upload(clock, 1e6, own, share, num_bytes=4 * MIB).seconds == pytest.approx(4 * MIB / (16.0 * BYTES_PER_MBIT), rel=0.15)


def test_two_digits() -> None:
    assert [rounded(mbit) for mbit in (0.0, 0.01234, 9.96, 12.5, 123.0, 987_654.0)] == [0.0, 0.012, 10.0, 12.0, 120.0, 990_000.0]
