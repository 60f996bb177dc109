"""Goal: a worker that nobody can dial answers through a relay exactly as at an open port, and a relay that drops, alters or dies costs no more than the way."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc import aio
from relay_rig import dialling, listening, relays, until
from rpc_rig import CLIENT, MALLORY, NETWORK, SERVER, House, connected, forget_sessions, in_house, probe, raw_channel, stub

import membership.relay_desk
from dcnr.errors import DcnrError, RemoteFault, Unavailable
from dcnr.v1 import identity_pb2, identity_pb2_grpc, membership_pb2
from membership.house import in_our_house
from membership.relay_desk import Lane
from membership.relays import open_stream
from trust.rates import Rate
from trust.session import NONCE_BYTES, SessionLimits

FEW = 3
LARGE = ["x" * 65_000] * 80
"""Together more than everything on the way holds at once."""


def test_a_worker_that_nobody_dials_answers_through_a_relay_as_at_an_open_port() -> None:
    async def scene(house: House) -> None:
        async with (
            relays(NETWORK, 2) as known,
            listening(NETWORK, SERVER, house.port, known),
            dialling(NETWORK, CLIENT, known) as dialer,
        ):
            connection = await dialer.connect(SERVER.node_id, [])
            assert connection.peer_id == SERVER.node_id
            assert await probe(connection), "the worker knows who calls, by the caller's own key"
            answers = await asyncio.gather(*(connection.call(stub(connection).Exchange, _much()) for _ in range(4)))
            assert all(list(answer.bootstrap) == LARGE for answer in answers)
            call = connection.channel.stream_stream(
                "/test.Streams/Talk", request_serializer=StringValue.SerializeToString, response_deserializer=StringValue.FromString
            )(metadata=connection.metadata)
            for word in ("one", "two"):
                await call.write(StringValue(value=word))
                assert (await call.read()).value == f"{CLIENT.node_id} {word}"
            await connection.close()
            await until(lambda: not any(relay.desk.num_connections for relay in known), "nothing is left of it")
            await until(lambda: house.streams.num_open == 0, "the worker sees its end")
            with pytest.raises(Unavailable) as missing:
                await dialer.connect(MALLORY.node_id, [])
            assert missing.value.code == "no_relay"
            assert "no such worker listens here" in missing.value.message

    in_house(scene)


def test_a_pnode_leads_there_when_no_orchestrator_is_left() -> None:
    async def scene(house: House) -> None:
        async with relays(NETWORK, 2) as known:
            orchestrator, pnode = known
            offering = frozenset((pnode.key.node_id,))
            async with (
                listening(NETWORK, SERVER, house.port, known, offering),
                dialling(NETWORK, CLIENT, known, volunteers=offering) as dialer,
            ):
                first = await dialer.connect(SERVER.node_id, [])
                assert [relay.desk.num_listeners for relay in known] == [1, 1]
                assert (orchestrator.desk.num_connections > 0, pnode.desk.num_connections) == (True, 0), "orchestrators first"
                await orchestrator.server.stop(0)
                await first.close()
                second = await dialer.connect(SERVER.node_id, [])
                assert await probe(second)
                assert pnode.desk.num_connections > 0
                await second.close()
                await until(lambda: not pnode.desk.num_connections, "it is over")

    in_house(scene)


def test_machines_of_one_house_dial_each_other_and_nobody_of_another_one_that_has_the_same_addresses() -> None:
    async def scene(house: House) -> None:
        async with relays(NETWORK) as known, listening(NETWORK, SERVER, house.port, known):
            elsewhere = "198.51.100.7:7701"
            assert in_our_house([elsewhere, house.address]) == [house.address]
            async with dialling(NETWORK, CLIENT, [], near=(elsewhere, house.address)) as dialer:
                connection = await dialer.connect(SERVER.node_id, [])
                assert connection.address == house.address, "no relay is known, and none is needed"
                await connection.close()
            for strange in (elsewhere, f"127.0.0.1:{known[0].server.port}"):
                async with dialling(NETWORK, CLIENT, known, near=(strange,)) as dialer:
                    connection = await dialer.connect(SERVER.node_id, [])
                    assert await probe(connection)
                    assert known[0].desk.num_connections >= 1
                    await connection.close()
                    await until(lambda: not known[0].desk.num_connections, "it is over")

    in_house(scene)


def test_the_next_relay_leads_there_when_one_dies() -> None:
    async def scene(house: House) -> None:
        async with (
            relays(NETWORK, 2) as known,
            listening(NETWORK, SERVER, house.port, known) as listener,
            dialling(NETWORK, CLIENT, known) as dialer,
        ):
            first = await dialer.connect(SERVER.node_id, [])
            used = next(relay for relay in known if relay.desk.num_connections)
            await used.server.stop(0)
            await until(lambda: len(listener.at) == 1, "the worker notices")
            with pytest.raises(DcnrError):
                await probe(first)
            await first.close()
            second = await dialer.connect(SERVER.node_id, [])
            assert await probe(second)
            closing = asyncio.ensure_future(second.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await until(
                lambda: not any(relay.desk.num_connections for relay in known), "who stops waiting for the end leaves nothing open"
            )

    in_house(scene)


@pytest.mark.parametrize("alters", [True, False], ids=["alters", "drops"])
def test_a_relay_that_touches_what_it_passes_on_breaks_the_way_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, alters: bool
) -> None:
    genuine, seen = Lane.put, [0]

    async def touched(self: Lane, data: bytes) -> None:
        seen[0] += len(data)
        if seen[0] > 20_000:  # after the handshakes, in the middle of a call
            if not alters:
                self.end()
            data = data[:-1] + bytes((data[-1] ^ 1,))
        await genuine(self, data)

    async def scene(house: House) -> None:
        async with (
            relays(NETWORK) as known,
            listening(NETWORK, SERVER, house.port, known),
            dialling(NETWORK, CLIENT, known) as dialer,
        ):
            connection = await dialer.connect(SERVER.node_id, [])
            seen[0] = 0
            monkeypatch.setattr(Lane, "put", touched)
            with pytest.raises((Unavailable, RemoteFault)):  # gRPC has no single status for a broken record of TLS
                await connection.call(stub(connection).Exchange, _much())
            assert house.echo.num_calls == 0, "what was touched never became a call"
            monkeypatch.setattr(Lane, "put", genuine)
            await connection.close()
            again = await dialer.connect(SERVER.node_id, [])
            assert await probe(again)
            await again.close()

    in_house(scene)


def test_connections_of_one_node_are_counted_and_its_bytes_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership.relay_desk, "MAX_OF_A_NODE", 2)

    async def scene(house: House) -> None:
        async with (
            relays(NETWORK, bytes_s=4e6) as known,
            listening(NETWORK, SERVER, house.port, known),
            dialling(NETWORK, CLIENT, known) as dialer,
        ):
            at_relay = await dialer.direct.connect(*known[0].known)
            wish = membership_pb2.RelayMessage(connect=membership_pb2.RelayConnect(worker_id=SERVER.node_id))
            streams = [await open_stream(at_relay, wish) for _ in range(2)]
            with pytest.raises(Unavailable, match="too many connections"):
                await open_stream(at_relay, wish)
            for stream in streams:
                stream.cancel()
            await until(lambda: not known[0].desk.num_connections, "both are over")
            await at_relay.close()
            connection = await dialer.connect(SERVER.node_id, [])
            began = asyncio.get_running_loop().time()
            await connection.call(stub(connection).Exchange, _much(), 60)
            assert asyncio.get_running_loop().time() - began > 1.0, "ten megabytes, four of them at once"
            await connection.close()

    in_house(scene)


def test_a_relay_that_let_go_of_a_session_is_asked_in_a_new_one() -> None:
    """Who goes on with the old one listens nowhere, and accepts nobody, until that would have ended: for up to an hour."""

    async def scene(house: House) -> None:
        async with (
            relays(NETWORK) as known,
            listening(NETWORK, SERVER, house.port, known),
            dialling(NETWORK, CLIENT, known) as dialer,
        ):
            for _ in range(2):
                connection = await dialer.connect(SERVER.node_id, [])
                assert await probe(connection)
                await connection.close()
                forget_sessions(known[0].server)

    in_house(scene)


def test_a_flood_through_a_relay_shuts_out_nobody_else_who_comes_over_loopback() -> None:
    async def scene(house: House) -> None:
        flood = raw_channel(house)
        sessions = identity_pb2_grpc.SessionServiceStub(flood)
        request = identity_pb2.ChallengeRequest(client_nonce=bytes(NONCE_BYTES))
        for _ in range(FEW):
            await sessions.Challenge(request, timeout=60)
        with pytest.raises(aio.AioRpcError, match="too many sessions are being opened"):
            await sessions.Challenge(request, timeout=60)
        async with connected(house) as connection:
            assert await probe(connection)
        await flood.close(None)

    in_house(scene, apart=True, limits=SessionLimits(per_subnet=Rate(per_s=0.001, burst=FEW)))


def _much() -> membership_pb2.ExchangeRequest:
    return membership_pb2.ExchangeRequest(bootstrap=LARGE)
