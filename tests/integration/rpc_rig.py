"""One real server with its services, and dialers for any key."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from grpc import aio

from dcnr.errors import (
    Corrupt,
    InvalidInput,
    NotFound,
    Refused,
    RemoteFault,
    Stale,
    TimedOut,
    Unavailable,
)
from dcnr.rpc.connection import Connection
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.guard import peer_of
from dcnr.rpc.server import RpcServer
from dcnr.v1 import membership_pb2, membership_pb2_grpc
from trust.identity import NodeKey
from trust.tls import self_signed_certificate

NETWORK = "a" * 40
HELD, ENDED = "held", "ended"
"""What to probe for an answer that waits for `Echo.go_on`, and for one that rests on something cancelled."""
SERVER, CLIENT, MALLORY = (NodeKey.generate() for _ in range(3))
ERRORS: dict[str, Exception] = {
    "invalid": InvalidInput("wrong", code="bad_id", remedy="mend it", field="x"),
    "stale": Stale("moved", code="head_moved"),
    "missing": NotFound("gone"),
    "refused": Refused("no", code="unsigned_job", remedy="sign it"),
    "busy": Unavailable("later", retry_after_s=7.5),
    "late": TimedOut("late"),
    "corrupt": Corrupt("bad bytes"),
    "fault": RemoteFault("bad peer"),
    "huge": InvalidInput("m" * 5000, remedy="r" * 5000, **{f"k{n}": "v" * 900 for n in range(50)}),
    "bug": ValueError("secret of this process"),
}


class Clock:
    """The machine's clocks; a test may move them on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def wall(self) -> float:
        return time.time() + self.ahead_s


class Echo(membership_pb2_grpc.MembershipServiceServicer):
    """Probe answers with the caller's id or raises what is asked for; Exchange sends back as much as it got."""

    def __init__(self) -> None:
        self.num_calls, self.go_on = 0, asyncio.Event()

    async def Join(self, request: membership_pb2.JoinRequest, context: Any) -> membership_pb2.JoinResponse:
        with pytest.raises(Refused):
            peer_of(context)
        return membership_pb2.JoinResponse(observed_address="open")

    async def Probe(self, request: membership_pb2.ProbeRequest, context: Any) -> membership_pb2.ProbeResponse:
        self.num_calls += 1
        if request.node_id == HELD:
            await self.go_on.wait()
        if request.node_id == ENDED:
            ended = asyncio.ensure_future(self.go_on.wait())
            ended.cancel()
            await ended
        if request.node_id in ERRORS:
            raise ERRORS[request.node_id]
        peer = peer_of(context)
        return membership_pb2.ProbeResponse(reachable=request.node_id in (peer.node_id, peer.pnode_id, peer.worker_id))

    async def Exchange(self, request: membership_pb2.ExchangeRequest, context: Any) -> membership_pb2.ExchangeResponse:
        self.num_calls += 1
        return membership_pb2.ExchangeResponse(bootstrap=request.bootstrap)


class Streams:
    """A streaming service without generated code: counts up to the number asked for, then fails as asked."""

    def __init__(self) -> None:
        self.num_open = 0

    def register(self, server: aio.Server) -> None:
        handlers = {
            "Count": grpc.unary_stream_rpc_method_handler(self.count, Int32Value.FromString, Int32Value.SerializeToString),
            "Pour": grpc.unary_stream_rpc_method_handler(self.passed_on, Int32Value.FromString, StringValue.SerializeToString),
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk, StringValue.FromString, StringValue.SerializeToString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Streams", handlers),))

    async def count(self, request: Int32Value, context: Any) -> AsyncIterator[Int32Value]:
        for number in range(request.value):
            yield Int32Value(value=number)
        raise Stale("counted", code="done")

    async def pour(self, request: Int32Value, context: Any) -> AsyncIterator[StringValue]:
        """More than fits on the way, for so many milliseconds."""
        self.num_open += 1
        try:
            async with asyncio.timeout(request.value / 1000):
                while True:
                    yield StringValue(value="m" * (1 << 20))
        except TimeoutError:
            raise Unavailable("too slow", code="overloaded") from None
        finally:
            self.num_open -= 1

    def passed_on(self, request: Int32Value, context: Any) -> AsyncIterator[StringValue]:
        """As services hand a call on to what answers it."""
        return self.pour(request, context)

    async def talk(self, requests: AsyncIterator[StringValue], context: Any) -> AsyncIterator[StringValue]:
        self.num_open += 1
        try:
            async for request in requests:
                yield StringValue(value=f"{peer_of(context).node_id} {request.value}")
        finally:
            self.num_open -= 1


class House:
    """One server with its clock and services; dialers for any key."""

    def __init__(self, **options: Any) -> None:
        self.clock, self.echo, self.streams, self.options = Clock(), Echo(), Streams(), options
        self.server, self.port = self.make(), 0

    def make(self) -> RpcServer:
        server = RpcServer(SERVER, NETWORK, clock=self.clock, rng=secrets.token_bytes, **self.options)
        server.add(lambda s: membership_pb2_grpc.add_MembershipServiceServicer_to_server(self.echo, s), "dcnr.v1.MembershipService")
        server.add(self.streams.register)
        return server

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def dialer(self, key: NodeKey = CLIENT, network: str = NETWORK, **options: Any) -> Dialer:
        return Dialer(key, network, clock=self.clock, rng=secrets.token_bytes, **options)


def in_house(test: Callable[[House], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        house = House(**options)
        house.port = await house.server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(120):
                await test(house)
        finally:
            await house.server.stop(0)

    asyncio.run(run())


@asynccontextmanager
async def connected(house: House, dialer: Dialer | None = None) -> AsyncIterator[Connection]:
    connection = await (dialer or house.dialer()).connect(SERVER.node_id, [house.address])
    try:
        yield connection
    finally:
        await connection.close()


def stub(connection: Connection) -> membership_pb2_grpc.MembershipServiceAsyncStub:
    return membership_pb2_grpc.MembershipServiceStub(connection.channel)


async def probe(connection: Connection, name: str = CLIENT.node_id) -> bool:
    return (await connection.call(stub(connection).Probe, membership_pb2.ProbeRequest(node_id=name))).reachable


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def forget_sessions(server: RpcServer) -> None:
    """As it does with the oldest where it has too many."""
    for token in list(server._book._sessions):
        server._book._drop(token)


def raw_channel(house: House) -> aio.Channel:
    credentials = grpc.ssl_channel_credentials(self_signed_certificate(SERVER))
    return aio.secure_channel(house.address, credentials, options=[("grpc.ssl_target_name_override", SERVER.node_id)])
