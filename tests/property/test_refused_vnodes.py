"""Goal: what a PNode refuses is remembered as long as it counts, only of what a plan gave it, and never without end, whatever names it makes up."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.inventory import Inventory
from orchestrator.lending import MAX_REFUSED, REFUSED_AFTER_S, REFUSED_FOR_S

NODE, OTHER = "a" * 40, "b" * 40
FAILED = orchestrator_pb2.ASSIGNMENT_STATE_FAILED
BEAT_S = 2.0
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(1, 40), st.booleans(), st.booleans()), min_size=1, max_size=12
)


def gives(*vnodes: str) -> dict[str, list[model_pb2.Assignment]]:
    """A plan with these VNodes on ``NODE``, and one more on another."""
    rows = [model_pb2.Assignment(replica=f"{vnode}.1", vnode=vnode, pnode_id=NODE) for vnode in vnodes]
    return {NODE: rows, OTHER: [model_pb2.Assignment(replica="other.1", vnode="other", pnode_id=OTHER)]}


def fails(inventory: Inventory, now: float, vnodes: Sequence[str]) -> None:
    """The node says that replicas of these stand as failed."""
    beat = orchestrator_pb2.Beat(worker_alive=True, capability=membership_pb2.Capability(accepts_work=True, gflops=5))
    for vnode in vnodes:
        beat.replicas.add(replica=f"{vnode}.1", vnode=vnode, state=FAILED, reason="no room")
    inventory.beat(NODE, now, beat, BEAT_S)


def refused(inventory: Inventory, now: float) -> set[str]:
    inventory.tick(now)
    inventory.check()
    return {vnode for offer in inventory.offers(now) if offer.node_id == NODE for vnode in offer.refused}


def fresh() -> Inventory:
    inventory = Inventory()
    for node_id in (NODE, OTHER):
        inventory.attached(node_id, 0.0)
    return inventory


@given(STEPS)
def test_only_what_a_plan_gave_a_node_is_refused_by_it_and_that_for_its_time(steps: list[tuple[int, int, int, bool, bool]]) -> None:
    """Against a model that remembers everything."""
    inventory, now = fresh(), 0.0
    last: dict[str, float] = {}
    for given_first, num_failed, num_beats, invents, waits in steps:
        given_now = [f"v{number}" for number in range(given_first, given_first + 4)]
        inventory.planned("m", gives(*given_now))
        names = [f"v{number}" for number in range(num_failed)]
        if invents:
            names += [f"made-up-{now:.0f}-{number}" for number in range(30)] + ["other"]
        since = now
        for _ in range(num_beats):
            fails(inventory, now, names)
            if now - since >= REFUSED_AFTER_S:
                last |= dict.fromkeys(set(names) & set(given_now), now)
                assert all(now - at < REFUSED_FOR_S for at, _ in inventory.nodes()[NODE].refused.values()) or not set(names) & set(
                    given_now
                )
            now += BEAT_S
        fails(inventory, now, [])  # what failed before has to stand as failed for its time again
        assert refused(inventory, now) == {vnode for vnode, at in last.items() if now - at < REFUSED_FOR_S}
        if waits:
            now += REFUSED_FOR_S
            assert refused(inventory, now) == set()


def test_made_up_names_are_not_kept() -> None:
    inventory, now = fresh(), 0.0
    inventory.planned("m", gives("v0"))
    for turn in range(40):
        fails(inventory, now, [f"made-up-{turn // 3}-{number}" for number in range(1000)])
        now += BEAT_S
    assert refused(inventory, now) == set()
    assert not inventory.nodes()[NODE].refused


def test_of_more_than_are_kept_those_refused_longest_ago_are_forgotten() -> None:
    inventory, now, num_vnodes = fresh(), 0.0, 2 * MAX_REFUSED
    for first in range(0, num_vnodes, 64):
        names = [f"v{number}" for number in range(first, first + 64)]
        inventory.planned("m", gives(*names))
        for _ in range(3):
            fails(inventory, now, names)
            now += BEAT_S
    assert refused(inventory, now) == {f"v{number}" for number in range(num_vnodes - MAX_REFUSED, num_vnodes)}


def test_a_refusal_of_before_stands_while_the_vnode_is_tried_again() -> None:
    inventory = fresh()
    inventory.planned("m", gives("v0", "v1"))
    for now in (0.0, 2.0, 4.0):
        fails(inventory, now, ["v0"])
    fails(inventory, 6.0, [])
    for now in (8.0, 10.0, 12.0):
        fails(inventory, now, ["v1"])
    fails(inventory, 14.0, ["v0", "v1"])
    assert refused(inventory, 14.0) == {"v0", "v1"}
