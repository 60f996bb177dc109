"""The planner keeps within what nodes lend, gives equal plans for equal inputs, places or names every VNode, and does not thrash."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr import limits
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator import board
from orchestrator.costs import StageCost, disk_bytes, spool_bytes
from orchestrator.offers import NodeOffer, PlanPolicy, PlanRequest
from orchestrator.planner import Planner, make_plan, same_placement, seconds_per_batch

ACTIVE = orchestrator_pb2.NODE_STATE_ACTIVE
OFFLINE = orchestrator_pb2.NODE_STATE_OFFLINE
POLICY = PlanPolicy()


def stage(index: int, gflop: float = 1.0, memory_mib: int = 100, output_bytes: int = limits.MIB) -> StageCost:
    before = (f"v{index - 1}",) if index else ()
    return StageCost(f"v{index}", before, (), index == 0, 1, gflop * 1e9, 4 * limits.MIB, memory_mib * limits.MIB, output_bytes)


def node(index: int, gflops: float = 10.0, memory_mib: int = 1000, disk_mib: int = 40_000) -> NodeOffer:
    return NodeOffer(f"{index:040x}", ACTIVE, "", gflops, memory_mib * limits.MIB, disk_mib * limits.MIB, accepts_work=True)


def request(stages: list[StageCost], nodes: list[NodeOffer], previous: model_pb2.Plan | None = None) -> PlanRequest:
    """Everything on an active node is at work, and has handed over where it was to."""
    up = {offer.node_id for offer in nodes if offer.state == ACTIVE}
    rows = [item for item in previous.assignments if item.pnode_id in up] if previous is not None else []
    return PlanRequest(
        "n" * 40, "m", "j", "g" * 64, 1, "h" * 40, tuple(stages), tuple(nodes), previous, "p" if previous else "", 256, 8, 1e9, True, "test",
        live={item.replica: 100 for item in rows}, handed_over=frozenset(item.replica for item in rows if item.hands_over_to),
    )  # fmt: skip


def carried_out(stages: list[StageCost], nodes: list[NodeOffer], plan: model_pb2.Plan) -> model_pb2.Plan:
    """The plan in which whoever hands over in this one has done so."""
    is_moving = any(item.hands_over_to for item in plan.assignments)
    return make_plan(request(stages, nodes, plan), POLICY) if is_moving else plan


STAGES = st.lists(st.tuples(st.floats(0.01, 50), st.integers(1, 900)), min_size=1, max_size=10).map(
    lambda rows: [stage(index, gflop, memory) for index, (gflop, memory) in enumerate(rows)]
)
NODES = st.lists(
    st.tuples(st.floats(0.1, 500), st.integers(1, 2000), st.integers(0, 12_000), st.sampled_from([ACTIVE, OFFLINE]), st.booleans()), max_size=8
).map(
    lambda rows: [
        replace(node(index, speed, memory, disk), state=state, may_return=back)
        for index, (speed, memory, disk, state, back) in enumerate(rows)
    ]
)  # fmt: skip


def check(plan: model_pb2.Plan, asked: PlanRequest) -> None:
    costs = {cost.vnode: cost for cost in asked.stages}
    for offer in asked.nodes:
        hosted = [
            costs[item.vnode] for item in plan.assignments if item.pnode_id == offer.node_id and item.vnode not in plan.waiting
        ]
        assert sum(cost.memory_bytes for cost in hosted) <= offer.memory_bytes
        assert sum(disk_bytes(cost, spool_bytes(offer.disk_bytes)) for cost in hosted) <= offer.disk_bytes
        assert not hosted or offer.state == ACTIVE
    placed = {item.vnode for item in plan.assignments}
    assert placed | set(plan.waiting) == set(costs)
    for vnode in plan.waiting:
        assert any(item.vnode == vnode and item.reason for item in plan.rejections)
    assert len({item.replica for item in plan.assignments}) == len(plan.assignments)
    assert all(item.reason for item in plan.assignments)
    assert 1 <= plan.lead_batches <= 256


@given(STAGES, NODES, NODES)
@settings(max_examples=150)
def test_capacity_determinism_and_reasons(stages: list[StageCost], first: list[NodeOffer], second: list[NodeOffer]) -> None:
    asked = request(stages, first)
    plan = make_plan(asked, POLICY)
    check(plan, asked)
    assert make_plan(replace(asked, nodes=tuple(reversed(first))), POLICY) == plan
    later = request(stages, second, plan)
    successor = make_plan(later, POLICY)
    check(successor, later)
    assert successor.number == plan.number + 1
    numbers = {item.replica: item.pnode_id for item in plan.assignments}
    for item in successor.assignments:  # a replica number never names two places
        assert numbers.get(item.replica, item.pnode_id) == item.pnode_id


@given(STAGES, NODES)
@settings(max_examples=150)
def test_planning_again_settles(stages: list[StageCost], nodes: list[NodeOffer]) -> None:
    plan = make_plan(request(stages, nodes), POLICY)
    for _ in range(2 * len(stages) + 2):
        successor = carried_out(stages, nodes, make_plan(request(stages, nodes, plan), POLICY))
        if same_placement(plan, successor):
            return
        before = {item.vnode: item.replica for item in plan.assignments}
        changed = [item.vnode for item in successor.assignments if before.get(item.vnode) != item.replica]
        assert len(changed) <= 1, "more than one move in one plan"
        assert seconds_per_batch(plan) > POLICY.min_gain * seconds_per_batch(successor)
        plan = successor
    pytest.fail("the planner keeps moving")


def test_nothing_moves_soon_after_a_plan_nor_for_a_small_gain() -> None:
    stages = [stage(0, 10), stage(1, 10)]
    plan = make_plan(request(stages, [node(0)]), POLICY)
    again = request(stages, [node(0), node(1)], plan)
    assert same_placement(plan, make_plan(replace(again, since_last_plan_s=4.0), POLICY))
    assert same_placement(plan, make_plan(replace(again, allow_moves=False), POLICY))
    moved = carried_out(stages, [node(0), node(1)], make_plan(again, POLICY))
    assert {item.pnode_id for item in moved.assignments} == {node(0).node_id, node(1).node_id}
    little = request(stages, [node(0), node(1), node(2, gflops=12)], moved)
    assert same_placement(moved, make_plan(little, POLICY))


def test_a_fast_node_gets_more_and_equal_nodes_share() -> None:
    stages = [stage(index, 10) for index in range(4)]
    plan = make_plan(request(stages, [node(0, gflops=30), node(1, gflops=10)]), POLICY)
    assert sum(item.pnode_id == node(0).node_id for item in plan.assignments) == 3
    plan = make_plan(request(stages, [node(index) for index in range(4)]), POLICY)
    assert len({item.pnode_id for item in plan.assignments}) == 4


def test_a_lost_node_is_replaced_by_a_new_replica_and_the_rest_stays() -> None:
    stages = [stage(index) for index in range(3)]
    nodes = [node(index) for index in range(4)]
    plan = make_plan(request(stages, nodes), POLICY)
    gone = plan.assignments[1].pnode_id
    nodes = [replace(item, state=OFFLINE, reason="silent", may_return=True) if item.node_id == gone else item for item in nodes]
    after = make_plan(request(stages, nodes, plan), POLICY)
    assert after.assignments[0].replica == plan.assignments[0].replica
    assert after.assignments[2].replica == plan.assignments[2].replica
    moved = after.assignments[1]
    assert moved.replica == f"v1.{plan.next_replica}"
    assert moved.pnode_id != gone
    assert "silent" in moved.reason


def test_where_nobody_else_fits_a_replica_waits_for_its_node() -> None:
    stages = [stage(0), stage(1)]
    nodes = [node(0, memory_mib=110), node(1, memory_mib=110)]
    plan = make_plan(request(stages, nodes), POLICY)
    away = [replace(nodes[0], state=OFFLINE, reason="silent", may_return=True), nodes[1]]
    after = make_plan(request(stages, away, plan), POLICY)
    assert {item.replica for item in after.assignments} == {item.replica for item in plan.assignments}
    assert len(after.waiting) == 1
    back = make_plan(request(stages, nodes, after), POLICY)
    assert not back.waiting
    assert {item.replica for item in back.assignments} == {item.replica for item in plan.assignments}


def test_the_lead_follows_the_smallest_spool_that_somebody_reads() -> None:
    stages = [stage(0, output_bytes=64 * limits.MIB), stage(1, output_bytes=1024 * limits.MIB)]
    plan = make_plan(request(stages, [node(0, disk_mib=80_000)]), POLICY)
    assert plan.lead_batches == 16  # 1 GiB of 64 MiB batches; the last stage's output is read by nobody
    assert "v0" in plan.lead_reason


def test_an_idle_node_is_preferred_to_an_equal_busy_one() -> None:
    stages = [stage(0, 0.01), stage(1, 10), stage(2, 10)]
    nodes = [node(index) for index in range(4)]
    plan = make_plan(request(stages, nodes), POLICY)
    at = {item.vnode: item.pnode_id for item in plan.assignments}
    steps = {"v0": 0.008, "v1": 1.1, "v2": 7.0}
    nodes = [replace(item, measured={name: steps[name] for name in steps if at[name] == item.node_id}) for item in nodes]
    nodes = [replace(item, state=OFFLINE, reason="gone") if item.node_id == at["v2"] else item for item in nodes]
    after = make_plan(request(stages, nodes, plan), POLICY)
    moved = next(item.pnode_id for item in after.assignments if item.vnode == "v2")
    assert moved not in at.values()


def test_what_a_node_refused_goes_elsewhere() -> None:
    nodes = [node(0), node(1)]
    plan = make_plan(request([stage(0)], nodes), POLICY)
    refusing = next(index for index in range(2) if nodes[index].node_id == plan.assignments[0].pnode_id)
    nodes[refusing] = replace(nodes[refusing], refused={"v0": "too large for this machine"})
    after = make_plan(request([stage(0)], nodes, plan), POLICY)
    assert after.assignments[0].pnode_id == nodes[1 - refusing].node_id
    assert "too large" in after.assignments[0].reason


def test_measured_steps_correct_the_prediction() -> None:
    stages = [stage(0, 10), stage(1, 10)]
    nodes = [node(0), node(1)]
    plan = make_plan(request(stages, nodes), POLICY)
    slow = next(item for item in plan.assignments if item.vnode == "v0").pnode_id
    nodes = [replace(item, measured={"v0": 5.0}) if item.node_id == slow else replace(item, measured={"v1": 1.0}) for item in nodes]
    nodes.append(node(2))
    after = carried_out(stages, nodes, make_plan(request(stages, nodes, plan), POLICY))
    assert next(item for item in after.assignments if item.vnode == "v0").pnode_id != slow


def test_each_term_gives_numbers_above_those_of_all_terms_before() -> None:
    """Where the store went back, the plan does not tell how many numbers were given since; PNodes and the store still know replicas by them."""
    stages, nodes = [stage(0), stage(1)], [node(index) for index in range(3)]
    planner = Planner(POLICY)
    copied = make_plan(request(stages, nodes), POLICY)
    gone = copied.assignments[0].pnode_id
    left = [replace(item, state=OFFLINE, reason="gone") if item.node_id == gone else item for item in nodes]
    lost = make_plan(request(stages, left, copied), POLICY)
    again = make_plan(replace(request(stages, left, copied), epoch=2), POLICY)
    for one in (lost, again):
        assert len({item.replica for item in one.assignments} - {item.replica for item in copied.assignments}) == 1
    known = {item.replica for item in (*copied.assignments, *lost.assignments)}
    assert len({item.replica for item in again.assignments} - known) == 1
    assert again.next_replica > lost.next_replica
    made = planner.make(replace(request(stages, nodes, copied), previous_digest="c" * 64))
    planner.named("d" * 64)
    followed = planner.make(replace(request(stages, left, made.plan), previous_digest="d" * 64, epoch=2))
    assert followed.plan.next_replica > lost.next_replica, "also on the board of the term before"


def test_replicas_of_different_models_never_share_an_id() -> None:
    numbers = {board.first_replica(name) for name in ("mnist", "mnist-2", "text", "successor", "a", "b")}
    assert len(numbers) == 6
    assert all(0 <= number <= 899_999_000 and number % board.RANGE_SIZE == 0 for number in numbers)
