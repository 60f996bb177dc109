"""Goal: one stream to the next worker is reused, closed when it was idle, opened again, and says at once when it breaks; what nobody waits for is dropped.
Where an orchestrator says that questions may come it is opened before they do.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from grpc import aio

from dcnr.question_tensors import tensor_message
from dcnr.question_wire import Words
from dcnr.rpc.connection import Connection
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.errors import error_from_rpc
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.tensor import encode
from dcnr.v1 import identity_pb2, vnode_pb2
from pnode.infer_desk import Here, InferDesk
from pnode.infer_places import Computed, Wish
from pnode.infer_reads import Asking, Reads
from pnode.infer_ways import EARLY_S, IDLE_S, MAX_EARLY, Route, Ways
from pnode.infer_words import Travelling
from pnode.links import SERVICE
from pnode.rpc import pnode_of
from pnode.service import DataPlane
from trust.delegation import VerifiedDelegation, make_delegation, open_delegation
from trust.identity import NodeKey
from trust.tls import self_signed_certificate

NETWORK = "7" * 40
CLOCK = SystemClock()
CALLER, NODE, WORKER, OTHER_NODE, OTHER = (NodeKey.generate() for _ in range(5))
WITHIN_S = 60.0


class Echo:
    """A place that answers with what it was asked, once its gate is open."""

    asking = Asking("s", Reads({"s": ("s",)}), 8)

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def compute(self, inputs: Sequence[Travelling], wish: Wish) -> Computed:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        values = inputs[0].values()
        return Computed(values, values, 1, CLOCK.monotonic(), 0.0)


class Later:
    """A clock that the test puts forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return CLOCK.monotonic() + self.ahead_s

    def wall(self) -> float:
        return CLOCK.wall()


@dataclass
class Ends:
    """The asking worker's ways, and the worker behind them."""

    ways: Ways
    worker: VerifiedDelegation
    echo: Echo
    server: RpcServer
    clock: Later
    dialled: list[str]
    address: str
    desk: InferDesk
    connections: list[Connection]
    """In the order in which they were opened."""
    back: list[vnode_pb2.InferMessage] = field(default_factory=list)

    async def ask(self, shape: tuple[int, ...] = (2, 3)) -> tuple[bytes, object]:
        """Sends a question; its id and the stream over which it is said to have come."""
        words, origin = question(shape), object()
        route = Route(
            words.question,
            frozenset("s"),
            {"s"},
            self.clock.monotonic() + WITHIN_S,
            "s",
            origin,
            lambda words: self.back.append(words.message),
        )
        await self.ways.send(self.worker, words, route)
        return words.question, origin


def question(shape: tuple[int, ...]) -> Words:
    """To whoever has the place ``s``."""
    tensor = encode((np.arange(np.prod(shape), dtype=np.float32) / 64).reshape(shape), "raw")
    hop = vnode_pb2.InferHop(vnode="s", state_digest="d" * 64, answers=True, delegation=identity_pb2.Envelope())
    request = vnode_pb2.InferRequest(
        id=secrets.token_bytes(16), network_id=NETWORK, model="m", caller=CALLER.node_id, hops=[hop], deadline_s=WITHIN_S,
        tensors=[tensor_message("s", tensor.header)],
    )  # fmt: skip
    return Words(vnode_pb2.InferMessage(request=request), [tensor])


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110  conditions of parts that have no event for it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    now, executor, echo, clock = CLOCK.wall(), ThreadPoolExecutor(2), Echo(), Later()
    told: Any = lambda *said: None  # noqa: E731
    unused: Any = None
    mine = make_delegation(OTHER_NODE, NETWORK, OTHER.public_der, 1, ["127.0.0.1:1"], now)
    dialer = Dialer(OTHER, NETWORK, clock=CLOCK, rng=secrets.token_bytes, delegation=lambda: mine, own_connections=True)
    dialled: list[str] = []
    connections: list[Connection] = []

    async def dial(worker_id: Any, addresses: Sequence[str]) -> Any:
        dialled.append(worker_id)
        connections.append(await dialer.connect(worker_id, addresses))
        return connections[-1]

    ways = Ways(clock, dial, told, dialer.certificates)
    here = Here(NETWORK, NODE.node_id, WORKER.node_id)
    desk = InferDesk(
        here, clock=CLOCK, executor=executor, find=lambda model, hop: echo, ways=ways, told=told, ended=lambda caller, session: None
    )
    desk.allow([CALLER.node_id])
    server = RpcServer(WORKER, NETWORK, clock=CLOCK, rng=secrets.token_bytes)
    server.add(DataPlane(unused, peer=pnode_of, desk=unused, donor=unused, uplink=unused, infer=desk).add_to)
    port = await server.start("127.0.0.1", 0)
    theirs = make_delegation(NODE, NETWORK, WORKER.public_der, 1, [f"127.0.0.1:{port}"], now)
    running = [asyncio.ensure_future(desk.run()), asyncio.ensure_future(ways.run())]
    await asyncio.sleep(0)
    try:
        worker = open_delegation(theirs, network_id=NETWORK, now_wall=now)
        yield Ends(ways, worker, echo, server, clock, dialled, f"127.0.0.1:{port}", desk, connections)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await server.stop(0)
        executor.shutdown()


