"""Goal: what lies behind a checkpoint was learned, and merged, by whom plans of the job name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checkpoint_rig import (
    HELPER,
    HELPING,
    PNODE,
    POLICY,
    SPAN,
    STRANGER,
    StoppedClock,
    World,
    delta,
    refused,
    run,
)

from dcnr.errors import DcnrError
from dcnr.v1 import model_pb2
from orchestrator.checkpoints import CheckpointJudge
from orchestrator.view import ModelView


def test_what_lies_behind_a_checkpoint_was_signed_by_primaries_of_the_job_on_their_pnodes() -> None:
    """Goal: whoever leads cannot have its work, and the faults in it, signed by keys that no plan gave the VNode."""

    async def told(world: World, **by: Any) -> str:
        world.commits([0, 1], anchor="a" * 64, **by)
        made = world.checkpoint(SPAN(0, 3), [2])
        try:
            await world.judge.judge(world.view(), *made)
        except DcnrError as error:
            return error.code
        return ""

    throwaway = {"node": STRANGER, "worker": HELPING}
    contributor = {"replica": "a.1", "node": HELPER, "worker": HELPING}

    async def plain(world: World) -> None:
        assert await told(world, **throwaway) == "unplanned_replica"

    async def audited(world: World) -> None:
        world.audited()
        assert await told(world, **throwaway) == "unplanned_replica"

    async def invented(world: World) -> None:
        assert await told(world, replica="a.9") == "unplanned_replica"

    async def contributed(world: World) -> None:
        assert await told(world, **contributor) == "unplanned_replica", "who contributes signs deltas"

    async def led_before(world: World) -> None:
        world.promote()
        world.planned(world.plan, world.seats("a.2"))
        assert await told(world, **contributor) == ""

    async def lost_plan(world: World) -> None:
        world.plan.parent_digest = "e" * 64
        assert await told(world, **contributor) == "unplanned_replica"

    for story in (plain, audited, invented, contributed, led_before, lost_plan):
        run(story)


def test_only_the_primary_makes_checkpoints() -> None:
    async def story(world: World) -> None:
        made = world.checkpoint(SPAN(0, 1), [0], replica="a.1", node=HELPER, worker=HELPING)
        assert await refused(world, made) == "not_primary"

    run(story)


def test_a_merge_is_named_only_if_plans_of_the_job_had_it() -> None:
    """Whose delta, and one part of how many."""

    async def told(world: World, replicas: int) -> str:
        world.commits([0, 1], anchor="a" * 64, merges=[model_pb2.Merged(after=1, delta=delta([6, 7]), replicas=replicas)])
        made = world.checkpoint(SPAN(0, 3) | SPAN(6, 8), [2])
        try:
            await world.learned(made)
        except DcnrError as error:
            return error.code
        return ""

    def story(replicas: int, code: str, *plans: dict[str, Any]) -> None:
        async def one(world: World) -> None:
            world.planned(*(world.seats(**plan) for plan in plans))
            assert await told(world, replicas) == code, (replicas, plans)

        run(one)

    aside = {"role": model_pb2.ROLE_STANDBY}
    story(2, "", {})
    story(0, "", {})
    story(3, "", {"learns": 3}, {})
    story(2, "", {}, *[{"helper": f"a.{number}"} for number in range(20, 40)])
    story(3, "unplanned_merge", {})
    story(2, "unplanned_merge", {"learns": 4})
    story(2, "unplanned_merge", {"where": PNODE})
    story(2, "unplanned_merge", aside)
    story(2, "unplanned_merge", {"helper": "a.7"})
    story(2, "unplanned_merge", {"job": "another"}, {"helper": "a.7"})
    story(2, "", {}, aside)


def test_many_plans_are_read_in_parts_and_one_that_is_lost_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.learners.MAX_READ", 4)

    async def story(world: World) -> None:
        world.planned(world.seats(), *(world.seats("a.7") for _ in range(9)))
        world.commits([0], anchor="a" * 64, merges=[model_pb2.Merged(after=1, delta=delta([6]), replicas=2)])
        made = world.checkpoint(SPAN(0, 2) | SPAN(6, 7), [1])
        codes = [await refused(world, made) for _ in range(2)]
        assert codes == ["plans_unread"] * 2
        assert len(await world.learned(made)) == 2

        newest = world.plan_digest
        world.planned(world.plan)
        world.plan.parent_digest = newest[::-1]
        world.judge = CheckpointJudge(world.store, lambda: POLICY, StoppedClock())
        world.plan.assignments[0].replica = "a.7"
        assert await refused(world, made) == "unplanned_merge"

    run(story)


@pytest.mark.parametrize("audited", [False, True])
def test_what_was_learned_for_a_job_that_the_store_has_lost_counts_in_no_other_of_its_name(audited: bool) -> None:
    """Whoever had judged it knew its states and its plans still: what was learned from other data would have counted, with that orchestrator alone."""

    async def story(world: World) -> None:
        world.planned(world.seats())
        if audited:
            world.audited()
        first = world.checkpoint(SPAN(0, 3), [0, 1, 2])
        await world.judge.judge(world.view(), *first)
        after = world.seats("a.8")
        after.assignments[1].replica = "a.9"
        world.planned(after)
        made = world.checkpoint(SPAN(0, 4), [3], replica="a.9")
        view = world.view()

        def asked_anew(request_digest: str, **changes: str) -> ModelView:
            assert view.job is not None
            request = model_pb2.JobRequest.FromString(view.job.request.SerializeToString())
            request.MergeFrom(model_pb2.JobRequest(**changes))
            return replace(view, job=replace(view.job, request=request, request_digest=request_digest))

        await world.judge.judge(asked_anew("2" * 64, initial_manifest_digest="e" * 64), *made)  # manifest 0 is signed anew as well
        for judge in (world.judge, CheckpointJudge(world.store, lambda: POLICY, StoppedClock())):
            with pytest.raises(DcnrError) as caught:
                await judge.judge(asked_anew("3" * 64, dataset_digest="d" * 64), *made)
            assert caught.value.code == "unplanned_replica"

    run(story)
