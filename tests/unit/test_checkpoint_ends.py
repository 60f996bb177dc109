"""Goal: nothing is begun with but what somebody replays up to: each commit ends with one state or anchor, and whatever lies between two is an interval."""

from __future__ import annotations

import pytest
from checkpoint_rig import HELPER, HELPING, PNODE, SPAN, World, refused, run, state

from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet


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
