"""Goal: a sibling may withdraw its question at any moment, by asking again or by leaving the plan: the primary goes on, and what it merged is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from merges_rig import config
from test_merge_desk import DATA, HELPER, NETWORK, NOW, StoppedClock, delta, opening

from dcnr.errors import Unavailable
from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from pnode.chain import CommitChain, Standing
from pnode.host import ReplicaHost
from pnode.hosted import Fixed, Neighbours, Planned
from pnode.merge_desk import Answer
from pnode.no_books import NoBooks
from pnode.pace import Pace
from trust.delegation import make_delegation
from trust.identity import NodeKey
from vnode.core import ReplicaCore
from vnode.merge_events import MergeAsked
from vnode.state import StateInfo
from vnode.vocabulary import Peer, Role, Verdict

NONE, BATCHES = IntervalSet.empty(), IntervalSet.span(2, 4)
LEADING, LEADER = NodeKey.generate(), NodeKey.generate()
MINE = Planned(ReplicaId("a.0"), LEADER.node_id, Role.PRIMARY, 1.0)
THEIRS = Planned(ReplicaId("a.1"), HELPER.node_id, Role.CONTRIBUTOR, 1.0)


class AtOnce(Executor):
    """Work is done when it is given: questions come to the desk in one go of the loop."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


class Maths:
    """What a primary computes, with what it was given to merge."""

    def __init__(self) -> None:
        self.merged: list[Any] = []

    def check_delta(self, data: bytes, codec: str) -> Any:
        """As `vnode.compute.Compute`."""
        return data, codec

    def merge(self, deltas: list[Any], *how: Any, **more: Any) -> None:
        """As `vnode.compute.Compute`."""
        self.merged += deltas

    def anchor(self, info: StateInfo) -> bytes:
        """As `vnode.compute.Compute`."""
        return b"anchor of %d batches" % len(info.lineage)


def primary(maths: Maths, root: Path, thread: ThreadPoolExecutor, *, audited: bool = False) -> ReplicaHost:
    """One that has nothing to do but to merge."""
    clock, nothing = StoppedClock(), lambda *_: None
    standing = Standing(NETWORK, "m", "j", "a", Peer(MINE.replica, 3), MINE.pnode_id)
    stage: Any = SimpleNamespace(inputs=(None,))
    delegation = make_delegation(LEADER, NETWORK, LEADING.public_der, 3, ["127.0.0.1:1"], NOW)
    facts: dict[str, Any] = {
        "core": ReplicaCore(replace(config(MINE.replica, Role.PRIMARY), vnode=VNodeId("a"), input_edges=frozenset()), NONE, 0.0),
        "compute": maths, "info": StateInfo("a", "m", "", "", 1, 0, 24, 0, NONE), "chain": CommitChain(standing, LEADING, lambda: delegation, "", ""),
        "inputs": SimpleNamespace(trouble=""), "outbox": SimpleNamespace(close=nothing, drop=nothing),
        "hub": SimpleNamespace(add=nothing, remove=nothing, want=nothing, say=nothing), "calls": None, "books": lambda host: NoBooks(),
    }  # fmt: skip
    return ReplicaHost(
        Fixed(standing, stage, 8, frozenset(), root, num_batches=24, state_bytes=1000, audited=audited), clock=clock, executor=AtOnce(), thread=thread,
        pace=Pace(clock, lambda: 0.0), epoch=1, snapshot=nothing, news=lambda: None, told=nothing, **facts,
    )  # fmt: skip


def around(*siblings: Planned) -> Neighbours:
    return Neighbours({}, {}, 1, Role.PRIMARY, siblings)


@pytest.mark.parametrize("leaves", [False, True], ids=["asks_again", "leaves_the_plan"])
def test_a_question_may_be_withdrawn_before_its_merge_has_begun(tmp_path: Path, leaves: bool) -> None:
    maths, thread = Maths(), ThreadPoolExecutor(1)

    async def asked(host: ReplicaHost) -> Answer | Unavailable:
        async def weights(size_bytes: int) -> AsyncIterator[bytes]:
            yield DATA

        try:
            async with host.merges.desk.asked(opening(delta()), HELPER.node_id, weights) as answer:
                return answer
        except Unavailable as error:
            return error

    async def story() -> None:
        host = primary(maths, tmp_path, thread)
        running = asyncio.ensure_future(host.run())
        host.plan(around(MINE, THEIRS))
        questions = [asyncio.ensure_future(asked(host)) for _ in range(1 if leaves else 2)]
        if leaves:
            post = host.merges.desk._post

            def post_and_leave(question: MergeAsked) -> None:
                post(question)
                host.plan(around(MINE))

            host.merges.desk._post = post_and_leave
        first, *rest = await asyncio.gather(*questions)
        assert isinstance(first, Unavailable)
        assert first.code == ("not_planned" if leaves else "replaced")
        while not (host.failed or host.view().lineage == BATCHES):  # noqa: ASYNC110  a replica tells nobody of a merge
            await asyncio.sleep(0.01)
        assert host.failed == ""
        assert maths.merged == [(DATA, "raw")], "what was decided is merged, once"
        for answer in rest:
            assert isinstance(answer, Answer)
            assert (answer.verdict, answer.anchor.lineage) == (Verdict.MERGED, BATCHES)
        await host.release(hand_over=False)
        await running

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(bounded())
    thread.shutdown()
