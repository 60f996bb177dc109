"""A node's state follows from streams, beats, evidence and probes, in the times that the protocol promises."""

from __future__ import annotations

import pytest

from dcnr.v1 import identity_pb2, membership_pb2, model_pb2, orchestrator_pb2
from orchestrator import inventory as inventory_module
from orchestrator import lending
from orchestrator.inventory import Inventory
from orchestrator.silence import CRIED_S
from trust.delegation import make_delegation
from trust.identity import NodeKey

A, B = "a" * 40, "b" * 40
ACTIVE = orchestrator_pb2.NODE_STATE_ACTIVE
SUSPECT = orchestrator_pb2.NODE_STATE_SUSPECT
OFFLINE = orchestrator_pb2.NODE_STATE_OFFLINE
DRAINING = orchestrator_pb2.NODE_STATE_DRAINING


C = "c" * 40


def beat(*, alive: bool = True, draining: bool = False, accuses: str = "", broken: bool = True) -> orchestrator_pb2.Beat:
    message = orchestrator_pb2.Beat(
        worker_alive=alive, draining=draining, capability=membership_pb2.Capability(accepts_work=True, gflops=5)
    )
    if accuses:
        message.evidence.add(pnode_id=accuses, broken=broken)
    return message


def living(*names: str) -> Inventory:
    """All of them host replicas of one VNode, so that each would notice where it cannot reach another one."""
    inventory = Inventory()
    inventory.planned("m", {name: [model_pb2.Assignment(replica=f"v.{name}", vnode="v", pnode_id=name)] for name in names})
    for name in names:
        inventory.attached(name, 0.0)
        inventory.beat(name, 0.0, beat(), 2.0)
    inventory.tick(0.0)
    return inventory


def watch(inventory: Inventory, until: float) -> None:
    """Looks every second, as the service does more often."""
    now = 0.0
    while now <= until:
        inventory.tick(now)
        now += 1.0


def state(inventory: Inventory, now: float, name: str = A) -> int:
    inventory.tick(now)
    inventory.check()
    return inventory.judgement(name).state


def test_a_broken_stream_is_a_loss_after_one_second_unless_it_comes_back() -> None:
    inventory = living(A)
    watch(inventory, 1.0)
    inventory.detached(A, 1.0, "reset")
    assert state(inventory, 1.9) == SUSPECT
    assert state(inventory, 2.0) == OFFLINE
    back = living(A)
    back.detached(A, 1.0, "reset")
    back.attached(A, 1.5)
    assert state(back, 2.0) == ACTIVE


@pytest.mark.parametrize(("accusers", "broken", "after"), [("bc", True, OFFLINE), ("b", True, SUSPECT), ("bc", False, SUSPECT)])
def test_an_ended_stream_and_broken_connections_of_several_neighbours_are_a_loss_at_once(
    accusers: str, broken: bool, after: int
) -> None:
    """Also of a machine that tells no address, which nobody can probe: what ends all its connections together is the end of its processes."""
    inventory = living(A, B, C)
    watch(inventory, 1.0)
    for name in accusers:
        inventory.beat(40 * name, 1.0, beat(accuses=A, broken=broken), 2.0)
    assert state(inventory, 1.0) == ACTIVE, "its own stream goes on"
    inventory.detached(A, 1.1, "reset")
    assert state(inventory, 1.1) == after


def test_two_neighbours_that_lie_together_make_one_false_loss_a_day() -> None:
    """Every stream ends for a moment now and then, and what they say may be there whenever it does."""
    inventory, num_lost = living(A, B, C), 0
    for now in (1.0, 2.0, 3.0, 4.0):
        inventory.beat(A, now, beat(), 2.0)
        for liar in (B, C):
            inventory.beat(liar, now, beat(accuses=A), 2.0)
        inventory.detached(A, now + 0.1, "reset")
        num_lost += state(inventory, now + 0.1) == OFFLINE
        inventory.attached(A, now + 0.5)
        assert state(inventory, now + 0.5) == ACTIVE
    assert num_lost == 1
    watch(inventory, CRIED_S + 2.0)
    for name in (A, B, C):
        inventory.beat(name, CRIED_S + 2.0, beat(accuses=A if name != A else ""), 2.0)
    assert state(inventory, CRIED_S + 2.0) == ACTIVE
    inventory.detached(A, CRIED_S + 2.1, "reset")
    assert state(inventory, CRIED_S + 2.1) == OFFLINE, "a day later they are believed again"


