"""Goal: what is said of audits' costs and of what they find follows from the two results alone, and table and picture say the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import audit_plot
from benchmarks.audit_plot import INTERVALS, RATES

COST: dict[str, Any] = {"ratios": {"after_0_passes": {"rate": 1, "compute": 1.1, "bytes": 1.4}}}
DETECTION: dict[str, Any] = {"ratios": {"detected": 0.98}}


def test_a_cheat_in_ninety_intervals_is_found_in_99_of_100_lives_at_the_floor() -> None:
    assert audit_plot.found(0.05, 1.0, 1) == pytest.approx(0.05)
    assert audit_plot.found(0.05, 1.0, 89) < 0.99 <= audit_plot.found(0.05, 1.0, 90)
    assert audit_plot.needed(0.05, 1.0) == 90
    assert audit_plot.needed(1.0, 1.0) == 1
    assert audit_plot.found(1.0, 0.98, 1) == pytest.approx(0.98), "what a check does not see is found by no draw"
    assert audit_plot.needed(1.0, 0.98) == 2
    assert audit_plot.costs(COST, 0.05) == (pytest.approx(0.055), pytest.approx(0.07))


def test_the_table_has_a_row_for_each_rate() -> None:
    rows = [line for line in audit_plot.table(COST, DETECTION).splitlines() if line.startswith("| 0.") or line.startswith("| 1 ")]
    assert len(rows) == len(RATES)
    assert "| 0.05 | 5.5 % | 7 % | 4.9 % | 22.2 % | 63.4 % | 98.9 % | 92 |" in rows


def test_the_picture_has_a_rising_line_for_each_number_of_intervals() -> None:
    picture = ElementTree.fromstring(audit_plot.svg(COST, DETECTION))
    lines = [found.get("points", "") for found in picture.iter() if found.tag.endswith("polyline")]
    assert len(lines) == len(INTERVALS)
    heights = [[float(point.partition(",")[2]) for point in line.split()] for line in lines]
    for line in heights:
        assert line == sorted(line, reverse=True), "y grows downwards"
    for fewer, more in pairwise(heights):
        assert all(above <= below for above, below in zip(more, fewer, strict=True))
    assert any("5.5 % compute" in (found.text or "") for found in picture.iter())
