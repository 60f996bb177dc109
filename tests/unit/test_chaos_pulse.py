"""Goal: what the workers' files tell of the moments of learning becomes the gap that a fault left, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_opening import DATA, NUM_BATCHES, REGISTRY, SOURCE_STAGE, work_of

from chaos.joining import conclude
from chaos.pulse import Pulse
from chaos.watched_worker import WatchedCompute
from vnode.vocabulary import Mode


def test_a_gap_is_what_no_replica_fills() -> None:
    pulse = Pulse()
    for step in range(100):
        if not 50 <= step < 53:
            pulse.learned("a", step * 0.5)
    pulse.learned("b", 1.0)
    assert pulse.gap_s(["a"], 24.8) == pytest.approx(2.0)
    assert pulse.gap_s(["a", "b"], 24.8) == pytest.approx(2.0)
    assert pulse.gap_s(["a"], 30.0) == pytest.approx(0.5), "a gap before the fault is not its doing"
    assert pulse.gap_s(["a"], 5.0) == pytest.approx(0.5), "nor is one long after it"
    assert pulse.gap_s(["sink"], 10.0) is None


def test_the_longest_stillness_of_a_span_is_that_of_its_stillest_vnode() -> None:
    pulse = Pulse()
    for step in range(100):
        pulse.learned("a", 100.0 + step * 0.1)
        if not 50 <= step < 62:
            pulse.learned("b", 100.0 + step * 0.1)
    assert pulse.stillness_s(["a"], 103.0, 108.0) == pytest.approx(0.1)
    assert pulse.stillness_s(["a", "b"], 103.0, 108.0) == pytest.approx(1.3)
    assert pulse.stillness_s(["b"], 105.5, 106.0) == pytest.approx(0.5), "what reaches beyond the span counts within it"
    assert pulse.stillness_s(["b"], 120.0, 130.0) == pytest.approx(10.0), "whoever stands still for the whole span"
    assert pulse.stillness_s(["a", "sink"], 103.0, 108.0) is None


def test_the_newest_moment_of_any_machine_counts(tmp_path: Path) -> None:
    pulse = Pulse()
    for moment, process in ((100.0, 17), (100.4, 18), (100.2, 17)):
        (tmp_path / f"block1.{process}").touch()
        os.utime(tmp_path / f"block1.{process}", (moment, moment))
        pulse.look(tmp_path)
    assert pulse.gap_s(["block1"], 100.1) == pytest.approx(0.4)


def test_what_is_learned_leaves_a_moment_and_what_is_computed_for_others_none(tmp_path: Path) -> None:
    stage = SOURCE_STAGE
    compute = WatchedCompute(tmp_path, stage, REGISTRY, num_batches=NUM_BATCHES, seed=7)
    compute.restore(work_of(stage).first_state)
    compute.forward(0, [DATA.read_input(0)], Mode.FORWARD_ONLY)
    assert not list(tmp_path.iterdir())
    compute.learn(0, [DATA.read_input(0)], DATA.read_target(0), 0)
    assert [path.name for path in tmp_path.iterdir()] == [f"{stage.id}.{os.getpid()}"]


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
