"""Goal: a store that is restored from an older copy, or of which the head alone is, costs what the copy lacks and nothing else; each rule of this is needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from dataservice import keys
from dcnr.v1 import model_pb2
from orchestrator.ends import Ends
from orchestrator.job_words import JobWords
from simulation.control_identity import MODEL, job_cancel
from simulation.control_knobs import ControlKnobs, restored_knobs
from simulation.control_world import ControlWorld
from tests.simulation import control_planted as planted
from tests.simulation import control_planted_backups as backups
from tests.simulation.control_planted import Plant
from tests.simulation.reddening import first_red
from tests.simulation.test_control_pauses import CALM, Story

SEEDS = range(6)
PLANTED: list[tuple[Plant, int, set[str]]] = [
    (backups.terms_follow_the_store, 0, {"above_seen"}),
    (backups.what_has_ended_runs_again, 2, {"ended_again"}),
    (backups.older_heads_are_never_followed, 8, {"takeover_bound"}),
    (backups.pnodes_go_back_with_the_store, 0, {"term_back"}),
    (planted.older_desired_states, 0, {"obeys_older"}),
    (backups.strays_stay_while_no_job_runs, 27, {"strays"}),
    (backups.what_was_lost_is_remembered, 14, {"manifest_whole"}),
    (backups.what_was_judged_before_is_named, 14, {"manifest_whole"}),
    (backups.numbers_are_given_twice, 20, {"number_again"}),
    (backups.plans_come_before_fences, 25, {"liveness"}),
    (backups.heads_are_shown_once, 126, {"relocation_bound"}),
    (backups.who_is_behind_decides_on, 126, {"two_holders"}),
    (backups.ends_wait_for_what_they_name, 75, {"ended_again"}),
    (backups.what_is_newest_goes_by_sequence_alone, 134, {"completes"}),
]


def restored_world(seed: int, **changes: Any) -> ControlWorld:
    return ControlWorld(seed, replace(restored_knobs(seed), **changes), "--world restored")


@pytest.mark.parametrize("seed", [*SEEDS, 75, 110, 126, 134])
def test_whatever_goes_back_everybody_follows_and_no_job_ends_twice(seed: int) -> None:
    assert restored_world(seed).run().checkers.backups.num_back > 0


def test_a_holder_whose_renewal_is_lost_may_take_itself_for_one_until_it_hears_of_it() -> None:
    """A copy from just before that renewal looks to takers as if nobody had renewed: one of five takes over at once."""
    assert restored_world(24, num_orchestrators=5).run().checkers.backups.num_back > 0


def test_and_no_longer_than_its_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hears of nothing afterwards is found out, in a history where nothing else shows it."""
    backups.who_holds_hears_nothing(monkeypatch)
    assert first_red([restored_world(5, restores=1)]) == "two_holders"


