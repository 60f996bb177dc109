"""Goal: states of any size pass between machines as fast as their lines may carry them, however long that takes; who moves next to nothing is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from dcnr.errors import DcnrError
from dcnr.ids import NodeId, ReplicaId, digest_of
from dcnr.limits import MIB
from dcnr.patience import paced_s
from dcnr.v1 import vnode_pb2
from pnode.chain import Standing
from pnode.donors import DONATION_S, SILENCE_S, Donor, receive
from pnode.hosted import Neighbours, Planned
from pnode.merge_calls import CHUNK_S, MERGE_S, MergeCalls, serve_merge
from pnode.merge_desk import MergeDesk
from pnode.uplink import Uplink
from simulation.control_clock import SimClock
from simulation.control_loop import ProcessLoop
from simulation.kernel import Kernel, Process
from tests.unit.test_merge_desk import ANCHOR, BATCHES, HELPER, NETWORK, StoppedClock, delta, opening
from vnode.merge_events import MergeAsked
from vnode.vocabulary import Peer, Role, Verdict

STATE = bytes(40 * MIB)
RATE = 32_000.0
"""Bytes a second that each owner lets go: the state takes more than twenty minutes."""
LONG_S = 1e6


class Wire:
    """A connection without a network between: what one end yields the other reads, one part at a time. Each end has its own task."""

    metadata = ()

    def __init__(self, serve: Callable[[Any], AsyncIterator[Any]]) -> None:
        self._serve = serve
        self._parts: asyncio.Queue[Any] = asyncio.Queue(1)

    channel = property(lambda self: self)

    def unary_stream(self, path: str, **_: Any) -> Callable[..., Wire]:
        return self._call

    stream_stream = unary_stream

    def unary_unary(self, path: str, **_: Any) -> None:
        """Nothing here is asked so."""

    stream_unary = unary_unary

    def _call(self, request: Any, metadata: Any = ()) -> Wire:
        self._task = asyncio.ensure_future(self._pump(request))
        return self

    async def _pump(self, request: Any) -> None:
        try:
            async for part in self._serve(request):
                await self._parts.put(part)
            await self._parts.put(grpc.aio.EOF)  # type: ignore[attr-defined]  # missing in the stubs
        except DcnrError as error:
            await self._parts.put(error)

    async def read(self) -> Any:
        part = await self._parts.get()
        if isinstance(part, DcnrError):
            raise part
        return part

    def cancel(self) -> None:
        self._task.cancel()

    async def close(self) -> None:
        self.cancel()


class World:
    """One machine after the other on virtual time."""

    def __init__(self) -> None:
        self.kernel = Kernel(1)
        self.errors: list[BaseException] = []
        self.loop = ProcessLoop(self.kernel, Process(self.kernel, "worker"), self.errors.append)

    def uplink(self) -> Uplink:
        line = Uplink(SimClock(self.kernel, 0.0))
        line.limit(RATE)
        return line

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self.loop.spawn(story())
        self.kernel.run_until(LONG_S, task.done)
        assert not self.errors
        assert task.done(), "it waits for ever"


def dialed(wire: Wire) -> Callable[..., Awaitable[Any]]:
    async def dial(worker_id: NodeId, addresses: Any) -> Wire:
        return wire

    return dial


WORKER: Any = SimpleNamespace(worker_id=NodeId("7" * 40), addresses=("127.0.0.1:1",))
"""Where the other end is, which the wire knows."""


def request() -> vnode_pb2.DonateRequest:
    return vnode_pb2.DonateRequest(network_id=NETWORK, model="m", vnode="a", digest=digest_of(STATE))


def test_a_state_is_given_for_as_long_as_the_owners_limit_has_it_take(tmp_path: Path) -> None:
    world, lies, taken = World(), tmp_path / "state", tmp_path / "taken"
    lies.write_bytes(STATE)

    async def story() -> None:
        donor = Donor(NETWORK, lambda model, vnode, digest: lies, world.uplink())
        wire = Wire(lambda asked: donor.give(asked, HELPER.node_id))
        await receive(dialed(wire), WORKER, request(), size_bytes=len(STATE), destination=taken)

    world.run(story)
    assert taken.read_bytes() == STATE
    assert world.kernel.now_s == pytest.approx(len(STATE) / RATE, rel=0.01)
    assert len(STATE) / RATE > 2 * DONATION_S


def test_a_donor_that_gives_next_to_nothing_is_given_up(tmp_path: Path) -> None:
    world, ended = World(), list[tuple[str, float]]()

    async def drip(asked: Any) -> AsyncIterator[vnode_pb2.DonateResponse]:
        size_bytes = len(STATE)
        while True:
            yield vnode_pb2.DonateResponse(size_bytes=size_bytes, chunk=b"1")
            size_bytes = 0
            await asyncio.sleep(0.9 * SILENCE_S)

    async def story() -> None:
        with pytest.raises(DcnrError) as error:
            await receive(dialed(Wire(drip)), WORKER, request(), size_bytes=len(STATE), destination=tmp_path / "taken")
        ended.append((error.value.code, world.kernel.now_s))

    world.run(story)
    assert ended == [("donation_timeout", pytest.approx(DONATION_S, abs=1.0))]


class Primary:
    """A desk whose core answers at once, with a whole state."""

    def __init__(self, world: World) -> None:
        self.anchor = replace(ANCHOR, data=STATE, digest=digest_of(STATE))
        standing = Standing(NETWORK, "m", "j", "a", Peer(ReplicaId("a.0"), 3), "6" * 40)
        self.desk = MergeDesk(
            standing, num_batches=BATCHES, max_bytes=len(STATE), clock=StoppedClock(), executor=None, check=lambda data, codec: data,  # type: ignore[arg-type, return-value]
            post=self.answer, full=lambda: False,
        )  # fmt: skip
        siblings = [Planned(ReplicaId("a.1"), HELPER.node_id, Role.CONTRIBUTOR, 1.0)]
        self.desk.plan(Neighbours({}, {}, 1, Role.PRIMARY, siblings))
        self.uplink = world.uplink()

    def answer(self, asked: MergeAsked) -> None:
        self.desk.answer(asked.request, Verdict.MERGED, "", "", self.anchor)

    def serve(self, requests: Any) -> AsyncIterator[vnode_pb2.MergeResponse]:
        return serve_merge(requests, HELPER.node_id, lambda name: self.desk, self.uplink)


def asking() -> vnode_pb2.MergeOpen:
    return opening(delta(digest=digest_of(STATE), size_bytes=len(STATE)))


def test_a_delta_and_an_anchor_of_any_size_pass_as_fast_as_both_owners_let_them() -> None:
    world, anchors = World(), list[bytes]()

    async def story() -> None:
        calls = MergeCalls(dialed(Wire(Primary(world).serve)), world.uplink())
        reply = await calls.ask(WORKER, asking(), STATE, max_anchor_bytes=len(STATE))
        anchors.append(reply.anchor)

    world.run(story)
    assert anchors == [STATE]
    assert world.kernel.now_s == pytest.approx(2 * len(STATE) / RATE, rel=0.01)
    assert len(STATE) / RATE > 2 * MERGE_S


def test_a_sibling_that_sends_next_to_nothing_loses_the_call_and_so_does_a_primary() -> None:
    world, ended = World(), list[tuple[str, float]]()

    async def drip() -> AsyncIterator[vnode_pb2.MergeRequest]:
        yield vnode_pb2.MergeRequest(open=asking())
        while True:
            yield vnode_pb2.MergeRequest(chunk=b"1")
            await asyncio.sleep(0.9 * CHUNK_S)

    async def silent(requests: Any) -> AsyncIterator[vnode_pb2.MergeResponse]:
        async for _ in requests:
            continue
        await asyncio.sleep(LONG_S)
        yield vnode_pb2.MergeResponse()

    async def story() -> None:
        with pytest.raises(DcnrError) as error:
            await anext(Primary(world).serve(drip()))
        ended.append((error.value.code, world.kernel.now_s))
        began_s = world.kernel.now_s
        with pytest.raises(DcnrError) as unanswered:
            await MergeCalls(dialed(Wire(silent)), world.uplink()).ask(WORKER, opening(), b"", max_anchor_bytes=len(STATE))
        ended.append((unanswered.value.code, world.kernel.now_s - began_s))

    world.run(story)
    assert ended == [("merge_timeout", pytest.approx(MERGE_S, abs=1.0)), ("merge_timeout", pytest.approx(MERGE_S, abs=1.0))]


def test_the_pace_of_others_may_be_what_the_slowest_line_leaves() -> None:
    assert paced_s(len(STATE)) == len(STATE) / (32 * 1024)
