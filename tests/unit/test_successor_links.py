"""Goal: whoever comes under the name of a replica before a plan gives it to somebody neither keeps that one out nor speaks for it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from merges_rig import config
from test_merge_desk import NETWORK, StoppedClock

from dcnr.errors import Refused, Stale
from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from pnode.chain import CommitChain, Standing
from pnode.host import ReplicaHost
from pnode.hosted import Fixed, Neighbours
from pnode.no_books import NoBooks
from pnode.pace import Pace
from pnode.successor_links import MAX_UNPLANNED
from trust.identity import NodeKey
from vnode import events as ev
from vnode.core import ReplicaCore
from vnode.state import StateInfo
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Peer, Role

NONE = IntervalSet.empty()
MINE, FIRST, NEXT = ReplicaId("a.0"), ReplicaId("b.6"), ReplicaId("b.7")
HONEST, STRANGER = "4" * 40, "5" * 40
HUGE = 1 << 63


class Heard:
    """A successor's end of a way: what it was sent, and why it ended."""

    def __init__(self) -> None:
        self.sent: list[tuple[Lane, int, Mode]] = []
        self.closed = ""

    def send(self, lane: Lane, batch: int, mode: Mode) -> None:
        self.sent.append((lane, batch, mode))

    def close(self, code: str) -> None:
        self.closed = code


def learned_one() -> ReplicaCore:
    """With the output of one batch in its spool."""
    core = ReplicaCore(config(MINE, Role.PRIMARY, input_edges=frozenset()), NONE, 0.0)
    core.handle(ev.Tick(0.0))
    core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, 0, "input"))
    core.handle(ev.Learned(0.0, 0, 1.0, 0.1))
    return core


def hosted(core: ReplicaCore, root: Path, thread: ThreadPoolExecutor) -> ReplicaHost:
    """One whose successors are all that happens to it."""
    clock, nothing = StoppedClock(), lambda *_: None
    standing = Standing(NETWORK, "m", "j", VNodeId("a"), Peer(MINE, 3), HONEST)
    stage: Any = SimpleNamespace(inputs=(None,))
    facts: dict[str, Any] = {
        "compute": SimpleNamespace(check_delta=nothing), "info": StateInfo("a", "m", "", "", 1, 0, 24, 0, NONE),
        "chain": CommitChain(standing, NodeKey.generate(), lambda: None, "", ""),
        "inputs": SimpleNamespace(trouble=""), "outbox": SimpleNamespace(close=nothing, drop=nothing),
        "hub": SimpleNamespace(add=nothing, remove=nothing, want=nothing, say=nothing), "calls": None, "books": lambda host: NoBooks(),
    }  # fmt: skip
    return ReplicaHost(
        Fixed(standing, stage, 8, frozenset({VNodeId("b")}), root, num_batches=24), core=core, clock=clock, executor=thread, thread=thread,
        pace=Pace(clock, lambda: 0.0), epoch=1, snapshot=nothing, news=lambda: None, told=nothing, **facts,
    )  # fmt: skip


def around(**successors: str) -> Neighbours:
    return Neighbours({}, {ReplicaId(name.replace("_", ".")): pnode for name, pnode in successors.items()}, 1, Role.PRIMARY)


async def handled() -> None:
    """What was posted is handled by then."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("comes_late", [False, True], ids=["before_the_first_plan", "before_the_next_plan"])
@pytest.mark.parametrize("is_seen", [False, True], ids=["just_before", "long_before"])
def test_a_stranger_under_the_name_of_the_next_replica_keeps_it_neither_out_nor_silent(
    tmp_path: Path, comes_late: bool, is_seen: bool
) -> None:
    async def story() -> None:
        host = hosted(learned_one(), tmp_path, thread)
        running = asyncio.ensure_future(host.run())
        await handled()
        if comes_late:
            host.plan(around(b_6=HONEST))
            await handled()
        stranger, honest = Heard(), Heard()
        host.attach(Peer(NEXT, HUGE), STRANGER, stranger)
        if is_seen:
            await handled()
        host.plan(around(b_7=HONEST))
        assert stranger.closed == "replanned"
        link = host.attach(Peer(NEXT, 1), HONEST, honest)
        host.post(ev.NeedHeard(0.0, link, 1, TRAIN_LANE, IntervalSet.span(0, 1), NONE, NONE))
        host.post(ev.WindowHeard(0.0, link, 2, TRAIN_LANE, 4))
        await handled()
        assert honest.sent == [(TRAIN_LANE, 0, Mode.TRAIN)]
        assert stranger.sent == []
        assert host.failed == ""
        await host.release(hand_over=False)
        await running

    thread = ThreadPoolExecutor(1)
    try:
        asyncio.run(story())
    finally:
        thread.shutdown()


def test_who_comes_from_the_right_pnode_before_the_plan_is_not_disturbed_by_it(tmp_path: Path) -> None:
    async def story() -> None:
        host = hosted(learned_one(), tmp_path, thread)
        running = asyncio.ensure_future(host.run())
        host.plan(around(b_6=HONEST))
        early = Heard()
        link = host.attach(Peer(NEXT, 1), HONEST, early)
        host.plan(around(b_6=HONEST, b_7=HONEST))
        host.post(ev.NeedHeard(0.0, link, 1, TRAIN_LANE, IntervalSet.span(0, 1), NONE, NONE))
        host.post(ev.WindowHeard(0.0, link, 2, TRAIN_LANE, 4))
        await handled()
        assert (early.closed, early.sent) == ("", [(TRAIN_LANE, 0, Mode.TRAIN)])
        await host.release(hand_over=False)
        await running

    thread = ThreadPoolExecutor(1)
    try:
        asyncio.run(story())
    finally:
        thread.shutdown()


def refusal(host: ReplicaHost, target: Peer, pnode_id: str, way: Heard) -> str:
    """The code with which that way is refused; "" where it is not."""
    try:
        host.attach(target, pnode_id, way)
    except (Refused, Stale) as refused:
        return refused.code
    return ""


def test_ways_that_are_nobody_s_to_have_are_refused_with_the_reason(tmp_path: Path) -> None:
    """Of a VNode that reads nothing here, from another PNode than the plan's, of an earlier life, and of more made-up names than a plan may be ahead."""

    async def story() -> None:
        host = hosted(learned_one(), tmp_path, thread)
        running = asyncio.ensure_future(host.run())
        host.plan(around(b_6=HONEST))
        honest, again = Heard(), Heard()
        assert refusal(host, Peer(FIRST, 3), HONEST, honest) == ""
        assert refusal(host, Peer(ReplicaId("c.0"), 1), HONEST, Heard()) == "no_successor"
        assert refusal(host, Peer(FIRST, HUGE), STRANGER, Heard()) == "wrong_pnode"
        assert refusal(host, Peer(FIRST, 2), HONEST, Heard()) == "stale_incarnation"
        assert honest.closed == ""
        assert refusal(host, Peer(FIRST, 4), HONEST, again) == ""
        assert (honest.closed, again.closed) == ("replaced", "")
        strangers = [
            refusal(host, Peer(ReplicaId(f"b.{number}"), 1), STRANGER, Heard()) for number in range(100, 101 + MAX_UNPLANNED)
        ]
        assert strangers == [""] * MAX_UNPLANNED + ["too_many_unplanned"]
        assert refusal(host, Peer(FIRST, 5), HONEST, Heard()) == "", "whoever is planned finds room"
        await host.release(hand_over=False)
        await running

    thread = ThreadPoolExecutor(1)
    try:
        asyncio.run(story())
    finally:
        thread.shutdown()
