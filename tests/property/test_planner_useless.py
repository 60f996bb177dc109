"""Goal: a VNode leaves a node that is of no use to it where another one fits, and only then; what else that node hosts stays."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_rig import CONTRIBUTOR, NODES, POLICY, STAGES, hosted, node, of, request, stage

from dcnr.v1 import model_pb2
from orchestrator.costs import StageCost
from orchestrator.offers import NodeOffer
from orchestrator.planner import Planner, check_plan, make_plan

WHY = "v0.1 says that it works, but brings nothing"


def useless(offer: NodeOffer, *vnodes: str) -> NodeOffer:
    return replace(offer, useless=dict.fromkeys(vnodes, WHY))


def after(
    stages: list[StageCost], before: list[NodeOffer], nodes: list[NodeOffer], *, live: dict[str, int] | None = None
) -> tuple[model_pb2.Plan, model_pb2.Plan, bool]:
    """The plan of ``before`` and the one after it, which planners that go on and that begin anew make alike; whether everything stayed."""
    planner = Planner(POLICY)
    first = planner.make(request(stages, before)).plan
    planner.named("p")
    wish = request(stages, nodes, first, live=live, since_s=1.0)
    made = planner.make(wish)
    assert made.plan == make_plan(wish, POLICY)
    check_plan(made.plan, stages)
    return first, made.plan, made.stays


def test_a_vnode_leaves_a_node_that_is_of_no_use_to_it_and_others_stay() -> None:
    stages, big, idle = [stage(0), stage(1)], node(0, gflops=100.0), node(1, memory_mib=150)
    before, plan, _ = after(stages, [big], [useless(big, "v0"), idle])
    assert {item.pnode_id for item in before.assignments} == {big.node_id}
    assert {item.vnode: item.pnode_id for item in plan.assignments} == {"v0": idle.node_id, "v1": big.node_id}
    assert WHY in of(plan, "v0")[0].reason
    assert of(plan, "v1") == of(before, "v1")


def test_where_nobody_else_fits_it_stays() -> None:
    """Somebody small, or without a component, was there, and the only machine that could host it lost everything for ten minutes."""
    stages, big = [stage(0, memory_mib=600)], node(0)
    for other in (
        node(1, memory_mib=500),
        node(1, lacks="lacks component mix"),
        node(1, accepts_work=False),
        useless(node(1), "v7"),
    ):
        before, plan, stays = after(stages, [big], [useless(big, "v0"), other])
        assert stays
        assert list(plan.assignments) == list(before.assignments)


def test_a_node_that_is_of_no_use_gets_nothing_new_while_others_fit_and_what_is_lost_else() -> None:
    stages, bad = [stage(0)], useless(node(0, gflops=100.0), "v7")
    assert set(hosted(make_plan(request(stages, [bad, node(1)]), POLICY))) == {node(1).node_id}
    worse = useless(node(1, gflops=100.0), "v0")
    plan = make_plan(request(stages, [bad, worse, node(2, memory_mib=10)]), POLICY)
    assert set(hosted(plan)) == {bad.node_id}, "a job waits for nobody better"
    assert "nobody else fits" in of(plan, "v0")[0].reason


def test_a_sibling_takes_its_place() -> None:
    stages, nodes = [stage(0, replicas=2)], [node(0), node(1)]
    leader = of(make_plan(request(stages, nodes), POLICY), "v0")[0].pnode_id
    shown = [useless(one, "v0") if one.node_id == leader else one for one in nodes]
    before, plan, _ = after(stages, nodes, shown)
    assert of(plan, "v0")[0].replica == of(before, "v0", CONTRIBUTOR)[0].replica
    assert set(hosted(plan)) == set(hosted(before)) - {leader}


@given(STAGES, NODES, st.data())
@settings(max_examples=80, deadline=None)
def test_a_mark_takes_no_place_from_anybody(stages: list[StageCost], nodes: list[NodeOffer], data: st.DataObject) -> None:
    """No VNode waits that did not wait before, whoever is marked, and a node loses only what it is marked for, or what is not the only copy."""
    names = [cost.vnode for cost in stages]
    marked = [useless(one, *data.draw(st.lists(st.sampled_from(names), max_size=2, unique=True))) for one in nodes]
    before, plan, _ = after(stages, nodes, marked)
    assert set(plan.waiting) <= set(before.waiting)
    marks = {one.node_id: one.useless for one in marked}
    where = {item.vnode: item.pnode_id for item in plan.assignments if item.role == model_pb2.ROLE_PRIMARY}
    for item in before.assignments:
        if item.role == model_pb2.ROLE_PRIMARY and item.vnode not in marks[item.pnode_id]:
            assert where[item.vnode] == item.pnode_id
