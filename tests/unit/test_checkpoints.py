"""Goal: a checkpoint is named only if its lineage follows from signed commits and deltas back to a known state."""

from __future__ import annotations

import pytest
from checkpoint_rig import (
    HELPER,
    HELPING,
    MODEL,
    PNODE,
    POLICY,
    SPAN,
    STRANGER,
    StoppedClock,
    World,
    delta,
    refused,
    run,
    state,
)

from dataservice import keys
from dataservice.manifest_form import Contribution
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.checkpoints import CheckpointJudge
from trust.envelope import digest_of_envelope, seal


def test_own_batches_and_deltas_are_followed_over_anchors_and_credited() -> None:
    async def story(world: World) -> None:
        world.commits([0, 1], anchor="a" * 64, merges=[model_pb2.Merged(after=1, delta=delta([6, 7]))])
        world.commits([2], anchor="b" * 64, merges=[model_pb2.Merged(after=0, delta=delta([8], sequence=2))])
        made = world.checkpoint(IntervalSet.of((0, 4), (6, 9)), [3])
        helped = ("a.1", HELPER.node_id)
        assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 4), helped: SPAN(6, 9)}
        assert await world.learned(made) == await world.learned(made), "a record is repeated until it is named"
        later = world.checkpoint(SPAN(0, 9), [4, 5])
        assert (await world.learned(later))[helped] == SPAN(6, 9), "what led to a state that was not named is told again"
        world.manifest.entries[0].working.insert(0, made[0])
        fresh = CheckpointJudge(world.store, lambda: POLICY, StoppedClock())
        judged = await fresh.judge(world.view(), *later)
        assert judged.contributions == (Contribution("a", "a.0", PNODE.node_id, SPAN(4, 6)),), (
            "what a manifest names has been credited"
        )

    run(story)


def test_where_audits_are_in_force_what_was_learned_comes_in_intervals_named_by_the_statements_that_end_them() -> None:
    async def story(world: World) -> None:
        world.audited()
        base = world.state
        helped = [
            delta([6, 7], steps="5" * 64, anchor=base),
            delta([8], sequence=2, steps="5" * 64, anchor="a" * 64),
        ]
        world.commits([0, 1], anchor="a" * 64, merges=[model_pb2.Merged(after=1, delta=helped[0])])
        first = world.checkpoint(SPAN(0, 3) | SPAN(6, 8), [2])
        closing = world.commit
        world.commits([], anchor="b" * 64, merges=[model_pb2.Merged(after=0, delta=helped[1])])
        made = world.checkpoint(SPAN(0, 3) | SPAN(6, 9), [])
        judged = await world.judge.judge(world.view(), *made)
        assert judged.base == base
        assert {one.interval: (one.replica, one.batches) for one in judged.contributions} == {
            digest_of_envelope(helped[0]): ("a.1", SPAN(6, 8)), closing: ("a.0", SPAN(0, 3)),
            digest_of_envelope(helped[1]): ("a.1", SPAN(8, 9)), world.commit: ("a.0", IntervalSet.empty()),
        }, "merging alone is an interval too"  # fmt: skip
        world.manifest.entries[0].working.insert(0, first[0])
        world.audited()
        fresh = CheckpointJudge(world.store, lambda: POLICY, StoppedClock())
        assert (await fresh.judge(world.view(), *made)).base == first[0].digest

    run(story)


def test_an_interval_ends_where_another_replica_goes_on_from_an_anchor() -> None:
    async def story(world: World) -> None:
        world.audited()
        world.commits([0, 1], anchor="a" * 64)
        left = world.commit
        world.promote()
        made = world.checkpoint(SPAN(0, 5), [4, 2, 3], replica="a.1", node=HELPER, worker=HELPING)
        judged = await world.judge.judge(world.view(), *made)
        found = {one.interval: (one.pnode_id, one.batches) for one in judged.contributions}
        assert found == {left: (PNODE.node_id, SPAN(0, 2)), world.commit: (HELPER.node_id, SPAN(2, 5))}

    run(story)


def test_where_audits_are_in_force_statements_name_their_steps() -> None:
    async def own(world: World) -> None:
        world.audited()
        world.steps = ""
        assert await refused(world, world.checkpoint(SPAN(0, 1), [0])) == "no_steps"

    async def merged(world: World) -> None:
        world.audited()
        world.commits([0, 1], anchor="a" * 64, merges=[model_pb2.Merged(after=0, delta=delta([6]))])
        assert await refused(world, world.checkpoint(SPAN(0, 2) | SPAN(6, 7), [])) == "no_steps"

    for story in (own, merged):
        run(story)


