"""Goal: a PNode learns from outside whether others can dial it, tells them so, and nobody has a machine dialled that is not its own."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from relay_rig import CLOCK, Relay, connected_to, relays, until
from rpc_rig import CLIENT, MALLORY, NETWORK, SERVER, House, in_house

import membership.reach_desk
import pnode.reaching
from dcnr.client import Orchestrators
from dcnr.errors import DcnrError, Unavailable
from dcnr.ids import NodeId
from dcnr.rpc.connection import Connection
from dcnr.rpc.server import RpcServer
from dcnr.v1 import identity_pb2, membership_pb2, membership_pb2_grpc, orchestrator_pb2
from pnode.reach import AGAIN_S, CLOSED_S, REACHED, UNREACHED, UNSURE, UNTESTED_S
from pnode.reaching import MOVED_S, ONE_MACHINE, Outside, Reaching
from pnode.reasons import WorkerFacts
from pnode.telling import Condition
from trust.delegation import make_delegation
from trust.identity import NodeKey
from trust.rates import Rate

HOST = "127.0.0.1"
WORKER = NodeKey.generate()
"""Of the PNode `SERVER`, whose daemon is the house's server."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has much else to do is waited for."""
    for name in ("CONNECT_S", "HANDSHAKE_S"):
        monkeypatch.setattr(membership.reach_desk, name, 60.0)


def delegation(node: NodeKey = SERVER, worker: NodeKey = WORKER) -> identity_pb2.Envelope:
    return make_delegation(node, NETWORK, worker.public_der, 1, [], time.time())


@asynccontextmanager
async def worker_port() -> AsyncIterator[int]:
    """Where the worker answers."""
    server = RpcServer(WORKER, NETWORK, clock=CLOCK, rng=secrets.token_bytes)
    try:
        yield await server.start(HOST, 0)
    finally:
        await server.stop(0)


@contextmanager
def silent_port(*, listens: bool) -> Iterator[int]:
    """A port that is taken, and at which nobody says anything; or nobody even listens."""
    with closing(socket.socket()) as taken:
        taken.bind((HOST, 0))
        if listens:
            taken.listen()
        yield taken.getsockname()[1]


