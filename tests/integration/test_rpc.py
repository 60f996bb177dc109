"""Goal: over real gRPC and TLS, only proven callers are served, impostors hear nothing, and every failure arrives as its typed error."""

from __future__ import annotations

import asyncio
import secrets
import socket
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
    DcnrError,
    InvalidInput,
    NotFound,
    Refused,
    RemoteFault,
    Stale,
    TimedOut,
    Unavailable,
)
from dcnr.limits import MAX_MESSAGE_BYTES
from dcnr.rpc.dialer import Connection, Dialer
from dcnr.rpc.errors import error_from_rpc
from dcnr.rpc.guard import SESSION_METADATA
from dcnr.rpc.server import RpcServer, peer_of
from dcnr.v1 import common_pb2, identity_pb2, identity_pb2_grpc, membership_pb2, membership_pb2_grpc
from trust.delegation import make_delegation
from trust.identity import NodeKey
from trust.session import SessionOpening
from trust.tls import certificate_sha256, self_signed_certificate

NETWORK = "a" * 40
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
        self.num_calls = 0

    async def Join(self, request: membership_pb2.JoinRequest, context: Any) -> membership_pb2.JoinResponse:
        with pytest.raises(Refused):
            peer_of(context)
        return membership_pb2.JoinResponse(observed_address="open")

    async def Probe(self, request: membership_pb2.ProbeRequest, context: Any) -> membership_pb2.ProbeResponse:
        self.num_calls += 1
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
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk, StringValue.FromString, StringValue.SerializeToString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Streams", handlers),))

    async def count(self, request: Int32Value, context: Any) -> AsyncIterator[Int32Value]:
        for number in range(request.value):
            yield Int32Value(value=number)
        raise Stale("counted", code="done")

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
            async with asyncio.timeout(30):
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
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def raw_channel(house: House) -> aio.Channel:
    credentials = grpc.ssl_channel_credentials(self_signed_certificate(SERVER))
    return aio.secure_channel(house.address, credentials, options=[("grpc.ssl_target_name_override", SERVER.node_id)])


def test_a_proven_caller_is_served_and_named() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection:
            assert await probe(connection)
            assert connection.peer_id == SERVER.node_id
            assert connection.observed_address.startswith("127.0.0.1:")
            assert abs(connection.network_time_offset_s) < 1.0
        with pytest.raises(Unavailable) as raised:
            await probe(connection)
        assert raised.value.code == "connection_closed"
        await asyncio.wait_for(connection.wait_closed(), 1)

    in_house(scene)


def test_errors_arrive_as_they_were_raised_and_bugs_tell_nothing() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection:
            for name, error in ERRORS.items():
                with pytest.raises(DcnrError) as raised:
                    await probe(connection, name)
                got = raised.value
                if isinstance(error, DcnrError):
                    assert (type(got), got.code, got.message[:100]) == (type(error), error.code, error.message[:100])
                    assert name == "huge" or (got.remedy, got.details) == (error.remedy, error.details)
                else:
                    assert (type(got), got.code) == (RemoteFault, "internal")
                    assert "secret" not in str(got)
                if isinstance(error, Unavailable) and isinstance(got, Unavailable):
                    assert got.retry_after_s == error.retry_after_s

    in_house(scene)


def test_calls_without_a_session_or_with_anothers_never_run() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection, raw_channel(house) as channel:
            stolen = connection.metadata
            other = membership_pb2_grpc.MembershipServiceStub(channel)
            for metadata in ((), stolen, ((SESSION_METADATA, b"x" * 32),), ((SESSION_METADATA, b""),)):
                with pytest.raises(aio.AioRpcError) as raised:
                    await other.Probe(membership_pb2.ProbeRequest(node_id=CLIENT.node_id), metadata=metadata)
                assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
                error = error_from_rpc(raised.value)
                assert isinstance(error, Refused)
                assert error.code in ("session_required", "session_elsewhere")
            with pytest.raises(aio.AioRpcError):
                async for _ in channel.unary_stream("/test.Streams/Count", None, None)(b"\x08\x05"):
                    pass
            assert house.echo.num_calls == 0
            assert (await other.Join(membership_pb2.JoinRequest())).observed_address == "open"
            check = channel.unary_unary("/grpc.health.v1.Health/Check", StringValue.SerializeToString, Int32Value.FromString)
            assert (await check(StringValue(value="dcnr.v1.MembershipService"))).value == 1
            with pytest.raises(aio.AioRpcError) as missing:
                await check(StringValue(value="no.Such"))
            assert missing.value.code() is grpc.StatusCode.NOT_FOUND

    in_house(scene)


