"""Goal: nodes with real gRPC and a real DHT find each other from one bootstrap entry, keep out what is forged, and say what is wrong."""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dcnr.errors import DcnrError, NotFound, Refused, RemoteFault, Unavailable
from dcnr.rpc.dialer import Connection, Dialer
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, membership_pb2, membership_pb2_grpc
from membership.gossip import Gone, GoneReason, GossipEvent, View
from membership.node import Joined, Membership, MembershipSettings, Updated, discover
from membership.probing import Verdict
from trust.delegation import make_delegation
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, draft_successor, sign_document, verify_chain
from trust.records import make_advert

QUICK = MembershipSettings(exchange_s=0.1, document_s=0.2, cache_s=0.2)
MAINTAINER = NodeKey.generate()


class SkewedClock(SystemClock):
    """A machine whose wall clock is wrong."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def wall(self) -> float:
        return time.time() + self.ahead_s


class CutDialer(Dialer):
    """A dialer from which there is no way to some nodes."""

    cut_off: set[str]

    async def connect(self, peer_id: str, addresses: Sequence[str], *, own_connection: bool | None = None) -> Connection:
        if peer_id in self.cut_off:
            raise Unavailable("no way there", code="unreachable")
        return await super().connect(peer_id, addresses, own_connection=own_connection)


class Node:
    """One node: server, dialer, membership."""

    def __init__(self, policy: NetworkPolicy, key: NodeKey | None = None, *, entries: list[str], seed: int, **options: Any) -> None:
        self.key = key or NodeKey.generate()
        clock = options.pop("clock", None) or SystemClock()
        kind = membership_pb2.NODE_KIND_ORCHESTRATOR if policy.is_orchestrator(self.key.node_id) else membership_pb2.NODE_KIND_PNODE
        self.dialer = CutDialer(self.key, policy.network_id, clock=clock, rng=secrets.token_bytes)
        self.dialer.cut_off = set()
        self.server = RpcServer(self.key, policy.network_id, clock=clock, rng=secrets.token_bytes)
        self.membership = Membership(
            key=self.key,
            policy=policy,
            kind=kind,
            dialer=self.dialer,
            clock=clock,
            rng=random.Random(seed),
            bootstrap=entries,
            settings=options.pop("settings", QUICK),
            **options,
        )
        self.server.add(lambda s: membership_pb2_grpc.add_MembershipServiceServicer_to_server(self.membership.servicer, s))
        self.events: list[GossipEvent] = []
        self.membership.subscribe(self.events.append)
        self.address = ""

    async def start(self) -> None:
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1', 0)}"
        await self.membership.start(self.address, "127.0.0.1", 0)

    async def stop(self) -> None:
        await self.membership.stop()
        await self.server.stop(0)

    async def die(self) -> None:
        """As by a power cut: it says nothing to anybody."""
        runner = self.membership._runner
        assert runner is not None
        runner.cancel()
        await asyncio.wait([runner])
        await self.membership._doubts.close()
        await self.membership._partners.close()
        await self.server.stop(0)
        await self.membership._directory.stop()

    def tables(self) -> set[str]:
        """Whom its part of the directory knows."""
        return {node_id for _, _, node_id in self.membership._directory.export_contacts()}

    def knows(self, *others: Node) -> bool:
        return all(self.membership.find(o.key.node_id) is not None for o in others if o is not self)


class Town:
    """A network with one listed orchestrator; nodes are stopped at the end, last first."""

    def __init__(self, network: str = "town") -> None:
        self.orchestrator_key = NodeKey.generate()
        self.policy = verify_chain(
            [
                create_document(
                    MAINTAINER,
                    name=network,
                    now_wall=time.time(),
                    orchestrator_ids=[self.orchestrator_key.node_id],
                    locality=identity_pb2.LOCALITY_SINGLE_HOST,
                )
            ]
        )
        self.nodes: list[Node] = []

    async def add(self, key: NodeKey | None = None, *, entries: list[str] | None = None, **options: Any) -> Node:
        if entries is None:
            entries = [self.nodes[0].address] if self.nodes else []
        node = Node(options.pop("policy", self.policy), key, entries=entries, seed=len(self.nodes), **options)
        await node.start()
        self.nodes.append(node)
        return node

    async def orchestrator(self, **options: Any) -> Node:
        return await self.add(self.orchestrator_key, **options)

    async def __aenter__(self) -> Town:
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in reversed(self.nodes):
            await node.stop()


def in_town(scene: Callable[[Town], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(40):
            async with Town() as town:
                await scene(town)

    asyncio.run(run())


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def test_five_nodes_find_each_other_from_one_entry() -> None:
    async def scene(town: Town) -> None:
        await town.orchestrator()
        for _ in range(4):
            await town.add()
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        for node in town.nodes[1:]:
            assert [a.node_id for a in node.membership.orchestrators()] == [town.orchestrator_key.node_id]
            assert len(node.membership.pnodes()) == 3
            assert node.membership.trouble == ""
            assert sum(isinstance(e, Joined) for e in node.events) == 4
        await until(lambda: all(n.membership.observed_address.startswith("127.0.0.1:") for n in town.nodes), "no exchange")
        changed = town.nodes[1]
        changed.membership.update_self(capability=membership_pb2.Capability(cores=3.5), software="9.9")
        await until(
            lambda: all(
                (a := n.membership.find(changed.key.node_id)) is not None and a.advert.capability.cores == 3.5 for n in town.nodes
            ),
            "the change did not spread",
        )
        assert any(isinstance(e, Updated) for e in town.nodes[4].events)
        await town.nodes.pop().stop()

    in_town(scene)


def test_who_leaves_says_so() -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        leaver = await town.add()
        await until(lambda: first.knows(leaver) and leaver.knows(first), "they do not know each other")
        town.nodes.remove(leaver)
        await leaver.stop()
        await until(
            lambda: any(isinstance(e, Gone) and e.reason is GoneReason.LEFT for e in first.events), "nobody noticed the leave"
        )

    in_town(scene)


def test_a_node_and_a_replica_are_found_in_the_directory() -> None:
    async def scene(town: Town) -> None:
        await town.orchestrator()
        for _ in range(4):
            await town.add()
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        host, seeker = town.nodes[1], town.nodes[4]
        worker = NodeKey.generate()
        delegation = make_delegation(host.key, town.policy.network_id, worker.public_der, 5, ["127.0.0.1:9"], time.time())
        await until(
            lambda: all(n.membership._directory.stats().num_contacts >= 3 for n in town.nodes), "the directory is not joined"
        )
        assert await host.membership.publish_location("mnist", "conv1.0", delegation) >= 3
        found = await seeker.membership.locate("mnist", "conv1.0")
        assert found is not None
        assert (found.pnode_id, found.delegation.worker_id) == (host.key.node_id, worker.node_id)
        assert await seeker.membership.locate("mnist", "conv1.1") is None
        assert await seeker.membership.resolve(host.key.node_id) is not None
        assert seeker.membership.dht_lookups == 2, "known nodes cost no look-up"
        await until(lambda: host.membership._directory.stats().puts >= 2, "the advert was not published")
        seeker.membership._view = View(
            seeker.key.node_id, town.policy.network_id, is_orchestrator=town.policy.is_orchestrator, salt=b""
        )
        advert = None
        deadline = time.monotonic() + 15
        while advert is None and time.monotonic() < deadline:
            advert = await seeker.membership.resolve(host.key.node_id)
            await asyncio.sleep(0.05)
        assert advert is not None
        assert advert.advert.control_addresses == [host.address]
        assert await seeker.membership.resolve("0" * 40) is None

    in_town(scene)


def test_another_network_is_refused_by_name() -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        other = Town("other")
        stranger = await town.add(policy=other.policy)
        await until(lambda: "belongs to network" in stranger.membership.trouble, "the reason is not told")
        assert not first.membership.members()
        assert not stranger.membership.members()
        with pytest.raises(Refused) as raised:
            await stranger.dialer.connect(first.key.node_id, [first.address])
        assert raised.value.code == "wrong_network"

    in_town(scene)


def test_discovery_from_an_address_alone() -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        await town.add()
        dialer = Dialer(NodeKey.generate(), "", clock=SystemClock(), rng=secrets.token_bytes)
        clock, network = SystemClock(), town.policy.network_id

        async def found(*entries: str, network_id: str | None = None) -> str:
            policy, response = await discover(entries, dialer=dialer, clock=clock, network_id=network_id)
            assert response.adverts[0].payload == first.membership.own_advert.payload
            return policy.network_id

        dead = "127.0.0.1:1"
        assert await found(first.address) == network
        assert await found(dead, f"{first.key.node_id}@{first.address}", network_id=network) == network
        with pytest.raises(Refused) as wrong:
            await found(first.address, network_id="0" * 40)
        assert wrong.value.code == "wrong_network"
        with pytest.raises(RemoteFault) as impostor:
            await found(dead, f"{MAINTAINER.node_id}@{first.address}")
        assert impostor.value.code == "wrong_identity"
        assert MAINTAINER.node_id in str(impostor.value)
        with pytest.raises(Unavailable) as nobody:
            await found(dead)
        assert nobody.value.code == "no_bootstrap"
        with pytest.raises(DcnrError):
            await found("nonsense")
        with pytest.raises(DcnrError):
            await found()

    in_town(scene)


def test_forged_tampered_and_expired_adverts_do_not_enter() -> None:
    quiet = MembershipSettings(exchange_s=60.0)  # nobody finds out meanwhile that nothing listens at that address

    async def scene(town: Town) -> None:
        first = await town.orchestrator(settings=quiet)
        honest, liar = NodeKey.generate(), await town.add(settings=quiet)
        now = time.time()

        def advert(key: NodeKey, **changes: Any) -> identity_pb2.Envelope:
            fields: dict[str, Any] = {
                "network_id": town.policy.network_id,
                "kind": membership_pb2.NODE_KIND_PNODE,
                "incarnation": 1,
                "sequence": 1,
                "control_addresses": ["127.0.0.1:9"],
                "now_wall": now,
            }
            return make_advert(key, **{**fields, **changes})

        good = advert(honest)
        bad = [
            advert(honest, now_wall=now - 700),
            advert(honest, network_id="0" * 40),
            advert(honest, kind=membership_pb2.NODE_KIND_ORCHESTRATOR),
        ]
        for index in range(len(good.payload)):
            changed = identity_pb2.Envelope.FromString(good.SerializeToString())
            changed.payload = good.payload[:index] + bytes([good.payload[index] ^ 1]) + good.payload[index + 1 :]
            bad.append(changed)
        connection = await liar.dialer.connect(first.key.node_id, [first.address])
        stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
        for start in range(0, len(bad), 64):
            await connection.call(stub.Exchange, membership_pb2.ExchangeRequest(adverts=bad[start : start + 64]))
        assert first.membership.find(honest.node_id) is None
        with pytest.raises(DcnrError) as raised:
            await connection.call(stub.Exchange, membership_pb2.ExchangeRequest(adverts=[good] * 65))
        assert raised.value.code == "exchange_too_large"
        assert first.membership.find(honest.node_id) is None
        await connection.call(stub.Exchange, membership_pb2.ExchangeRequest(adverts=[good]))
        assert first.membership.find(honest.node_id) is not None
        with pytest.raises(NotFound):
            await connection.call(stub.Probe, membership_pb2.ProbeRequest(node_id="0" * 40))
        answer = await connection.call(stub.Probe, membership_pb2.ProbeRequest(node_id=honest.node_id))
        assert not answer.reachable
        answer = await connection.call(stub.Probe, membership_pb2.ProbeRequest(node_id=liar.key.node_id))
        assert answer.reachable
        assert answer.round_trip_s > 0
        await connection.close()

    in_town(scene)


def test_a_restarted_node_comes_back_with_what_it_remembers(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        path = tmp_path / "nodes.json"
        node = await town.add(cache_path=path)
        await until(lambda: node.knows(first) and first.knows(node) and path.exists(), "no contact")
        town.nodes.remove(node)
        await node.stop()
        again = await town.add(node.key, entries=[], cache_path=path)
        await until(lambda: again.knows(first), "the cache did not help")
        await until(
            lambda: (
                (a := first.membership.find(node.key.node_id)) is not None and list(a.advert.control_addresses) == [again.address]
            ),
            "the new address did not spread",
        )

    in_town(scene)


def test_contacts_are_on_disk_soon_after_the_start(tmp_path: Path) -> None:
    """A node that is killed young finds the others again although all entries that it was given are gone."""
    settings = MembershipSettings(exchange_s=0.1)
    first_run, second_run = tmp_path / "nodes.json", tmp_path / "again.json"

    async def scene(town: Town) -> None:
        key = NodeKey.generate()
        orchestrator = await town.orchestrator(settings=settings)
        other = await town.add(settings=settings)
        young = await town.add(key, cache_path=first_run, settings=settings)
        await until(
            lambda: first_run.exists() and other.key.node_id in first_run.read_text(), "the other PNode is not in the cache"
        )
        shutil.copy(first_run, second_run)  # as a power cut leaves it
        for node in (young, orchestrator):
            await node.stop()
            town.nodes.remove(node)
        again = await town.add(key, entries=[orchestrator.address], cache_path=second_run, settings=settings)
        await until(lambda: again.knows(other) and other.knows(again), "they do not know each other")

    in_town(scene)


def test_a_life_with_a_lower_incarnation_overtakes_its_own_past() -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        key = NodeKey.generate()
        node = await town.add(key, incarnation=1000)
        await until(lambda: first.knows(node), "no contact")
        town.nodes.remove(node)
        await node.die()
        again = await town.add(key, incarnation=7)
        await until(
            lambda: (a := first.membership.find(key.node_id)) is not None and list(a.advert.control_addresses) == [again.address],
            "the old life's advert stayed",
        )

    in_town(scene)


def test_a_dead_node_leaves_every_view_and_table_within_seconds() -> None:
    """Its adverts would live for minutes; nobody waits for that. A later life is welcome, an older advert is not."""

    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        for _ in range(4):
            await town.add()
        victim = await town.add(incarnation=1000)
        name = victim.key.node_id
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        await until(lambda: any(name in node.tables() for node in town.nodes), "no table has it")
        old = victim.membership.own_advert
        town.nodes.remove(victim)
        await victim.die()
        began = time.monotonic()
        await until(lambda: not any(node.membership.find(name) for node in town.nodes), "somebody still takes it for a member")
        await until(lambda: not any(name in node.tables() for node in town.nodes), "some table still has it")
        assert time.monotonic() - began < 15  # s; its advert lives for three minutes
        reasons = {event.reason for node in town.nodes for event in node.events if isinstance(event, Gone)}
        assert reasons == {GoneReason.DEAD}
        connection = await town.nodes[1].dialer.connect(first.key.node_id, [first.address])
        stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
        await connection.call(stub.Exchange, membership_pb2.ExchangeRequest(adverts=[old]))
        assert first.membership.find(name) is None
        await connection.close()
        again = await town.add(victim.key, incarnation=1001)
        await until(lambda: all(node.knows(again) for node in town.nodes), "its next life is not welcome")

    in_town(scene)


def test_a_claim_kills_nobody_and_who_hears_of_its_own_death_says_otherwise() -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        liar, living = await town.add(), await town.add()
        name = living.key.node_id
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        advert = first.membership.find(name)
        assert advert is not None
        claim = membership_pb2.KnownNode(node_id=name, incarnation=advert.order[0], sequence=2**62)
        for target in (first, living):
            connection = await liar.dialer.connect(target.key.node_id, [target.address])
            stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
            own = living.membership._own.order
            claim.sequence = own[1] if target is living else 2**62
            await connection.call(stub.Exchange, membership_pb2.ExchangeRequest(suspects=[claim]))
            await connection.close()
        found = await first.membership.probe(name)
        assert found is not None
        assert found.verdict is Verdict.REACHED
        await until(
            lambda: (seen := first.membership.find(name)) is not None and seen.order > advert.order, "it did not say that it lives"
        )
        assert not [event for node in town.nodes for event in node.events if isinstance(event, Gone)]

    in_town(scene)


def test_a_node_that_only_others_reach_is_reached() -> None:
    """An orchestrator that cannot reach a PNode hears from others that it lives."""

    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        living = await town.add()
        await town.add()
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        first.dialer.cut_off.add(living.key.node_id)
        found = await first.membership.probe(living.key.node_id)
        assert found is not None
        assert (found.direct, found.verdict) == (False, Verdict.REACHED)
        assert "does not" in found.reason

    in_town(scene)


def test_network_time_heals_a_wrong_clock() -> None:
    async def scene(town: Town) -> None:
        await town.orchestrator()
        for _ in range(3):
            await town.add()
        wrong = await town.add(clock=SkewedClock(ahead_s=120.0))
        await until(lambda: wrong.knows(*town.nodes), "a wrong clock kept the node out")
        await until(lambda: abs(wrong.membership.network_time() - time.time()) < 1.0, "network time was not found")
        assert "ahead of" in wrong.membership.trouble

    in_town(scene)


def test_nobody_there_is_told_and_tried_for_ever() -> None:
    async def scene(town: Town) -> None:
        seed = await town.add(entries=["127.0.0.1:1"])
        await until(lambda: "bootstrap entries answered" in seed.membership.trouble, "the reason is not told")
        alone = await town.add(entries=[])
        await until(lambda: "no bootstrap entry" in alone.membership.trouble, "the reason is not told")
        late = await town.orchestrator(entries=[seed.address])
        await until(lambda: late.knows(seed) and seed.knows(late), "who came late was not found")
        await until(lambda: seed.membership.trouble == "", "the trouble is over")

    in_town(scene)


def test_a_new_version_of_the_document_spreads() -> None:
    async def scene(town: Town) -> None:
        heard: list[NetworkPolicy] = []
        draft = draft_successor(town.policy)
        draft.store_bucket = "moved"
        newer = town.policy.successor([*town.policy.history, sign_document(draft, MAINTAINER)])
        await town.orchestrator(policy=newer)
        node = await town.add(on_policy=heard.append)
        await until(lambda: node.membership.policy.document.version == 2, "the new version did not arrive")
        assert [p.document.store_bucket for p in heard] == ["moved"]

    in_town(scene)