def test_whose_word_was_followed_by_a_new_life_or_a_long_absence_told_the_truth() -> None:
    for back_at, incarnation in ((1.5, 2), (3.0, 1)):
        inventory = living(A, B, C)
        for round_s in (0.0, 10.0):
            inventory.advertised(membership_pb2.Advert(node_id=A, incarnation=1 if not round_s else incarnation), round_s + 1.0)
            for name in (A, B, C):
                inventory.beat(name, round_s + 1.0, beat(accuses=A if name != A else ""), 2.0)
            inventory.detached(A, round_s + 1.1, "reset")
            assert state(inventory, round_s + 1.1) == OFFLINE
            inventory.advertised(membership_pb2.Advert(node_id=A, incarnation=incarnation), round_s + back_at)
            inventory.attached(A, round_s + back_at)
            watch(inventory, round_s + 10.0)


def test_connections_that_were_broken_before_its_last_beat_hasten_nothing() -> None:
    inventory = living(A, B, C)
    inventory.beat(A, 8.0, beat(), 2.0)
    watch(inventory, 8.0)
    for name in (B, C):
        said = beat(accuses=A)
        said.evidence[0].since_s = 5.0
        inventory.beat(name, 8.5, said, 2.0)
    inventory.detached(A, 8.6, "reset")
    assert state(inventory, 8.6) == SUSPECT


def test_a_second_stream_keeps_the_node() -> None:
    inventory = living(A)
    inventory.attached(A, 1.0)
    inventory.detached(A, 1.1, "the old one ended")
    assert state(inventory, 2.5) == ACTIVE


def test_a_dead_worker_is_a_loss_at_once_by_its_daemons_word() -> None:
    """Its state is gone, however soon another worker comes: siblings would wait for what it owed."""
    inventory = living(A)
    inventory.beat(A, 1.0, beat(alive=False), 2.0)
    assert state(inventory, 1.0) == OFFLINE
    inventory.beat(A, 3.0, beat(), 2.0)
    assert state(inventory, 3.0) == ACTIVE


def test_silence_is_three_told_intervals() -> None:
    inventory = living(A)
    watch(inventory, 5.0)
    assert state(inventory, 5.9) == SUSPECT
    assert state(inventory, 6.0) == OFFLINE


def test_an_observer_that_stood_still_accuses_nobody() -> None:
    inventory = living(A)
    assert state(inventory, 90.0) == ACTIVE
    inventory.tick(91.0)
    watch_from = 92.0
    for step in range(5):
        inventory.tick(watch_from + step)
    assert state(inventory, 97.0) == OFFLINE


def test_evidence_and_an_own_failed_probe_come_sooner() -> None:
    inventory = living(A, B)
    inventory.probed(A, 0.0, reachable=True)
    watch(inventory, 2.1)
    assert inventory.beat(B, 2.1, beat(accuses=A), 2.0) == [A]
    assert state(inventory, 2.2) == SUSPECT
    inventory.probed(A, 2.4, reachable=False)
    assert state(inventory, 2.5) == OFFLINE
    assert "nor this orchestrator" in inventory.judgement(A).reason


def test_a_probe_that_fails_says_nothing_of_who_has_beaten_since_it_was_begun() -> None:
    """On a busy machine a probe takes long, and a beat comes late: with a neighbour's word they would be a loss."""
    inventory = living(A, B)
    inventory.probed(A, 0.0, reachable=True)
    watch(inventory, 2.0)
    inventory.beat(A, 2.6, beat(), 2.0)
    inventory.probed(A, 3.4, reachable=False, asked_at=2.5)
    assert state(inventory, 3.4) == ACTIVE
    inventory.beat(B, 4.7, beat(accuses=A), 2.0)
    assert state(inventory, 4.8) == SUSPECT


def test_evidence_alone_condemns_nobody() -> None:
    inventory = living(A, B)
    inventory.beat(A, 1.0, beat(), 2.0)
    inventory.beat(B, 1.1, beat(accuses=A), 2.0)
    inventory.probed(A, 1.2, reachable=True)
    assert state(inventory, 1.3) == ACTIVE
    inventory.probed(A, 1.4, reachable=False)
    assert state(inventory, 1.5) == ACTIVE  # it has just beaten: no reason to doubt it


def test_leaving_politely_shows() -> None:
    inventory = living(A)
    inventory.beat(A, 1.0, beat(draining=True), 2.0)
    assert state(inventory, 1.0) == DRAINING


