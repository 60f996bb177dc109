"""Goal: what nodes say of their uplinks moves nothing. A plan gets at most a standby where checkpoints leave too slowly, and that one stays."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planner_rig import MIB, NODES, POLICY, STAGES, STANDBY, node, of, request, stage

from dcnr.v1 import model_pb2
from orchestrator.costs import StageCost
from orchestrator.offers import NodeOffer
from orchestrator.planner import Planner, make_plan, same_placement

UPLINKS = st.lists(st.sampled_from([0.0, 0.1, 0.4, 0.5, 5.0, 900.0]), min_size=10, max_size=10)
"""A state of 4 MiB takes longer than may be lost over a quarter of the second and the third, and just not of the fourth."""
SINCE_S = 6.0
AT_REST = 8


def told(nodes: list[NodeOffer], uplinks: list[float]) -> list[NodeOffer]:
    return [replace(one, uplink_mbit=mbit) for one, mbit in zip(nodes, uplinks, strict=False)]


def at_rest(stages: list[StageCost], nodes: list[NodeOffer], plan: model_pb2.Plan) -> model_pb2.Plan:
    """The plan that nothing but news of a node would change."""
    for _ in range(AT_REST):
        after = make_plan(request(stages, nodes, plan, since_s=SINCE_S), POLICY)
        if same_placement(plan, after):
            return plan
        plan = after
    assume(False)
    raise AssertionError


@given(STAGES, NODES, st.lists(UPLINKS, min_size=2, max_size=4))
@settings(max_examples=150)
def test_uplinks_that_change_add_standbys_and_move_nothing(
    stages: list[StageCost], nodes: list[NodeOffer], histories: list[list[float]]
) -> None:
    """What follows from a standby follows once: it takes room, and a replica that is added by choice may find its place elsewhere."""
    first = told(nodes, histories[0])
    plan = at_rest(stages, first, make_plan(request(stages, first), POLICY))
    for uplinks in histories[1:]:
        later = told(nodes, uplinks)
        after = make_plan(request(stages, later, plan, since_s=SINCE_S), POLICY)
        before = {item.replica: (item.pnode_id, item.role, item.hands_over_to) for item in plan.assignments}
        assert (
            before.items() <= {item.replica: (item.pnode_id, item.role, item.hands_over_to) for item in after.assignments}.items()
        )
        standbys = [item for item in after.assignments if item.replica not in before and item.role == STANDBY]
        assert standbys or same_placement(plan, after)
        for one in standbys:
            assert "of work may be lost" in one.reason
            assert sum(item.vnode == one.vnode for item in plan.assignments) == 1, "a second copy is enough"
        plan = at_rest(stages, later, after)


def test_what_follows_from_a_standby_follows_in_a_plan_of_its_own() -> None:
    """One that takes the place which a contributor would have gone to makes another one worth a move."""
    given = (1, 22.5, 516), (4, 21.4, 57), (2, 11.2, 285), (0, 28.5, 192), (3, 50.0, 472), (0, 33.5, 734)
    stages = [stage(index, replicas, gflop, memory_mib) for index, (replicas, gflop, memory_mib) in enumerate(given)]
    lent = (
        (0.5, 704, "y", 4),
        (449.93, 767, "", 0),
        (0.5, 785, "", 4),
        (429.07, 2070, "y", 0),
        (160.34, 896, "y", 3),
        (467.03, 1187, "", 5),
        (1.9, 2400, "x", 3),
    )
    nodes = [
        node(index, gflops, memory_mib, owner=owner, num_losses=num_losses) for index, (gflops, memory_mib, owner, num_losses) in enumerate(lent)
    ]  # fmt: skip
    plan = at_rest(stages, nodes, make_plan(request(stages, nodes), POLICY))
    slow = [replace(one, uplink_mbit=0.1) for one in nodes]
    first = make_plan(request(stages, slow, plan, since_s=SINCE_S), POLICY)
    second = make_plan(request(stages, slow, first, since_s=SINCE_S), POLICY)
    before, then, later = ({item.replica: item.pnode_id for item in one.assignments} for one in (plan, first, second))
    assert before.items() < then.items()
    assert {item.role for item in first.assignments if item.replica not in before} == {STANDBY}
    assert not then.items() <= later.items()


def test_an_uplink_that_comes_and_goes_makes_no_second_plan() -> None:
    """As measured, rounded, once an hour; also where no node has room for the standby, and only the sentence comes and goes."""
    heavy = replace(stage(0), state_bytes=400 * MIB)
    for others in ([node(1)], []):
        planner = Planner(POLICY)
        made = planner.make(request([heavy], [node(0, gflops=100.0, uplink_mbit=8.0), *others]))
        said = [row.reason for row in (*made.plan.assignments, *made.plan.rejections) if "of work may be lost" in row.reason]
        assert len(of(made.plan, "v0", STANDBY)) == len(others)
        assert len(said) == 1
        planner.named("p")
        for uplink_mbit in (8.1, 0.0, 900.0, 7.0):
            nodes = [node(0, gflops=100.0, uplink_mbit=uplink_mbit), *others]
            assert planner.make(request([heavy], nodes, made.plan, since_s=SINCE_S)).stays
