"""Goal: however many events an orchestrator alone sees of a PNode, no later ones hide a ban or a fault, and memory stays bounded."""

from __future__ import annotations

import pytest

from orchestrator.standings import MAX_OWN, Standings
from trust.standing import LONGEST_QUARANTINE_S, SHADOW_UNITS, Standing, State

NODE, NOW = "a" * 64, 1_800_000_000.0


def way_back(standings: Standings, since_s: float) -> float:
    """All units of rehab, right, as soon as the quarantine is over; when that was."""
    began_s = max(since_s, standings.of(NODE, since_s).until_s)
    for number in range(SHADOW_UNITS):
        standings.shadowed(NODE, "", began_s + number, is_right=True)
    return began_s + SHADOW_UNITS


def after_lies(num: int) -> Standing:
    standings, now_s = Standings(), NOW
    for number in range(num):
        standings.lied(NODE, f"{number:064x}", "it passed what is wrong", now_s)
        last_s = now_s
        now_s = way_back(standings, now_s) + 1.0
        assert standings.of(NODE, now_s).state is State.PROBATION
    return standings.of(NODE, last_s)


@pytest.mark.parametrize("num", [3, 4, 5, 12])
def test_right_units_hide_no_fault(num: int) -> None:
    assert after_lies(num).num_quarantines == num


@pytest.mark.parametrize("is_right", [True, False])
def test_nothing_that_is_seen_later_hides_a_ban(*, is_right: bool) -> None:
    standings = Standings()
    assert standings.equivocated(NODE, "b" * 64, NOW)
    for number in range(2 * MAX_OWN):
        standings.shadowed(NODE, f"{number:064x}", NOW + number, is_right=is_right)
        standings.lied(NODE, f"{number:064x}", "it passed what is wrong", NOW + number)
    assert standings.of(NODE, NOW + 1e9).state is State.BANNED


def test_more_faults_than_are_kept_make_the_longest_quarantine_all_the_same() -> None:
    standings = Standings()
    for number in range(3 * MAX_OWN):
        standings.lied(NODE, f"{number:064x}", "it passed what is wrong", NOW + number)
    found = standings.of(NODE, NOW + 3 * MAX_OWN)
    assert found.until_s - found.clean_from_s == LONGEST_QUARANTINE_S
    assert found.num_quarantines == MAX_OWN
    assert standings.of(NODE, way_back(standings, NOW + 3 * MAX_OWN)).state is State.PROBATION, "and there is a way back"