def test_another_process_with_the_same_key_does_not_know_the_token() -> None:
    async def scene(house: House) -> None:
        twin = house.make()
        port = await twin.start("127.0.0.1", 0)
        credentials = grpc.ssl_channel_credentials(self_signed_certificate(SERVER))
        async with (
            connected(house) as connection,
            aio.secure_channel(
                f"127.0.0.1:{port}", credentials, options=[("grpc.ssl_target_name_override", SERVER.node_id)]
            ) as channel,
        ):
            with pytest.raises(aio.AioRpcError) as raised:
                await membership_pb2_grpc.MembershipServiceStub(channel).Probe(
                    membership_pb2.ProbeRequest(node_id=CLIENT.node_id), metadata=connection.metadata
                )
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await twin.stop(0)
        assert house.echo.num_calls == 0

    in_house(scene)


def test_an_impostor_is_recognised_and_told_nothing() -> None:
    async def scene(house: House) -> None:
        impostor = RpcServer(MALLORY, NETWORK, clock=house.clock, rng=secrets.token_bytes)
        port = await impostor.start("127.0.0.1", 0)
        with pytest.raises(RemoteFault) as raised:
            await house.dialer().connect(SERVER.node_id, [f"127.0.0.1:{port}"])
        assert raised.value.code == "wrong_identity"
        assert raised.value.details["got"] == MALLORY.node_id
        with pytest.raises(RemoteFault):
            await house.dialer().join(f"127.0.0.1:{port}", membership_pb2.JoinRequest(), SERVER.node_id)
        connection = await house.dialer().connect(SERVER.node_id, [f"127.0.0.1:{port}", house.address])
        assert connection.address == house.address
        assert await probe(connection)
        await connection.close()
        await impostor.stop(0)

    in_house(scene)


def test_a_pinned_channel_fails_the_handshake_with_any_other_key() -> None:
    async def scene(house: House) -> None:
        async with aio.secure_channel(
            house.address,
            grpc.ssl_channel_credentials(self_signed_certificate(MALLORY)),
            options=[("grpc.ssl_target_name_override", MALLORY.node_id)],
        ) as channel:
            with pytest.raises(aio.AioRpcError) as raised:
                await membership_pb2_grpc.MembershipServiceStub(channel).Join(membership_pb2.JoinRequest(), timeout=5)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

    in_house(scene)


def test_wrong_network_and_wrong_versions_are_said_plainly() -> None:
    async def scene(house: House) -> None:
        with pytest.raises(Refused) as raised:
            await house.dialer(network="b" * 40).connect(SERVER.node_id, [house.address])
        assert raised.value.code == "wrong_network"
        async with raw_channel(house) as channel:
            sessions = identity_pb2_grpc.SessionServiceStub(channel)
            for network, versions, code in ((NETWORK, (7, 9), "protocol_mismatch"), ("b" * 40, (1, 1), "wrong_network")):
                opening = SessionOpening(
                    CLIENT, network, SERVER.node_id, certificate_sha256(self_signed_certificate(SERVER)), b"n" * 32, versions
                )
                challenge = await sessions.Challenge(identity_pb2.ChallengeRequest(client_nonce=opening.client_nonce))
                challenge.network_id = network
                challenge.protocol.CopyFrom(common_pb2.ProtocolRange(min=versions[0], max=versions[1]))
                with pytest.raises(aio.AioRpcError) as refused:
                    await sessions.Open(opening.prove(challenge))
                assert error_from_rpc(refused.value).code == code

    in_house(scene)


def test_oversize_messages_are_refused_on_both_sides() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection:
            large = membership_pb2.ExchangeRequest(bootstrap=["x" * (MAX_MESSAGE_BYTES + 1)])
            with pytest.raises(InvalidInput) as raised:
                await connection.call(stub(connection).Exchange, large)
            assert raised.value.code == "message_too_large"
            credentials = grpc.ssl_channel_credentials(self_signed_certificate(SERVER))
            options = [("grpc.ssl_target_name_override", SERVER.node_id), ("grpc.max_send_message_length", -1)]
            assert house.echo.num_calls == 0
            async with aio.secure_channel(house.address, credentials, options=options) as channel:
                with pytest.raises(aio.AioRpcError) as refused:
                    await membership_pb2_grpc.MembershipServiceStub(channel).Join(
                        membership_pb2.JoinRequest(network_id="x" * (MAX_MESSAGE_BYTES + 1))
                    )
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            allowed = membership_pb2.ExchangeRequest(bootstrap=["x" * 4_000_000])
            assert len((await connection.call(stub(connection).Exchange, allowed)).bootstrap[0]) == 4_000_000

    in_house(scene)


def test_a_restart_of_the_server_costs_no_call_its_session() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection:
            before = connection.metadata
            await house.server.stop(0)
            house.server = house.make()
            assert await house.server.start("127.0.0.1", house.port) == house.port
            deadline = time.monotonic() + 15
            while True:
                try:
                    assert await probe(connection)
                    break
                except Unavailable:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
            assert connection.metadata != before
            assert not connection.closed

    in_house(scene)


