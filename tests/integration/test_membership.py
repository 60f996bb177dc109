"""Goal: nodes with real gRPC and a real DHT find each other from one bootstrap entry, keep out what is forged, and say what is wrong."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

import pytest
from town_rig import MAINTAINER, Town, in_town, until

from dcnr.client import Orchestrators
from dcnr.errors import DcnrError, NotFound, Refused, RemoteFault, Unavailable
from dcnr.rpc.dialer import Dialer
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, membership_pb2, membership_pb2_grpc, model_pb2
from membership.discovery import discover
from membership.gossip import Gone, GoneReason, Joined, Updated, View
from membership.node import MembershipSettings
from pnode.neighbours import Neighbours
from trust.delegation import make_delegation
from trust.identity import NodeKey
from trust.records import make_advert


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
        found = await seeker.membership.locate("mnist", "conv1.0", host.key.node_id)
        assert found is not None
        assert (found.pnode_id, found.delegation.worker_id) == (host.key.node_id, worker.node_id)
        assert await seeker.membership.locate("mnist", "conv1.1", host.key.node_id) is None
        assert await seeker.membership.resolve(host.key.node_id) is not None
        assert seeker.membership.dht_lookups == 2, "known nodes cost no look-up"
        await until(lambda: host.membership._directory.stats().puts >= 2, "the advert was not published")
        seeker.membership._view = View(
            seeker.key.node_id, town.policy.network_id, is_orchestrator=town.policy.is_orchestrator, salt=b""
        )
        advert = None
        deadline = time.monotonic() + 60
        while advert is None and time.monotonic() < deadline:
            advert = await seeker.membership.resolve(host.key.node_id)
            await asyncio.sleep(0.05)
        assert advert is not None
        assert advert.advert.control_addresses == [host.address]
        assert await seeker.membership.resolve("0" * 40) is None

    in_town(scene)


def test_a_stranger_who_speaks_first_keeps_no_replica_out_of_the_directory() -> None:
    async def scene(town: Town) -> None:
        await town.orchestrator()
        for _ in range(4):
            await town.add()
        host, seeker, stranger = town.nodes[1], town.nodes[4], town.nodes[2]
        await until(
            lambda: all(n.membership._directory.stats().num_contacts >= 3 for n in town.nodes), "the directory is not joined"
        )
        for node in (stranger, host):
            worker = NodeKey.generate()
            delegation = make_delegation(node.key, town.policy.network_id, worker.public_der, 5, ["127.0.0.1:9"], time.time())
            assert await node.membership.publish_location("mnist", "conv1.0", delegation) >= 3
        found = await seeker.membership.locate("mnist", "conv1.0", host.key.node_id)
        assert found is not None
        assert (found.pnode_id, found.delegation.worker_id) == (host.key.node_id, worker.node_id)

    in_town(scene)


def test_a_neighbour_that_told_no_location_is_found_by_its_advert() -> None:
    async def scene(town: Town) -> None:
        await town.orchestrator()
        for _ in range(3):
            await town.add()
        host, seeker = town.nodes[1], town.nodes[3]
        await until(
            lambda: all(n.membership._directory.stats().num_contacts >= 2 for n in town.nodes), "the directory is not joined"
        )
        worker, told = NodeKey.generate(), []
        delegation = make_delegation(host.key, town.policy.network_id, worker.public_der, 5, ["127.0.0.1:9"], time.time())
        host.membership.update_self(delegation=delegation)

        def knows() -> bool:
            advert = seeker.membership.find(host.key.node_id)
            return advert is not None and advert.delegation is not None

        async def send(message: local_pb2.ToWorker) -> bool:
            told.append(message.neighbour)
            return True

        async with asyncio.TaskGroup() as group:
            neighbours = Neighbours(
                membership=seeker.membership, orchestrators=Orchestrators(seeker.dialer, dict), network_id=town.policy.network_id,
                wanted=lambda: [("mnist", model_pb2.Neighbour(replica="conv1.0", pnode_id=host.key.node_id))], send=send,
                clock=SystemClock(), say=lambda *_: None, group=group,
            )  # fmt: skip
            await neighbours.refresh()
            assert not told, "the advert that it had named no worker"
            await until(knows, "the advert did not spread")
            await until(lambda: bool(told), "the neighbour was not found")
            neighbours.stop()
        assert told[0].delegation == delegation

    in_town(scene)


def test_with_all_orchestrators_dead_a_neighbour_that_comes_back_elsewhere_is_found_through_the_dht_alone() -> None:
    """No gossip reaches the one that looks for it, in neither direction: whatever it is told comes from the directory."""

    async def scene(town: Town) -> None:
        dead = await town.orchestrator()
        for _ in range(5):
            await town.add()
        host, finder = town.nodes[1], town.nodes[5]
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        await until(lambda: all(len(node.tables()) >= 5 for node in town.nodes), "the directory is not joined")
        worker, told, said = NodeKey.generate(), list[local_pb2.NeighbourAddress](), list[str]()

        def life(incarnation: int) -> identity_pb2.Envelope:
            addresses = [f"127.0.0.1:{incarnation}"]
            return make_delegation(host.key, town.policy.network_id, worker.public_der, incarnation, addresses, time.time())

        def incarnation(item: local_pb2.NeighbourAddress) -> int:
            return int(identity_pb2.Delegation.FromString(item.delegation.payload).incarnation)

        def first_life_is_known() -> bool:
            advert = finder.membership.find(host.key.node_id)
            return advert is not None and advert.delegation is not None

        async def send(message: local_pb2.ToWorker) -> bool:
            told.append(message.neighbour)
            return True

        host.membership.update_self(delegation=life(1))
        assert await host.membership.publish_location("mnist", "conv1.0", life(1)) >= 3
        await until(first_life_is_known, "the advert did not spread")
        async with asyncio.TaskGroup() as group:
            neighbours = Neighbours(
                membership=finder.membership, orchestrators=Orchestrators(finder.dialer, dict), network_id=town.policy.network_id,
                wanted=lambda: [("mnist", model_pb2.Neighbour(replica="conv1.0", pnode_id=host.key.node_id))], send=send,
                clock=SystemClock(), say=lambda kind, _, reason: said.append(f"{kind} {reason}"), group=group,
            )  # fmt: skip
            await neighbours.refresh()
            assert [incarnation(item) for item in told] == [1]
            assert finder.membership.dht_lookups == 0
            finder.dialer.cut_off.update(node.key.node_id for node in town.nodes)
            for node in town.nodes:
                node.dialer.cut_off.add(finder.key.node_id)
            for node in (dead, host):
                town.nodes.remove(node)
                await node.die()
            back = await town.add(host.key, entries=[town.nodes[0].address])
            back.dialer.cut_off.add(finder.key.node_id)
            assert back.address != host.address
            back.membership.update_self(delegation=life(2))
            await until(lambda: len(back.tables()) >= 3, "it has not joined the directory again")
            assert await back.membership.publish_location("mnist", "conv1.0", life(2)) >= 2
            neighbours.lost(local_pb2.NeighbourLost(replica="conv1.0", pnode_id=host.key.node_id, broken=True))
            await until(lambda: len(told) > 1, "the neighbour was not found")
            neighbours.stop()
        assert [incarnation(item) for item in told] == [1, 2]
        assert said == [f"neighbour_found {host.key.node_id[:8]} by the DHT, incarnation 2"]
        assert finder.membership.dht_lookups >= 1

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
