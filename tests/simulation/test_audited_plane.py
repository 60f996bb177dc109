"""Goal: where audits are in force every job still ends well, with a cheat among the PNodes or without; and every rule of the ledger that is built is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dataservice.manifest_form import Entry
from orchestrator import audited, progress
from orchestrator.jobs import Progress
from simulation.control_knobs import audited_knobs
from simulation.control_world import ControlWorld
from tests.simulation.reddening import first_red
from trust.going_back import WayBack, way_back

Plant = Callable[[pytest.MonkeyPatch], None]


def world(seed: int, **changes: Any) -> ControlWorld:
    return ControlWorld(seed, replace(audited_knobs(seed), **changes), "--world audited")


@pytest.mark.parametrize("seed", [3, 5, 9])
def test_jobs_end_well_whatever_is_drawn_and_taken_back(seed: int) -> None:
    """With faults of every kind; in the first two worlds one PNode cheats and is found."""
    ledger = world(seed).run().checkers.ledger
    assert ledger.num_drawn > 0
    assert ledger.num_spared > 0


def test_where_nobody_cheats_nobody_is_accused() -> None:
    ledger = world(1, cheating_pnodes=0).run().checkers.ledger
    assert (ledger.num_drawn > 0, ledger.num_failed) == (True, 0)


BREAKING: dict[str, Any] = {
    "cheats_break": True,
    "cheating_pnodes": 2,
    "replicas": (1,),
    "orchestrator_crashes": 0,
    "orchestrator_pauses": 0,
    "num_batches": 100,
    "settling_deadline_s": 150.0,
}
"""A job that is left with a state from which nobody learns fails soon."""


GROWING: dict[str, Any] = {**BREAKING, "cheats_break": False, "cheats_grow": True}
"""As long as the state counts all that is drawn behind it goes back."""


def test_states_behind_which_everything_is_doubted_are_traced_back_and_jobs_end_well() -> None:
    """Also where that comes to light while a job settles, with less time left than anybody has to show evidence: what it lacks is learned by nobody else."""
    found = world(2, **GROWING).run()
    assert found.doubtful
    assert found.num_late > 0


def test_states_that_nobody_can_learn_from_are_traced_back_and_jobs_end_well() -> None:
    found = world(2, **BREAKING).run()
    assert found.num_late > 0


FINDING: dict[str, Any] = {
    "cheating_pnodes": 4,
    "cheats_break": False,
    "cheats_grow": False,
    "faults_s": 150.0,
    "num_batches": 600,
    "jobs": 2,
}


def test_what_was_spared_of_who_is_found_out_is_drawn_and_jobs_end_well() -> None:
    found = world(0, **{**FINDING, "faults_s": 80.0, "num_batches": 300}).run()
    assert found.num_late_found_out > 0


def nobody_looks_at_what_the_found_out_have_done(patch: pytest.MonkeyPatch) -> None:
    """What was spared of a PNode stays so when it is found out, and no job waits for it."""
    patch.setattr("orchestrator.audit_people.left_of", lambda *_: {})
    patch.setattr("orchestrator.auditing.left_of", lambda *_: {})


def nothing_is_drawn_late(patch: pytest.MonkeyPatch) -> None:
    """What was spared stays so, whatever its state does to others."""
    patch.setattr("orchestrator.audited_late.drawn_late", lambda *_: ())


def nothing_is_looked_for_behind_doubts(patch: pytest.MonkeyPatch) -> None:
    """Doubts take back what stands on a state that somebody made so, again and again, and never who made it."""
    patch.setattr("orchestrator.audit_doubters.Doubters._take_back", lambda *_: None)


def everything_is_cleared(patch: pytest.MonkeyPatch) -> None:
    """What is newest counts as cleared, whatever waits for an audit."""
    patch.setattr(audited, "_cleared", lambda entry, *_: Entry(entry.working, entry.working[0]))


def less_is_told_than_was_learned(patch: pytest.MonkeyPatch) -> None:
    """A manifest tells of one batch less than its checkpoint brings."""
    told = audited._told

    def less(*given: Any) -> Any:
        one = told(*given)
        return replace(one, batches=one.batches - one.batches.first(1))

    patch.setattr(audited, "_told", less)


def jobs_wait_for_no_audit(patch: pytest.MonkeyPatch) -> None:
    """A job is completed while audits of its result are open."""

    def hasty(*args: Any, **kinds: Any) -> Progress:
        return Progress(*args, **{**kinds, "num_open_audits": 0})

    patch.setattr(progress, "Progress", hasty)


def nothing_goes_back(patch: pytest.MonkeyPatch) -> None:
    """A failure is told, and what it spoiled stays."""

    def told_only(*args: Any) -> WayBack:
        way = way_back(*args)
        return WayBack(way.interval, way.verdict, way.accused)

    patch.setattr("orchestrator.verdicts.way_back", told_only)


PLANTED = [
    (everything_is_cleared, {}, 0, {"cleared"}),
    (less_is_told_than_was_learned, {}, 0, {"ledger"}),
    (jobs_wait_for_no_audit, {}, 0, {"unaudited"}),
    (nothing_is_drawn_late, BREAKING, 2, {"completes"}),
    (nothing_is_looked_for_behind_doubts, GROWING, 10, {"completes"}),
    (nobody_looks_at_what_the_found_out_have_done, FINDING, 9, {"left_behind"}),
    (nothing_goes_back, {"cheating_pnodes": 2}, 1, {"unaudited", "completes"}),
]


@pytest.mark.parametrize(("plant", "knobs", "hint", "expected"), PLANTED, ids=[row[0].__name__ for row in PLANTED])
def test_a_planted_bug_turns_its_checker_red(
    plant: Plant, knobs: dict[str, Any], hint: int, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert first_red(world(seed, **knobs) for seed in (hint, *range(8))) in expected
