"""Goal: whoever makes ids in one subnet, however many, neither keeps a node at work nor keeps others from its gossip and its probes."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.rpc import guard
from dcnr.rpc.dialer import Dialer
from dcnr.v1 import membership_pb2
from membership import service
from membership.gossip import RUMOUR_EXCHANGES, View
from membership.network_time import NetworkTime
from membership.service import MAX_PROBES_AT_ONCE, Gossip, MembershipServicer
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from trust.records import make_advert
from trust.session import Peer

NODE, SUBJECT, NOW_S = NodeKey.generate(), NodeKey.generate(), time.time()
NUM_PEERS, CALLS_EACH = 100, 20


class Still:
    """A clock that stands: what is taken from a bucket does not come back."""

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return NOW_S


class From:
    """The context of a call from an address."""

    def __init__(self, host: str) -> None:
        self._host = host

    def peer(self) -> str:
        return f"ipv4:{self._host}:5000"


def served(address: str = "127.0.0.1:1") -> MembershipServicer:
    """A node that knows another one at ``address``."""
    policy = verify_chain([create_document(NODE, name="n", now_wall=NOW_S, orchestrator_ids=[NODE.node_id])])
    view = View(NODE.node_id, policy.network_id, is_orchestrator=policy.is_orchestrator, salt=b"")
    advert = make_advert(
        SUBJECT, network_id=policy.network_id, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=1, now_wall=NOW_S,
        control_addresses=[address],
    )  # fmt: skip
    assert view.offer(advert, NOW_S)
    gossip = Gossip(view, InForce(policy), lambda _: None, lambda *_: None, list, lambda _: None)
    dialer = Dialer(NODE, policy.network_id, clock=Still(), rng=secrets.token_bytes)
    return MembershipServicer(gossip, dialer=dialer, clock=Still(), time=NetworkTime(Still()), rng=random.Random(1))


async def outcome(call: Callable[[From], Awaitable[object]], number: int, subnet: str) -> str:
    """What a peer, one of many in a subnet, is told: an error's code, or nothing."""
    host = f"{subnet}.{number % 250 + 1}"
    guard._peer.set(Peer(NodeId(f"{number:040x}"), None, None, f"{host}:5000"))
    try:
        await call(From(host))
    except DcnrError as error:
        return error.code
    return ""


@pytest.mark.parametrize("method", ["Exchange", "Probe"])
def test_many_ids_of_one_subnet_are_slowed_down_and_another_subnet_is_served(method: str) -> None:
    async def story() -> None:
        servicer = served()

        async def call(context: From) -> object:
            if method == "Exchange":
                return await servicer.Exchange(membership_pb2.ExchangeRequest(), context)
            return await servicer.Probe(membership_pb2.ProbeRequest(node_id="0" * 40), context)

        fine = "" if method == "Exchange" else "unknown_node"
        told = Counter([await outcome(call, number, "192.0.2") for _ in range(CALLS_EACH) for number in range(NUM_PEERS)])
        assert set(told) == {fine, "rate_limited"}
        assert told[fine] >= NUM_PEERS // 2, "a house full of machines is served"
        assert await outcome(call, NUM_PEERS, "198.51.100") == fine

    asyncio.run(story())


def test_probes_for_one_subnet_leave_places_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PROBE_TIMEOUT_S", 0.5)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(1024):
                pass
        finally:
            writer.close()

    async def story() -> None:
        async with await asyncio.start_server(take, "127.0.0.1", 0) as hanging:
            servicer = served(f"127.0.0.1:{hanging.sockets[0].getsockname()[1]}")

            async def call(context: From) -> object:
                return await servicer.Probe(membership_pb2.ProbeRequest(node_id=SUBJECT.node_id), context)

            many = [asyncio.create_task(outcome(call, number, "192.0.2")) for number in range(2 * MAX_PROBES_AT_ONCE)]
            other = asyncio.create_task(outcome(call, NUM_PEERS, "198.51.100"))
            told = Counter(await asyncio.gather(*many))
            assert set(told) == {"", "overloaded"}
            assert await other == ""
            assert await outcome(call, 0, "192.0.2") == "", "the places are free again"

    asyncio.run(story())


def test_a_stranger_who_asks_often_keeps_no_suspicion_from_others() -> None:
    async def scene() -> None:
        servicer = served()
        view = servicer._gossip.view
        view.bury(SUBJECT.node_id, (1, 1), NOW_S)

        async def asked(number: int) -> int:
            guard._peer.set(Peer(NodeId(f"{number:040x}"), None, None, "10.1.2.3:5000"))
            return len((await servicer.Exchange(membership_pb2.ExchangeRequest(), From("10.1.2.3"))).suspects)

        assert [await asked(1) for _ in range(2 * RUMOUR_EXCHANGES)] == [1] * 2 * RUMOUR_EXCHANGES
        assert await asked(2) == 1
        assert [len(view.push_suspects()) for _ in range(RUMOUR_EXCHANGES + 1)] == [*[1] * RUMOUR_EXCHANGES, 0]

    asyncio.run(scene())