def test_an_expired_session_is_renewed_in_passing() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection:
            before = connection.metadata
            house.clock.ahead_s += 3590.0
            assert await probe(connection)
            assert connection.metadata != before
            renewed = connection.metadata
            house.server._book._sessions.clear()
            house.server._book._by_id.clear()
            house.server._book._by_subnet.clear()
            assert await probe(connection), "refused for its session, the call is made once more"
            assert connection.metadata != renewed

    in_house(scene)


def test_a_peer_that_stays_away_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcnr.rpc.connection.LOST_AFTER_S", 0.5)

    async def scene(house: House) -> None:
        async with connected(house) as connection:
            await house.server.stop(0)
            await asyncio.wait_for(connection.wait_closed(), 10)
            with pytest.raises(Unavailable) as raised:
                _ = connection.channel  # a stub on a closed channel would corrupt the memory of gRPC's core
            assert raised.value.code == "connection_closed"
            with pytest.raises(Unavailable):
                await probe(connection)

    in_house(scene)


def test_silent_and_absent_addresses_are_unavailable_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcnr.rpc.dialer.CONNECT_TIMEOUT_S", 0.3)

    async def scene(house: House) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            quiet = f"127.0.0.1:{silent.getsockname()[1]}"
            start = time.monotonic()
            for addresses, kind, code in (
                ([quiet], Unavailable, "connect_timeout"),
                (["127.0.0.1:1"], Unavailable, "unreachable"),
                ([], InvalidInput, "no_address"),
                (["nonsense"], InvalidInput, "bad_address"),
            ):
                with pytest.raises(kind) as raised:
                    await house.dialer().connect(SERVER.node_id, addresses)
                assert raised.value.code == code
            connection = await house.dialer().connect(SERVER.node_id, [quiet, house.address])
            assert time.monotonic() - start < 5
            await connection.close()

    in_house(scene)


def test_streams_are_guarded_name_their_peer_and_end_with_their_caller() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection:
            count: Any = connection.channel.unary_stream("/test.Streams/Count", Int32Value.SerializeToString, Int32Value.FromString)
            counting = count(Int32Value(value=3), metadata=await connection.fresh_metadata())
            assert [(await counting.read()).value for _ in range(3)] == [0, 1, 2]
            with pytest.raises(aio.AioRpcError) as raised:
                await counting.read()
            error = error_from_rpc(raised.value)
            assert (type(error), error.code) == (Stale, "done")
            talk: Any = connection.channel.stream_stream(
                "/test.Streams/Talk", StringValue.SerializeToString, StringValue.FromString
            )
            call = talk(metadata=connection.metadata)
            await call.write(StringValue(value="hello"))
            answer = await call.read()
            assert answer.value == f"{CLIENT.node_id} hello"
            call.cancel()
            await until(lambda: house.streams.num_open == 0, "the handler outlived its call")

    in_house(scene)


def test_a_worker_calls_in_its_own_name_with_its_pnodes_leave() -> None:
    worker = NodeKey.generate()

    async def scene(house: House) -> None:
        delegation = make_delegation(CLIENT, NETWORK, worker.public_der, 1, [], time.time(), 3600)
        async with connected(house, house.dialer(worker, delegation=lambda: delegation)) as connection:
            assert await probe(connection, worker.node_id)
            assert await probe(connection, CLIENT.node_id)
        with pytest.raises(Refused) as raised:
            await house.dialer(MALLORY, delegation=lambda: delegation).connect(SERVER.node_id, [house.address])
        assert raised.value.code == "wrong_delegation"

    in_house(scene)


def test_too_many_calls_at_once_are_turned_away() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection:
            talk: Any = connection.channel.stream_stream(
                "/test.Streams/Talk", StringValue.SerializeToString, StringValue.FromString
            )
            calls = [talk(metadata=connection.metadata) for _ in range(3)]
            await until(lambda: house.streams.num_open == 3, "streams did not open")
            with pytest.raises(Unavailable) as raised:
                await probe(connection)
            assert raised.value.code == "overloaded"
            for call in calls:
                call.cancel()
            await until(lambda: house.streams.num_open == 0, "streams did not end")
            assert await probe(connection)

    in_house(scene, max_concurrent_per_peer=3)


def test_own_connections_are_separate_tcp_connections() -> None:
    async def scene(house: House) -> None:
        dialer = house.dialer(own_connections=True)
        connections = [await dialer.connect(SERVER.node_id, [house.address]) for _ in range(3)]
        assert len({c.observed_address for c in connections}) == 3
        assert all([await probe(c) for c in connections])
        for connection in connections:
            await connection.close()

    in_house(scene)


def test_a_taken_port_is_a_typed_error() -> None:
    async def scene(house: House) -> None:
        with pytest.raises(Unavailable) as raised:
            await house.make().start("127.0.0.1", house.port)
        assert raised.value.code == "port_in_use"

    in_house(scene)
