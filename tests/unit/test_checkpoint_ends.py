"""Goal: nothing is begun with but what somebody replays up to: each commit ends with one state or anchor, and whatever lies between two is an interval."""

from __future__ import annotations

import pytest
from checkpoint_rig import HELPER, HELPING, PNODE, POLICY, SPAN, StoppedClock, World, delta, refused, run, state

from dcnr.errors import DcnrError
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import behind
from orchestrator.checkpoints import CheckpointJudge

STEPS = "5" * 64


def merged(anchor: str, batch: int, sequence: int = 1, measured: str = "") -> list[model_pb2.Merged]:
    """A delta that a contributor learned above that anchor."""
    one = delta([batch], anchor=anchor, sequence=sequence, steps=STEPS, measured=measured)
    return [model_pb2.Merged(after=0, delta=one, replicas=2)]


@pytest.mark.parametrize("begins_with_state", [False, True])
def test_an_anchor_beside_a_state_is_nothing_to_go_on_from(begins_with_state: bool) -> None:
    """Whoever replays an interval up to a state looks at no anchor beside it: going on from that would swap the state between two intervals that hold."""

    async def story(world: World) -> None:
        data = state(SPAN(0, 2), world.state)
        world.commits([0, 1], state=digest_of(data), anchor="b" * 64)
        world.state = digest_of(data) if begins_with_state else "b" * 64
        assert await refused(world, world.checkpoint(SPAN(0, 3), [2])) == "wrong_commit"

    run(story)


def test_a_state_behind_which_nothing_was_learned_is_an_interval_that_can_be_audited_too() -> None:
    """Else it could be any state, and whoever learned on from there would be replayed from it."""

    async def story(world: World) -> None:
        world.audited()
        world.checkpoint(SPAN(0, 2), [0, 1])
        learned = world.commit
        world.checkpoint(SPAN(0, 2), [], data=state(SPAN(0, 2), world.state, mark=9.0))
        swapped = world.commit
        made = world.checkpoint(SPAN(0, 3), [2])
        judged = await world.judge.judge(world.view(), *made)
        found = {one.interval: one.batches for one in judged.contributions}
        assert found == {learned: SPAN(0, 2), swapped: IntervalSet.empty(), world.commit: SPAN(2, 3)}

    run(story)


def test_an_anchor_behind_which_nothing_was_learned_is_one_too_where_another_life_goes_on_from_it() -> None:
    async def story(world: World) -> None:
        world.audited()
        world.commits([], anchor="a" * 64)
        left = world.commit
        world.promote()
        made = world.checkpoint(SPAN(0, 1), [0], replica="a.1", node=HELPER, worker=HELPING)
        judged = await world.judge.judge(world.view(), *made)
        found = {one.interval: (one.pnode_id, one.batches) for one in judged.contributions}
        assert found == {left: (PNODE.node_id, IntervalSet.empty()), world.commit: (HELPER.node_id, SPAN(0, 1))}

    run(story)


def test_a_checkpoints_own_commit_names_no_anchor_beside_it() -> None:
    async def story(world: World) -> None:
        made = world.checkpoint(SPAN(0, 2), [0, 1], anchor="b" * 64)
        assert await refused(world, made) == "wrong_commit"

    run(story)


