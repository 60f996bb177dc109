"""Goal: machines that join or come back get their part soon, work is even again soon after faults, and what moves is in proportion to what came or went."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_rig import ACTIVE, CONTRIBUTOR, OFFLINE, POLICY, STAGES, down, hosted, moved, node, of, request, stage, uneven

from dcnr.v1 import model_pb2
from orchestrator.costs import StageCost
from orchestrator.offers import NodeOffer
from orchestrator.planner import make_plan, same_placement

EIGHT = [stage(index, 4) for index in range(8)]
"""Four replicas each: on eight equal machines four on every one."""


def machines(count: int = 8) -> list[NodeOffer]:
    return [node(index, memory_mib=4000) for index in range(count)]


def settled(stages: list[StageCost], nodes: list[NodeOffer], plan: model_pb2.Plan, most: int = 8) -> tuple[model_pb2.Plan, int]:
    """The plan once it stays as it is, each six seconds after the one before, and how many replicas were taken from machines that are there."""
    up, taken = {item.node_id for item in nodes if item.state == ACTIVE}, 0
    for _ in range(most):
        after = make_plan(request(stages, nodes, plan, since_s=6.0), POLICY)
        now, before = {item.replica for item in after.assignments}, {item.replica for item in plan.assignments}
        left = [item for item in plan.assignments if item.replica not in now and item.pnode_id in up]
        taken += len(left)
        if left and len(now) == len(before) and {item.pnode_id for item in plan.assignments} <= up:  # nothing was lost or lacking
            assert {item.role for item in left} == {CONTRIBUTOR}, "what pauses a VNode moves for more, and later"
            assert len({item.vnode for item in left}) == len(left), "of each VNode one at a time"
            assert uneven(after) < uneven(plan)
        if same_placement(plan, after):
            return plan, taken
        plan = after
    raise AssertionError("the planner keeps changing its mind")


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
    given = {item.vnode for item in after.assignments if item.replica not in {one.replica for one in plan.assignments}}
    assert len(given) == sum(taken), "of each VNode one replica at a time"
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
    after = moved(stages, nodes, make_plan(request(stages, nodes, plan, since_s=6.0), POLICY))
    assert set(hosted(after).values()) == {1}


@given(STAGES, st.integers(4, 9), st.data())
@settings(max_examples=60)
def test_a_return_moves_at_most_one_part_of_everything(stages: list[StageCost], count: int, data: st.DataObject) -> None:
    """Machines die and come back at random; after each change plans settle, and what moves of its own accord is in proportion to the returns: no more
    replicas than one machine has on average, or, where many are small beside a few, no more work.
    """
    nodes = [node(index, gflops=10.0 + index, memory_mib=6000) for index in range(count)]
    flops = {cost.vnode: cost.step_flops for cost in stages}
    plan = make_plan(request(stages, nodes), POLICY)
    for _ in range(4):
        victim = nodes[data.draw(st.integers(0, count - 1))]
        for state in (OFFLINE, ACTIVE):
            nodes = [replace(item, state=state, reason="silent") if item.node_id == victim.node_id else item for item in nodes]
            up = {item.node_id for item in nodes if item.state == ACTIVE}
            idle = len(up - set(hosted(plan)))
            taken, work = 0, 0.0
            for _ in range(6):
                after = make_plan(request(stages, nodes, plan, since_s=6.0), POLICY)
                now, num = {item.replica for item in after.assignments}, Counter(item.vnode for item in plan.assignments)
                left = [item.vnode for item in plan.assignments if item.pnode_id in up and item.replica not in now]
                taken, work = taken + len(left), work + sum(flops[vnode] / num[vnode] for vnode in left)
                settled, plan = same_placement(plan, after), after
                if settled:
                    break
            assert settled, "the planner keeps changing its mind"
            part, is_little = -(-len(plan.assignments) // len(up)), work <= (idle + 1) * sum(flops.values()) / len(up)
            most = (idle + 1) * (part + 1)
            assert taken <= most or (is_little and taken <= 2 * most)


@pytest.mark.parametrize("victim", range(8))
def test_machines_are_even_again_when_a_lost_one_is_back_for_good(victim: int) -> None:
    """It was away for so long that others took all it had. Five replicas there and three here are a gain of a quarter: less than the hysteresis factor.

    How often it was lost decides nothing here: no VNode pauses when a contributor is lost.
    """
    nodes = machines()
    plan = make_plan(request(EIGHT, nodes), POLICY)
    assert set(hosted(plan).values()) == {4}
    plan, _ = settled(EIGHT, down(nodes, nodes[victim].node_id), plan)
    assert sum(hosted(plan).values()) == 32
    nodes[victim] = replace(nodes[victim], num_losses=4)
    at_once = make_plan(request(EIGHT, nodes, plan, since_s=1.0), POLICY)
    back, taken = settled(EIGHT, nodes, at_once)
    assert set(hosted(back).values()) == {4}
    assert taken <= 2, "nearly all moved at once, since it had nothing"
    assert {of(back, cost.vnode)[0].replica for cost in EIGHT} == {of(plan, cost.vnode)[0].replica for cost in EIGHT}
    taken_over = [item for item in back.assignments if item.replica not in {one.replica for one in at_once.assignments}]
    assert all("which has more to do" in item.reason and "instead of" in item.reason for item in taken_over)


def lost_and_back(nodes: list[NodeOffer], plan: model_pb2.Plan, victim: int, *, is_awaited: bool) -> model_pb2.Plan:
    """The plan after a machine was gone until nothing changed any more, and back until nothing does."""
    lost = frozenset(item.vnode for item in plan.assignments if item.pnode_id == nodes[victim].node_id)
    away = down(nodes, nodes[victim].node_id)
    away[victim] = replace(away[victim], awaited=lost if is_awaited else frozenset())
    plan, taken = settled(EIGHT, away, plan)
    assert taken <= len(lost)
    plan, taken = settled(EIGHT, nodes, plan)
    assert taken <= 2 + (0 if is_awaited else len(lost))
    return plan


@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=1, max_size=6))
@settings(max_examples=25)
def test_what_moves_after_a_fault_is_what_it_cost_and_two_more(faults: list[tuple[int, bool]]) -> None:
    """And two at most where the machine is back before others made up for it. Two apart are left where whoever has most has only what the other has too."""
    nodes = machines()
    plan = make_plan(request(EIGHT, nodes), POLICY)
    for victim, is_awaited in faults:
        plan = lost_and_back(nodes, plan, victim, is_awaited=is_awaited)
        assert max(hosted(plan).values()) - min(hosted(plan).values()) <= 2


@pytest.mark.parametrize("seed", range(3))
def test_after_each_of_many_faults_machines_are_even_again(seed: int) -> None:
    rng, nodes = random.Random(seed), machines()
    plan = make_plan(request(EIGHT, nodes), POLICY)
    for _ in range(8):
        plan = lost_and_back(nodes, plan, rng.randrange(8), is_awaited=rng.random() < 0.7)
        assert set(hosted(plan).values()) == {4}


def test_a_machine_that_has_its_part_takes_nothing_that_is_awaited_though_others_hold_it_up() -> None:
    """Ten machines with three or four replicas each: those with three are ahead of the pace, and would give back what they took."""
    nodes = machines(10)
    plan = make_plan(request(EIGHT, nodes), POLICY)
    victim = max(hosted(plan).items(), key=lambda item: item[1])[0]
    lost = frozenset(item.vnode for item in plan.assignments if item.pnode_id == victim)
    away = [replace(item, awaited=lost) if item.node_id == victim else item for item in down(nodes, victim)]
    after, _ = settled(EIGHT, away, plan)
    back, _ = settled(EIGHT, nodes, after)
    assert {item.replica for item in after.assignments} <= {item.replica for item in back.assignments}, "nobody else moves"


@given(st.lists(st.floats(0.87, 1.15), min_size=64, max_size=64))
@settings(max_examples=60)
def test_measurements_that_wander_move_nothing_that_is_even(wander: list[float]) -> None:
    nodes = machines()
    plan = make_plan(request(EIGHT, nodes), POLICY)
    noisy = [
        replace(item, measured={cost.vnode: 0.1 * wander[8 * index + number] for number, cost in enumerate(EIGHT)})
        for index, item in enumerate(nodes)
    ]
    after = make_plan(request(EIGHT, noisy, plan, since_s=6.0), POLICY)
    assert {item.replica for item in after.assignments} == {item.replica for item in plan.assignments}


def test_contributors_stay_while_a_replica_of_their_vnode_is_not_at_work() -> None:
    nodes = machines()
    plan = make_plan(request(EIGHT, nodes), POLICY)
    plan, _ = settled(EIGHT, down(nodes, nodes[3].node_id), plan)
    begun = make_plan(request(EIGHT, nodes, plan, live={}, since_s=6.0), POLICY)
    assert same_placement(plan, begun)
