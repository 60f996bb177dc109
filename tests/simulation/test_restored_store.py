"""Goal: a store that is restored from an older copy, or of which the head alone is, costs what the copy lacks and nothing else; each rule of this is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulation.control_knobs import restored_knobs
from simulation.control_world import ControlWorld
from tests.simulation import control_planted as planted
from tests.simulation import control_planted_backups as backups
from tests.simulation.control_planted import Plant
from tests.simulation.reddening import first_red

SEEDS = range(6)
PLANTED: list[tuple[Plant, int, set[str]]] = [
    (backups.terms_follow_the_store, 0, {"above_seen"}),
    (backups.what_has_ended_runs_again, 2, {"ended_again"}),
    (backups.older_heads_are_never_followed, 8, {"takeover_bound"}),
    (backups.pnodes_go_back_with_the_store, 0, {"term_back"}),
    (planted.older_desired_states, 0, {"obeys_older"}),
    (backups.strays_stay_while_no_job_runs, 27, {"strays"}),
    (backups.what_was_lost_is_remembered, 14, {"manifest_whole"}),
    (backups.what_was_judged_before_is_named, 32, {"manifest_whole"}),
    (backups.numbers_are_given_twice, 20, {"number_again"}),
    (backups.plans_come_before_fences, 17, {"liveness"}),
]


def restored_world(seed: int, **changes: Any) -> ControlWorld:
    return ControlWorld(seed, replace(restored_knobs(seed), **changes), "--world restored")


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_goes_back_everybody_follows_and_no_job_ends_twice(seed: int) -> None:
    assert restored_world(seed).run().checkers.backups.num_back > 0


@pytest.mark.parametrize(("plant", "hint", "expected"), PLANTED, ids=[plant.__name__ for plant, *_ in PLANTED])
def test_a_planted_bug_turns_its_checker_red(plant: Plant, hint: int, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert first_red(restored_world(seed) for seed in (hint, *SEEDS)) in expected
