"""Goal: a check's outcome follows from its comparisons alone; what is no number is never within a tolerance, and nothing compared is nothing passed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dcnr.errors import InvalidInput
from trust.comparison import Comparison, judge
from trust.findings import DOUBT_FACTOR
from trust.overturned import Finding


def compared(step: int, residual: float, tolerance: float = 1e-5) -> Comparison:
    return Comparison(step, "output", "", residual, tolerance)


def test_the_first_step_over_is_named_and_nothing_behind_the_first_fault_is_read() -> None:
    read: list[int] = []

    def comparisons() -> object:
        for step, residual in enumerate((1e-6, 1.5e-5, 3e-5, 1.0)):
            read.append(step)
            yield compared(step, residual)

    outcome = judge(comparisons())  # type: ignore[arg-type]
    assert not outcome.passed
    assert outcome.first_over is not None
    assert outcome.first_over.step == 1
    assert outcome.first_over.ratio == pytest.approx(1.5)
    assert outcome.finding is Finding.FAULT
    assert read == [0, 1, 2]


def test_to_the_end_finds_the_worst_and_keeps_the_first() -> None:
    outcome = judge([compared(0, 2e-5), compared(1, 5e-5)], to_the_end=True)
    assert outcome.first_over == compared(0, 2e-5)
    assert outcome.worst == compared(1, 5e-5)
    assert outcome.num_compared == 2


def test_all_within_passes_and_the_limit_itself_is_within() -> None:
    outcome = judge([compared(0, 0.0), compared(1, 1e-5)])
    assert outcome.passed
    assert outcome.worst == compared(1, 1e-5)


def test_of_equals_the_first_is_the_worst_and_a_doubt_is_read_past() -> None:
    at_the_factor = Comparison(0, "output", "", 2.0, 1.0)
    assert at_the_factor.ratio == DOUBT_FACTOR
    outcome = judge([at_the_factor, replace(at_the_factor, step=1), Comparison(2, "output", "", 9.0, 1.0), compared(3, 0.0)])
    assert (outcome.num_compared, outcome.first_over) == (3, at_the_factor)
    assert judge([at_the_factor, replace(at_the_factor, step=1)]).worst == at_the_factor
    assert judge([compared(0, 1e-5)]).passed, "one is enough"


def test_a_little_over_is_a_doubt_and_within_is_a_pass() -> None:
    assert judge([compared(0, 1.5e-5), compared(1, 0.0)]).finding is Finding.DOUBT
    assert judge([compared(0, 1e-5)]).finding is Finding.PASS


def test_nothing_compared_has_not_passed_and_is_no_finding() -> None:
    assert not judge([]).passed
    with pytest.raises(InvalidInput):
        _ = judge([]).finding


@pytest.mark.parametrize("residual", [math.nan, math.inf, -1.0, -math.inf])
def test_what_is_no_residual_is_over(residual: float) -> None:
    outcome = judge([compared(0, 1e-9), compared(1, residual)])
    assert outcome.first_over is not None
    assert outcome.worst is not None
    assert outcome.worst.ratio == math.inf
    assert outcome.finding is Finding.FAULT


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan])
def test_no_tolerance_lets_nothing_through(tolerance: float) -> None:
    assert compared(0, 0.0, tolerance).is_over
