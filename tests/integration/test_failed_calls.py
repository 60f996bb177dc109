"""Goal: what failed keeps no connection open, however long its error is held: a peer that answers nothing costs one connection at a time, not one a try."""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import grpc
import psutil
import pytest
from grpc import aio
from rpc_rig import HELD, NETWORK, SERVER, House, in_house, probe, until

import pnode.control
from dcnr.errors import DcnrError, Refused, Unavailable
from dcnr.groups import first_cause
from dcnr.ids import NodeId
from dcnr.rpc.errors import calls_let_go
from dcnr.rpc.options import server_options
from dcnr.rpc.server import RpcServer
from dcnr.v1 import identity_pb2, identity_pb2_grpc, membership_pb2, membership_pb2_grpc, orchestrator_pb2, orchestrator_pb2_grpc
from orchestrator.infer_streams import InferStreams
from pnode.control import ControlStreams
from pnode.infer_ways import Ways
from pnode.links import SERVICE
from trust.delegation import make_delegation, open_delegation
from trust.identity import NodeKey
from trust.tls import certificate_pem, self_signed_certificate

TRIES = 5
WITHIN_S = 0.5


class Silent(identity_pb2_grpc.SessionServiceServicer, membership_pb2_grpc.MembershipServiceServicer):
    """Takes connections and calls, and says nothing."""

    def __init__(self) -> None:
        self.num_calls = 0

    async def Challenge(self, request: identity_pb2.ChallengeRequest, context: Any) -> Any:
        self.num_calls += 1
        await asyncio.Event().wait()

    async def Join(self, request: membership_pb2.JoinRequest, context: Any) -> Any:
        self.num_calls += 1
        await asyncio.Event().wait()


class Refusing(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Ends each control stream as soon as it has heard who is there."""

    def __init__(self) -> None:
        self.num_streams = 0

    async def Attach(self, requests: Any, context: Any) -> AsyncIterator[orchestrator_pb2.OrchestratorMessage]:
        self.num_streams += 1
        async for _ in requests:
            raise Refused("not here")
        yield orchestrator_pb2.OrchestratorMessage()


class Ending:
    """A worker whose Infer streams end at once."""

    def __init__(self, end: str) -> None:
        self._end, self.num_streams = end, 0

    def add_to(self, server: Any) -> None:
        streams = {"Infer": grpc.stream_stream_rpc_method_handler(self.infer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, streams),))

    async def infer(self, requests: Any, context: Any) -> None:
        self.num_streams += 1
        match self._end:
            case "refused":
                raise Refused("not here")
            case "broken":
                await context.read()
                raise Unavailable("it ends")
            case "unreadable":
                await context.write(bytes([255]) * 4)
                await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _no_search_for_garbage() -> Iterator[None]:
    """A daemon that has little to do makes a whole one in hours."""
    gc.disable()
    yield
    gc.enable()


async def failed(tried: Callable[[], Coroutine[Any, Any, object]]) -> asyncio.Task[None]:
    """A task that has failed and holds its error, whose frames hold the task: a circle."""

    async def bounded() -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                await tried()
        except TimeoutError:
            raise DcnrError("too late") from None

    task = asyncio.create_task(bounded())
    await asyncio.wait([task])
    assert isinstance(task.exception(), DcnrError)
    return task


async def few_open(port: int, at_most: int = 0) -> None:
    """Of this process' own ends of connections to ``port``."""

    def num_open() -> int:
        found = psutil.Process().net_connections(kind="tcp")
        return sum(bool(one.raddr) and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED for one in found)

    await until(lambda: num_open() <= at_most, "connections of failed calls are open")


@pytest.mark.parametrize("way", ["session", "joining"])
def test_a_peer_that_never_answers_costs_no_connection_for_each_try(way: str) -> None:
    async def scene(house: House) -> None:
        silent, server = Silent(), aio.server(options=server_options())
        identity_pb2_grpc.add_SessionServiceServicer_to_server(silent, server)
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(silent, server)
        pair = SERVER.private_pem(), certificate_pem(self_signed_certificate(SERVER))
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        await server.start()
        try:
            dialer, address = house.dialer(own_connections=True), f"127.0.0.1:{port}"
            ways: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
                "session": lambda: dialer.connect(SERVER.node_id, [address]),
                "joining": lambda: dialer.join(address, membership_pb2.JoinRequest()),
            }
            tasks = [await failed(ways[way]) for _ in range(TRIES)]
            assert silent.num_calls == len(tasks)
            await few_open(port)
        finally:
            await server.stop(0)

    in_house(scene)


