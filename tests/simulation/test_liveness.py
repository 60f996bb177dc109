"""Goal: on home links at most one false loss per node and day, and a silent machine is known to be gone within seven seconds."""

from __future__ import annotations

import pytest

from dcnr import limits
from simulation.home_line import HomeLink
from simulation.liveness import tally


def test_living_nodes_are_almost_never_taken_for_gone_and_dead_ones_soon() -> None:
    found = tally(1, num_nodes=6, days=1.0)
    assert found.num_false_suspect > 0  # the link is bad enough to be noticed
    assert found.false_per_node_day <= 1.0
    assert max(found.detected_s) <= limits.SILENT_BEATS * limits.HEARTBEAT_S + 1.0


def test_the_statistic_turns_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a hastier judgement, or a link that is away for long, shows in the figure."""
    assert tally(2, num_nodes=2, days=0.25, link=HomeLink(away_s=(6.0, 9.0))).false_per_node_day > 1.0
    monkeypatch.setattr(limits, "SILENT_BEATS", 1)
    assert tally(2, num_nodes=2, days=0.25).false_per_node_day > 1.0


def test_what_makes_judgements_faster_goes_over_the_same_lines_and_can_be_wrong() -> None:
    """Goal: looks that fail and connections that break on a bad line make living nodes gone, and dead ones gone sooner."""
    bad = HomeLink(away_s=(4.0, 8.0), away_per_hour=20.0)
    alone, witnessed = (tally(3, num_nodes=6, days=0.05, link=bad, witnessed=witnessed) for witnessed in (False, True))
    assert (alone.num_failed_looks, alone.num_broken, alone.num_by_witness) == (0, 0, 0)
    assert min(witnessed.num_failed_looks, witnessed.num_broken, witnessed.num_by_witness) > 0
    assert witnessed.num_false_offline > alone.num_false_offline
    assert max(witnessed.detected_s) < max(alone.detected_s)
