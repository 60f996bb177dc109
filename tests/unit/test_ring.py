"""Goal: a stretch of the ring of ids holds what lies between its ends, over the end of the ring too, and half a stretch is refused."""

from __future__ import annotations

import pytest

from dcnr.errors import InvalidInput
from membership.ring import WHOLE, Stretch

LOW, MIDDLE, HIGH = (digit * 40 for digit in "28e")


def test_a_stretch_holds_what_lies_between_its_ends() -> None:
    within = Stretch(LOW, HIGH)
    assert [one in within for one in (LOW, MIDDLE, HIGH, "0" * 40, "f" * 40)] == [True, True, False, False, False]


def test_a_stretch_may_go_over_the_end_of_the_ring() -> None:
    over = Stretch(HIGH, LOW)
    assert [one in over for one in (LOW, MIDDLE, HIGH, "0" * 40, "f" * 40)] == [False, False, True, True, True]


def test_the_whole_ring_holds_everybody() -> None:
    assert all(one in WHOLE for one in (LOW, MIDDLE, HIGH))
    assert all(one in Stretch(LOW, LOW) for one in (LOW, MIDDLE, HIGH))


@pytest.mark.parametrize(("first", "before"), [(LOW, ""), ("", LOW), ("x", LOW), (LOW, "2" * 41), (LOW, "G" * 40)])
def test_what_is_no_stretch_is_refused(first: str, before: str) -> None:
    with pytest.raises(InvalidInput):
        Stretch(first, before)
