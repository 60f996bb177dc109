"""Goal: nobody is believed dead on one node's word: helpers are drawn at random, one that reaches the node is enough, and silence all round blames nobody."""

from __future__ import annotations

import asyncio
import random

import pytest

from dcnr.ids import NodeId
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, membership_pb2
from membership.doubts import Doubts
from membership.gossip import RUMOUR_EXCHANGES, Gone, GoneReason, Joined, View
from membership.network_time import NetworkTime
from membership.probing import NUM_HELPERS, Answer, Findings, Verdict, helpers_for
from trust.identity import NodeKey
from trust.records import VerifiedAdvert, make_advert

NETWORK, NOW = "a" * 40, 1_700_000_000.0
NAMES = [NodeId(f"{number:040x}") for number in range(8)]
SUBJECT = NAMES[0]


def advert(node_id: NodeId, *, addresses: tuple[str, ...] = ("127.0.0.1:7700",)) -> VerifiedAdvert:
    message = membership_pb2.Advert(node_id=node_id, incarnation=1, sequence=2, control_addresses=addresses)
    return VerifiedAdvert(message, node_id, None, identity_pb2.Envelope())


@pytest.mark.parametrize(
    ("direct", "answers", "num_asked", "verdict"),
    [
        (True, (), 3, Verdict.REACHED),
        (False, (True, False, False), 3, Verdict.REACHED),
        (False, (False,), 3, Verdict.UNREACHED),
        (False, (), 3, Verdict.UNKNOWN),
        (False, (), 0, Verdict.UNREACHED),
    ],
)
def test_the_verdict_follows_from_all_answers(direct: bool, answers: tuple[bool, ...], num_asked: int, verdict: Verdict) -> None:
    found = Findings(
        SUBJECT, direct, num_asked, tuple(Answer(NAMES[number + 1], said, number) for number, said in enumerate(answers))
    )
    assert found.verdict is verdict
    assert found.reason
    assert found.incarnation == max(0, len(answers) - 1)


def test_helpers_are_drawn_at_random_from_others_with_an_address_and_those_in_trouble_come_last() -> None:
    members = [advert(name) for name in NAMES[:-1]] + [advert(NAMES[-1], addresses=())]
    drawn: set[NodeId] = set()
    for seed in range(50):
        helpers = helpers_for(SUBJECT, members, random.Random(seed))
        assert len({item.node_id for item in helpers}) == NUM_HELPERS
        drawn |= {item.node_id for item in helpers}
    assert drawn == set(NAMES[1:-1])
    silent = NAMES[1:5]
    healthy = {item.node_id for item in helpers_for(SUBJECT, members, random.Random(1), avoid=silent)}
    assert set(NAMES[5:-1]) <= healthy
    assert len(healthy) == NUM_HELPERS


KEYS = [NodeKey.generate() for _ in range(3)]
ORCHESTRATOR, PNODE, OWN = (key.node_id for key in KEYS)


def signed(key: NodeKey, sequence: int) -> identity_pb2.Envelope:
    kind = membership_pb2.NODE_KIND_ORCHESTRATOR if key is KEYS[0] else membership_pb2.NODE_KIND_PNODE
    return make_advert(
        key, network_id=NETWORK, kind=kind, incarnation=1, sequence=sequence, control_addresses=["127.0.0.1:7700"], now_wall=NOW
    )  # fmt: skip


def view_with_all() -> View:
    view = View(OWN, NETWORK, is_orchestrator=lambda node_id: node_id == ORCHESTRATOR, salt=b"salt")
    view.set_own(signed(KEYS[2], 2), NOW)
    for key in KEYS[:2]:
        view.offer(signed(key, 4), NOW)
    return view


def test_a_buried_node_returns_only_with_a_newer_advert_and_others_hear_of_the_suspicion() -> None:
    view = view_with_all()
    assert [type(event) for event in view.bury(PNODE, (1, 2), NOW)] == []  # a newer life than the one that was probed
    [gone] = view.bury(PNODE, (1, 4), NOW)
    assert isinstance(gone, Gone)
    assert gone.reason is GoneReason.DEAD
    assert view.find(PNODE, NOW) is None
    assert view.offer(signed(KEYS[1], 2), NOW) == view.offer(signed(KEYS[1], 4), NOW) == []
    assert view.gone(PNODE) == (1, 4)  # what a helper says of it: that it is gone, not that it never heard of it
    assert view.gone(OWN) is None
    assert view.known(random.Random(1))[0].orders[PNODE] == (1, 4)
    for _ in range(RUMOUR_EXCHANGES):
        assert [(item.node_id, item.sequence) for item in view.push_suspects()] == [(PNODE, 4)]
    assert view.push_suspects() == []
    assert [type(event) for event in view.offer(signed(KEYS[1], 6), NOW)] == [Joined]
    view.check()


def test_orchestrators_are_never_buried_and_a_claim_alone_buries_nobody() -> None:
    view = view_with_all()
    assert view.bury(ORCHESTRATOR, (9, 9), NOW) == []
    claims = [membership_pb2.KnownNode(node_id=name, incarnation=1, sequence=4) for name in (ORCHESTRATOR, PNODE, OWN, NAMES[3])]
    assert [item.node_id for item in view.suspected(claims)] == [PNODE]
    claims[1].sequence = 2  # of an older life than the one known here
    assert view.suspected(claims) == []
    assert view.find(PNODE, NOW) is not None


def test_a_node_that_tells_no_address_is_not_probed_and_so_not_found_dead() -> None:
    probed: list[NodeId] = []

    class Nobody:
        async def probe(self, subject: VerifiedAdvert) -> Findings:
            probed.append(subject.node_id)
            return Findings(subject.node_id, False, 1, (Answer(NAMES[2], False),))

        async def close(self) -> None:
            return

    async def scene() -> list[NodeId]:
        dead: asyncio.Queue[NodeId] = asyncio.Queue()
        doubts = Doubts(Nobody(), NetworkTime(SystemClock()), lambda one: dead.put_nowait(one.node_id))  # type: ignore[arg-type]
        doubts.about([advert(NAMES[0], addresses=()), advert(NAMES[1])])
        async with asyncio.timeout(20):
            first = await dead.get()
        await doubts.close()
        return [first]

    assert asyncio.run(scene()) == probed == [NAMES[1]]