@pytest.mark.parametrize(("plant", "hint", "expected"), PLANTED, ids=[plant.__name__ for plant, *_ in PLANTED])
def test_a_planted_bug_turns_its_checker_red(plant: Plant, hint: int, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert first_red(restored_world(seed) for seed in (hint, *SEEDS)) in expected


def test_an_end_that_is_written_into_a_store_that_has_just_gone_back_holds_and_nobody_waits_for_what_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A holder that has read its head back writes the end of a job, and between the two the store is one again in which that job runs: nobody runs it once
    more, though its result is lost, and the next job is learned.
    """
    knobs = ControlKnobs(**{**CALM, "jobs": 4}, vnodes_per_node=3, jobs_every_s=(1.0, 1.0), faults_s=60.0)
    story = Story(world := ControlWorld(5, knobs))
    copies, write = list[dict[str, bytes]](), Ends._write

    async def too_late(ends: Ends, model: str, outcome: model_pb2.Outcome) -> None:
        if outcome.job_id == "job-0" and copies:
            world.faults._all_may_move()
            world.store.store.restore(copies.pop())
            lost.append(outcome.manifest_digest)
        await write(ends, model, outcome)

    def has_ended() -> bool:
        return bool(lost) and story.state("job-1") != model_pb2.JOB_STATE_UNSPECIFIED

    def its_result_is_lost() -> None:
        assert world.store.store.peek(keys.job_end(MODEL, "job-0")) is not None
        assert world.store.store.peek(keys.manifest(MODEL, lost[0])) is None

    lost = list[str]()
    monkeypatch.setattr(Ends, "_write", too_late)
    story.when(lambda: story.learned("v0") > 5, lambda: copies.append(world.store.store.dump()))
    story.when(has_ended, its_result_is_lost)
    story.run()
    assert world.checkers.backups.num_back == 1
    assert world.checkers.backups.num_repeated == 1, "the next term says again what the end says"
    ended = world.checkers._decided["job-0"]
    assert (ended.state, ended.manifest_digest) == (model_pb2.JOB_STATE_COMPLETED, lost[0])
    assert world.checkers._decided.keys() == {"job-0", "job-1", "job-2", "job-3"}


def stays_called_off() -> ControlWorld:
    """A job that learns is called off and ends, and the store goes back to before that: whoever follows it reads all jobs anew."""
    knobs = ControlKnobs(**{**CALM, "jobs": 1, "num_orchestrators": 1}, vnodes_per_node=3, jobs_every_s=(1.0, 1.0), faults_s=60.0)
    story = Story(world := ControlWorld(5, knobs))
    copies = list[dict[str, bytes]]()

    def call_off() -> None:
        copies.append(world.store.store.dump())
        world.store.store.rewind(keys.job_cancel(MODEL, "job-0"), job_cancel(world.community, "job-0"))
        for shell in world.honest():
            shell.runtime.refresh_jobs.fire()

    def go_back() -> None:
        world.faults._all_may_move()
        world.store.store.restore(copies.pop())

    story.when(lambda: story.learned("v0") > 5, call_off)
    story.when(lambda: world.store.store.peek(keys.job_end(MODEL, "job-0")) is not None, go_back)
    story.run()
    assert world.checkers.backups.num_back == 1
    return world


def test_a_job_that_was_called_off_stays_so_though_the_store_has_lost_that() -> None:
    world = stays_called_off()
    assert world.checkers._decided["job-0"].state == model_pb2.JOB_STATE_CANCELLED
    assert world.store.store.peek(keys.job_cancel(MODEL, "job-0")) is not None


def test_where_nobody_said_it_again_the_job_would_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: JobWords, job_id: str, request_digest: str, found: Collection[str]) -> tuple[frozenset[str], bool]:
        """What it did before."""
        return frozenset(found), False

    monkeypatch.setattr(JobWords, "repeat", nothing)
    assert stays_called_off().checkers._decided["job-0"].state == model_pb2.JOB_STATE_COMPLETED


@pytest.mark.parametrize("away_s", [5.0, 14.0], ids=["before it takes over", "after it has begun"])
def test_a_lone_orchestrator_begins_no_term_twice_where_pnodes_know_what_the_store_has_lost(away_s: float) -> None:
    """It is started anew, as is usual after a restore, and finds the head of before its last term; PNodes come back so much later."""
    knobs = ControlKnobs(
        **{**CALM, "jobs": 1, "num_orchestrators": 1, "num_batches": 200}, vnodes_per_node=3, jobs_every_s=(1.0, 1.0), faults_s=75.0
    )
    story = Story(world := ControlWorld(5, knobs))
    copies, heads = list[dict[str, bytes]](), list[model_pb2.Head]()

    def restart() -> None:
        world.faults._all_may_move()
        world.orchestrators[0].crash()
        world.orchestrators[0].start()

    def go_back() -> None:
        heads.append(head())
        world.orchestrators[0].crash()
        world.store.store.restore(copies.pop())
        for pnode in world.pnodes:
            world.network.block(pnode.host, world.orchestrators[0].host, away_s)
        restart()

    def head() -> model_pb2.Head:
        found = world.head()
        assert found is not None
        return found

    story.when(lambda: story.learned("v0") > 5, lambda: copies.append(world.store.store.dump()))
    story.after(1.0, restart)
    story.when(lambda: head().epoch == 2, lambda: None)
    story.after(25.0, go_back)
    story.run()
    assert (heads[0].epoch, head().epoch) == (2, 3)