def test_what_a_replica_learned_before_its_vnode_went_back_counts_no_more() -> None:
    async def story(world: World) -> None:
        world.audited()
        world.manifest.fences.add(vnode="a", first_replica=1)
        made = world.checkpoint(SPAN(0, 1), [0])
        assert await refused(world, made) == "fenced"
        world.manifest.fences[0].first_replica = 0
        assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 1)}

    run(story)


def test_who_learns_the_same_again_is_not_taken_for_the_replica_before() -> None:
    """Goal: a new replica that comes to the same state, bit for bit, as one whose work was taken back is judged by its own commits."""

    async def story(world: World) -> None:
        world.audited()
        data = state(SPAN(0, 2), world.state)
        await world.judge.judge(world.view(), *world.checkpoint(SPAN(0, 2), [0, 1], data=data))
        world.manifest.fences.add(vnode="a", first_replica=1)
        world.manifest.retracted.append(digest_of(data))
        world.state, world.commit = digest_of(world.zero), ""
        world.promote()
        again = {"replica": "a.1", "node": HELPER, "worker": HELPING}
        assert await refused(world, world.checkpoint(SPAN(0, 2), [0, 1], data=data, **again)) == "condemned"
        made = world.checkpoint(SPAN(0, 3), [2], **again)
        judged = await world.judge.judge(world.view(), *made)
        assert [(one.replica, one.batches) for one in judged.contributions] == [("a.1", SPAN(0, 2)), ("a.1", SPAN(2, 3))]

    run(story)


@pytest.mark.parametrize(("parent_commit", "why"), [("", "unknown_ancestor"), ("f" * 64, "state_missing")])
@pytest.mark.parametrize("is_audited", [False, True])
def test_a_commit_that_does_not_lead_to_what_made_its_parent_is_refused(parent_commit: str, why: str, is_audited: bool) -> None:
    """Goal: from every checkpoint that is named a walk over the commits leads back to the beginning. One that nobody has may still come."""

    async def story(world: World) -> None:
        if is_audited:
            world.audited()
        made = world.checkpoint(SPAN(0, 2), [0, 1])
        assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 2)}
        world.manifest.entries[0].working.insert(0, made[0])
        if is_audited:
            world.audited()
        world.judge = CheckpointJudge(world.store, lambda: POLICY, StoppedClock())
        world.commit = parent_commit
        assert await refused(world, world.checkpoint(SPAN(0, 3), [2])) == why
        world.state, world.commit = made[0].digest, made[0].commit_digest
        assert await world.learned(world.checkpoint(SPAN(0, 4), [2, 3])) == {("a.0", PNODE.node_id): SPAN(2, 4)}

    async def from_the_beginning(world: World) -> None:
        world.commit = "f" * 64
        assert await refused(world, world.checkpoint(SPAN(0, 2), [0, 1])) == "state_missing"

    run(story)
    run(from_the_beginning)


@pytest.mark.parametrize("is_audited", [False, True])
def test_who_came_to_a_named_state_on_a_way_of_its_own_is_followed_on_that_way(is_audited: bool) -> None:
    async def story(world: World) -> None:
        if is_audited:
            world.audited()
        first = world.state
        data = state(SPAN(0, 2), first)
        named = world.checkpoint(SPAN(0, 2), [0, 1], data=data)
        world.manifest.entries[0].working.insert(0, named[0])
        if is_audited:
            world.audited()
        world.state, world.commit = first, ""
        world.promote()
        by = {"replica": "a.1", "node": HELPER, "worker": HELPING}
        again = world.checkpoint(SPAN(0, 2), [1, 0], data=data, **by)
        assert again[0].digest == named[0].digest
        judged = await world.judge.judge(world.view(), *world.checkpoint(SPAN(0, 3), [2], **by))
        assert judged.base == first
        assert {(one.replica, one.batches) for one in judged.contributions} == (
            {("a.1", SPAN(0, 2)), ("a.1", SPAN(2, 3))} if is_audited else {("a.1", SPAN(0, 3))}
        )

    run(story)


def test_a_promoted_contributor_goes_on_from_an_anchor() -> None:
    async def story(world: World) -> None:
        world.commits([0, 1], anchor="a" * 64)
        world.promote()
        made = world.checkpoint(SPAN(0, 5), [4, 2, 3], replica="a.1", node=HELPER, worker=HELPING)
        assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 2), ("a.1", HELPER.node_id): SPAN(2, 5)}

    run(story)


