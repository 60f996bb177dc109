"""A node's state follows from streams, beats, evidence and probes, in the times that the protocol promises."""

from __future__ import annotations

from dcnr.v1 import membership_pb2, orchestrator_pb2
from orchestrator.inventory import Inventory

A, B = "a" * 40, "b" * 40
ACTIVE = orchestrator_pb2.NODE_STATE_ACTIVE
SUSPECT = orchestrator_pb2.NODE_STATE_SUSPECT
OFFLINE = orchestrator_pb2.NODE_STATE_OFFLINE
DRAINING = orchestrator_pb2.NODE_STATE_DRAINING


def beat(*, alive: bool = True, draining: bool = False, accuses: str = "") -> orchestrator_pb2.Beat:
    message = orchestrator_pb2.Beat(
        worker_alive=alive, draining=draining, capability=membership_pb2.Capability(accepts_work=True, gflops=5)
    )
    if accuses:
        message.evidence.add(pnode_id=accuses, broken=True)
    return message


def living(*names: str) -> Inventory:
    inventory = Inventory()
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


def test_a_second_stream_keeps_the_node() -> None:
    inventory = living(A)
    inventory.attached(A, 1.0)
    inventory.detached(A, 1.1, "the old one ended")
    assert state(inventory, 2.5) == ACTIVE


def test_a_dead_worker_is_a_loss_by_its_daemons_word() -> None:
    inventory = living(A)
    inventory.beat(A, 1.0, beat(alive=False), 2.0)
    assert state(inventory, 1.5) == SUSPECT
    assert state(inventory, 2.1) == OFFLINE
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
    watch(inventory, 2.1)
    assert inventory.beat(B, 2.1, beat(accuses=A), 2.0) == [A]
    assert state(inventory, 2.2) == SUSPECT
    inventory.probed(A, 2.4, reachable=False)
    assert state(inventory, 2.5) == OFFLINE
    assert "nor this orchestrator" in inventory.judgement(A).reason


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
