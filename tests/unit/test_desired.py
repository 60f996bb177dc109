"""Goal: each replica is told its siblings with roles and weights, and only neighbours that learn; what a new plan changes is told replica by replica."""

from __future__ import annotations

from dcnr.v1 import model_pb2
from orchestrator.costs import StageCost
from orchestrator.desired import desired_states
from orchestrator.planning import plan_changes, plan_reason

PRIMARY, CONTRIBUTOR, STANDBY = model_pb2.ROLE_PRIMARY, model_pb2.ROLE_CONTRIBUTOR, model_pb2.ROLE_STANDBY
COSTS = (
    StageCost("a", (), (), True, 2, 1.0, 1, 1, 1),
    StageCost("b", ("a",), (), False, 1, 1.0, 1, 1, 1),
)


def plan(*rows: tuple[str, str, int, float], number: int = 1) -> model_pb2.Plan:
    found = model_pb2.Plan(job_id="j", number=number, epoch=1)
    for replica, pnode, role, weight in rows:
        vnode = replica.partition(".")[0]
        found.assignments.add(replica=replica, vnode=vnode, pnode_id=pnode, role=role, weight=weight, reason=f"why {replica}")  # type: ignore[arg-type]
    return found


FIRST = plan(("a.1", "x", PRIMARY, 3.0), ("a.2", "y", CONTRIBUTOR, 1.0), ("b.3", "z", PRIMARY, 1.0), ("b.4", "x", STANDBY, 0.0))


def test_siblings_and_neighbours_have_roles_and_weights() -> None:
    told = desired_states(FIRST, "d" * 64, 7, COSTS, "r" * 64, ["w"])
    assert set(told) == {"w", "x", "y", "z"}
    assert not told["w"].assignments
    [contributor] = told["y"].assignments
    assert contributor.role == CONTRIBUTOR
    siblings = [(item.replica, item.pnode_id, item.role, item.weight) for item in contributor.siblings]
    assert siblings == [("a.1", "x", PRIMARY, 3.0), ("a.2", "y", CONTRIBUTOR, 1.0)]
    assert [item.replica for item in contributor.successors] == ["b.3"], "a standby has no floor that anybody waits for"
    [reader] = told["z"].assignments
    assert [(item.replica, item.weight) for item in reader.predecessors] == [("a.1", 3.0), ("a.2", 1.0)]
    standby = next(item for item in told["x"].assignments if item.replica == "b.4")
    assert [item.replica for item in standby.predecessors] == ["a.1", "a.2"], "it will need them when it is promoted"


def test_changes_are_told_by_replica_with_reason() -> None:
    after = plan(("a.2", "y", PRIMARY, 1.0), ("b.5", "w", PRIMARY, 1.0), ("b.4", "x", STANDBY, 0.0), number=2)
    after.rejections.add(vnode="a", pnode_id="x", reason="offline: silent")
    changes = {change.replica: change for change in plan_changes(FIRST, after)}
    assert {name: change.kind for name, change in changes.items()} == {
        "a.2": "replica_promoted", "b.5": "replica_relocated", "a.1": "replica_released"
    }  # fmt: skip
    assert changes["b.5"].facts["from_pnode"] == "z"
    assert changes["a.1"].reason == "offline: silent"
    assert all(change.reason for change in changes.values())
    assert plan_reason(FIRST, after).startswith("a: why a.2; b: why b.5")
    assert {change.kind for change in plan_changes(None, FIRST)} == {"replica_placed"}
    assert plan_changes(FIRST, FIRST) == []
