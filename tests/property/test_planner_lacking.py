"""Goal: a node gets no part of a graph of which it cannot build everything, however fast and idle it is, and loses what it has when it comes back
without; the plan says what it lacks.
"""

from __future__ import annotations

from dataclasses import replace

from planner_rig import POLICY, hosted, moved, node, request, stage

from orchestrator.builds import able
from orchestrator.planner import Planner, make_plan

NEEDS = frozenset({"component mix", "objective distance"})
LESS = frozenset({"component linear", "objective local_ce"})
WHY = "lacks component mix, objective distance"


def test_the_planner_goes_round_who_lacks_something_and_says_why() -> None:
    stages, fast = [stage(0), stage(1)], node(0, gflops=100.0, builds=LESS)
    nodes = [fast, node(1, builds=NEEDS), node(2)]
    plan = make_plan(request(stages, list(able(nodes, NEEDS))), POLICY)
    assert set(hosted(plan)) == {node(1).node_id, node(2).node_id}, "who says nothing of what it has is tried"
    assert {row.reason for row in plan.rejections if row.pnode_id == fast.node_id} == {WHY}
    assert set(hosted(make_plan(request(stages, list(able(nodes, LESS))), POLICY))) == {fast.node_id}, "another job is none of that"


def test_a_node_that_comes_back_without_a_component_loses_what_it_had_and_gets_nothing() -> None:
    stages, planner = [stage(0), stage(1)], Planner(POLICY)
    before = [node(0, builds=NEEDS), node(1, builds=NEEDS)]
    plan = planner.make(request(stages, list(able(before, NEEDS)))).plan
    planner.named("p")
    assert set(hosted(plan)) == {one.node_id for one in before}
    after = list(able([before[0], replace(before[1], builds=LESS)], NEEDS))
    wish = request(stages, after, plan, live={})
    followed = planner.make(wish).plan
    assert followed == make_plan(wish, POLICY), "planners that go on and that begin anew agree"
    assert set(hosted(followed)) == {before[0].node_id}
    assert any(WHY in item.reason for item in followed.assignments)
    for _ in range(3):
        followed = moved(stages, after, make_plan(request(stages, after, followed), POLICY))
        assert set(hosted(followed)) == {before[0].node_id}, "an idle node is no place for what it cannot build"