@pytest.mark.parametrize(
    ("anchor", "is_behind"),
    [("zero", True), ("a" * 64, True), ("b" * 64, True), ("d" * 64, False), ("c" * 64, False)],
    ids=[
        "what the job began with",
        "an anchor behind a state",
        "the last anchor",
        "the anchor that it is merged into",
        "none of these",
    ],
)
@pytest.mark.parametrize("is_measured", [False, True], ids=["begins", "was measured"])
def test_a_delta_begins_with_and_was_measured_against_what_lies_behind_the_commit_that_takes_it_in(
    anchor: str, is_behind: bool, is_measured: bool
) -> None:
    """A replay begins with whatever a delta names: a state of the contributor's own making would pass, and be nothing that the model ever was. And what is
    measured against one leads to wherever its contributor likes.
    """

    async def story(world: World) -> None:
        world.audited()
        zero = world.state
        one = zero if anchor == "zero" else anchor
        begins, measured = (zero, one) if is_measured else (one, "")
        world.commits([0], anchor="a" * 64)
        world.checkpoint(SPAN(0, 2), [1])
        world.commits([2], anchor="b" * 64)
        world.commits([], anchor="d" * 64, merges=merged(begins, 7, measured=measured))
        made = world.checkpoint(SPAN(0, 3) | SPAN(7, 8), [])
        if is_behind:
            assert (await world.learned(made))["a.1", HELPER.node_id] == SPAN(7, 8)
        else:
            assert await refused(world, made) == "unknown_anchor"
            world.chain, world.judge = None, CheckpointJudge(world.store, lambda: POLICY, StoppedClock())
            assert (await world.learned(made))["a.1", HELPER.node_id] == SPAN(7, 8), "without audits nothing is replayed"

    run(story)


@pytest.mark.parametrize("knows", [True, False], ids=["remembered", "read"])
@pytest.mark.parametrize(
    ("begins", "measured", "is_named"), [("a", "b", True), ("b", "b", True), ("b", "a", False), ("b", "zero", False)]
)
def test_no_delta_was_measured_against_what_lies_behind_its_own_beginning(
    begins: str, measured: str, is_named: bool, knows: bool
) -> None:
    """Goal: else a contributor hands in again all that others learned in between, as far back as it likes, and whoever replays its steps finds all of it
    true.
    """

    async def story(world: World) -> None:
        world.audited()
        ends = {"zero": world.state, "a": "a" * 64, "b": "b" * 64}
        world.commits([0], anchor=ends["a"])
        first = world.checkpoint(SPAN(0, 2), [1])
        world.commits([2], anchor=ends["b"])
        if not knows:
            await world.learned(first)
            world.manifest.entries[0].working.insert(0, first[0])
            world.audited()
            world.judge = CheckpointJudge(world.store, lambda: POLICY, StoppedClock())
        made = world.checkpoint(SPAN(0, 3) | SPAN(7, 8), [], merges=merged(ends[begins], 7, measured=ends[measured]))
        if is_named:
            assert (await world.learned(made))["a.1", HELPER.node_id] == SPAN(7, 8)
        else:
            assert await refused(world, made) == "unknown_anchor"

    run(story)


def test_what_lies_behind_a_named_state_is_read_by_who_has_just_started_and_then_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        world.audited()
        world.commits([0], anchor="a" * 64)
        first = world.checkpoint(SPAN(0, 2), [1])
        await world.learned(first)
        world.manifest.entries[0].working.insert(0, first[0])
        world.audited()
        second = world.checkpoint(SPAN(0, 2) | SPAN(7, 8), [], merges=merged("a" * 64, 7))
        fresh = CheckpointJudge(world.store, lambda: POLICY, StoppedClock())
        for judge in (world.judge, fresh):
            assert (await judge.judge(world.view(), *second)).base == first[0].digest
        third = world.checkpoint(SPAN(0, 2) | SPAN(7, 9), [], merges=merged("a" * 64, 8, sequence=2))
        fresh._reads = None  # type: ignore[assignment]  # nothing is read any more
        await fresh.judge(world.view(), *third)
        fourth = world.checkpoint(SPAN(0, 2) | SPAN(7, 10), [], merges=merged("c" * 64, 9, sequence=3))
        assert await refused(world, fourth) == "unknown_anchor"
        monkeypatch.setattr(behind, "MAX_BEHIND", 0)
        late = CheckpointJudge(world.store, lambda: POLICY, StoppedClock())
        assert (await judged_code(late, world, second)) == "unknown_anchor", "so far back and no further"

    run(story)


async def judged_code(judge: CheckpointJudge, world: World, made: tuple[model_pb2.Checkpoint, identity_pb2.Envelope]) -> str:
    with pytest.raises(DcnrError) as caught:
        await judge.judge(world.view(), *made)
    return caught.value.code