def kinds(messages: Sequence[vnode_pb2.InferMessage]) -> list[str | None]:
    return [message.WhichOneof("kind") for message in messages]


def test_a_stream_is_reused_closed_when_idle_and_opened_again() -> None:
    async def story() -> None:
        async with ends() as both:
            await both.ask()
            await eventually(lambda: len(both.back) == 1)
            await both.ask()
            await eventually(lambda: len(both.back) == 2)
            assert kinds(both.back) == ["answer", "answer"]
            assert len(both.dialled) == 1
            both.clock.ahead_s += IDLE_S
            await eventually(lambda: not both.ways._ways)
            await both.ask()
            await eventually(lambda: len(both.back) == 3)
            assert len(both.dialled) == 2

    asyncio.run(story())


def near(pnode: NodeKey, worker: NodeKey, address: str = "127.0.0.1:1") -> vnode_pb2.InferNeighbour:
    return vnode_pb2.InferNeighbour(delegation=make_delegation(pnode, NETWORK, worker.public_der, 1, [address], CLOCK.wall()))


@asynccontextmanager
async def stream_of(dialer: Dialer, both: Ends) -> AsyncIterator[Any]:
    """To the worker behind, which has heard of it."""
    connection = await dialer.connect(WORKER.node_id, [both.address])
    call: Any = connection.channel.stream_stream(f"/{SERVICE}/Infer")(metadata=connection.metadata)
    try:
        await heard_till_here(call)
        yield call
    finally:
        call.cancel()
        await connection.close()


async def heard_till_here(call: Any) -> None:
    """A question that nobody takes is answered after all was heard that was said before."""
    await call.write(vnode_pb2.InferMessage(request=vnode_pb2.InferRequest(id=bytes(16))).SerializeToString())
    while (data := await call.read()) and vnode_pb2.InferMessage.FromString(data).WhichOneof("kind") != "failure":
        pass


async def say_soon(call: Any, *neighbours: vnode_pb2.InferNeighbour) -> None:
    await call.write(vnode_pb2.InferMessage(soon=neighbours).SerializeToString())
    await heard_till_here(call)


def a_worker() -> Dialer:
    mine = make_delegation(OTHER_NODE, NETWORK, OTHER.public_der, 1, ["127.0.0.1:1"], CLOCK.wall())
    return Dialer(OTHER, NETWORK, clock=CLOCK, rng=secrets.token_bytes, delegation=lambda: mine)


def test_a_stream_that_is_opened_early_is_there_for_the_question_and_goes_when_none_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_fetch(address: str, *given: Any) -> bytes:
        raise AssertionError("its certificate is known")

    monkeypatch.setattr("dcnr.rpc.dialer.fetch_certificate", no_fetch)

    async def story() -> None:
        async with ends() as both:
            both.ways.open_early(both.worker, self_signed_certificate(WORKER))
            await eventually(lambda: any(way.opened.done() for way in both.ways._ways.values()))
            await both.ask()
            await eventually(lambda: len(both.back) == 1)
            both.clock.ahead_s += IDLE_S - 1
            both.ways.open_early(both.worker, b"")
            both.clock.ahead_s += 2
            both.ways._review(both.clock.monotonic())
            assert both.ways._ways, "it was said again"
            assert len(both.dialled) == 1
            both.clock.ahead_s += IDLE_S
            await eventually(lambda: not both.ways._ways)

    asyncio.run(story())


