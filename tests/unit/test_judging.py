"""Goal: what a primary records, however often and with whatever behind it, is judged one at a time, held in memory for few, and read once if it is a lie."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from checkpoint_rig import MODEL, SPAN, World, refused, run

from dataservice import keys
from dcnr.errors import Refused, Unavailable
from dcnr.ids import digest_of
from dcnr.v1 import model_pb2
from orchestrator import judging
from orchestrator.judging import MAX_WAITING, READS_AT_ONCE, REFUSED_S, Reads, Refusals, Turns
from trust.envelope import digest_of_envelope


class Gate:
    """A store whose reads of commits wait until the gate is open; counts them."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.num_reads, self.waiting, self.most = asyncio.Event(), 0, 0, 0
        get = world.store.get

        async def slow(key: str, **given: Any) -> Any:
            self.num_reads += 1
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            try:
                await self.open.wait()
                return await get(key, **given)
            finally:
                self.waiting -= 1

        monkeypatch.setattr(world.store, "get", slow)


def lied(world: World) -> Any:
    """A checkpoint with two commits behind it that lead to no known state."""
    world.state, world.commit = digest_of(b"nobody's"), ""
    world.commits([0], anchor="a" * 64)
    world.commits([1], anchor="b" * 64)
    return world.checkpoint(SPAN(0, 3), [2])


def test_the_same_lie_told_sixteen_times_at_once_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        made, gate = lied(world), Gate(world, monkeypatch)
        calls = [asyncio.create_task(refused(world, made)) for _ in range(16)]
        for call in asyncio.as_completed(calls[-(16 - 1 - MAX_WAITING) :]):
            assert await call == "busy"
        assert gate.num_reads == gate.most == 1, "the others wait, or are sent away"
        gate.open.set()
        codes = await asyncio.gather(*calls)
        assert sorted(set(codes)) == ["busy", "unknown_ancestor"]
        assert codes.count("busy") == 16 - 1 - MAX_WAITING
        assert gate.num_reads == 2
        assert await refused(world, made) == "unknown_ancestor"
        assert gate.num_reads == 2, "nothing is read again"

    run(story)


def test_above_an_ancestor_that_is_not_there_nothing_is_read_again_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        lost = world.commits([0], anchor="a" * 64, stored=False)
        world.commits([1], anchor="b" * 64)
        made, gate = world.checkpoint(SPAN(0, 3), [2]), Gate(world, monkeypatch)
        gate.open.set()
        for _ in range(3):
            assert await refused(world, made) == "state_missing"
            assert world.judge.leads_nowhere(made[0], "state_missing"), "no upload of the state cures that"
        assert gate.num_reads == 2
        world.store.rewind(keys.commit(MODEL, "a", digest_of_envelope(lost)), lost.SerializeToString(deterministic=True))
        assert await world.learned(made)
        assert not world.judge.leads_nowhere(made[0], "state_missing")

    run(story)


def test_another_commit_above_the_same_ancestors_reads_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        made, gate = lied(world), Gate(world, monkeypatch)
        gate.open.set()
        assert await refused(world, made) == "unknown_ancestor"
        before = gate.num_reads
        world.state, world.commit = made[0].parent_digest, model_pb2.Commit.FromString(made[1].payload).parent_commit
        other = world.checkpoint(SPAN(0, 4), [2, 3])
        assert await refused(world, other) == "unknown_ancestor"
        assert gate.num_reads == before

    run(story)


def test_another_claim_about_the_same_commit_reads_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        world.commits([0], anchor="a" * 64)
        made, gate = world.checkpoint(SPAN(0, 3), [1]), Gate(world, monkeypatch)
        gate.open.set()
        assert await refused(world, made) == "bad_lineage"
        made[0].step += 1
        assert await refused(world, made) == "bad_lineage"
        assert gate.num_reads == 1

    run(story)


def test_what_goes_on_from_a_known_state_waits_for_no_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        made = world.checkpoint(SPAN(0, 1), [0])
        world.judge._reads._places = asyncio.Semaphore(0)
        monkeypatch.setattr(judging, "WAIT_S", 0.01)
        assert await world.learned(made)
        world.judge._refused.check(made[0].commit_digest)
        world.commits([1], anchor="a" * 64)
        assert await refused(world, world.checkpoint(SPAN(0, 3), [2])) == "busy"

    run(story)


def test_few_ancestries_are_followed_at_once_over_all_vnodes() -> None:
    async def story() -> None:
        reads, inside, most, go = Reads(), 0, 0, asyncio.Event()

        async def one() -> None:
            nonlocal inside, most
            async with reads.place():
                inside += 1
                most = max(most, inside)
                await go.wait()
                inside -= 1

        async with asyncio.TaskGroup() as group:
            for _ in range(9):
                group.create_task(one())
            await asyncio.sleep(0)
            go.set()
        assert most == READS_AT_ONCE

    asyncio.run(story())


def test_a_turn_that_is_given_up_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "WAIT_S", 0.01)

    async def story() -> None:
        turns = Turns()
        async with turns.turn("a"):
            with pytest.raises(Unavailable):
                async with turns.turn("a"):
                    pass
            async with turns.turn("b"):
                pass
        assert not turns._turns
        async with turns.turn("a"):
            pass

    asyncio.run(story())


def test_a_refusal_is_forgotten_after_a_while() -> None:
    class Clock:
        now_s = 0.0

        def monotonic(self) -> float:
            return self.now_s

        def wall(self) -> float:
            return self.now_s

    clock = Clock()
    refusals = Refusals(clock)
    refusals.note("x", Refused("why", code="bad_lineage"))
    with pytest.raises(Refused) as again:
        refusals.check("y", "x")
    assert (again.value.message, again.value.code) == ("why", "bad_lineage")
    clock.now_s = REFUSED_S
    refusals.check("x")
    for number in range(2 * judging.MAX_REFUSED):
        refusals.note(str(number), Refused("why", code="bad_lineage"))
    assert len(refusals._refused) == judging.MAX_REFUSED


def test_what_the_store_could_not_say_is_not_remembered() -> None:
    async def story(world: World) -> None:
        made = world.checkpoint(SPAN(0, 1), [0])
        await world.store.delete(keys.state(MODEL, "a", made[0].digest))
        assert await refused(world, made) == "state_missing"
        assert not world.judge.leads_nowhere(made[0], "state_missing"), "its maker only has to bring it"
        world.judge._refused.check(made[0].commit_digest)

    run(story)
