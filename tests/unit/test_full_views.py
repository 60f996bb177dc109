"""Goal: full views give each other what is new and one stranger a round, not what was crowded out, again and again; who was comes in where there is room."""

from __future__ import annotations

import random
from collections.abc import Iterable

from benchmarks.gossip_messages import Network
from dcnr.ids import NodeId
from dcnr.v1 import identity_pb2, membership_pb2
from membership.gossip import KNOWN_AT_ONCE, View
from trust.records import VerifiedAdvert

NETWORK, NOW, FULL, ORCHESTRATOR = "a" * 40, 1_700_000_000.0, 64, f"{999:040x}"
RNG = random.Random(1)
IDS = [NodeId(RNG.randbytes(20).hex()) for _ in range(3 * FULL)]


def advert(node_id: NodeId, sequence: int = 1, *, orchestrator: bool = False) -> VerifiedAdvert:
    """Made up: the core does not look at signatures again."""
    kind = membership_pb2.NODE_KIND_ORCHESTRATOR if orchestrator else membership_pb2.NODE_KIND_PNODE
    message = membership_pb2.Advert(
        network_id=NETWORK, node_id=node_id, kind=kind, incarnation=1, sequence=sequence, control_addresses=["10.0.0.1:1"],
        issued_unix_ms=int(NOW * 1000), expires_unix_ms=int((NOW + 100) * 1000),
    )  # fmt: skip
    return VerifiedAdvert(message, node_id, None, identity_pb2.Envelope(payload=message.SerializeToString()))


def view(ids: Iterable[NodeId], salt: bytes) -> View:
    here = View("f" * 40, NETWORK, is_orchestrator=ORCHESTRATOR.__eq__, salt=salt, max_pnodes=FULL)
    for node_id in ids:
        here.believe(advert(node_id), NOW)
    return here


def exchanged(here: View, there: View) -> list[str]:
    """Whose adverts ``here`` is given in one round with two partners that know the same."""
    given = []
    for known in here.known(RNG, 2):
        for envelope in there.news_for(known, RNG, NOW):
            message = membership_pb2.Advert.FromString(envelope.payload)
            given.append(message.node_id)
            here.believe(VerifiedAdvert(message, NodeId(message.node_id), None, envelope), NOW)
    here.check()
    return given


def test_full_views_that_disagree_give_each_other_one_stranger_a_round_and_all_that_is_new() -> None:
    here, there = view(IDS, b"a"), view(IDS, b"b")
    both = {a.node_id for a in here.members()} & {a.node_id for a in there.members()}
    assert FULL // 8 < len(both) < FULL
    for _ in range(100):
        assert len(exchanged(here, there)) <= 1
    [changed] = RNG.sample(sorted(both & {a.node_id for a in here.members()}), 1)
    there.believe(advert(changed, 2), NOW)
    there.believe(advert(NodeId(ORCHESTRATOR), orchestrator=True), NOW)
    given = [node_id for _ in range(30) for node_id in exchanged(here, there)]
    assert given.count(changed) == given.count(ORCHESTRATOR) == 1


def test_who_was_crowded_out_comes_in_as_soon_as_there_is_room() -> None:
    here, there = view(IDS, b"a"), view(IDS, b"b")
    kept = {a.node_id for a in here.members()}
    for node_id in sorted(kept)[:8]:
        here.bury(node_id, (1, 1), NOW)
    rounds = next(number for number in range(100) if exchanged(here, there) is not None and len(here) == FULL)
    assert rounds <= 8
    assert len({a.node_id for a in here.members()} - kept) >= 8


def test_who_is_in_a_full_view_depends_on_no_order_in_the_end() -> None:
    """Those who came first stay no longer for it: one of the others after the other is offered, and the hash decides."""
    here, there = view(IDS[:FULL], b"a"), view(IDS[FULL : 2 * FULL], b"b")
    for _ in range(2000):
        exchanged(here, there)
    assert {a.node_id for a in here.members()} == {a.node_id for a in view(IDS[: 2 * FULL], b"a").members()}


def test_exchanges_of_a_round_ask_for_different_stretches() -> None:
    """Else two partners would give the same adverts."""
    first, second = view(IDS[: 2 * KNOWN_AT_ONCE], b"a").known(RNG, 2)
    assert not set(first.orders) & set(second.orders)
    assert len(first.orders) == len(second.orders) == KNOWN_AT_ONCE


def test_a_network_of_more_nodes_than_a_view_holds_costs_little_more_than_one_that_fits() -> None:
    def given(num_nodes: int) -> float:
        network = Network(num_nodes, max_pnodes=24)
        network.run_until(20.0)
        network.num_given = 0
        network.run_until(50.0)
        return network.num_given / num_nodes / 30.0

    assert given(48) < given(24) + 1.0, "adverts a second"


def test_an_idle_network_of_32_spends_a_third_of_its_line_on_exchanges() -> None:
    network = Network(32)
    network.run_until(20.0)
    network.told_bytes.clear()
    network.run_until(80.0)
    assert network.told_bytes.total() / 32 / 60.0 < 5000.0 / 3
