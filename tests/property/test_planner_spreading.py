"""Goal: machines that join or come back get their part soon, and what moves for them is in proportion to what came."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_rig import ACTIVE, OFFLINE, POLICY, STAGES, down, hosted, node, of, request, stage

from orchestrator.costs import StageCost
from orchestrator.planner import make_plan, same_placement


@pytest.mark.parametrize("layout", range(12))
def test_what_a_killed_machine_helped_with_waits_for_it_and_is_given_back(layout: int) -> None:
    """Every machine is busy: a second of waiting is better than a move there and one back.

    Each VNode is on all machines but one, and each machine has all VNodes but one, so that a loss meets all others alike, however ties were broken.
    """
    nodes = [node(index, memory_mib=4000) for index in range(5)]
    stages = [replace(stage(0, 4), vnode=f"v{layout}.{index}") for index in range(5)]
    plan = make_plan(request(stages, nodes), POLICY)
    assert set(hosted(plan).values()) == {4}
    for victim in (item.node_id for item in nodes):
        lost = frozenset(item.vnode for item in plan.assignments if item.pnode_id == victim)
        away = [replace(item, awaited=lost) if item.node_id == victim else item for item in down(nodes, victim)]
        after = plan
        for _ in range(3):
            after = make_plan(request(stages, away, after, since_s=1.0), POLICY)
            assert len(after.assignments) == 16
            assert not after.waiting
            assert all(len(of(after, cost.vnode)) == 1 for cost in stages)
        assert {row.vnode for row in after.rejections if "may be back" in row.reason} == lost
        back = make_plan(request(stages, nodes, after, since_s=1.0), POLICY)
        assert set(hosted(back).values()) == {4}
        assert {item.replica for item in after.assignments} <= {item.replica for item in back.assignments}, "nobody else moves"
        for_good = make_plan(request(stages, down(nodes, victim), after, since_s=1.0), POLICY)
        assert len(for_good.assignments) == 20, "one that stays away is not waited for"


def test_an_idle_machine_takes_over_what_a_killed_one_had() -> None:
    stages, nodes = [stage(index, 4) for index in range(8)], [node(index, memory_mib=4000) for index in range(9)]
    plan = make_plan(request(stages, nodes[:8]), POLICY)
    victim = nodes[3].node_id
    vnodes = frozenset(item.vnode for item in plan.assignments if item.pnode_id == victim)
    away = [replace(item, awaited=vnodes) if item.node_id == victim else item for item in down(nodes, victim)]
    for _ in range(3):
        plan = make_plan(request(stages, away, plan, since_s=1.0), POLICY)
    assert hosted(plan)[nodes[8].node_id] >= 2


def test_machines_that_join_get_their_part_soon_and_once() -> None:
    """Four join eight that host four replicas each, a second after another plan."""
    stages, nodes = [stage(index, 4) for index in range(8)], [node(index, memory_mib=4000) for index in range(12)]
    plan = make_plan(request(stages, nodes[:8]), POLICY)
    after = make_plan(request(stages, nodes, plan, since_s=1.0), POLICY)
    taken = [hosted(after)[item.node_id] for item in nodes[8:]]
    assert set(taken) <= {1, 2}
    assert sum(taken) >= 7, "at most one VNode is left of which every busy machine has given another one already"
    moved = {item.vnode for item in after.assignments if item.replica not in {one.replica for one in plan.assignments}}
    assert len(moved) == sum(taken), "of each VNode one replica at a time"
    assert {of(after, cost.vnode)[0].replica for cost in stages} == {of(plan, cost.vnode)[0].replica for cost in stages}
    again = make_plan(request(stages, nodes, after, since_s=1.0), POLICY)
    assert same_placement(after, again)
    unready = {item.replica: 100 for item in plan.assignments if item.vnode != "v0"}
    slow = make_plan(request(stages, nodes, plan, live=unready, since_s=1.0), POLICY)
    assert {item.replica for item in slow.assignments if item.vnode == "v0"} == {
        item.replica for item in plan.assignments if item.vnode == "v0"
    }


def test_only_copies_move_to_an_idle_machine_once_things_have_settled() -> None:
    stages, nodes = [stage(0, 1), stage(1, 1)], [node(0), node(1)]
    plan = make_plan(request(stages, nodes[:1]), POLICY)
    assert same_placement(plan, make_plan(request(stages, nodes, plan, since_s=4.0), POLICY))
    moved = make_plan(request(stages, nodes, plan, since_s=6.0), POLICY)
    assert set(hosted(moved).values()) == {1}


@given(STAGES, st.integers(4, 9), st.data())
@settings(max_examples=60)
def test_a_return_moves_at_most_one_part_of_everything(stages: list[StageCost], count: int, data: st.DataObject) -> None:
    """Machines die and come back at random; after each change plans settle, and what moves of its own accord is in proportion to the returns."""
    nodes = [node(index, gflops=10.0 + index, memory_mib=6000) for index in range(count)]
    plan = make_plan(request(stages, nodes), POLICY)
    for _ in range(4):
        victim = nodes[data.draw(st.integers(0, count - 1))]
        for state in (OFFLINE, ACTIVE):
            nodes = [replace(item, state=state, reason="silent") if item.node_id == victim.node_id else item for item in nodes]
            up = {item.node_id for item in nodes if item.state == ACTIVE}
            idle = len(up - set(hosted(plan)))
            taken = 0
            for _ in range(6):
                after = make_plan(request(stages, nodes, plan, since_s=6.0), POLICY)
                now = {item.replica for item in after.assignments}
                taken += sum(item.replica not in now for item in plan.assignments if item.pnode_id in up)
                settled, plan = same_placement(plan, after), after
                if settled:
                    break
            assert settled, "the planner keeps changing its mind"
            part = -(-len(plan.assignments) // len(up))
            assert taken <= (idle + 1) * (part + 1)