def test_a_call_that_nobody_waits_for_any_longer_ends_with_its_connection() -> None:
    async def scene(house: House) -> None:
        dialer, tasks = house.dialer(own_connections=True), []
        for _ in range(TRIES):
            connection = await dialer.connect(SERVER.node_id, [house.address])
            tasks.append(await failed(lambda connection=connection: probe(connection, HELD)))  # type: ignore[misc]
            await connection.close()
        assert house.echo.num_calls == len(tasks)
        await few_open(house.port)

    in_house(scene)


def test_a_refused_call_ends_with_its_connection() -> None:
    async def scene(house: House) -> None:
        errors, dialer = [], house.dialer(own_connections=True)
        for _ in range(TRIES):
            connection = await dialer.connect(SERVER.node_id, [house.address])
            with pytest.raises(DcnrError) as raised:
                await probe(connection, "refused")
            errors.append(raised.value)
            await connection.close()
        await few_open(house.port)
        assert len(errors) == TRIES

    in_house(scene)


def test_a_control_stream_that_is_refused_again_and_again_has_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pnode.control, "LONGEST_PAUSE_S", 0.1)

    async def refuse(node_id: NodeId, message: orchestrator_pb2.OrchestratorMessage) -> None:
        raise AssertionError(message)

    async def scene(house: House) -> None:
        servicer, server = Refusing(), RpcServer(SERVER, NETWORK, clock=house.clock, rng=secrets.token_bytes)
        server.add(lambda target: orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(servicer, target))
        port = await server.start("127.0.0.1", 0)
        streams = ControlStreams(
            house.dialer(), lambda: [(SERVER.node_id, [f"127.0.0.1:{port}"])], hello=orchestrator_pb2.Hello,
            beat=lambda sequence: orchestrator_pb2.Beat(sequence=sequence), on_message=refuse, holders=list, clock=house.clock,
            rng=random.Random(1),
        )  # fmt: skip
        running = asyncio.create_task(streams.run())
        try:
            await until(lambda: servicer.num_streams > TRIES, "it does not try again")
            await few_open(port, at_most=1)
        finally:
            running.cancel()
            await asyncio.wait([running])
            await server.stop(0)

    in_house(scene)


@pytest.mark.parametrize("end", ["refused", "broken", "unreadable", "over"])
@pytest.mark.parametrize("side", ["worker", "orchestrator"])
def test_an_infer_stream_ends_with_its_connection(side: str, end: str) -> None:
    async def scene(house: House) -> None:
        ending, server = Ending(end), RpcServer(SERVER, NETWORK, clock=house.clock, rng=secrets.token_bytes)
        server.add(ending.add_to)
        port, now = await server.start("127.0.0.1", 0), house.clock.wall()
        signed = make_delegation(NodeKey.generate(), NETWORK, SERVER.public_der, 1, [f"127.0.0.1:{port}"], now)
        worker, dialer = open_delegation(signed, network_id=NETWORK, now_wall=now), house.dialer(own_connections=True)
        ways = Ways(house.clock, dialer.connect, lambda *_: None, dialer.certificates)
        streams = InferStreams(dialer.connect, house.clock)
        running = asyncio.gather(ways.run(), streams.run())
        await asyncio.sleep(0)
        try:
            for _ in range(TRIES):
                if side == "worker":
                    ways.open_early(worker, b"")
                    await until(lambda: not ways._ways, "it goes on")
                else:
                    stream = await streams.opened(worker)
                    await until(lambda stream=stream: stream.ended, "it goes on")  # type: ignore[misc]
            assert ending.num_streams == TRIES
            await few_open(port)
        finally:
            running.cancel()
            await asyncio.wait([running])
            await server.stop(0)

    in_house(scene)


def test_what_fails_beside_an_error_keeps_no_call_either() -> None:
    """The error is held in a circle: it stems from the group that holds it, and that holds the others."""

    class Call:
        """What is to go."""

    calls: list[weakref.ref[Call]] = []

    async def failing() -> None:
        call = Call()
        calls.append(weakref.ref(call))
        await asyncio.sleep(0)
        try:
            raise ValueError(id(call))
        except ValueError as error:
            raise Unavailable("it broke") from error

    async def both() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(failing())
        except BaseExceptionGroup as failed:
            raise first_cause(failed) from None

    async def story() -> None:
        with pytest.raises(Unavailable) as raised, calls_let_go():
            await both()
        assert [call() for call in calls] == [None, None]
        assert raised.value.__context__ is not None

    asyncio.run(story())


def test_what_was_being_handled_before_keeps_what_it_has() -> None:
    def outer() -> None:
        kept = object()  # noqa: F841  looked at below
        raise ValueError

    with pytest.raises(ValueError) as before:
        outer()
    try:
        raise before.value
    except ValueError:
        with pytest.raises(Unavailable), calls_let_go():
            raise Unavailable("it broke") from None
    assert any("kept" in frame.f_locals for frame, _ in traceback.walk_tb(before.tb))