def test_who_leaves_keeps_what_it_hands_over_from_its_first_word_on() -> None:
    """Goal: a plan that is made after that beat and before the node is judged anew does not move what has no checkpoint yet."""
    inventory = living(A)
    leaving = beat(draining=True)
    leaving.capability.accepts_work = False
    report = leaving.replicas.add(replica="v1.7", vnode="v1", state=orchestrator_pb2.ASSIGNMENT_STATE_RELEASING)
    inventory.beat(A, 1.0, leaving, 2.0)
    assert [offer.handing_over for offer in inventory.offers(1.0)] == [True]
    inventory.tick(1.1)
    assert [offer.handing_over for offer in inventory.offers(1.1)] == [True]
    report.state = orchestrator_pb2.ASSIGNMENT_STATE_RELEASED
    inventory.beat(A, 2.0, leaving, 2.0)
    assert [offer.handing_over for offer in inventory.offers(2.0)] == [False], "everything is handed over"


def test_a_worker_that_dies_while_its_machine_leaves_is_a_loss_at_once_too() -> None:
    """Nothing more is handed over: without a change of its state what it owed was its siblings' only with the next review of the plan. No loss is counted."""
    inventory = living(A)
    leaving = beat(draining=True)
    leaving.replicas.add(replica="v1.7", vnode="v1", state=orchestrator_pb2.ASSIGNMENT_STATE_RELEASING)
    inventory.beat(A, 1.0, leaving, 2.0)
    assert state(inventory, 1.0) == DRAINING
    leaving.worker_alive = False
    inventory.beat(A, 1.5, leaving, 2.0)
    assert [change.after for change in inventory.tick(1.5)] == [OFFLINE]
    assert [(offer.handing_over, offer.num_losses, offer.awaited) for offer in inventory.offers(1.5)] == [(False, 0, frozenset())]
    never_began = Inventory()
    never_began.attached(A, 0.0)
    never_began.beat(A, 0.0, beat(alive=False, draining=True), 2.0)
    assert state(never_began, 0.0) == DRAINING


def test_after_a_takeover_nodes_of_the_plan_get_time_to_attach() -> None:
    inventory = Inventory()
    inventory.expect(A, 100.0)
    assert state(inventory, 109.9) == SUSPECT  # the first look
    assert [offer.accepts_work for offer in inventory.offers(109.9)] == [True]
    assert state(inventory, 110.1) == OFFLINE


def test_each_change_is_told_once_with_its_reason() -> None:
    inventory = living(A)
    inventory.detached(A, 1.0, "reset")
    [first] = inventory.tick(1.1)
    assert (first.before, first.after) == (ACTIVE, SUSPECT)
    assert inventory.tick(1.2) == []
    [second] = inventory.tick(2.2)
    assert second.after == OFFLINE
    assert "reset" in second.reason
    assert inventory.offers(3.0)[0].may_return
    assert not inventory.offers(300.0)[0].may_return


def test_a_missing_beat_is_looked_into_once_where_a_probe_can_say_something() -> None:
    inventory = living(A, B)
    inventory.probed(A, 0.0, reachable=True)
    watch(inventory, 2.0)
    assert inventory.take_missed() == []
    inventory.tick(2.6)
    assert inventory.take_missed() == [A], "B never answered a probe: a failed one would say nothing"
    inventory.tick(3.0)
    assert inventory.take_missed() == []
    inventory.beat(A, 3.1, beat(), 2.0)
    watch_until = 3.1
    while watch_until < 6.2:
        inventory.tick(watch_until)
        watch_until += 0.5
    assert inventory.take_missed() == [A], "a new silence, a new look"


def test_an_ended_stream_is_looked_into_at_once_and_is_a_loss_where_the_look_fails() -> None:
    inventory = living(A, B, C)
    for known in (A, C):
        inventory.probed(known, 0.0, reachable=True)
    inventory.probed(C, 0.1, reachable=False)
    for node_id in (A, B, C):
        inventory.detached(node_id, 0.2, "reset")
        assert state(inventory, 0.3) == SUSPECT, "what was found before says nothing"
    assert inventory.take_missed() == [A, C]
    for node_id in (A, B):
        inventory.probed(node_id, 0.4, reachable=False)
    inventory.probed(C, 0.4, reachable=True)
    assert state(inventory, 0.4) == OFFLINE
    assert "reset; and it does not answer" in inventory.judgement(A).reason
    assert inventory.judgement(B).state == SUSPECT, "it never answered, so that a failed look says nothing"
    assert inventory.judgement(C).state == SUSPECT, "it may come back"
    inventory.attached(A, 0.5)
    inventory.beat(A, 0.5, beat(), 2.0)
    assert state(inventory, 0.5) == ACTIVE


