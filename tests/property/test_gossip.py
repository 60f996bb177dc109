"""Goal: the gossip core converges whatever the order, keeps its bounds and orchestrators, never goes back, and takes in nothing unsigned."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr.ids import NodeId
from dcnr.limits import MAX_ADVERTS_PER_EXCHANGE
from dcnr.v1 import identity_pb2, membership_pb2
from membership.gossip import KNOWN_AT_ONCE, RUMOUR_EXCHANGES, Gone, GoneReason, Joined, Updated, View
from membership.known import NOTHING
from membership.network_time import NetworkTime
from trust.identity import NodeKey
from trust.records import VerifiedAdvert, make_advert

NETWORK, NOW = "a" * 40, 1_700_000_000.0
KEYS = [NodeKey.generate() for _ in range(8)]
ORCHESTRATORS = frozenset(k.node_id for k in KEYS[:2])


def advert(key: NodeKey, order: tuple[int, int] = (1, 2), **changes: Any) -> identity_pb2.Envelope:
    kind = membership_pb2.NODE_KIND_ORCHESTRATOR if key.node_id in ORCHESTRATORS else membership_pb2.NODE_KIND_PNODE
    fields: dict[str, Any] = {
        "network_id": NETWORK,
        "kind": kind,
        "incarnation": order[0],
        "sequence": order[1],
        "control_addresses": ["127.0.0.1:7700"],
        "now_wall": NOW,
    }
    return make_advert(key, **{**fields, **changes})


def view(own: NodeKey = KEYS[7], **options: Any) -> View:
    return View(own.node_id, NETWORK, is_orchestrator=ORCHESTRATORS.__contains__, salt=b"salt", **options)


def verified(number: int, address: str, *, orchestrator: bool = False, sequence: int = 1) -> VerifiedAdvert:
    """A made-up node: the core does not look at signatures again."""
    kind = membership_pb2.NODE_KIND_ORCHESTRATOR if orchestrator else membership_pb2.NODE_KIND_PNODE
    node_id = NodeId(f"{number:040x}")
    message = membership_pb2.Advert(
        network_id=NETWORK, node_id=node_id, kind=kind, incarnation=1, sequence=sequence, control_addresses=[address],
        issued_unix_ms=int(NOW * 1000), expires_unix_ms=int((NOW + 100) * 1000),
    )  # fmt: skip
    return VerifiedAdvert(message, node_id, None, identity_pb2.Envelope(payload=message.SerializeToString()))


ORDERS = [advert(KEYS[i], (incarnation, sequence)) for i in range(4) for incarnation in (1, 2) for sequence in (2, 4)]


@given(st.lists(st.sampled_from(ORDERS), max_size=40))
@settings(max_examples=50)
def test_the_newest_advert_wins_in_any_order(offers: list[identity_pb2.Envelope]) -> None:
    here = view()
    newest: dict[str, tuple[int, int]] = {}
    for envelope in offers:
        message = membership_pb2.Advert.FromString(envelope.payload)
        order = (message.incarnation, message.sequence)
        events = here.offer(envelope, NOW)
        known = newest.get(message.node_id)
        assert [type(e) for e in events] == ([Joined] if known is None else [Updated] if order > known else [])
        newest[message.node_id] = max(order, known or order)
        here.check()
    assert {a.node_id: a.order for a in here.members()} == newest


@given(st.integers(0, 2**32), st.integers(2, 7))
@settings(max_examples=25)
def test_everybody_learns_everything_by_exchanges(seed: int, count: int) -> None:
    rng = random.Random(seed)
    views = [view(key) for key in KEYS[:count]]
    for key, here in zip(KEYS, views, strict=False):
        here.set_own(advert(key), NOW)
    for here in views[1:]:
        assert views[0].own is not None
        here.offer(views[0].own.envelope, NOW)  # one bootstrap node
    rounds = 0
    while any(len(here) < count - 1 for here in views):
        rounds += 1
        assert rounds <= 20
        for here in views:
            for partner in here.partners(rng, 1, 0.0):
                there = next(v for v in views if v.own is not None and v.own.node_id == partner.node_id)
                [known] = here.known(rng)
                answer = there.news_for(known, rng, NOW)
                there.offer_all(here.news(), NOW)
                here.offer_all(answer, NOW)
                here.check()
                there.check()


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 6), st.booleans()), max_size=120), st.integers(1, 20))
@settings(max_examples=60)
def test_the_view_stays_bounded_and_keeps_orchestrators(nodes: list[tuple[int, int, bool]], bound: int) -> None:
    here = View("f" * 40, NETWORK, is_orchestrator=lambda n: int(n, 16) % 10 == 0, salt=b"s", max_pnodes=bound)
    listed = set()
    for number, subnet, orchestrator in nodes:
        here.believe(verified(number, f"8.8.{subnet}.1:1", orchestrator=orchestrator), NOW)
        if orchestrator and number % 10 == 0 and here.find(f"{number:040x}", NOW):
            listed |= {f"{number:040x}"} if here.find(f"{number:040x}", NOW).advert.kind == 2 else set()  # type: ignore[union-attr]
        here.check()
    assert listed <= {a.node_id for a in here.members()}


def test_a_flood_from_one_subnet_crowds_out_itself() -> None:
    here = View("f" * 40, NETWORK, is_orchestrator=lambda n: False, salt=b"s", max_pnodes=50)
    honest = [verified(n, f"8.8.{n}.1:1") for n in range(40)]
    for node in honest:
        here.believe(node, NOW)
    for n in range(1000, 2000):
        here.believe(verified(n, f"9.9.{n % 4}.1:1"), NOW)
    assert {a.node_id for a in honest} <= {a.node_id for a in here.members()}
    assert len(here) == 50


def test_names_that_cost_nothing_crowd_out_themselves() -> None:
    here = View("f" * 40, NETWORK, is_orchestrator=lambda n: n == f"{7000:040x}", salt=b"s", max_pnodes=50)
    honest = [verified(n, f"8.8.{n}.1:1") for n in range(40)]
    for node in (*honest, verified(7000, "orchestrator.example:1", orchestrator=True)):
        here.believe(node, NOW)
    for n in range(1000, 1300):
        here.believe(verified(n, f"x{n}.example:1"), NOW)
    kept = {a.node_id for a in here.members()}
    assert {a.node_id for a in honest} | {f"{7000:040x}"} <= kept
    assert len(kept) == 51


def test_private_addresses_are_no_crowd_and_the_sample_does_not_depend_on_the_order() -> None:
    nodes = [verified(n, "192.168.0.1:1") for n in range(200)]
    samples = []
    for seed in (1, 2):
        here = View("f" * 40, NETWORK, is_orchestrator=lambda n: False, salt=b"s", max_pnodes=20)
        for node in random.Random(seed).sample(nodes, len(nodes)):
            here.believe(node, NOW)
        samples.append({a.node_id for a in here.members()})
    assert samples[0] == samples[1]
    other = View("f" * 40, NETWORK, is_orchestrator=lambda n: False, salt=b"t", max_pnodes=20)
    for node in nodes:
        other.believe(node, NOW)
    assert {a.node_id for a in other.members()} != samples[0]


def test_every_byte_of_an_advert_counts() -> None:
    good = advert(KEYS[3]).SerializeToString()
    here = view()
    for index in range(len(good)):
        changed = bytearray(good)
        changed[index] ^= 1 + index % 255
        try:
            envelope = identity_pb2.Envelope.FromString(bytes(changed))
        except Exception:  # noqa: BLE001  the runtime's DecodeError: the message would not have arrived
            continue
        assert here.offer(envelope, NOW) == []
    assert len(here) == 0
    assert here.offer(identity_pb2.Envelope.FromString(good), NOW)


def test_only_listed_orchestrators_and_only_this_network() -> None:
    here = view()
    pretender = advert(KEYS[3], kind=membership_pb2.NODE_KIND_ORCHESTRATOR)
    assert here.offer(pretender, NOW) == []
    assert here.offer(advert(KEYS[3], network_id="b" * 40), NOW) == []
    assert here.offer(advert(KEYS[3], now_wall=NOW - 700), NOW) == []
    assert here.num_refused == {"orchestrator_not_listed": 1, "wrong_network": 1, "advert_expired": 1}


def test_who_expired_or_left_does_not_come_back_by_an_old_advert() -> None:
    here, old = view(), advert(KEYS[3], (1, 2))
    here.offer(old, NOW)
    here.offer(advert(KEYS[3], (1, 4), lifetime_s=30.0), NOW)
    events = here.expire(NOW + 31)
    assert [(type(e), e.reason) for e in events if isinstance(e, Gone)] == [(Gone, GoneReason.EXPIRED)]
    assert here.offer(old, NOW + 32) == [], "still valid, but older than what was known"
    assert [type(e) for e in here.offer(advert(KEYS[3], (2, 2)), NOW + 32)] == [Joined]
    farewell = advert(KEYS[3], (2, 4), lifetime_s=10.0)
    left = here.offer(farewell, NOW + 2)
    assert [e.reason for e in left if isinstance(e, Gone)] == [GoneReason.LEFT]
    assert here.offer(advert(KEYS[3], (2, 2)), NOW + 3) == []
    assert farewell in here.news(), "the good-bye is passed on"
    here.expire(NOW + 20)
    assert farewell not in here.news()
    here.check()


def test_an_advert_of_an_earlier_life_is_noticed() -> None:
    here = view(KEYS[3])
    here.set_own(advert(KEYS[3], (1, 2)), NOW)
    assert here.offer(advert(KEYS[3], (9, 9)), NOW) == []
    assert here.own_seen == (9, 9)


@given(st.integers(0, 2**32), st.integers(1, 150), st.integers(0, 150))
@settings(max_examples=30)
def test_exchanges_speak_of_a_stretch_of_bounded_size_and_of_everything_in_turn(seed: int, count: int, newer: int) -> None:
    """What an exchange says does not grow with the view; it asks for nothing twice that is there, and a few of them bring all that somebody else knows."""
    rng, here, there = random.Random(seed), view(), view(KEYS[6])
    for number in range(count):
        here.believe(verified(number + 1, "10.0.0.1:1"), NOW)
        there.believe(verified(number + 1, "10.0.0.1:1", sequence=2 if number < newer else 1), NOW)
    for _ in range(200):
        [known] = here.known(rng)
        assert len(known.orders) == min(KNOWN_AT_ONCE, count)
        assert all(node_id in known.stretch for node_id in known.orders)
        lacking = {(a.node_id, a.order) for a in there.members() if a.node_id in known.stretch} - set(known.orders.items())
        answer = there.news_for(known, rng, NOW)
        assert len(answer) == min(len(lacking), MAX_ADVERTS_PER_EXCHANGE)
        for envelope in answer:
            message = membership_pb2.Advert.FromString(envelope.payload)
            here.believe(VerifiedAdvert(message, NodeId(message.node_id), None, envelope), NOW)
    assert [a.order for a in here.members()] == [a.order for a in there.members()]


def test_who_says_the_same_for_longer_is_no_news_to_push() -> None:
    """Every node renews its advert every minute: pushed like news, renewals would be most of what a line carries."""
    here, there = view(), view(KEYS[6])
    first, renewed, moved = (
        advert(KEYS[0], order, **changes)
        for order, changes in (((1, 2), {}), ((1, 3), {"now_wall": NOW + 1}), ((1, 4), {"control_addresses": ["127.0.0.1:7701"]}))
    )
    for envelope, is_pushed in ((first, True), (renewed, False), (moved, True)):
        here.offer(envelope, NOW + 2)
        assert [envelope in here.news() for _ in range(RUMOUR_EXCHANGES)] == [is_pushed] * RUMOUR_EXCHANGES
        [known] = there.known(random.Random(1))
        assert here.news_for(known, random.Random(1), NOW + 2) == [envelope], "who asks is given it"


def test_the_own_advert_is_news_for_a_few_rounds_and_again_when_it_changes() -> None:
    here = view(KEYS[3])
    for order in ((1, 2), (1, 3)):
        own = here.set_own(advert(KEYS[3], order), NOW).envelope
        assert [own in here.news() for _ in range(RUMOUR_EXCHANGES + 3)] == [True] * RUMOUR_EXCHANGES + [False] * 3
    assert own in here.news_for(NOTHING, random.Random(1), NOW), "who lacks it is given it all the same"


def test_partners_that_fail_are_left_alone_for_a_while() -> None:
    here, rng = view(), random.Random(1)
    for key in KEYS[:3]:
        here.offer(advert(key), NOW)
    here.failed(KEYS[0].node_id, 10.0)
    assert KEYS[0].node_id not in {a.node_id for a in here.partners(rng, 3, 11.0)}
    assert KEYS[0].node_id in {a.node_id for a in here.partners(rng, 3, 13.0)}
    for key in KEYS[:3]:
        here.failed(key.node_id, 20.0)
    assert len(here.partners(rng, 3, 20.0)) == 3, "if all failed the fault may be ours"
    here.answered(KEYS[0].node_id)
    assert [a.node_id for a in here.partners(rng, 3, 20.0)] == [KEYS[0].node_id]


def test_network_time_is_the_median_of_at_least_three() -> None:
    class Clock:
        def monotonic(self) -> float:
            return 5.0

        def wall(self) -> float:
            return NOW

    time = NetworkTime(Clock())
    time.note("a", 100.0)
    time.note("b", 100.0)
    assert (time.wall(), time.trouble) == (NOW, "")
    time.note("liar", -1e9)
    assert time.wall() == NOW + 100.0
    assert "behind" in time.trouble
    for n in range(200):
        time.note(f"n{n}", 1.0)
    assert time.wall() == NOW + 1.0