@asynccontextmanager
async def talking_port() -> AsyncIterator[int]:
    """A port at which something else answers at once."""

    came: list[asyncio.StreamWriter] = []

    async def greets(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        writer.write(b"SSH-2.0-other\r\n")

    server = await asyncio.start_server(greets, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in came:
            writer.transport.abort()


async def reach(connection: Connection, control: int = 0, data: int = 0, **fields: Any) -> membership_pb2.ReachResponse:
    stub: Any = membership_pb2_grpc.MembershipServiceStub(connection.channel)
    request = membership_pb2.ReachRequest(control_port=control, data_port=data, **fields)
    answer: membership_pb2.ReachResponse = await connection.call(stub.Reach, request, 60)
    return answer


def test_whoever_asks_is_dialled_where_it_comes_from_and_its_own_keys_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(house: House) -> None:
        async with relays(NETWORK) as known, worker_port() as data:
            connection = await house.dialer(SERVER).connect(*known[0].known)
            found = await reach(connection, house.port, data, delegation=delegation())
            assert (found.host, found.control, found.data) == (HOST, REACHED, REACHED)
            with silent_port(listens=False) as closed:
                found = await reach(connection, closed, data, delegation=delegation())
                assert (found.control, found.data) == (UNREACHED, REACHED)
            found = await reach(connection, data, house.port, delegation=delegation())
            assert (found.control, found.data) == (UNREACHED, UNREACHED), "somebody else answers"
            found = await reach(connection, house.port)
            assert (found.control, found.data) == (REACHED, membership_pb2.REACH_RESULT_UNSPECIFIED)
            async with talking_port() as other:
                assert (await reach(connection, other)).control == UNREACHED, "what answers there is no PNode"
            monkeypatch.setattr(membership.reach_desk, "HANDSHAKE_S", 0.2)
            with silent_port(listens=True) as slow:
                assert (await reach(connection, slow)).control == UNSURE, "a machine with much to do is not out of reach"
            await connection.close()

    in_house(scene)


def test_what_is_not_the_callers_own_is_refused() -> None:
    async def refusal(connection: Connection, *ports: int, **fields: Any) -> str:
        with pytest.raises(DcnrError) as refused:
            await reach(connection, *ports, **fields)
        return refused.value.code

    async def scene(house: House) -> None:
        async with relays(NETWORK) as known:
            daemon = await house.dialer(CLIENT).connect(*known[0].known)
            assert await refusal(daemon, 22) == "bad_port", "doors of others behind the same address"
            assert await refusal(daemon, 7700, 70_000) == "bad_port"
            assert await refusal(daemon, 0, house.port, delegation=delegation()) == "wrong_pnode"
            assert await refusal(daemon, 0, house.port) == "bad_signature"
            worker = await house.dialer(WORKER, delegation=delegation).connect(*known[0].known)
            assert await refusal(worker, 7700) == "not_a_pnode"
            for connection in (daemon, worker):
                await connection.close()

    in_house(scene)


def test_who_asks_too_often_waits_and_takes_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership.reach_desk, "CALLER_RATE", Rate(per_s=0.001, burst=1.0))

    async def scene(house: House) -> None:
        async with relays(NETWORK) as known:
            busy, other = [await house.dialer(key).connect(*known[0].known) for key in (MALLORY, SERVER)]
            await reach(busy, house.port)
            with pytest.raises(DcnrError, match="too many requests to be dialled"):
                await reach(busy, house.port)
            assert (await reach(other, house.port)).control == REACHED
            for connection in (busy, other):
                await connection.close()

    in_house(scene)


class Still:
    """Time that passes where the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return time.time()


class Machine:
    """A PNode's word on itself, as its daemon keeps it; its ports, and what it tells others."""

    def __init__(self, control: int, data: int, known: list[Relay]) -> None:
        self.clock = Still()
        self.now = Condition(self.clock.monotonic(), worker=WorkerFacts(pid=1, incarnation=1, has_reported=True))
        self.data_port, self.delegation = data, delegation()
        self.orchestrators = connected_to(NETWORK, SERVER, known)
        self.advert: dict[str, Any] = {}
        self.num_renewed = self.num_relays_told = 0
        self.events: list[str] = []
        self.control_port = control
        self.looked_up_in: list[threading.Thread] = []
        self.host_now = HOST
        self.reaching = Reaching(self.outside())

    def outside(self, *, is_single_host: bool = False) -> Outside:
        membership_: Any = SimpleNamespace(
            node_id=SERVER.node_id, dht_address=f"{HOST}:7", update_self=lambda **told: self.advert.update(told)
        )
        delegated: Any = self
        return Outside(
            self.host, is_single_host, self.now, self.orchestrators, membership_, lambda: delegated, self.relays_changed,
            lambda *event: self.events.append(" ".join(event)), self.clock, random.Random(1),
        )  # fmt: skip

    def host(self) -> str:
        self.looked_up_in.append(threading.current_thread())
        return self.host_now

    async def renew(self) -> None:
        self.num_renewed += 1

    async def relays_changed(self) -> None:
        self.num_relays_told += 1

    async def until_tested(self, what: str, after_s: float) -> None:
        """Another round, when that time has passed."""
        before = self.now.looks
        self.clock.now_s += after_s
        await until(lambda: self.now.looks != before, what)


@asynccontextmanager
async def machine(house: House, data: int, known: list[Relay]) -> AsyncIterator[Machine]:
    made = Machine(house.port, data, known)
    running = asyncio.ensure_future(made.reaching.run(house.port))
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await made.orchestrators.close()


def test_a_machine_whose_port_nobody_reaches_goes_behind_relays_by_itself_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pnode.reaching, "REVIEW_S", 0.02)

    async def scene(house: House) -> None:
        with silent_port(listens=False) as closed:
            async with relays(NETWORK, 2) as known, worker_port() as data, machine(house, data, known) as pnode_:
                await until(lambda: len(pnode_.now.looks) == 2, "both orchestrators dialled it")
                assert all(look.data == look.control == REACHED for look in pnode_.now.looks)
                assert (pnode_.now.reached, pnode_.num_renewed) == ("direct", 0)
                assert threading.main_thread() not in pnode_.looked_up_in[1:], "a name that is looked up stops nothing else"
                pnode_.data_port = closed
                await pnode_.until_tested("it is tested again", 1000.0)
                assert pnode_.reaching.data_host == HOST, "once is no proof"
                await pnode_.until_tested("it is tested soon", AGAIN_S)
                await until(lambda: pnode_.num_renewed == 1, "its worker's delegation names no address any more")
                assert (pnode_.reaching.data_host, pnode_.num_relays_told) == ("", 1)
                assert pnode_.advert == {"control_addresses": [f"{HOST}:{house.port}"], "dht_address": f"{HOST}:7"}, (
                    "the daemon is reached"
                )
                assert "cannot dial its worker" in pnode_.events[-1]
                pnode_.now.worker.listens_at = (known[0].key.node_id,)
                assert pnode_.now.reached == "relayed"
                pnode_.data_port = data
                await pnode_.until_tested("it is tested from time to time", CLOSED_S)
                assert pnode_.reaching.data_host == ""
                await pnode_.until_tested("it is tested soon", AGAIN_S)
                await until(lambda: pnode_.num_renewed == 2, "its worker's delegation names the address again")
                assert (pnode_.reaching.data_host, pnode_.now.reached) == (HOST, "direct")

    in_house(scene)