def test_silence_and_a_failed_probe_are_a_loss_before_the_third_beat() -> None:
    inventory = living(A, B)
    inventory.probed(A, 0.0, reachable=True)
    watch(inventory, 4.0)
    inventory.probed(A, 4.4, reachable=False)
    inventory.probed(B, 4.4, reachable=False)
    assert state(inventory, 4.4) == SUSPECT
    assert state(inventory, 4.5) == OFFLINE
    assert "does not answer" in inventory.judgement(A).reason
    assert inventory.judgement(B).state == SUSPECT, "it was never reachable from here"
    assert state(inventory, 6.0, B) == OFFLINE


def test_several_neighbours_and_two_missing_beats_are_a_loss() -> None:
    inventory = living(A, B, C)
    watch(inventory, 1.0)
    for name in (B, C):
        inventory.beat(name, 1.5, beat(), 2.0)
    assert state(inventory, 1.6) == ACTIVE
    for name in (B, C):
        inventory.beat(name, 2.2, beat(accuses=A), 2.0)
    assert state(inventory, 2.3) == SUSPECT, "at once: a beat is missing, and others see it too"
    inventory.tick(3.2)
    assert state(inventory, 3.9) == SUSPECT
    assert state(inventory, 4.0) == OFFLINE
    assert f"{B[:8]} and {C[:8]}" in inventory.judgement(A).reason


def test_one_neighbour_alone_cannot_hasten_a_loss() -> None:
    inventory = living(A, B)
    watch(inventory, 2.0)
    inventory.beat(B, 2.2, beat(accuses=A), 2.0)
    watch_until = 2.2
    while watch_until < 5.9:
        assert state(inventory, watch_until) in (ACTIVE, SUSPECT)
        watch_until += 0.5


def test_a_stream_that_breaks_after_a_long_silence_gains_nothing() -> None:
    inventory = living(A)
    watch(inventory, 5.0)
    inventory.detached(A, 5.9, "keepalive")
    assert state(inventory, 5.95) == SUSPECT
    assert state(inventory, 6.0) == OFFLINE


