"""Goal: an orchestrator that goes on in a term that is over, since its store went back to a copy of it, is shown the later one, and no other is disturbed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Source
from pnode.control import ATTACHED, ControlStreams
from pnode.duties import Duties
from pnode.home import Home
from pnode.told_heads import LONGEST_S, OVER_S, Told, ToldHeads
from tests.unit.test_two_holders import ME, ORCHESTRATORS, POLICY, Unanswering, duties_of, nothing
from trust.envelope import seal
from trust.identity import NodeKey

FIRST, SECOND, THIRD = ORCHESTRATORS[:3]
OVER, CURRENT = Told("m", FIRST.node_id, is_over=True), Told("m", FIRST.node_id, is_over=False)


def test_who_tells_heads_of_a_term_that_is_over_for_long_is_shown_the_later_one() -> None:
    heads = ToldHeads()
    assert not heads.told(OVER, 0.0)
    assert not heads.told(OVER, OVER_S - 0.1)
    assert heads.told(OVER, OVER_S)
    assert not heads.told(OVER, OVER_S + 1.0), "what it is shown takes a while to tell"


def test_who_was_only_behind_is_not() -> None:
    heads = ToldHeads()
    heads.told(OVER, 0.0)
    heads.told(CURRENT, 2.0)
    assert not heads.told(OVER, OVER_S + 1.0)


def test_each_model_counts_by_itself() -> None:
    heads = ToldHeads()
    heads.told(OVER, 0.0)
    heads.told(Told("n", FIRST.node_id, is_over=False), OVER_S / 2)
    assert heads.told(OVER, OVER_S)


def test_who_cannot_believe_it_is_shown_it_more_and_more_rarely() -> None:
    heads, shown = ToldHeads(), list[float]()
    for second in range(24 * 3600):
        if heads.told(OVER, float(second)):
            shown.append(float(second))
    pauses = [later - one for one, later in itertools.pairwise(shown)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 2 * OVER_S + 1.0
    assert pauses[-1] == LONGEST_S + 1.0
    assert not heads.told(CURRENT, 1e5)
    assert not heads.told(OVER, 1e5)
    assert heads.told(OVER, 1e5 + OVER_S), "it did believe it"


async def with_duties(home: Home, story: Callable[[Duties], Awaitable[None]]) -> None:
    home.open()
    try:
        async with asyncio.TaskGroup() as group:
            await story(duties_of(home, group))
    finally:
        home.close()


def head(epoch: int, key: NodeKey, sequence: int = 1) -> identity_pb2.Envelope:
    content = model_pb2.Head(network_id=POLICY.network_id, model="m", epoch=epoch, holder=key.node_id, sequence=sequence)
    return seal(identity_pb2.DOMAIN_HEAD, content, key)


@pytest.mark.parametrize(
    ("epoch", "key", "is_over"), [(1, FIRST, True), (2, FIRST, True), (2, SECOND, False), (3, FIRST, False)],
    ids=["a term before", "the same number of another holder", "the confirmed term", "a term above, which is still to be confirmed"],
)  # fmt: skip
def test_a_term_is_over_that_nobody_here_obeys_any_more(tmp_path: Path, epoch: int, key: NodeKey, *, is_over: bool) -> None:
    async def story(duties: Duties) -> None:
        duties._stopping = True  # nothing is confirmed
        assert await duties.head_received(head(epoch, key, 9), Source.ORCHESTRATOR) == Told("m", key.node_id, is_over=False), (
            "no term"
        )
        await duties.head_received(head(2, SECOND), Source.OWN_GET)
        assert await duties.head_received(head(epoch, key, 9), Source.ORCHESTRATOR) == Told("m", key.node_id, is_over=is_over)
        assert await duties.head_received(head(epoch, NodeKey.generate()), Source.ORCHESTRATOR) is None, "a stranger's"

    asyncio.run(with_duties(Home(tmp_path / "home"), story))


def shown(duties: Duties) -> list[int]:
    return [model_pb2.Head.FromString(one.payload).sequence for one in duties.heads_seen()]


def test_who_attaches_shows_the_newest_head_of_its_term_also_after_a_restart_unless_it_is_older_than_what_is_obeyed(
    tmp_path: Path,
) -> None:
    """A lone orchestrator whose store went back begins the same term once more: by the head that confirmed it nothing was lost, and until its sequences had
    come as far as they were, which may take as long as the term had lasted, no PNode obeyed it.
    """

    async def story(duties: Duties) -> None:
        nothing_placed: Any = SimpleNamespace(placed=lambda *place: None)
        duties._provisioner = nothing_placed
        await duties.head_received(head(2, FIRST, 5), Source.OWN_GET)
        await duties.head_received(head(2, FIRST, 7), Source.ORCHESTRATOR)
        assert shown(duties) == [7]
        desired = model_pb2.DesiredState(
            network_id=POLICY.network_id, model="m", pnode_id=ME, holder=FIRST.node_id, epoch=2, sequence=8, job_id="j"
        )
        await duties.desired_received(seal(identity_pb2.DOMAIN_DESIRED_STATE, desired, FIRST))
        for sequence in (9, 12, 3):
            await duties.head_received(head(2, FIRST, sequence), Source.ORCHESTRATOR)
        assert shown(duties) == [12]

    async def restarted(duties: Duties) -> None:
        duties.load()
        assert shown(duties) == [9], "written once for what is obeyed"
        await duties.head_received(head(2, FIRST, 3), Source.ORCHESTRATOR)
        assert shown(duties) == [9]

    for part in (story, restarted):
        asyncio.run(with_duties(Home(tmp_path / "home"), part))


def streams_to(orchestrators: Sequence[NodeKey], now: Sequence[float]) -> ControlStreams:
    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    unreachable: Any = Unanswering()
    clock: Any = Clock()
    known = [(key.node_id, ("127.0.0.1:1",)) for key in orchestrators]
    return ControlStreams(
        unreachable, lambda: known, hello=orchestrator_pb2.Hello, beat=lambda sequence: orchestrator_pb2.Beat(sequence=sequence),
        on_message=nothing, holders=list, clock=clock, rng=random.Random(1),
    )  # fmt: skip


def test_only_the_stream_to_that_orchestrator_is_opened_anew() -> None:
    async def story() -> None:
        now = [0.0]
        streams = streams_to((FIRST, SECOND), now)
        async with asyncio.TaskGroup() as group:
            streams._review(group)
            for now[0] in (0.0, OVER_S):
                streams.told(FIRST.node_id, OVER)
                streams.told(SECOND.node_id, CURRENT)
                streams.told(SECOND.node_id, None)
                streams.told(THIRD.node_id, OVER)  # its stream has ended
            assert {node_id for node_id, stream in streams._streams.items() if stream.stale} == {FIRST.node_id}
            for stream in streams._streams.values():
                stream.task.cancel()

    asyncio.run(story())


def test_who_goes_on_in_a_term_that_is_over_is_shown_the_later_one_though_no_stream_led_there() -> None:
    """Of five orchestrators a PNode has streams to three: these tell what the fifth writes, and have no term that they could give up for it."""

    async def story() -> None:
        now = [0.0]
        streams = streams_to(ORCHESTRATORS, now)
        async with asyncio.TaskGroup() as group:
            streams._review(group)
            before = set(streams._streams)
            assert len(before) == ATTACHED
            for stream in streams._streams.values():
                stream.attached = True
            first, other = sorted(before)[0], sorted({key.node_id for key in ORCHESTRATORS} - before)[0]
            for now[0], is_wanted in ((0.0, False), (OVER_S, True)):
                streams.told(first, Told("m", other, is_over=True))
                streams._review(group)
                assert set(streams._streams) == before | ({other} if is_wanted else set())
            for stream in streams._streams.values():
                stream.task.cancel()

    asyncio.run(story())
