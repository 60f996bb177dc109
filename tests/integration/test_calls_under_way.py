"""Goal: whoever waits for a call hears how it ended, whatever others do with the connection, and however long the line takes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from grpc import aio
from rpc_rig import CLIENT, ENDED, HELD, NETWORK, SERVER, House, connected, forget_sessions, in_house, probe, stub, until

from dcnr.client import Orchestrators
from dcnr.errors import Stale, Unavailable
from dcnr.rpc.server import RpcServer
from dcnr.v1 import identity_pb2, membership_pb2, membership_pb2_grpc
from membership import partners
from membership.network_time import NetworkTime
from membership.partners import Partners
from trust.identity import NodeKey
from trust.records import VerifiedAdvert

SLOW_S = 1.2


def test_a_call_whose_connection_somebody_closes_is_told_so() -> None:
    """gRPC cancels it. Left so, the task that waits ends without a word: one that uploads, for as long as its process lives."""

    async def scene(house: House) -> None:
        async with connected(house) as connection:
            calling = asyncio.create_task(probe(connection, HELD))
            await until(lambda: house.echo.num_calls == 1, "the call did not arrive")
            await connection.close()
            with pytest.raises(Unavailable) as raised:
                await calling
            assert raised.value.code == "connection_closed"

    in_house(scene)


def test_a_call_that_is_refused_breaks_no_other_over_the_connection() -> None:
    async def scene(house: House) -> None:
        orchestrators = Orchestrators(house.dialer(), lambda: [(SERVER.node_id, [house.address])])

        async def asked(name: str) -> membership_pb2.ProbeResponse:
            request = membership_pb2.ProbeRequest(node_id=name)
            answer: membership_pb2.ProbeResponse = await orchestrators.call(
                membership_pb2_grpc.MembershipServiceStub, "Probe", request
            )
            return answer

        held = asyncio.create_task(asked(HELD))
        await until(lambda: house.echo.num_calls == 1, "the call did not arrive")
        with pytest.raises(Unavailable):
            await asked("busy")
        house.echo.go_on.set()
        assert not (await held).reachable
        await orchestrators.close()

    in_house(scene)


def test_many_calls_at_once_do_not_end_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a connection to a gossip partner makes room for others when nothing goes over it, and not before."""
    monkeypatch.setattr(partners, "MAX_PARTNERS", 1)

    async def scene(house: House) -> None:
        helpers, servers = [], []
        for key in (NodeKey.generate() for _ in range(3)):
            server = RpcServer(key, NETWORK, clock=house.clock, rng=secrets.token_bytes)
            server.add(lambda target: membership_pb2_grpc.add_MembershipServiceServicer_to_server(house.echo, target))
            advert = membership_pb2.Advert(control_addresses=[f"127.0.0.1:{await server.start('127.0.0.1', 0)}"])
            helpers.append(VerifiedAdvert(advert, key.node_id, None, identity_pb2.Envelope()))
            servers.append(server)
        connections = Partners(house.dialer(), NetworkTime(house.clock))
        asking = [asyncio.create_task(connections.probe(one, membership_pb2.ProbeRequest(node_id=HELD))) for one in helpers]
        await until(lambda: house.echo.num_calls == len(helpers), "not all calls arrived")
        house.echo.go_on.set()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(answer) for answer in answers] == [membership_pb2.ProbeResponse] * len(helpers)
        await connections.close()
        for server in servers:
            await server.stop(0)

    in_house(scene)


def test_a_stream_that_is_refused_for_its_session_is_asked_for_in_a_new_one() -> None:
    async def scene(house: House) -> None:
        orchestrators = Orchestrators(house.dialer(), lambda: [(SERVER.node_id, [house.address])])

        def streams(channel: aio.Channel) -> Any:
            return SimpleNamespace(
                Count=channel.unary_stream("/test.Streams/Count", Int32Value.SerializeToString, Int32Value.FromString)
            )

        async def counted() -> list[int]:
            numbers = []
            with contextlib.suppress(Stale):  # how it ends
                async for message in orchestrators.stream(streams, "Count", Int32Value(value=3), timeout_s=10.0):
                    numbers.append(message.value)
            return numbers

        assert await counted() == [0, 1, 2]
        forget_sessions(house.server)
        assert await counted() == [0, 1, 2]
        await orchestrators.close()

    in_house(scene)


def test_who_reads_no_more_of_a_stream_ends_it_at_its_server() -> None:
    """Whether or not anything searches for garbage here: a view of a job goes on for an hour, what is generated for as long as it takes."""

    def streams(channel: aio.Channel) -> Any:
        return SimpleNamespace(
            Pour=channel.unary_stream("/test.Streams/Pour", Int32Value.SerializeToString, StringValue.FromString)
        )

    async def scene(house: House) -> None:
        orchestrators = Orchestrators(house.dialer(), lambda: [(SERVER.node_id, [house.address])])
        for _ in range(3):
            pouring = orchestrators.stream(streams, "Pour", Int32Value(value=600_000), timeout_s=600.0)
            async with contextlib.aclosing(pouring):
                assert (await anext(pouring)).value
        await until(lambda: not house.streams.num_open, "nobody reads it, and it goes on")
        await orchestrators.close()

    gc.disable()
    try:
        in_house(scene)
    finally:
        gc.enable()


def test_an_orchestrator_whose_address_is_somebody_elses_keeps_nobody_from_the_others() -> None:
    """As where its machine got another address, and another machine its own."""

    async def scene(house: House) -> None:
        moved = NodeKey.generate().node_id
        both = Orchestrators(house.dialer(), lambda: [(moved, [house.address]), (SERVER.node_id, [house.address])])
        alone = Orchestrators(house.dialer(), lambda: [(moved, [house.address])])
        request = membership_pb2.ProbeRequest(node_id=CLIENT.node_id)
        answer = await both.call(membership_pb2_grpc.MembershipServiceStub, "Probe", request)
        assert answer.reachable
        with pytest.raises(Unavailable, match=moved):
            await alone.call(membership_pb2_grpc.MembershipServiceStub, "Probe", request)
        await both.close()

    in_house(scene)


def test_who_answers_with_what_has_been_cancelled_says_so() -> None:
    """gRPC says nothing of it: the caller would wait for its own time limit."""

    async def scene(house: House) -> None:
        async with connected(house) as connection:
            with pytest.raises(Unavailable) as raised:
                await connection.call(stub(connection).Probe, membership_pb2.ProbeRequest(node_id=ENDED), timeout_s=5.0)
            assert raised.value.code == "call_cancelled"

    in_house(scene)


@asynccontextmanager
async def slow_line(port: int) -> AsyncIterator[str]:
    """Who comes in there reaches that port, and waits for the first byte from it."""

    async def carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after_s: float) -> None:
        await asyncio.sleep(after_s)
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    ends: list[asyncio.StreamWriter] = []

    async def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        back, there = await asyncio.open_connection("127.0.0.1", port)
        ends.append(there)
        await asyncio.gather(carried(reader, there, 0.0), carried(back, writer, SLOW_S))

    server = await asyncio.start_server(came, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for end in ends:  # also where whoever carries is interrupted before it has closed them
            end.transport.abort()


def test_a_handshake_may_take_as_long_as_a_connection() -> None:
    """Over a long line, through a relay, or with a machine that has much to do at either end."""

    async def scene(house: House) -> None:
        dialer = house.dialer()
        async with connected(house, dialer):
            pass  # from now on it knows the certificate
        async with slow_line(house.port) as address:
            connection = await dialer.connect(SERVER.node_id, [address])
            assert await probe(connection)
            await connection.close()

    in_house(scene)
