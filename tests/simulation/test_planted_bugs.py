"""Goal: every rule of the data plane is needed. A bug that breaks one turns a named checker red within a few seeds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dcnr.errors import InvariantBroken
from simulation.world import Simulation, Violation
from tests.simulation import planted

SEEDS = range(24)

PLANTED = [
    (planted.mode_of_the_computation, "liveness"),
    (planted.no_resend_time, "storm"),
    (planted.dead_replica_pins_the_floor, "liveness"),
    (planted.unheard_counts_as_done, "recompute"),
    (planted.floor_of_itself_alone, "floor_true"),
    (planted.sources_run_away, "recompute"),
    (planted.full_join_refuses, "liveness"),
    (planted.recompute_what_it_lacks, "learn_first"),
    (planted.requests_do_not_join, "liveness"),
    (planted.lineage_tested_when_queued, "exactly_once"),
    (planted.no_last_checkpoint, "liveness"),
    (planted.manifest_goes_back, "manifest_back"),
]


def red_checkers() -> Iterator[str]:
    """The checker that notices, seed by seed; an invariant of the core counts under its own name."""
    for seed in SEEDS:
        try:
            Simulation(seed).run()
        except Violation as violation:
            yield violation.checker
        except InvariantBroken as error:
            yield error.code


@pytest.mark.parametrize(("plant", "checker"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_turns_its_checker_red(plant: planted.Plant, checker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert checker in red_checkers()
