"""Goal: nothing is begun with but what somebody replays up to: each commit ends with one state or anchor, and whatever lies between two is an interval."""

from __future__ import annotations

import pytest
from checkpoint_rig import SPAN, World, refused, run, state

from dcnr.ids import digest_of


@pytest.mark.parametrize("begins_with_state", [False, True])
def test_an_anchor_beside_a_state_is_nothing_to_go_on_from(begins_with_state: bool) -> None:
    """Whoever replays an interval up to a state looks at no anchor beside it: going on from that would swap the state between two intervals that hold."""

    async def story(world: World) -> None:
        data = state(SPAN(0, 2), world.state)
        world.commits([0, 1], state=digest_of(data), anchor="b" * 64)
        world.state = digest_of(data) if begins_with_state else "b" * 64
        assert await refused(world, world.checkpoint(SPAN(0, 3), [2])) == "wrong_commit"

    run(story)


def test_a_checkpoints_own_commit_names_no_anchor_beside_it() -> None:
    async def story(world: World) -> None:
        made = world.checkpoint(SPAN(0, 2), [0, 1], anchor="b" * 64)
        assert await refused(world, made) == "wrong_commit"

    run(story)
