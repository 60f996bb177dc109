"""Goal: nobody is taken for gone who beats: neither because its worker was long away, nor on a stranger's word and a look that can never succeed."""

from __future__ import annotations

from dcnr.v1 import membership_pb2, orchestrator_pb2
from orchestrator.inventory import PAUSE_S, Inventory
from orchestrator.silence import FORGET_S

A, B = "a" * 40, "b" * 40
ACTIVE, OFFLINE = orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_OFFLINE
INTERVAL_S = 2.0


def beat(*, alive: bool = True, accuses: str = "") -> orchestrator_pb2.Beat:
    message = orchestrator_pb2.Beat(worker_alive=alive, capability=membership_pb2.Capability(accepts_work=True, gflops=5))
    if accuses:
        message.evidence.add(pnode_id=accuses, broken=True)
    return message


def state(inventory: Inventory, now: float) -> int:
    inventory.tick(now)
    inventory.check()
    return inventory.judgement(A).state


def test_a_pnode_whose_worker_was_away_for_hours_is_there_again_on_the_same_stream() -> None:
    inventory, now = Inventory(), 0.0
    inventory.attached(A, now)
    inventory.beat(A, now, beat(), INTERVAL_S)
    while now < FORGET_S + 60.0:
        now += PAUSE_S
        inventory.beat(A, now, beat(alive=False), INTERVAL_S)
        inventory.tick(now)
    assert state(inventory, now) == OFFLINE
    assert inventory.num_attached() == 1
    inventory.beat(A, now, beat(), INTERVAL_S)
    assert state(inventory, now) == ACTIVE
    inventory.detached(A, now, "reset")
    assert state(inventory, now + 1.5) == OFFLINE
    for _ in range(int(FORGET_S / PAUSE_S) + 2):
        now += PAUSE_S
        inventory.tick(now)
    assert A not in inventory.nodes(), "whoever has gone for so long is forgotten"
