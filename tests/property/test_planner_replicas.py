"""Goal: plans with replicas keep apart what belongs apart, change little, and lose nothing that lives: whatever nodes there are and whatever fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from planner_rig import (
    ACTIVE,
    CONTRIBUTOR,
    MIB,
    NODES,
    OFFLINE,
    POLICY,
    PRIMARY,
    STAGES,
    STANDBY,
    down,
    hosted,
    moved,
    node,
    of,
    request,
    stage,
    uneven,
)

from dcnr.ids import number_of
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator import placement
from orchestrator.board import Board
from orchestrator.costs import StageCost, disk_bytes, spool_bytes
from orchestrator.loads import Load
from orchestrator.obstacles import Obstacle, needed_bytes
from orchestrator.offers import NodeOffer, PlanRequest
from orchestrator.planner import Planner, make_plan, same_placement, seconds_per_batch


def check(plan: model_pb2.Plan, asked: PlanRequest) -> None:
    costs = {cost.vnode: cost for cost in asked.stages}
    crowd = Counter(item.vnode for item in plan.assignments)
    for offer in asked.nodes:
        hosted = [item for item in plan.assignments if item.pnode_id == offer.node_id]
        assert len({item.vnode for item in hosted}) == len(hosted), "two replicas of a VNode on one node"
        assert not hosted or offer.state == ACTIVE or {item.vnode for item in hosted} <= set(plan.waiting)
        if offer.state == ACTIVE:
            for item in hosted:
                sharing = costs[item.vnode].sharing_bytes if crowd[item.vnode] > 1 else 0
                assert item.memory_bytes == costs[item.vnode].memory_bytes + sharing
            assert sum(item.memory_bytes for item in hosted) <= offer.memory_bytes
            assert sum(disk_bytes(costs[item.vnode], spool_bytes(offer.disk_bytes)) for item in hosted) <= offer.disk_bytes
    for cost in asked.stages:
        assert len(of(plan, cost.vnode)) == 1 or cost.vnode in plan.waiting
        working = len(of(plan, cost.vnode)) + len(of(plan, cost.vnode, CONTRIBUTOR))
        assert working <= (cost.wanted_replicas or POLICY.max_chosen_replicas)
        short = [row for row in plan.rejections if row.vnode == cost.vnode and row.reason]
        assert working >= cost.wanted_replicas or short, "a replica is lacking, and nobody says why"
        assert len(short) <= placement.MAX_REJECTIONS_PER_VNODE + 1
    assert all(item.reason for item in plan.assignments)
    assert all((item.weight > 0) == (item.role != STANDBY) for item in plan.assignments)


@given(STAGES, NODES, NODES)
@settings(max_examples=200)
def test_any_two_plans_keep_the_rules(stages: list[StageCost], first: list[NodeOffer], second: list[NodeOffer]) -> None:
    asked = request(stages, first)
    plan = make_plan(asked, POLICY)
    check(plan, asked)
    assert make_plan(replace(asked, nodes=tuple(reversed(first))), POLICY) == plan
    later = request(stages, second, plan)
    successor = make_plan(later, POLICY)
    check(successor, later)
    numbers = {item.replica: item.pnode_id for item in plan.assignments}
    for item in successor.assignments:  # a replica number never names two places
        assert numbers.get(item.replica, item.pnode_id) == item.pnode_id


@given(STAGES, NODES)
@example(
    [stage(0, 0, 3.0, 2), stage(1, 0, 4.0, 1)], [*(node(index, 1.0, 1) for index in range(5)), node(5, 6.0, 1), node(6, 7.0, 3)]
)
@settings(max_examples=150)
def test_without_a_fault_plans_settle_and_every_change_is_worth_it(stages: list[StageCost], nodes: list[NodeOffer]) -> None:
    plan = make_plan(request(stages, nodes), POLICY)
    for _ in range(4 * len(stages) + 4):
        successor = make_plan(request(stages, nodes, plan), POLICY)
        if same_placement(plan, successor):
            return
        owed = any(cost.wanted_replicas > len(of(plan, cost.vnode)) + len(of(plan, cost.vnode, CONTRIBUTOR)) for cost in stages)
        successor = moved(stages, nodes, successor)  # what is announced is worth it once it has handed over
        left = [item for item in plan.assignments if item.replica not in {one.replica for one in successor.assignments}]
        evened = left and all(item.role == CONTRIBUTOR for item in left) and uneven(successor) < uneven(plan)
        assert owed or plan.waiting or evened or seconds_per_batch(plan) > POLICY.min_gain * seconds_per_batch(successor)
        plan = successor
    raise AssertionError("the planner keeps changing its mind")


@given(STAGES, st.integers(4, 10), st.data())
@settings(max_examples=100)
def test_a_fault_places_at_most_what_it_cost_and_one_more(stages: list[StageCost], count: int, data: st.DataObject) -> None:
    """Over a random history of nodes that die and come back, no plan places more than was lost, was lacking before, one, and an idle node's part."""
    nodes = [node(index, gflops=10.0 + index, memory_mib=4000) for index in range(count)]
    plan = make_plan(request(stages, nodes), POLICY)
    for _ in range(8):
        victim = nodes[data.draw(st.integers(0, count - 1))]
        state = OFFLINE if victim.state == ACTIVE and sum(item.state == ACTIVE for item in nodes) > 2 else ACTIVE
        nodes = [replace(item, state=state, reason="silent") if item.node_id == victim.node_id else item for item in nodes]
        up = {item.node_id for item in nodes if item.state == ACTIVE}
        lost = sum(item.pnode_id not in up for item in plan.assignments)
        lacking = sum(
            max(0, cost.wanted_replicas - len(of(plan, cost.vnode)) - len(of(plan, cost.vnode, CONTRIBUTOR))) for cost in stages
        )
        parts = len(up - set(hosted(plan))) * -(-len(plan.assignments) // len(up))
        asked = request(stages, nodes, plan, since_s=1.0)
        after = make_plan(asked, POLICY)
        check(after, asked)
        before = {item.replica for item in plan.assignments}
        placed = sum(item.replica not in before for item in after.assignments)
        assert placed <= lost + lacking + len(plan.waiting) + 1 + parts
        taken = sum(
            item.replica not in {one.replica for one in after.assignments} for item in plan.assignments if item.pnode_id in up
        )
        assert taken <= max(1, lost) + parts
        plan = after


def test_a_lost_primary_is_followed_by_the_replica_that_holds_most() -> None:
    stages, nodes = [stage(0, 3)], [node(index) for index in range(5)]
    plan = make_plan(request(stages, nodes), POLICY)
    [primary], (first, second) = of(plan, "v0"), of(plan, "v0", CONTRIBUTOR)
    live = {first.replica: 40, second.replica: 55}
    after = make_plan(request(stages, down(nodes, primary.pnode_id), plan, live=live, durable={"v0": 50}), POLICY)
    [led] = of(after, "v0")
    assert (led.replica, led.pnode_id) == (second.replica, second.pnode_id)
    assert "promoted" in led.reason
    assert "silent" in led.reason
    assert [item.replica for item in of(after, "v0", CONTRIBUTOR)] == [first.replica], (
        "nobody else moves, and nobody joins in the same breath"
    )
    filled = make_plan(request(stages, down(nodes, primary.pnode_id), after, live={**live, first.replica: 60}), POLICY)
    assert len(of(filled, "v0", CONTRIBUTOR)) == 2
    assert of(filled, "v0")[0].replica == second.replica


def test_a_newer_checkpoint_is_better_than_an_older_replica() -> None:
    stages, nodes = [stage(0, 2)], [node(index) for index in range(3)]
    plan = make_plan(request(stages, nodes), POLICY)
    [primary], [helper] = of(plan, "v0"), of(plan, "v0", CONTRIBUTOR)
    asked = request(stages, down(nodes, primary.pnode_id), plan, live={helper.replica: 40}, durable={"v0": 50})
    [led] = of(make_plan(asked, POLICY), "v0")
    assert led.replica not in {primary.replica, helper.replica}
    assert led.pnode_id not in {primary.pnode_id, helper.pnode_id}
    alone = replace(asked, nodes=tuple(item for item in asked.nodes if item.node_id == helper.pnode_id))
    plan = make_plan(alone, POLICY)
    [led] = of(plan, "v0")
    assert led.pnode_id == helper.pnode_id
    assert led.replica != helper.replica, "the primary restores; it is not the contributor under another name"
    assert not of(plan, "v0", CONTRIBUTOR)


def test_a_lost_contributor_costs_nobody_else_anything() -> None:
    stages, nodes = [stage(0, 3), stage(1)], [node(index) for index in range(6)]
    plan = make_plan(request(stages, nodes), POLICY)
    gone = of(plan, "v0", CONTRIBUTOR)[0]
    after = make_plan(request(stages, down(nodes, gone.pnode_id), plan), POLICY)
    before = {item.replica: item for item in plan.assignments}
    fresh = [item for item in after.assignments if item.replica not in before]
    assert [(item.vnode, item.role) for item in fresh] == [("v0", CONTRIBUTOR)]
    assert {item.replica for item in after.assignments if item.replica in before} == set(before) - {gone.replica}


def test_weights_follow_speed_and_stay_where_nothing_changed() -> None:
    stages, nodes = [stage(0, 2)], [node(0, gflops=30), node(1, gflops=10)]
    plan = make_plan(request(stages, nodes), POLICY)
    weights = {item.pnode_id: item.weight for item in plan.assignments}
    assert abs(weights[nodes[0].node_id] / weights[nodes[1].node_id] - 3.0) < 1e-3
    assert abs(seconds_per_batch(plan) - 0.025) < 1e-6, "three quarters of a step of 1/30 s, as long as one quarter of 1/10 s"
    noisy = [replace(item, measured={"v0": 1.0 / item.gflops * wobble}) for item, wobble in zip(nodes, (1.1, 0.95), strict=True)]
    again = make_plan(request(stages, noisy, plan), POLICY)
    assert same_placement(plan, again)
    slow = [replace(nodes[0], measured={"v0": 0.2}), replace(nodes[1], measured={"v0": 0.1})]
    shifted = make_plan(request(stages, slow, plan), POLICY)
    weights = {item.pnode_id: item.weight for item in shifted.assignments}
    assert abs(weights[nodes[0].node_id] / weights[nodes[1].node_id] - 0.5) < 1e-3
    assert {item.replica for item in shifted.assignments} == {item.replica for item in plan.assignments}


def test_replicas_live_with_different_owners_and_in_different_subnets() -> None:
    nodes = [
        node(0, gflops=50, owner="a", subnet="1"), node(1, gflops=40, owner="a", subnet="2"), node(2, gflops=30, owner="b", subnet="1"),
        node(3, gflops=1, owner="c", subnet="3"),
    ]  # fmt: skip
    plan = make_plan(request([stage(0, 2)], nodes), POLICY)
    assert {item.pnode_id for item in plan.assignments} == {nodes[0].node_id, nodes[3].node_id}
    crowded = make_plan(request([stage(0, 2)], nodes[:2]), POLICY)
    assert len(crowded.assignments) == 2, "where there is no other, the same owner has to do"


def test_a_good_record_is_preferred() -> None:
    nodes = [node(0, num_losses=3), node(1), node(2, gflops=11, num_losses=1)]
    assert make_plan(request([stage(0)], nodes), POLICY).assignments[0].pnode_id == nodes[1].node_id


def test_more_replicas_than_nodes_is_said_and_stops_nothing() -> None:
    plan = make_plan(request([stage(0, 4), stage(1)], [node(0), node(1)]), POLICY)
    assert not plan.waiting
    assert len(of(plan, "v0")) == len(of(plan, "v0", CONTRIBUTOR)) == len(of(plan, "v1")) == 1
    [said] = [row.reason for row in plan.rejections if row.vnode == "v0" and not row.pnode_id]
    assert said.startswith("2 of 4 replicas wait")


def test_a_primary_without_room_to_merge_says_so() -> None:
    tight = [node(0, gflops=90, memory_mib=110), node(1, memory_mib=110)]
    plan = make_plan(request([stage(0, 2)], tight), POLICY)
    assert [item.pnode_id for item in plan.assignments] == [node(0).node_id]
    assert any("to merge" in row.reason for row in plan.rejections)
    roomy = make_plan(request([stage(0, 2)], [*tight, node(2), node(3)]), POLICY)
    assert {item.pnode_id for item in roomy.assignments} == {node(2).node_id, node(3).node_id}


def test_idle_nodes_help_the_slowest_vnode_where_the_graph_leaves_it_open() -> None:
    stages = [stage(0, 0, gflop=1), stage(1, 0, gflop=8), stage(2, 1, gflop=1)]
    plan = make_plan(request(stages, [node(index) for index in range(5)]), POLICY)
    assert len(of(plan, "v1", CONTRIBUTOR)) == 2, "v1 holds the others up; a third helper would be worth less than the hysteresis"
    assert not of(plan, "v0", CONTRIBUTOR)
    assert all("by choice" in item.reason for item in of(plan, "v1", CONTRIBUTOR))


def test_equal_stages_grow_together_or_not_at_all() -> None:
    """One helper of four slow stages gains nothing; four helpers double the rate."""
    stages = [stage(index, 0, gflop=4) for index in range(4)]
    assert len(make_plan(request(stages, [node(index) for index in range(7)]), POLICY).assignments) == 4
    assert len(make_plan(request(stages, [node(index) for index in range(8)]), POLICY).assignments) == 8


def test_a_job_that_runs_grows_onto_new_nodes_after_a_while() -> None:
    stages, nodes = [stage(0, 0, gflop=8)], [node(0)]
    plan = make_plan(request(stages, nodes), POLICY)
    more = [*nodes, node(1), node(2)]
    assert same_placement(plan, make_plan(request(stages, more, plan, since_s=4.0), POLICY))
    assert same_placement(plan, make_plan(request(stages, more, plan, live={}), POLICY)), (
        "nothing is added to a primary that does not work yet"
    )
    grown = make_plan(request(stages, more, plan), POLICY)
    assert len(of(grown, "v0", CONTRIBUTOR)) == 2
    assert of(grown, "v0")[0].replica == plan.assignments[0].replica


def test_contributors_make_room_for_a_primary_that_fits_nowhere_else() -> None:
    stages = [stage(0, 2, memory_mib=500), stage(1, memory_mib=500)]
    nodes = [node(0, memory_mib=600), node(1, memory_mib=600), node(2, memory_mib=600)]
    plan = make_plan(request(stages, nodes), POLICY)
    assert len(plan.assignments) == 3
    gone = of(plan, "v1")[0].pnode_id
    after = make_plan(request(stages, down(nodes, gone), plan), POLICY)
    assert not after.waiting
    assert of(after, "v0")[0].replica == of(plan, "v0")[0].replica
    assert not of(after, "v0", CONTRIBUTOR)
    assert any(row.vnode == "v0" and "1 of 2 replicas wait" in row.reason for row in after.rejections)


def test_a_standby_where_checkpoints_leave_too_slowly() -> None:
    heavy = replace(stage(0), state_bytes=400 * MIB)
    slow = [node(0, uplink_mbit=8.0), node(1, gflops=1.0)]
    plan = make_plan(request([heavy], slow), POLICY)
    [standby] = of(plan, "v0", STANDBY)
    assert standby.weight == 0.0
    assert "of work may be lost" in standby.reason
    assert not of(make_plan(request([heavy], [node(0, uplink_mbit=800.0), node(1)]), POLICY), "v0", STANDBY)
    asked = request([heavy], down(slow, node(0).node_id), plan, live={standby.replica: 30}, durable={"v0": 10})
    [led] = of(make_plan(asked, POLICY), "v0")
    assert led.replica == standby.replica
    assert led.weight > 0.0


def test_no_vnodes_rejections_are_cut_off_by_anothers() -> None:
    stages = [stage(index, memory_mib=5000) for index in range(60)]
    plan = make_plan(request(stages, [node(index) for index in range(200)]), POLICY)
    said = Counter(row.vnode for row in plan.rejections)
    assert set(said) == {cost.vnode for cost in stages}
    assert max(said.values()) <= placement.MAX_REJECTIONS_PER_VNODE
    assert "candidates more" in plan.rejections[placement.MAX_REJECTIONS_PER_VNODE - 1].reason


@given(STAGES, NODES, st.integers(0, 3))
@settings(max_examples=200)
def test_looking_at_all_nodes_at_once_finds_the_same_node(stages: list[StageCost], nodes: list[NodeOffer], owner_seed: int) -> None:
    """The search by columns chooses as one that asks every node, one after the other."""
    nodes = [
        replace(item, measured={"v0": 0.01 * (index + owner_seed)} if index % 3 == 0 else {}) for index, item in enumerate(nodes)
    ]
    board = Board(request(stages, nodes), POLICY)
    for cost in sorted(stages, key=lambda cost: -cost.step_flops):
        for role in (PRIMARY, CONTRIBUTOR):
            if role == CONTRIBUTOR and (not board.seats[cost.vnode] or placement.cannot_share(board, cost)):
                continue
            chosen, soonest = placement.best(board, cost, role, None), asking_everybody(board, cost)
            assert (chosen is None) == (soonest is None)
            if chosen is not None and soonest is not None:
                assert grade(board, cost, chosen) == grade(board, cost, soonest)
                board.seat(cost, chosen, role, "test")


def grade(board: Board, cost: StageCost, load: Load) -> tuple[int, bool, float, int]:
    siblings = placement._siblings(board, cost)
    tight = load.free_bytes < cost.memory_bytes + (cost.sharing_bytes if cost.wanted_replicas > 1 else 0)
    return siblings.nearness(load), tight, (load.seconds + board.share_s(cost, load)) * load.doubt, load.hosted


def asking_everybody(board: Board, cost: StageCost) -> Load | None:
    siblings, needed = placement._siblings(board, cost), needed_bytes(board, cost)
    fit = [
        load for load in board.loads.values() if placement._obstacle(board, cost, PRIMARY, load, siblings, needed) is Obstacle.NONE
    ]
    return min(fit, key=lambda load: grade(board, cost, load), default=None)


@given(STAGES, NODES, st.integers(0, 7))
@settings(max_examples=100)
def test_a_vnode_that_went_back_gets_new_replicas_only(stages: list[StageCost], nodes: list[NodeOffer], index: int) -> None:
    """Its fence is what the plan's next number was; the others stay where they are, whether the planner carries its board on or not."""
    planner = Planner(POLICY)
    plan = planner.make(request(stages, nodes)).plan
    planner.named("p")
    fences = {f"v{index % len(stages)}": int(plan.next_replica)}
    asked = replace(request(stages, nodes, plan), fences=fences)
    successor = planner.make(asked).plan
    assert successor == make_plan(asked, POLICY)
    check(successor, asked)
    for item in successor.assignments:
        assert number_of(item.replica) >= fences.get(item.vnode, 0)
    kept = {item.replica for item in plan.assignments if item.vnode not in fences and item.role == PRIMARY}
    assert kept <= {item.replica for item in successor.assignments}


def test_where_audits_are_drawn_who_is_in_probation_contributes_to_nothing_and_the_plan_says_why() -> None:
    policy = replace(POLICY, young_contribute=False)
    probation = orchestrator_pb2.NODE_STATE_PROBATION
    nodes = [node(index, gflops=1.0 if index == 0 else 50.0) for index in range(5)]
    young = [replace(one, state=probation) if index > 0 else one for index, one in enumerate(nodes)]
    mixed = [replace(one, state=probation) if index > 2 else one for index, one in enumerate(nodes)]
    plan = make_plan(request([stage(0, 3), stage(1, 0, gflop=50.0)], young), policy)
    assert not [item for item in plan.assignments if item.role == CONTRIBUTOR and item.pnode_id != nodes[0].node_id]
    assert any(item.vnode == "v0" and "in probation" in item.reason for item in plan.rejections)
    placed = of(make_plan(request([stage(0, 3)], mixed), policy), "v0", CONTRIBUTOR)
    assert placed
    assert {item.pnode_id for item in placed} <= {one.node_id for one in nodes[:3]}
    assert len(of(make_plan(request([stage(0, 3)], mixed), POLICY), "v0", CONTRIBUTOR)) == 2
    later = make_plan(request([stage(0, 3), stage(1, 2)], mixed[:3]), policy)
    after = make_plan(request([stage(0, 3), stage(1, 2)], mixed, later), policy)
    assert not {item.pnode_id for item in after.assignments if item.role == CONTRIBUTOR} & {one.node_id for one in mixed[3:]}