def test_a_beat_costs_the_same_however_many_nodes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judgements are counted: a node is looked at when something may have changed, not with every beat of others."""
    looks = [0]
    real = inventory_module.judge

    def counted(record: inventory_module.NodeRecord, now: float) -> inventory_module.Judgement:
        looks[0] += 1
        return real(record, now)

    monkeypatch.setattr(inventory_module, "judge", counted)
    names = [f"{index:040x}" for index in range(500)]
    inventory = living(*names)
    looks[0] = 0
    for step in range(1, 81):  # 20 s in steps of a quarter of a second; each node beats every two seconds
        now = step * 0.25
        for name in names[step % 8 :: 8]:
            inventory.beat(name, now, beat(), 2.0)
        assert inventory.tick(now) == []
    num_beats = 80 * len(names) // 8
    assert looks[0] <= 2 * num_beats
    inventory.check()
    assert inventory.num_attached() == len(names)


def test_losses_without_a_word_are_remembered_and_polite_leaving_is_not() -> None:
    inventory = living(A, B)
    inventory.beat(B, 1.0, beat(draining=True), 2.0)
    inventory.tick(1.0)
    inventory.detached(A, 1.5, "reset")
    inventory.detached(B, 1.5, "done")
    watch_until = 1.5
    while watch_until < 4.0:
        inventory.tick(watch_until)
        watch_until += 0.5
    assert [(offer.node_id, offer.num_losses) for offer in inventory.offers(4.0)] == [(A, 1), (B, 0)]
    assert [offer.num_losses for offer in inventory.offers(4000.0)] == [0, 0]


def test_subnets_count_on_the_open_internet_only() -> None:
    inventory = living(A, B)
    inventory.advertised(membership_pb2.Advert(node_id=A, control_addresses=["203.0.114.7:7700"]), 0.0)
    inventory.advertised(membership_pb2.Advert(node_id=B, control_addresses=["192.168.1.7:7700"]), 0.0)
    assert [offer.subnet for offer in inventory.offers(0.0)] == ["203.0.114.0/24", ""]


def test_who_said_that_it_leaves_left_politely_however_its_silence_shows() -> None:
    inventory = living(A)
    watch(inventory, 1.0)
    inventory.beat(A, 1.0, beat(draining=True), 2.0)
    assert state(inventory, 1.5) == DRAINING
    for now in range(2, 12):
        inventory.tick(float(now))
    assert inventory.judgement(A).state == OFFLINE
    assert "politely" in inventory.judgement(A).reason


def test_what_a_lost_node_hosted_is_awaited_until_it_takes_work_again_or_stays_away() -> None:
    inventory = Inventory()
    inventory.attached(A, 0.0)
    working = beat()
    working.replicas.add(replica="v1.7", vnode="v1", state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE)
    working.replicas.add(replica="v2.8", vnode="v2", state=orchestrator_pb2.ASSIGNMENT_STATE_RELEASED)
    inventory.beat(A, 0.0, working, 2.0)

    def awaited(now: float) -> frozenset[str]:
        inventory.tick(now)
        return inventory.offers(now)[0].awaited

    assert awaited(0.5) == frozenset()
    inventory.detached(A, 1.0, "reset")
    assert awaited(2.0) == {"v1"}
    inventory.attached(A, 4.0)
    inventory.beat(A, 4.0, beat(alive=False), 2.0)
    assert awaited(5.5) == {"v1"}, "its daemon is there, its worker is not: nothing can be placed there yet"
    assert inventory.offers(5.5)[0].may_return
    assert inventory.offers(5.5)[0].num_losses == 1, "a worker that is still to come is not lost again"
    inventory.beat(A, 6.0, beat(), 2.0)
    assert awaited(6.0) == frozenset()
    inventory.detached(A, 7.0, "reset")
    inventory.tick(8.0)
    assert awaited(8.0 + lending.AWAITED_S) == frozenset(), "whoever stays away is not waited for"


def test_who_leaves_politely_is_not_awaited() -> None:
    inventory = living(A)
    inventory.beat(A, 1.0, beat(draining=True), 2.0)
    inventory.tick(1.0)
    inventory.detached(A, 2.0, "it said goodbye")
    inventory.tick(9.0)
    assert inventory.offers(9.0)[0].awaited == frozenset()


def test_a_pnode_whose_worker_tells_no_address_is_relayed() -> None:
    inventory, key = Inventory(), NodeKey.generate()

    def advertised(*addresses: str) -> bool:
        delegation = make_delegation(key, "a" * 40, NodeKey.generate().public_der, 1, addresses, 0.0)
        inventory.advertised(membership_pb2.Advert(node_id=A, control_addresses=["9.9.9.9:7700"], delegation=delegation), 0.0)
        return inventory.nodes()[A].is_relayed

    assert [advertised("9.9.9.9:7701"), advertised(), advertised("9.9.9.9:7701")] == [False, True, False]
    broken = identity_pb2.Envelope(payload=b"\xff")
    inventory.advertised(membership_pb2.Advert(node_id=A, delegation=broken), 1.0)
    assert not inventory.nodes()[A].is_relayed, "what cannot be read says nothing"


def test_a_pnode_that_tells_no_address_counts_in_the_subnet_from_which_its_stream_comes() -> None:
    inventory = Inventory()
    hidden = membership_pb2.Advert(node_id=A)
    inventory.advertised(hidden, 0.0)
    assert inventory.nodes()[A].subnet == "", "nobody has seen it"
    inventory.attached(A, 0.0, "8.8.4.4:5000")
    assert inventory.nodes()[A].subnet == "8.8.4.0/24"
    inventory.advertised(hidden, 1.0)
    assert inventory.nodes()[A].subnet == "8.8.4.0/24", "its next advert does not undo that"


def test_a_pnode_counts_in_the_subnet_from_which_its_stream_comes_whatever_it_claims() -> None:
    """Keys on one machine are in one subnet, also where each tells another address or a name of its own first."""
    inventory, claims = Inventory(), (["x1.example:7700"], ["x2.example:7700", "8.8.4.4:7700"], ["9.9.9.9:7700"])
    for number, claimed in enumerate(claims):
        advert = membership_pb2.Advert(node_id=f"{number:040x}", control_addresses=claimed)
        inventory.advertised(advert, 0.0)
        inventory.attached(advert.node_id, 0.0, ("8.8.4.4:5000", "[::ffff:8.8.4.5]:5000", "8.8.4.6:5000")[number])
        inventory.beat(advert.node_id, 0.0, beat(), 2.0)
        inventory.advertised(advert, 1.0)
    assert {offer.subnet for offer in inventory.offers(1.0)} == {"8.8.4.0/24"}


def test_what_a_pnode_claims_counts_where_nothing_else_is_known_and_a_name_says_nothing() -> None:
    inventory = Inventory()
    for node_id, claimed in ((A, "9.9.9.9:7700"), (B, "node.example:7700")):
        inventory.advertised(membership_pb2.Advert(node_id=node_id, control_addresses=[claimed]), 0.0)
        inventory.attached(node_id, 0.0, "192.168.1.7:5000")
    assert [inventory.nodes()[node_id].subnet for node_id in (A, B)] == ["9.9.9.0/24", ""]
