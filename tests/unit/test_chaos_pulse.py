"""Goal: what the spools' files tell of the moments of learning becomes the gap that a fault left, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from chaos.joining import conclude
from chaos.pulse import Pulse


def test_a_gap_is_what_no_replica_fills() -> None:
    pulse = Pulse()
    for step in range(100):
        if not 50 <= step < 53:
            pulse.wrote("a", step * 0.5)
    pulse.wrote("b", 1.0)
    assert pulse.gap_s(["a"], 24.8) == pytest.approx(2.0)
    assert pulse.gap_s(["a", "b"], 24.8) == pytest.approx(2.0)
    assert pulse.gap_s(["a"], 30.0) == pytest.approx(0.5), "a gap before the fault is not its doing"
    assert pulse.gap_s(["a"], 5.0) == pytest.approx(0.5), "nor is one long after it"
    assert pulse.gap_s(["sink"], 10.0) is None


def test_the_newest_write_of_any_machine_counts(tmp_path: Path) -> None:
    pulse = Pulse()
    for moment, machine in ((100.0, "p1"), (100.4, "p2"), (100.2, "p1")):
        spool = tmp_path / machine / "work" / f"block1.{machine[1:]}" / "spool"
        spool.mkdir(parents=True, exist_ok=True)
        (spool / "0.segment").touch()
        os.utime(spool / "0.segment", (moment, moment))
        pulse.look([tmp_path / "p1", tmp_path / "p2", tmp_path / "absent"])
    assert pulse.gap_s(["block1"], 100.1) == pytest.approx(0.4)


def joined(**changes: Any) -> dict[str, Any]:
    """Ten batches per second for a minute; five for twenty seconds after the joiners came, then twelve."""
    learned = [[float(second), 10.0 * second] for second in range(-60, 1)]
    learned += [[float(second), 5.0 * second if second <= 20 else 100.0 + 12.0 * (second - 20)] for second in range(1, 101)]
    settings = {"before_s": 60.0, "after_s": 90.0}
    return {"settings": settings, "learned": learned, "contributed_s": [11.0, 9.5], **changes}


def test_the_cost_of_joiners_is_the_time_below_four_fifths_of_the_rate() -> None:
    figures = conclude(joined())
    assert (figures["rate_before"], figures["rate_after"]) == (10.0, 12.0)
    assert 18.0 <= figures["below_s"] <= 24.0
    assert (figures["all_contribute"], figures["contributed_max_s"]) == (True, 11.0)
    assert not conclude(joined(contributed_s=[11.0, None]))["all_contribute"]
    even = [[float(second), 10.0 * second] for second in range(-60, 101)]
    assert conclude(joined(learned=even))["below_s"] == 0.0
