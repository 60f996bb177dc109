"""Goal: a move is told to its replica alone, and counts as done only when the manifest names everything that the replica says it learned."""

from __future__ import annotations

import pytest

from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.desired import desired_states
from orchestrator.inventory import Inventory
from orchestrator.jobs import intervals_message
from orchestrator.planning import handed_over
from orchestrator.view import ModelView

PNODE, JOB = "a" * 40, "j"
RELEASED, RELEASING = orchestrator_pb2.ASSIGNMENT_STATE_RELEASED, orchestrator_pb2.ASSIGNMENT_STATE_RELEASING
ACTIVE = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE


def plan() -> model_pb2.Plan:
    found = model_pb2.Plan(job_id=JOB, number=2, epoch=1)
    found.assignments.add(
        replica="v1.7",
        vnode="v1",
        pnode_id=PNODE,
        role=model_pb2.ROLE_PRIMARY,
        weight=1.0,
        hands_over_to="b" * 40,
        hand_over_s=15.0,
    )
    found.assignments.add(replica="v2.8", vnode="v2", pnode_id=PNODE, role=model_pb2.ROLE_PRIMARY, weight=1.0)
    return found


def test_only_who_moves_is_told_so() -> None:
    [state] = desired_states(plan(), "d" * 64, 7, (), "r" * 64, []).values()
    assert {item.replica: item.hand_over_s for item in state.assignments} == {"v1.7": 15.0, "v2.8": 0.0}


@pytest.mark.parametrize(
    ("state", "learned", "named", "has"),
    [(RELEASED, 5, 5, True), (RELEASED, 6, 5, False), (RELEASING, 5, 5, False), (ACTIVE, 5, 5, False), (RELEASED, 5, 0, False)],
)
def test_handed_over_is_what_the_manifest_names(
    state: orchestrator_pb2.AssignmentState.ValueType, learned: int, named: int, has: bool
) -> None:
    manifest = model_pb2.Manifest()
    manifest.entries.add(vnode="v1").working.add(vnode="v1", job_id=JOB, lineage=intervals_message(IntervalSet.span(0, named)))
    made = plan()
    view = ModelView("m", model_pb2.Head(), b"", made, b"", manifest, moving=tuple(made.assignments[:1]))
    inventory = Inventory()
    assert not handed_over(view, inventory), "nobody has heard of its PNode"
    beat = orchestrator_pb2.Beat(worker_alive=True)
    for replica in ("v1.7", "v2.8"):
        beat.replicas.add(
            replica=replica,
            vnode=replica[:2],
            state=state,
            role=model_pb2.ROLE_PRIMARY,
            lineage=intervals_message(IntervalSet.span(0, learned)),
        )
    inventory.beat(PNODE, 1.0, beat, 2.0)
    assert handed_over(view, inventory) == (frozenset({"v1.7"}) if has else frozenset())
