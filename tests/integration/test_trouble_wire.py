"""Goal: whatever a stranger sends to a running node, it answers with a reason or drops the call, and goes on serving everybody else."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc import aio

from dcnr.client import Orchestrators
from dcnr.errors import DcnrError, Refused
from dcnr.limits import MAX_MESSAGE_BYTES
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.errors import error_from_rpc
from dcnr.sdk.blocking import connect
from dcnr.system import SystemClock
from dcnr.testing import LocalNetwork
from dcnr.v1 import common_pb2, identity_pb2, identity_pb2_grpc, membership_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from trust.identity import NodeKey
from trust.session import SessionOpening
from trust.tls import certificate_sha256

CLOCK = SystemClock()
STRANGER = NodeKey.generate()
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def network(small_network: LocalNetwork) -> LocalNetwork:
    return small_network


@pytest.fixture(autouse=True)
def serves_on(network: LocalNetwork) -> Iterator[None]:
    """After each trouble the orchestrator lives and answers."""
    yield
    assert network.orchestrators[0].alive, network.trouble()
    with connect(network.bootstrap, network=network.network_file) as client:
        assert client.status().node_id == network.orchestrators[0].node_id
    assert "Traceback" not in network.orchestrators[0].tail(200)


def raw(network: LocalNetwork, scene: Callable[[aio.Channel, bytes], Awaitable[None]]) -> None:
    """A channel that knows the server's certificate and obeys no rule of ours."""

    async def play() -> None:
        node_id, _, address = network.bootstrap[0].partition("@")
        host, _, port = address.partition(":")
        pem = await asyncio.to_thread(_certificate, host, int(port))
        options = [("grpc.ssl_target_name_override", node_id), ("grpc.max_send_message_length", -1)]
        credentials = grpc.ssl_channel_credentials(pem)
        async with asyncio.timeout(WITHIN_S), aio.secure_channel(address, credentials, options=options) as channel:
            await scene(channel, pem)

    asyncio.run(play())


def _certificate(host: str, port: int) -> bytes:
    import ssl

    return ssl.get_server_certificate((host, port), timeout=WITHIN_S).encode()


async def refused(call: Awaitable[Any]) -> aio.AioRpcError:
    """The status with which a call ends."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value


def bytes_to(channel: aio.Channel, method: str) -> Any:
    """A unary method that sends bytes as they are."""
    return channel.unary_unary(method, request_serializer=lambda data: data, response_deserializer=lambda data: data)


@pytest.mark.parametrize("method", ["GetStatus", "SubmitJob", "ListNodes"])
def test_calls_without_a_session_are_turned_away(network: LocalNetwork, method: str) -> None:
    async def scene(channel: aio.Channel, pem: bytes) -> None:
        error = await refused(bytes_to(channel, f"/dcnr.v1.OrchestratorService/{method}")(b"", timeout=WITHIN_S))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert error_from_rpc(error).code == "session_required"
        assert error_from_rpc(error).remedy

    raw(network, scene)


def test_unknown_methods_do_not_exist_for_strangers_and_are_said_to_members(network: LocalNetwork) -> None:
    async def scene(channel: aio.Channel, pem: bytes) -> None:
        assert (await refused(bytes_to(channel, "/dcnr.v1.OrchestratorService/Format")(b"", timeout=WITHIN_S))).code() in (
            grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED,
        )  # fmt: skip

    raw(network, scene)

    async def member() -> None:
        connection = await dialer(network).connect(network.orchestrators[0].node_id, [network.bootstrap[0].partition("@")[2]])
        try:
            method = bytes_to(connection.channel, "/dcnr.v1.OrchestratorService/Format")
            error = await refused(method(b"", timeout=WITHIN_S, metadata=connection.metadata))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        finally:
            await connection.close()

    asyncio.run(member())


def dialer(network: LocalNetwork) -> Dialer:
    """A stranger's way in, by the rules."""
    assert network.policy is not None
    return Dialer(STRANGER, network.policy.network_id, clock=CLOCK, rng=secrets.token_bytes)


@pytest.mark.parametrize(
    "data", [b"\xff" * 64, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05abc"], ids=["ones", "endless field", "cut off"]
)
def test_malformed_messages_are_dropped(network: LocalNetwork, data: bytes) -> None:
    async def scene(channel: aio.Channel, pem: bytes) -> None:
        error = await refused(bytes_to(channel, "/dcnr.v1.MembershipService/Join")(data, timeout=WITHIN_S))
        assert error_from_rpc(error).code == "malformed_message"

    raw(network, scene)


def test_a_message_over_the_bound_is_refused_unread(network: LocalNetwork) -> None:
    async def scene(channel: aio.Channel, pem: bytes) -> None:
        call = bytes_to(channel, "/dcnr.v1.MembershipService/Join")(b"\0" * (MAX_MESSAGE_BYTES + 1), timeout=WITHIN_S)
        assert (await refused(call)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    raw(network, scene)


@pytest.mark.parametrize(("low", "high", "code"), [(7, 9, "protocol_mismatch"), (2, 2, "protocol_mismatch")])
def test_another_protocol_is_said_plainly(network: LocalNetwork, low: int, high: int, code: str) -> None:
    async def scene(channel: aio.Channel, pem: bytes) -> None:
        assert network.policy is not None
        sessions = identity_pb2_grpc.SessionServiceStub(channel)
        nonce, network_id = secrets.token_bytes(32), network.policy.network_id
        opening = SessionOpening(
            STRANGER, network_id, network.orchestrators[0].node_id, certificate_sha256(pem), nonce, (low, high)
        )  # fmt: skip
        challenge = await sessions.Challenge(identity_pb2.ChallengeRequest(client_nonce=nonce))
        challenge.protocol.CopyFrom(common_pb2.ProtocolRange(min=low, max=high))
        assert error_from_rpc(await refused(sessions.Open(opening.prove(challenge), timeout=WITHIN_S))).code == code

    raw(network, scene)


def test_a_node_of_another_network_is_told_which_one_this_is(network: LocalNetwork) -> None:
    async def join() -> None:
        other = Dialer(STRANGER, "ab" * 20, clock=CLOCK, rng=secrets.token_bytes)
        with pytest.raises(Refused) as caught:
            await other.join(network.bootstrap[0].partition("@")[2], membership_pb2.JoinRequest(network_id="ab" * 20), None)
        assert network.policy is not None
        assert caught.value.code == "wrong_network"
        assert network.policy.network_id in caught.value.message
        assert caught.value.remedy

    asyncio.run(join())


def test_strangers_read_nothing_and_ask_for_no_grant(network: LocalNetwork) -> None:
    async def ask() -> None:
        address = network.bootstrap[0].partition("@")[2]
        orchestrators = Orchestrators(dialer(network), lambda: [(network.orchestrators[0].node_id, (address,))])
        try:
            with pytest.raises(DcnrError) as caught:
                await orchestrators.call(OrchestratorServiceStub, "SubmitJob", orchestrator_pb2.SubmitJobRequest())
            assert caught.value.message
            assert caught.value.code not in ("internal", "")
        finally:
            await orchestrators.close()

    asyncio.run(ask())
