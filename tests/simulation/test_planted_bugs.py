"""Goal: every rule of the data plane is needed. A bug that breaks one turns a named checker red within a few seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from dcnr.errors import InvariantBroken
from simulation.world import Simulation, Violation
from tests.simulation import planted

SEEDS = range(24)
SHARED_SEEDS = range(1, 48, 2)
"""Those whose VNodes have several replicas."""

PLANTED = [
    (planted.mode_of_the_computation, "liveness"),
    (planted.no_resend_time, "storm"),
    (planted.needs_are_quiet, "stale_work"),
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
    (planted.begins_before_it_is_due, "tempo"),
]

PLANTED_BETWEEN_REPLICAS = [
    (planted.everything_is_asked_of_everyone, "recompute"),
    (planted.others_are_asked_for_ever, "recompute"),
    (planted.learns_what_others_own, "wasted"),
    (planted.floor_over_what_others_own, "liveness"),
    (planted.overlap_is_kept, "exactly_once"),
    (planted.merged_delta_is_kept, "exactly_once"),
    (planted.older_anchor_counts, "num_learned"),
    (planted.no_last_delta, "liveness"),
    (planted.unanswered_is_merged, "wasted"),
    (planted.learning_stays_over_an_anchor, "interval"),
    (planted.anchors_take_the_place_of_what_was_learned, "liveness"),
    (planted.merge_tested_when_queued, "exactly_once"),
    (planted.repeated_delta_is_merged_again, "exactly_once"),
    (planted.answered_with_an_older_anchor, "fresh_anchor"),
    (planted.new_primary_waits_with_its_checkpoint, "first_checkpoint"),
    (planted.anybody_may_record, "foreign_record"),
    (planted.any_sibling_follows, "succession"),
]

FOUND = {
    "begins_before_it_is_due": 2,
    "mode_of_the_computation": 1, "no_resend_time": 3, "needs_are_quiet": 11, "dead_replica_pins_the_floor": 1, "full_join_refuses": 22,
    "requests_do_not_join": 4, "everything_is_asked_of_everyone": 9, "others_are_asked_for_ever": 57, "learns_what_others_own": 9,
    "floor_over_what_others_own": 9,
    "overlap_is_kept": 53, "merged_delta_is_kept": 3, "older_anchor_counts": 59, "no_last_delta": 31, "unanswered_is_merged": 27,
    "learning_stays_over_an_anchor": 3,
    "merge_tested_when_queued": 53, "repeated_delta_is_merged_again": 21, "answered_with_an_older_anchor": 15,
    "new_primary_waits_with_its_checkpoint": 7, "anybody_may_record": 13, "any_sibling_follows": 13,
}  # fmt: skip
"""The seed that finds a bug soonest, tried before the others. Whatever changes histories moves it."""


def red_checkers(seeds: Iterable[int]) -> Iterator[str]:
    """The checker that notices, seed by seed; an invariant of the core counts under its own name."""
    for seed in seeds:
        try:
            Simulation(seed).run()
        except Violation as violation:
            yield violation.checker
        except InvariantBroken as error:
            yield error.code


@pytest.mark.parametrize(("plant", "checker"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_turns_its_checker_red(plant: planted.Plant, checker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert checker in red_checkers((FOUND.get(plant.__name__, SEEDS[0]), *SEEDS))


@pytest.mark.parametrize(
    ("plant", "checker"), PLANTED_BETWEEN_REPLICAS, ids=[plant.__name__ for plant, _ in PLANTED_BETWEEN_REPLICAS]
)
def test_a_planted_bug_between_replicas_turns_its_checker_red(
    plant: planted.Plant, checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert checker in red_checkers((FOUND.get(plant.__name__, SHARED_SEEDS[0]), *SHARED_SEEDS))
