"""Goal: nobody is taken for gone who beats: neither because its worker was long away, nor on a stranger's word and a look that can never succeed."""

from __future__ import annotations

from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.inventory import LOOK_AGAIN_S, PAUSE_S, Inventory
from orchestrator.silence import FORGET_S

A, B, C, D, STRANGER = ("a" * 40, "b" * 40, "c" * 40, "d" * 40, "e" * 40)
ACTIVE, SUSPECT, OFFLINE = (
    orchestrator_pb2.NODE_STATE_ACTIVE,
    orchestrator_pb2.NODE_STATE_SUSPECT,
    orchestrator_pb2.NODE_STATE_OFFLINE,
)
INTERVAL_S = 2.0


def beat(*accused: str, alive: bool = True) -> orchestrator_pb2.Beat:
    message = orchestrator_pb2.Beat(worker_alive=alive, capability=membership_pb2.Capability(accepts_work=True, gflops=5))
    for name in accused:
        message.evidence.add(pnode_id=name, broken=True)
    return message


def chain() -> Inventory:
    """A and B host replicas of one VNode, C of the one that reads it, D of one further; the stranger hosts nothing. All beat."""
    inventory, placed = Inventory(), {A: "v0", B: "v0", C: "v1", D: "v2"}
    hosted = {name: [model_pb2.Assignment(replica=f"{vnode}.{name}", vnode=vnode)] for name, vnode in placed.items()}
    inventory.planned("m", hosted, {"v0": (), "v1": ("v0",), "v2": ("v1",)})
    for name in (*placed, STRANGER):
        inventory.attached(name, 0.0)
        inventory.beat(name, 0.0, beat(), INTERVAL_S)
    inventory.tick(0.0)
    return inventory


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


def test_only_whom_a_plan_makes_a_neighbour_can_a_pnode_accuse() -> None:
    everybody = (A, B, C, D, STRANGER)
    accused = {name: chain().beat(name, 0.1, beat(*everybody), INTERVAL_S) for name in everybody}
    assert accused == {A: [B, C], B: [A, C], C: [A, B, D], D: [C], STRANGER: []}
    inventory = chain()
    inventory.probed(A, 0.1, reachable=True)
    inventory.tick(1.0)
    for name in (D, STRANGER):
        inventory.beat(name, 2.1, beat(A), INTERVAL_S)
    inventory.probed(A, 2.2, reachable=False)
    assert state(inventory, 2.3) == ACTIVE, "nobody counts as its witness"


def test_an_accused_is_looked_at_now_and_then_however_often_and_by_whomever_it_is_accused() -> None:
    inventory, looks = chain(), 0
    for number in range(100):
        for accuser in (B, C):
            looks += len(inventory.beat(accuser, number * LOOK_AGAIN_S / 50, beat(A), INTERVAL_S))
    assert looks == 2


def test_a_look_that_never_succeeded_says_nothing_whoever_accuses() -> None:
    inventory = chain()
    inventory.tick(1.0)
    inventory.beat(C, 1.9, beat(A), INTERVAL_S)
    assert not inventory.probed(A, 2.0, reachable=False), "nothing to judge anew"
    assert state(inventory, 2.01) == SUSPECT
    assert inventory.probed(A, 2.02, reachable=True)
    assert not inventory.probed(A, 2.03, reachable=True)
    assert inventory.probed(A, 2.04, reachable=False)
    assert state(inventory, 2.05) == OFFLINE, "it answered before"
