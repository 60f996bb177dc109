"""Goal: whoever looks for others finds them behind entries that hang, answer nothing of worth, or were told by strangers, and stays known meanwhile."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from town_rig import Town, in_town, until

from dcnr.limits import MAX_BOOTSTRAP_ENTRIES
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.testing import free_ports
from dcnr.v1 import membership_pb2, membership_pb2_grpc
from membership.bootstrap import CachedPeer, parse_entry, write_cache
from membership.discovery import AT_ONCE
from membership.node import MembershipSettings
from trust.identity import NodeKey

DEAD = [f"127.0.0.{number}:1" for number in range(1, 1 + 2 * AT_ONCE)]


class Answering(membership_pb2_grpc.MembershipServiceServicer):
    """Answers every Join in the same way."""

    def __init__(self, answer: membership_pb2.JoinResponse) -> None:
        self._answer = answer

    async def Join(self, request: membership_pb2.JoinRequest, context: Any) -> membership_pb2.JoinResponse:
        return self._answer


@asynccontextmanager
async def answering(network_id: str, answer: membership_pb2.JoinResponse) -> AsyncIterator[list[str]]:
    """As many of them as are asked at once."""
    servers, addresses = [], []
    for _ in range(AT_ONCE):
        server = RpcServer(NodeKey.generate(), network_id, clock=SystemClock(), rng=secrets.token_bytes)
        server.add(lambda it: membership_pb2_grpc.add_MembershipServiceServicer_to_server(Answering(answer), it))
        addresses.append(f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
        servers.append(server)
    try:
        yield addresses
    finally:
        for server in servers:
            await server.stop(0)


@asynccontextmanager
async def hanging() -> AsyncIterator[str]:
    """Takes every connection and says nothing."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(1024):
                pass
        finally:
            writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def tell(town: Town, address: str, node_id: str, entries: list[str]) -> None:
    """A stranger sends entries to a node."""
    dialer = Dialer(NodeKey.generate(), town.policy.network_id, clock=SystemClock(), rng=secrets.token_bytes)
    connection = await dialer.connect(node_id, [address])
    stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
    await connection.call(stub.Exchange, membership_pb2.ExchangeRequest(bootstrap=entries))
    await connection.close()


def test_the_own_advert_stays_in_force_while_those_that_are_asked_hang() -> None:
    async def scene(town: Town) -> None:
        async with hanging() as address:
            settings = MembershipSettings(exchange_s=0.1, advert_lifetime_s=2.0, advert_renew_s=0.5)
            node = await town.add(entries=[address], settings=settings)
            view = node.membership._view
            assert view.own is not None
            first = view.own.order

            def renewed() -> bool:
                assert view.own is not None
                assert view.own.expires_wall > time.time(), "the own advert has expired"
                return view.own.order[1] >= first[1] + 6

            await until(renewed, "the own advert is not renewed")

    in_town(scene)


@pytest.mark.parametrize("kind", ["nothing", "the document alone", "itself"])
def test_answers_without_worth_hide_nobody_behind_them(kind: str) -> None:
    async def scene(town: Town) -> None:
        orchestrator, [port] = await town.orchestrator(), free_ports(1)
        document = {"network_document": town.policy.envelope, "document_history": town.policy.history[:-1]}
        answer = membership_pb2.JoinResponse(**document if kind == "the document alone" else {})
        async with answering(town.policy.network_id, answer) as addresses:
            worthless = [f"localhost:{port}"] if kind == "itself" else addresses
            entries = [*DEAD[:AT_ONCE], *worthless, *DEAD[AT_ONCE : 2 * AT_ONCE - len(worthless)], orchestrator.address]
            node = await town.add(entries=entries, port=port)
            await until(lambda: node.knows(orchestrator), "who comes after them was not asked")

    in_town(scene)


def test_what_a_stranger_tells_takes_the_places_of_none_that_were_met_earlier(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        [port], path = free_ports(1), tmp_path / "nodes.json"
        write_cache(path, [CachedPeer(parse_entry(f"{town.orchestrator_key.node_id}@127.0.0.1:{port}"), time.time())])
        node = await town.add(entries=DEAD[:AT_ONCE], cache_path=path)
        told = [f"{NodeKey.generate().node_id}@127.0.1.{number}:1" for number in range(MAX_BOOTSTRAP_ENTRIES)]
        await tell(town, node.address, node.key.node_id, told)
        orchestrator = await town.orchestrator(entries=[], port=port)
        await until(lambda: node.knows(orchestrator), "who was met earlier is not asked")

    in_town(scene)


def test_an_id_that_a_stranger_tells_for_a_known_address_makes_it_no_less_useful() -> None:
    async def scene(town: Town) -> None:
        [port] = free_ports(1)
        node = await town.add(entries=[f"127.0.0.1:{port}"])
        await tell(town, node.address, node.key.node_id, [f"{NodeKey.generate().node_id}@127.0.0.1:{port}"])
        orchestrator = await town.orchestrator(entries=[], port=port)
        await until(lambda: node.knows(orchestrator), "the entry that the owner gave is lost")

    in_town(scene)
