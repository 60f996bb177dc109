"""Goal: over real gRPC and TLS, only proven callers are served, impostors hear nothing, and every failure arrives as its typed error."""

from __future__ import annotations

import asyncio
import secrets

import grpc
import pytest
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from grpc import aio
from rpc_rig import CLIENT, ERRORS, MALLORY, NETWORK, SERVER, House, connected, in_house, probe, raw_channel, stub

from dcnr.errors import (
    DcnrError,
    InvalidInput,
    Refused,
    RemoteFault,
    Unavailable,
)
from dcnr.limits import MAX_MESSAGE_BYTES
from dcnr.rpc.errors import CALL_HAS_ENDED, error_from_rpc
from dcnr.rpc.guard import SESSION_METADATA
from dcnr.rpc.server import RpcServer
from dcnr.v1 import common_pb2, identity_pb2, identity_pb2_grpc, membership_pb2, membership_pb2_grpc
from trust.session import SessionOpening
from trust.tls import certificate_sha256, self_signed_certificate


def test_a_proven_caller_is_served_and_named() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection:
            assert await probe(connection)
            assert connection.peer_id == SERVER.node_id
            assert connection.observed_address.startswith("127.0.0.1:")
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


def test_who_writes_to_a_call_that_has_ended_is_not_told_of_a_fault() -> None:
    """gRPC loses why it ended where this end was writing: another one may be asked, as where a connection breaks."""

    def told(details: str) -> tuple[type[Exception], str]:
        error = error_from_rpc(aio.AioRpcError(grpc.StatusCode.INTERNAL, aio.Metadata(), aio.Metadata(), details, ""))
        return type(error), error.code

    assert told(CALL_HAS_ENDED) == (Unavailable, "call_ended")
    assert told("a bug")[0] is RemoteFault


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