def test_orchestrators_alone_have_streams_opened_and_not_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        caller = Dialer(CALLER, NETWORK, clock=CLOCK, rng=secrets.token_bytes)
        async with ends() as both, stream_of(a_worker(), both) as peers, stream_of(caller, both) as callers:
            first = NodeKey.generate()
            await say_soon(peers, near(NODE, first))
            assert both.dialled == []
            unsigned = vnode_pb2.InferNeighbour(delegation=identity_pb2.Envelope(payload=b"none"))
            await say_soon(callers, unsigned, near(NODE, WORKER), near(OTHER_NODE, first))
            await eventually(lambda: both.dialled == [first.node_id])
            with monkeypatch.context() as narrow:
                narrow.setattr("pnode.infer_ways.MAX_EARLY", 0)
                await say_soon(callers, near(NODE, NodeKey.generate()))
            both.desk.allow([])
            await say_soon(callers, near(NODE, NodeKey.generate()))
            assert both.dialled == [first.node_id], "who is an orchestrator no more has nobody dialled"

    asyncio.run(story())


def test_who_has_machines_dialled_without_end_is_heard_so_many_times_only() -> None:
    async def story() -> None:
        async with ends() as both:
            for _ in range(2):
                for _ in range(MAX_EARLY + 1):  # at addresses where nobody is: each gives its place back at once
                    delegation = near(NODE, NodeKey.generate()).delegation
                    both.ways.open_early(open_delegation(delegation, network_id=NETWORK, now_wall=CLOCK.wall()), b"")
                    await eventually(lambda: not both.ways._ways)
                assert len(both.dialled) == MAX_EARLY
                await both.ask()
                assert len(both.dialled) == MAX_EARLY + 1, "questions do not wait for that"
                await eventually(lambda: not any(way.routes for way in both.ways._ways.values()))
                both.dialled.clear()
                both.clock.ahead_s += max(EARLY_S, IDLE_S)
                both.ways._review(both.clock.monotonic())

    asyncio.run(story())


def test_streams_of_one_and_of_all_workers_leave_room_for_those_of_orchestrators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pnode.infer_desk.MAX_STREAMS_OF_WORKERS", 1)
    monkeypatch.setattr("pnode.infer_desk.MAX_STREAMS_OF_ONE", 2)

    async def story() -> None:
        caller = Dialer(CALLER, NETWORK, clock=CLOCK, rng=secrets.token_bytes)
        async with ends() as both, stream_of(a_worker(), both), stream_of(caller, both), stream_of(caller, both):
            for dialer in (a_worker(), caller):
                with pytest.raises(aio.AioRpcError) as refused:
                    async with stream_of(dialer, both):
                        pass
                assert error_from_rpc(refused.value).code == "overloaded"

    asyncio.run(story())


def test_a_broken_stream_fails_what_waits_on_it_and_the_next_question_finds_nobody() -> None:
    async def story() -> None:
        async with ends() as both:
            both.echo.gate.clear()
            question, _ = await both.ask()
            await eventually(lambda: both.echo.waiting == 1)
            await both.server.stop(0)
            await eventually(lambda: bool(both.back))
            (failure,) = [message.failure for message in both.back]
            assert (failure.id, failure.code, failure.vnode) == (question, "successor_unreachable", "s")
            assert failure.pnode_id == NODE.node_id

    asyncio.run(story())


def test_what_nobody_waits_for_any_more_is_dropped_behind_too() -> None:
    async def story() -> None:
        async with ends() as both:
            both.echo.gate.clear()
            question, origin = await both.ask()
            await both.ask()
            await eventually(lambda: both.echo.waiting == 2)
            both.ways.cancel(question, object())  # somebody else's
            both.ways.cancel(question, origin)
            await eventually(lambda: both.echo.waiting == 1)
            both.echo.gate.set()
            await eventually(lambda: len(both.back) == 1)
            assert both.back[0].answer.id != question

    asyncio.run(story())