@pytest.mark.parametrize(
    ("merged", "code"),
    [
        (model_pb2.Merged(after=0, delta=delta([1, 2])), "bad_lineage"),
        (model_pb2.Merged(after=0, delta=delta([2], worker=STRANGER)), "wrong_signer"),
        (model_pb2.Merged(after=0, delta=delta([2], job="other")), "wrong_job"),
        (model_pb2.Merged(after=3, delta=delta([2])), "wrong_delta"),
        (model_pb2.Merged(after=0, delta=seal(identity_pb2.DOMAIN_COMMIT, delta([2]).payload, HELPING)), "wrong_domain"),
        (model_pb2.Merged(after=0), "bad_signature"),
    ],
)
def test_a_delta_that_does_not_hold_spoils_the_lineage(merged: model_pb2.Merged, code: str) -> None:
    async def story(world: World) -> None:
        world.commits([0, 1], anchor="a" * 64, merges=[merged])
        assert await refused(world, world.checkpoint(SPAN(0, 3), [])) == code

    run(story)


def test_ancestors_must_be_there_and_follow_one_another() -> None:
    async def missing(world: World) -> None:
        lost = world.commits([0], anchor="a" * 64, stored=False)
        made = world.checkpoint(SPAN(0, 2), [1])
        for _ in range(2):
            assert await refused(world, made) == "state_missing", "it is brought again: nothing is refused for good"
        world.store.rewind(keys.commit(MODEL, "a", digest_of_envelope(lost)), lost.SerializeToString(deterministic=True))
        assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 2)}

    async def elsewhere(world: World) -> None:
        world.commits([0], anchor="a" * 64)
        made = world.checkpoint(SPAN(0, 2), [1], data=state(SPAN(0, 2), "b" * 64), parent="b" * 64)
        made[0].parent_digest = "b" * 64
        assert await refused(world, made) == "wrong_commit"

    async def nowhere(world: World) -> None:
        made = world.checkpoint(SPAN(0, 2), [0, 1], data=state(SPAN(0, 2), ""), parent="")
        made[0].parent_digest = ""
        assert await refused(world, made) == "unknown_ancestor"

    for story in (missing, elsewhere, nowhere):
        run(story)


def test_a_checkpoint_counts_only_with_its_own_commit_in_the_store() -> None:
    """Goal: whatever a manifest names can be followed by others: the record alone showed the commit to its judge, and to nobody else."""

    async def story(world: World) -> None:
        made = world.checkpoint(SPAN(0, 2), [0, 1], stored=False)
        assert await refused(world, made) == "state_missing"
        world.store.rewind(keys.commit(MODEL, "a", world.commit), made[1].SerializeToString(deterministic=True))
        assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 2)}
        await world.store.delete(keys.commit(MODEL, "a", world.commit))
        assert await refused(world, made) == "state_missing", "also at a later record, as long as no manifest names it"

    run(story)


@pytest.mark.parametrize(
    ("bound", "most", "code"),
    [
        ("ANCESTORS", 2, "unknown_ancestor"),
        ("ANCESTORS", 3, ""),
        ("ANCESTRY_BYTES", 999, "unknown_ancestor"),
        ("ANCESTRY_BYTES", 99_999, ""),
    ],
)
def test_an_ancestry_is_followed_so_far_and_no_further(monkeypatch: pytest.MonkeyPatch, bound: str, most: int, code: str) -> None:
    monkeypatch.setattr(f"orchestrator.checkpoints.MAX_{bound}", most)

    async def story(world: World) -> None:
        for batch in range(3):
            world.commits([batch], anchor=f"{batch}" * 64)
        made = world.checkpoint(SPAN(0, 4), [3])
        if code:
            assert await refused(world, made) == code
        else:
            assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 4)}

    run(story)


def test_a_lineage_of_overlapping_intervals_is_refused_and_leaves_nothing_behind() -> None:
    async def story(world: World) -> None:
        made, commit = world.checkpoint(SPAN(0, 3), [0, 1, 2])
        twice = model_pb2.Checkpoint()
        twice.CopyFrom(made)
        del twice.lineage.intervals[:]
        for first, end in ((0, 2), (1, 3)):
            twice.lineage.intervals.add(first=first, end=end)
        assert await refused(world, (twice, commit)) == "bad_intervals"
        assert await world.learned((made, commit)) == {("a.0", PNODE.node_id): SPAN(0, 3)}

    run(story)
