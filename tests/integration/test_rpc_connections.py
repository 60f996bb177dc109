"""Goal: connections live as long as they can and no longer, with a typed error at the end; streams, workers and bounds hold on them as calls do."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from grpc import aio
from rpc_rig import CLIENT, MALLORY, NETWORK, SERVER, House, connected, forget_sessions, in_house, probe, until

import dcnr.rpc.dialer
from dcnr.errors import (
    InvalidInput,
    Refused,
    RemoteFault,
    Stale,
    Unavailable,
)
from dcnr.rpc.connection import Connection
from dcnr.rpc.errors import error_from_rpc
from dcnr.rpc.server import RpcServer
from trust.delegation import make_delegation
from trust.identity import NodeKey
from trust.tls import certificate_id, self_signed_certificate


def test_a_restart_of_the_server_costs_no_call_its_session() -> None:
    async def scene(house: House) -> None:
        async with connected(house) as connection:
            before = connection.metadata
            await house.server.stop(0)
            house.server = house.make()
            assert await house.server.start("127.0.0.1", house.port) == house.port
            deadline = time.monotonic() + 60
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
            forget_sessions(house.server)
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


def another_certificate(key: NodeKey) -> bytes:
    """Of the same key, as nobody shows it."""
    shown = x509.load_pem_x509_certificate(self_signed_certificate(key))
    builder = x509.CertificateBuilder(
        shown.issuer, shown.subject, shown.public_key(), 1, shown.not_valid_before_utc, shown.not_valid_after_utc
    )
    return builder.sign(key.private_key, hashes.SHA256()).public_bytes(Encoding.DER)


def test_a_certificate_is_fetched_once_and_again_only_where_another_one_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    fetch = dcnr.rpc.dialer.fetch_certificate

    async def counted(address: str, *given: Any) -> bytes:
        fetched.append(address)
        return await fetch(address, *given)

    monkeypatch.setattr("dcnr.rpc.dialer.fetch_certificate", counted)

    async def scene(house: House) -> None:
        shown = x509.load_pem_x509_certificate(self_signed_certificate(SERVER)).public_bytes(Encoding.DER)
        for told, num_fetched in (
            (b"", 1),
            (shown, 0),
            (another_certificate(SERVER), 1),
            (another_certificate(CLIENT), 1),
            (b"none", 1),
        ):
            fetched.clear()
            dialer = house.dialer()
            dialer.certificates.told(SERVER.node_id, told)
            known = dialer.certificates.of(SERVER.node_id)
            assert known is None or certificate_id(known) == SERVER.node_id, "never one of another key"
            for _ in range(2):
                async with connected(house, dialer) as connection:
                    assert await probe(connection)
                    assert connection.certificate == shown
            assert len(fetched) == num_fetched
        dialer.certificates.told(SERVER.node_id, another_certificate(SERVER))
        async with connected(house, dialer):
            assert len(fetched) == num_fetched, "what was seen counts for more than what is said"

        impostor = RpcServer(MALLORY, NETWORK, clock=house.clock, rng=secrets.token_bytes)
        port = await impostor.start("127.0.0.1", 0)
        with pytest.raises(RemoteFault) as raised:
            await dialer.connect(SERVER.node_id, [f"127.0.0.1:{port}"])
        assert raised.value.code == "wrong_identity"
        await impostor.stop(0)

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


def test_who_reads_too_slowly_for_a_handler_is_told_so_and_takes_no_place_meanwhile() -> None:
    """A limit that passes while the handler waits for the caller to read ends the call with its words; without them the caller waits for ever."""

    async def scene(house: House) -> None:
        async with connected(house) as connection:
            pour: Any = connection.channel.unary_stream("/test.Streams/Pour", Int32Value.SerializeToString, StringValue.FromString)
            pouring = pour(Int32Value(value=200), metadata=await connection.fresh_metadata())
            await pouring.read()
            await until(lambda: house.streams.num_open == 0, "the handler goes on")
            await until_it_answers(connection)
            with pytest.raises(aio.AioRpcError) as raised:
                await asyncio.wait_for(read_all(pouring), 30)
            assert error_from_rpc(raised.value).code == "overloaded"

    in_house(scene, max_concurrent_per_peer=1)


async def read_all(call: Any) -> None:
    while await call.read() is not aio.EOF:
        pass


async def until_it_answers(connection: Connection) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(Unavailable):
                await probe(connection)
                return
            await asyncio.sleep(0.05)


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
