"""Goal: where an interval begins is what the commits in the store say: behind a state, behind another life, or with the first commit of all."""

from __future__ import annotations

import pytest
from checkpoint_rig import HELPER, HELPING, JOB, MODEL, POLICY, SPAN, World, delta, run

from dataservice import keys
from dcnr.errors import Unavailable
from orchestrator.beginnings import Beginnings
from trust.envelope import digest_of_envelope


async def first_of(world: World, interval: str) -> str:
    return await Beginnings(world.store, lambda: POLICY, MODEL).of(JOB, "a", interval)


def test_it_begins_behind_the_state_before_it_with_all_anchors_since() -> None:
    async def story(world: World) -> None:
        world.commits([0, 1], anchor="a" * 64)
        first = world.commit
        world.commits([], anchor="b" * 64)
        world.checkpoint(SPAN(0, 3), [2])
        assert await first_of(world, world.commit) == first, "before the first commit there is nothing"
        world.commits([3], anchor="c" * 64)
        second = world.commit
        world.checkpoint(SPAN(0, 4), [])
        assert await first_of(world, world.commit) == second
        world.checkpoint(SPAN(0, 5), [4])
        assert await first_of(world, world.commit) == world.commit

    run(story)


def test_it_begins_behind_the_anchor_of_another_life_and_ends_there() -> None:
    async def story(world: World) -> None:
        world.commits([0], anchor="a" * 64)
        left = world.commit
        world.commits([2, 3], anchor="b" * 64, replica="a.1", node=HELPER, worker=HELPING)
        follows = world.commit
        world.checkpoint(SPAN(0, 4), [1], replica="a.1", node=HELPER, worker=HELPING)
        assert [await first_of(world, one) for one in (left, world.commit)] == [left, follows]

    run(story)


def test_a_delta_is_an_interval_of_its_own_also_where_somebody_has_put_it_among_the_commits() -> None:
    async def story(world: World) -> None:
        one = delta([0, 1])
        assert await first_of(world, digest_of_envelope(one)) == digest_of_envelope(one)
        world.store.rewind(keys.commit(MODEL, "a", digest_of_envelope(one)), one.SerializeToString(deterministic=True))
        assert await first_of(world, digest_of_envelope(one)) == digest_of_envelope(one)

    run(story)


def test_where_a_commit_before_it_cannot_be_read_nothing_is_said_of_its_beginning() -> None:
    async def story(world: World) -> None:
        world.commits([0, 1], anchor="a" * 64, stored=False)
        missing = keys.commit(MODEL, "a", world.commit)
        world.checkpoint(SPAN(0, 3), [2])
        with pytest.raises(Unavailable):
            await first_of(world, world.commit)
        world.store.rewind(missing, b"other bytes")
        with pytest.raises(Unavailable):
            await first_of(world, world.commit)

    run(story)
