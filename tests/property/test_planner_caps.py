"""Goal: who is in probation hosts little and no only copy that others can hold, no subnet takes a plan, and who is quarantined hosts nothing from then on.

The planner looks at all nodes at once; `cap_of` says the same rules of one node, in their own words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_rig import ACTIVE, CONTRIBUTOR, node, of, request, stage

from dcnr.v1 import orchestrator_pb2
from orchestrator.offers import NodeOffer, PlanPolicy
from orchestrator.planner import Planner, make_plan
from trust.caps import IDS_PER_SUBNET, PROBATION_VNODES, Cap

PROBATION, QUARANTINED = orchestrator_pb2.NODE_STATE_PROBATION, orchestrator_pb2.NODE_STATE_QUARANTINED
SUSPECT, REHAB = orchestrator_pb2.NODE_STATE_SUSPECT, orchestrator_pb2.NODE_STATE_REHAB
CAPPED = PlanPolicy(ids_per_subnet=IDS_PER_SUBNET)


def cap_of(one: NodeOffer, num_vnodes: int, used: Iterable[NodeOffer], *, is_only_copy: bool, others_can: bool = False) -> str:
    """What stands against one more replica on a node that hosts ``num_vnodes``; empty if nothing does.

    ``used``: the nodes of the plan; one that is among them adds no name to its subnet, and those of no known subnet share one. ``others_can``: whether a node
    that is not in probation could take the replica.
    """
    if one.state not in (ACTIVE, PROBATION):
        return "its standing allows no new work"
    beside = {other.node_id for other in used if other.subnet == one.subnet and other.node_id != one.node_id}
    if len(beside) >= IDS_PER_SUBNET:
        return Cap.SUBNET.value
    if one.state == PROBATION and num_vnodes >= PROBATION_VNODES:
        return Cap.VNODES.value
    return Cap.ONLY_COPY.value if one.state == PROBATION and is_only_copy and others_can else ""


def test_probation_hosts_two_and_the_rest_waits_with_the_reason() -> None:
    nodes = [node(0, state=PROBATION)]
    plan = make_plan(request([stage(index) for index in range(3)], nodes), PlanPolicy())
    assert len(plan.assignments) == PROBATION_VNODES
    [waiting] = plan.waiting
    assert Cap.VNODES.value in {row.reason for row in plan.rejections if row.vnode == waiting}


def test_an_only_copy_goes_to_the_active_node_however_slow() -> None:
    nodes = [node(0, gflops=1000.0, state=PROBATION), node(1, gflops=1.0)]
    plan = make_plan(request([stage(0)], nodes), PlanPolicy())
    [primary] = of(plan, "v0")
    assert primary.pnode_id == nodes[1].node_id
    assert Cap.ONLY_COPY.value in {row.reason for row in plan.rejections}


def test_where_nobody_else_can_probation_holds_it_and_the_plan_says_so() -> None:
    plan = make_plan(request([stage(0)], [node(0, state=PROBATION), node(1, accepts_work=False)]), PlanPolicy())
    [primary] = of(plan, "v0")
    assert "nobody else can hold this only copy" in primary.reason


def test_a_checkpoint_counts_as_a_copy() -> None:
    nodes = [node(0, gflops=1000.0, state=PROBATION), node(1, gflops=1.0)]
    plan = make_plan(request([stage(0)], nodes, durable={"v0": 5}), PlanPolicy())
    assert of(plan, "v0")[0].pnode_id == nodes[0].node_id


def test_who_is_quarantined_hosts_nothing_and_the_contributor_goes_on() -> None:
    nodes = [node(index) for index in range(3)]
    stages = [stage(0, replicas=2)]
    before = make_plan(request(stages, nodes), PlanPolicy())
    [accused], [heir] = of(before, "v0"), of(before, "v0", CONTRIBUTOR)
    caught = [
        replace(one, state=QUARANTINED, reason="interval failed") if one.node_id == accused.pnode_id else one for one in nodes
    ]
    after = make_plan(request(stages, caught, before, live={heir.replica: 100}), PlanPolicy())
    assert accused.pnode_id not in {item.pnode_id for item in after.assignments}
    [primary] = of(after, "v0")
    assert primary.replica == heir.replica
    assert "interval failed" in primary.reason


NODES = st.lists(
    st.tuples(
        st.sampled_from((ACTIVE, ACTIVE, PROBATION, PROBATION, QUARANTINED, SUSPECT, REHAB)), st.sampled_from(("", "s1", "s2", "s3")),
        st.floats(1.0, 100.0),
    ),
    min_size=1, max_size=8,
)  # fmt: skip
SIZES = st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 10.0)), min_size=1, max_size=5)
LONELY = st.lists(st.tuples(st.integers(0, 1), st.floats(0.1, 10.0)), min_size=1, max_size=5)
"""Without contributors that could leave a node again after an only copy was placed; so few that every node has memory for all."""


def offers(rows: list[tuple[int, str, float]]) -> list[NodeOffer]:
    """Nodes with states and subnets."""
    return [node(index, gflops, state=state, subnet=subnet) for index, (state, subnet, gflops) in enumerate(rows)]


@given(rows=NODES, sizes=SIZES, changed=NODES)
@settings(max_examples=60)
def test_plans_keep_the_caps_and_a_plan_that_follows_is_a_new_one(
    rows: list[tuple[int, str, float]], sizes: list[tuple[int, float]], changed: list[tuple[int, str, float]]
) -> None:
    nodes, stages = offers(rows), [stage(index, replicas, gflop) for index, (replicas, gflop) in enumerate(sizes)]
    planner = Planner(CAPPED)
    first = planner.make(request(stages, nodes))
    by_id = {one.node_id: one for one in nodes}
    hosted = Counter(item.pnode_id for item in first.plan.assignments)
    for name, count in hosted.items():
        used = [by_id[other] for other in hosted]
        assert cap_of(by_id[name], count - 1, used, is_only_copy=False) == "", "each would be placed again where it is"
    planner.named("p")
    second = request(stages, offers(changed), first.plan)
    assert planner.make(second).plan == Planner(CAPPED).make(second).plan


@given(rows=NODES, sizes=LONELY)
@settings(max_examples=60)
def test_an_only_copy_is_in_probation_only_where_no_other_node_could_take_it(
    rows: list[tuple[int, str, float]], sizes: list[tuple[int, float]]
) -> None:
    nodes = offers(rows)
    plan = make_plan(request([stage(index, replicas, gflop) for index, (replicas, gflop) in enumerate(sizes)], nodes), CAPPED)
    by_id, hosted = {one.node_id: one for one in nodes}, Counter(item.pnode_id for item in plan.assignments)
    used, num_copies = [by_id[name] for name in hosted], Counter(item.vnode for item in plan.assignments)
    others_can = any(one.state == ACTIVE and cap_of(one, hosted[one.node_id], used, is_only_copy=True) == "" for one in nodes)
    for item in plan.assignments:
        is_only_copy = num_copies[item.vnode] == 1
        cap = cap_of(by_id[item.pnode_id], hosted[item.pnode_id] - 1, used, is_only_copy=is_only_copy, others_can=others_can)
        assert cap == "", f"{item.vnode} on {item.pnode_id[-1]}: {cap}"