def test_a_liar_among_the_testers_changes_nothing_and_where_nobody_tests_the_address_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pnode.reaching, "REVIEW_S", 0.02)

    async def scene(house: House) -> None:
        async with relays(NETWORK, 3) as known, worker_port() as data, machine(house, data, known) as pnode_:
            answer = membership_pb2.ReachResponse(host=HOST, control=UNREACHED, data=UNREACHED)

            async def lie(*_: Any) -> membership_pb2.ReachResponse:
                return answer

            known[0].reach.serve = lie  # type: ignore[method-assign]
            for _ in range(4):
                await pnode_.until_tested("it is tested", 1000.0)
                assert pnode_.reaching.data_host == HOST
            answer.host = "fe80::1%\x1b[2J"
            await pnode_.until_tested("it is tested", 1000.0)
            assert {look.host for look in pnode_.now.looks} == {HOST}, "what owners read says nothing to their screens"
            asked: list[membership_pb2.ReachRequest] = []

            async def refuse(request: membership_pb2.ReachRequest, *_: Any) -> membership_pb2.ReachResponse:
                asked.append(request)
                raise Unavailable("busy")

            for relay in known:
                relay.reach.serve = refuse  # type: ignore[method-assign]
            seen = pnode_.now.looks

            def asked_again() -> bool:
                pnode_.clock.now_s += 1000.0
                return len(asked) >= 9

            await until(asked_again, "all are asked, again and again")
            assert (pnode_.now.looks, pnode_.reaching.data_host, pnode_.num_renewed) == (seen, HOST, 0)
            own = Condition(pnode_.clock.monotonic())  # the other's goes on being written to
            outside = replace(pnode_.outside(is_single_host=True), now=own)
            await asyncio.wait_for(Reaching(outside).run(house.port), 60)
            assert own.reach_note == ONE_MACHINE

    in_house(scene)


def unheard(known: Callable[[], list[tuple[NodeId, list[str]]]], asked: Callable[..., Any]) -> tuple[Machine, asyncio.Future[None]]:
    """A machine that asks orchestrators of which none answers, and what it does."""
    made, orchestrators = Machine(7700, 0, []), SimpleNamespace(known=known, connection=asked)
    made.orchestrators = cast(Orchestrators, orchestrators)
    made.reaching = Reaching(made.outside())
    return made, asyncio.ensure_future(made.reaching.run(7700))


def test_an_orchestrator_that_sees_it_elsewhere_all_the_time_does_not_use_up_what_it_may_ask_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pnode.reaching, "REVIEW_S", 0.001)
    tester, num_reviews, num_asked = MALLORY.node_id, 0, 0

    def known() -> list[tuple[NodeId, list[str]]]:
        nonlocal num_reviews
        num_reviews += 1
        return [(tester, [])]

    async def asked(*_: Any) -> Connection:
        nonlocal num_asked
        num_asked += 1
        raise Unavailable("busy")

    async def scene() -> None:
        made, running = unheard(known, asked)
        await until(lambda: num_asked == 1, "it is tested at first")
        made.clock.now_s += UNTESTED_S
        await until(lambda: num_asked == 2, "and later, since nobody said anything")
        for number in range(10):
            made.reaching.welcomed(tester, orchestrator_pb2.Welcome(observed_address=f"9.9.9.{number}:1"))
            before = num_reviews
            await until(lambda before=before: num_reviews > before + 2, "it looks whether to be tested")  # type: ignore[misc]
        assert num_asked == 2
        made.clock.now_s += MOVED_S
        await until(lambda: num_asked == 3, "it is tested where it is now")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())


def test_a_machine_that_wakes_with_another_address_behind_the_same_line_is_tested_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orchestrators see it where they saw it before; those of its own house would dial it where it was, for ten minutes."""
    monkeypatch.setattr(pnode.reaching, "REVIEW_S", 0.001)
    tester, num_asked = MALLORY.node_id, 0

    async def asked(*_: Any) -> Connection:
        nonlocal num_asked
        num_asked += 1
        raise Unavailable("busy")

    async def scene() -> None:
        made, running = unheard(lambda: [(tester, [])], asked)
        welcome = orchestrator_pb2.Welcome(observed_address="9.9.9.9:1")
        made.reaching.welcomed(tester, welcome)
        await until(lambda: num_asked == 1, "it is tested at first")
        made.clock.now_s += UNTESTED_S
        await until(lambda: num_asked == 2, "and later, since nobody said anything")
        made.clock.now_s += MOVED_S
        looks = len(made.looked_up_in)
        made.reaching.welcomed(tester, welcome)
        await until(lambda: len(made.looked_up_in) > looks, "met anew, it looks where it is")
        assert num_asked == 2, "it is where it was"
        made.host_now = "192.168.7.7"
        made.reaching.welcomed(tester, welcome)
        await until(lambda: num_asked == 3, "it is tested where it is now")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
