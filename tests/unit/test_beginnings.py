"""Goal: where an interval begins is what the commits in the store say: behind a state, behind another life, or with the first commit of all."""

from __future__ import annotations

import random

import pytest
from checkpoint_rig import HELPER, HELPING, JOB, MODEL, POLICY, SPAN, StoppedClock, World, delta, run

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.errors import Unavailable
from dcnr.ports import StoredObject
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.beginnings import Beginnings
from orchestrator.chain import Chain
from trust.envelope import digest_of_envelope
from trust.folding import Chronicle
from trust.ledger import Ledger, Named

MANY = 1030
Brought = tuple[model_pb2.Checkpoint, list[str]]
"""A checkpoint with the intervals that it brought."""


class Counting(MemoryStore):
    num_reads = 0

    async def get(self, key: str, *, max_bytes: int) -> StoredObject:
        self.num_reads += 1
        return await super().get(key, max_bytes=max_bytes)


def chain_of(*line: Brought) -> Chain:
    """The line of VNode a, behind what its job began with."""
    named = [(model_pb2.Checkpoint(vnode="a", digest="0" * 64), list[str]()), *line]
    ledger = Ledger({"a": tuple(Named(one.digest, tuple(intervals)) for one, intervals in named)}, {})
    return Chain(Chronicle(ledger), {one.digest: one for one, _ in named})


async def first_of(world: World, interval: str, *line: Brought) -> str:
    return await Beginnings(world.store, lambda: POLICY, MODEL).of(JOB, "a", interval, chain_of(*line))


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


def test_what_is_not_in_the_store_is_a_delta_only_where_a_commit_that_leads_to_its_checkpoint_took_it_in() -> None:
    """An honest interval's commit was lost, or not shown for a moment: auditors were told that it begins where it ends, so its bundle was unverifiable."""

    async def story(world: World) -> None:
        taken, other = delta([4, 5]), delta([6, 7], sequence=2)
        world.commits([0, 1], anchor="a" * 64, replica="a.7")
        ended = world.commit
        world.commits([2], anchor="b" * 64, merges=[model_pb2.Merged(delta=taken)])
        first = world.commit
        made, _ = world.checkpoint(SPAN(0, 6), [3], merges=[model_pb2.Merged(delta=other)])
        deltas = [digest_of_envelope(one) for one in (taken, other)]
        brought = made, [ended, *deltas, made.commit_digest]
        beginnings, chain = Beginnings(world.store, lambda: POLICY, MODEL), chain_of(brought)
        assert [await beginnings.of(JOB, "a", one, chain) for one in deltas] == deltas
        for name in (ended, made.commit_digest):
            key = keys.commit(MODEL, "a", name)
            data = world.store.peek(key)
            world.store.rewind(key, None)
            with pytest.raises(Unavailable):
                await beginnings.of(JOB, "a", name, chain)
            world.store.rewind(key, data)
        assert [await beginnings.of(JOB, "a", one, chain) for one in (ended, made.commit_digest)] == [ended, first]

    run(story)


def test_deltas_are_looked_for_between_two_checkpoints_and_nowhere_else() -> None:
    """What lies further back may be many commits, and is not needed."""

    async def story(world: World) -> None:
        before, _ = world.checkpoint(SPAN(0, 2), [0, 1])
        world.store.rewind(keys.commit(MODEL, "a", world.commit), None)
        one, aside = delta([3, 4]), digest_of_envelope(delta([8]))
        made, _ = world.checkpoint(SPAN(0, 5), [2], merges=[model_pb2.Merged(delta=one)])
        line = (before, [before.commit_digest]), (made, [digest_of_envelope(one), made.commit_digest])
        assert await first_of(world, digest_of_envelope(one), *line) == digest_of_envelope(one)
        assert await first_of(world, aside, *line) == aside, "no checkpoint leads to what was left aside"

    run(story)


def test_all_deltas_between_two_checkpoints_are_found_in_one_walk_as_far_as_checkpoints_are_followed() -> None:
    """Each was looked for anew: of many in many commits an audit began with thousands of reads. And in a checkpoint that came after a store had been away
    for long those at its beginning were not found, and went back.
    """

    async def story(world: World) -> None:
        deltas = [delta([4 * at, 4 * at + 1], sequence=1 + at) for at in range(3)]
        for at, one in enumerate(deltas):
            world.commits([4 * at + 2], anchor=f"{at:064x}", merges=[model_pb2.Merged(delta=one)])
        for at in range(MANY):
            world.commits([100 + at], anchor=f"{9 + at:064x}")
        last = world.commit
        posing = identity_pb2.Envelope.FromString(world.store.peek(keys.commit(MODEL, "a", last)) or b"")
        made, _ = world.checkpoint(SPAN(0, 5), [3], merges=[model_pb2.Merged(delta=posing)])
        names = [digest_of_envelope(one) for one in deltas]
        chain, store = chain_of((made, [*names, made.commit_digest])), Counting(StoppedClock(), random.Random(0))
        for key in list(world.store.keys()):
            store.rewind(key, world.store.peek(key))
        beginnings = Beginnings(store, lambda: POLICY, MODEL)
        assert [await beginnings.of(JOB, "a", one, chain) for one in names] == names
        assert store.num_reads <= MANY + 10
        assert await beginnings.of(JOB, "a", last, chain) != last, "a commit that poses as a delta begins where it did"

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
