"""Goal: a planner that remembers gives the very plans of one that begins anew, looks only at what changed, and its board stays right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr import limits
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator import placement, succession
from orchestrator import planner as planner_module
from orchestrator.board import Board
from orchestrator.costs import StageCost
from orchestrator.offers import ExpectedPace, NodeOffer, PlanPolicy, PlanRequest, TrackRecord
from orchestrator.planner import Planner, make_plan, same_placement

ACTIVE, OFFLINE = orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_OFFLINE
SUSPECT, DRAINING = orchestrator_pb2.NODE_STATE_SUSPECT, orchestrator_pb2.NODE_STATE_DRAINING
POLICY = PlanPolicy()
MIB = limits.MIB


def stage(index: int, replicas: int = 1, gflop: float = 1.0, memory_mib: int = 100, state_mib: int = 4) -> StageCost:
    before = (f"v{index - 1}",) if index else ()
    return StageCost(
        f"v{index}",
        before,
        (),
        index == 0,
        replicas,
        gflop * 1e9,
        state_mib * MIB,
        memory_mib * MIB,
        MIB,
        sharing_bytes=20 * MIB,
        component="Linear",
    )


def node(index: int, gflops: float = 10.0, memory_mib: int = 1000) -> NodeOffer:
    return NodeOffer(
        f"{index:040x}", ACTIVE, "", gflops, memory_mib * MIB, 40_000 * MIB, accepts_work=True, subnet=f"s{index % 3}",
        uplink_mbit=5.0 if index % 4 == 0 else 0.0,
    )  # fmt: skip


def request(
    stages: tuple[StageCost, ...], nodes: list[NodeOffer], previous: model_pb2.Plan | None, digest: str, *, since_s: float = 1.0
) -> PlanRequest:
    up = {offer.node_id for offer in nodes if offer.state in (ACTIVE, SUSPECT)}
    live = {item.replica: 100 + index for index, item in enumerate(previous.assignments if previous else ()) if item.pnode_id in up}
    rows = previous.assignments if previous is not None else ()
    told = frozenset(item.replica for index, item in enumerate(rows) if item.hands_over_to and index % 3)
    return PlanRequest(
        "n" * 40, "m", "j", "g" * 64, 1, "h" * 40, stages, tuple(nodes), previous, digest, 256, 8, since_s, True, "test", live=live,
        durable={cost.vnode: 101 for cost in stages[::3]}, expected={("Linear", "cpu/old"): ExpectedPace(0.3, 0.6)},
        handed_over=told,
    )  # fmt: skip


STAGES = st.lists(
    st.tuples(st.floats(0.01, 50), st.integers(1, 500), st.integers(0, 3), st.sampled_from([4, 4, 400])), min_size=1, max_size=7
).map(
    lambda rows: tuple(stage(index, replicas, gflop, memory, state) for index, (gflop, memory, replicas, state) in enumerate(rows))
)


def changed(data: st.DataObject, nodes: list[NodeOffer], stages: tuple[StageCost, ...]) -> list[NodeOffer]:
    """Some nodes are lost, come back, measure, refuse, lend otherwise, leave, or are new."""
    for _ in range(data.draw(st.integers(0, 3))):
        index = data.draw(st.integers(0, len(nodes) - 1))
        vnode = data.draw(st.sampled_from(stages)).vnode
        kind = data.draw(
            st.sampled_from(["lost", "back", "measured", "refused", "less", "leaving", "gone", "new", "late", "record", "scored"])
        )
        found = nodes[index]
        match kind:
            case "lost":
                awaited = frozenset({vnode} if data.draw(st.booleans()) else ())
                nodes[index] = replace(found, state=OFFLINE, reason="silent", may_return=data.draw(st.booleans()), awaited=awaited)
            case "back":
                nodes[index] = replace(found, state=ACTIVE, reason="", may_return=False, handing_over=False, awaited=frozenset())
            case "late":
                nodes[index] = replace(found, state=SUSPECT, reason="two beats are missing")
            case "measured":
                nodes[index] = replace(found, measured={**found.measured, vnode: data.draw(st.floats(0.01, 2.0))})
            case "refused":
                nodes[index] = replace(found, refused={vnode: "not here"} if not found.refused else {})
            case "less":
                nodes[index] = replace(found, memory_bytes=data.draw(st.integers(100, 2500)) * MIB)
            case "leaving":
                nodes[index] = replace(found, state=DRAINING, reason="leaving politely", handing_over=True)
            case "record":
                nodes[index] = replace(found, num_losses=found.num_losses + 1)
            case "scored":
                track = TrackRecord(data.draw(st.sampled_from([0.0, 0.5, 1.0])), data.draw(st.sampled_from([0.0, 60.0])))
                nodes[index] = replace(found, track=track, device_class="cpu/old")
            case "gone" if len(nodes) > 1:
                del nodes[index]
            case "new":
                fresh = max(int(item.node_id, 16) for item in nodes) + 1
                nodes.insert(index, node(fresh, gflops=data.draw(st.floats(1, 100))))
            case _:
                pass
    return nodes


@given(STAGES, st.lists(st.tuples(st.floats(1, 100), st.integers(200, 2500)), min_size=1, max_size=9), st.data())
@settings(max_examples=120)
def test_remembering_changes_no_plan(stages: tuple[StageCost, ...], machines: list[tuple[float, int]], data: st.DataObject) -> None:
    """Over random histories; plans that leave everything in place are not put into force, others are, or are lost on the way."""
    nodes = [node(index, speed, memory) for index, (speed, memory) in enumerate(machines)]
    planner = Planner(POLICY)
    previous, digest = None, ""
    for number in range(data.draw(st.integers(2, 6))):
        asked = request(stages, nodes, previous, digest, since_s=data.draw(st.sampled_from([1.0, 6.0, 1e9])))
        made = planner.make(asked)
        assert made.plan == make_plan(asked, POLICY)
        assert made.stays == same_placement(previous, made.plan)
        assert planner._kept is not None
        planner._kept[0].columns.check()
        if not made.stays and data.draw(st.integers(0, 5)):
            previous, digest = made.plan, f"{number:064x}"
            planner.named(digest)
        nodes = changed(data, list(nodes), stages)


def test_what_is_waited_for_stays_as_it_was_planned() -> None:
    """A node that is away and measured something before, then both away: the row that waits is that of the plan."""
    stages = (stage(0, 1, 2.0, 1, 0),)
    nodes = [node(0, 1.0, 200), node(1, 4.0, 200)]
    planner, previous, digest = Planner(POLICY), None, ""
    away = {"state": OFFLINE, "reason": "silent"}
    for number, changes in enumerate(
        ({}, {0: {**away, "measured": {stages[0].vnode: 1.0}}}, {0: away, 1: {**away, "may_return": True}})
    ):
        for index, change in changes.items():
            nodes[index] = replace(nodes[index], **change)
        asked = request(stages, nodes, previous, digest, since_s=1.0)
        made = planner.make(asked)
        assert made.plan == make_plan(asked, POLICY)
        if not made.stays:
            previous, digest = made.plan, f"{number:064x}"
            planner.named(digest)


def test_the_work_of_a_plan_follows_what_changed_and_not_the_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: searches and rows of a first plan are as many as replicas, and after a loss as many as it touches."""
    counted = Counter[str]()
    settle, best = Board._settle, placement.best

    def settled(self: Board, vnode: str) -> None:
        counted["settled"] += 1
        settle(self, vnode)

    def searched(*args: Any) -> Any:
        counted["searched"] += 1
        return best(*args)

    monkeypatch.setattr(Board, "_settle", settled)
    for module in ("planner", "filling", "growth"):
        monkeypatch.setattr(f"orchestrator.{module}.best", searched)
    stages = tuple(stage(index, 2, gflop=1 + index % 7, memory_mib=10) for index in range(100))
    nodes = [node(index, gflops=5 + index % 11) for index in range(2000)]
    planner = Planner(POLICY)
    plan = planner.make(request(stages, nodes, None, "")).plan
    assert len(plan.assignments) == counted["searched"] == 200
    assert counted["settled"] == 200
    planner.named("1")
    gone = plan.assignments[0].pnode_id
    lost = sum(item.pnode_id == gone for item in plan.assignments)
    counted.clear()
    nodes = [replace(item, state=OFFLINE, reason="silent") if item.node_id == gone else item for item in nodes]
    monkeypatch.setattr(planner_module, "keep", None)
    after = planner.make(request(stages, nodes, plan, "1"))
    assert not after.stays
    assert counted["searched"] <= 2 * lost
    assert counted["settled"] <= 3 * lost


def test_where_following_would_not_be_exact_the_planner_begins_anew() -> None:
    stages, nodes = (stage(0, memory_mib=500),), [node(0), node(1)]
    plan = make_plan(request(stages, nodes, None, ""), POLICY)
    host = plan.assignments[0].pnode_id

    def follows(changes: dict[str, Any], previous: model_pb2.Plan = plan) -> bool:
        board = Board(request(stages, nodes, plan, "1"), POLICY)
        succession.keep(board)
        board.close()
        later = [replace(item, **changes) if item.node_id == host else item for item in nodes]
        return succession.follow(board, request(stages, later, previous, "2")) is not None

    assert follows({"state": OFFLINE, "reason": "silent"})
    assert follows({"num_losses": 1})
    assert not follows({"memory_bytes": 400 * MIB}), "it lends less than is used"
    assert not follows({"measured": {"v0": 9.0}}), "everybody's correction changes"
    assert not follows({}, model_pb2.Plan(job_id="j", waiting=["v0"])), "a VNode waits"
    assert not follows({}, model_pb2.Plan(job_id="another"))


def test_pausing_is_a_plan_of_its_own_that_moves_nothing() -> None:
    stages, nodes, planner = (stage(0), stage(1)), [node(1), node(2)], Planner(POLICY)
    first = planner.make(request(stages, nodes, None, "")).plan
    planner.named("p1")
    halted = planner.make(replace(request(stages, nodes, first, "p1"), halted=True))
    assert (halted.plan.halted, halted.stays) == (True, False)
    assert halted.plan.assignments == first.assignments
    assert not same_placement(first, halted.plan)
    planner.named("p2")
    assert planner.make(replace(request(stages, nodes, halted.plan, "p2"), halted=True)).stays
    assert not planner.make(request(stages, nodes, halted.plan, "p2")).stays


def test_a_suspect_gives_nothing_to_a_node_that_is_idle() -> None:
    """Nothing new goes to it meanwhile, so what is even without it is something else; a replica was moved away for that."""
    stages = (stage(0, 3, 1.0, 87), stage(1, 0, 2.0, 1), stage(2, 0, 1.0, 1))
    nodes = [node(index, *machine) for index, machine in enumerate([(1, 126), (1, 118), (1, 100), (1, 100), (1, 107), (2, 108)])]
    plan = make_plan(request(stages, nodes, None, ""), POLICY)
    nodes[5] = replace(nodes[5], state=SUSPECT, reason="two beats are missing")
    after = make_plan(request(stages, nodes, plan, "p"), POLICY)
    mine = [{item.replica for item in made.assignments if item.pnode_id == nodes[5].node_id} for made in (plan, after)]
    assert len(mine[0]) > 1
    assert mine[0] == mine[1]


@settings(max_examples=40)
@given(STAGES, st.lists(st.tuples(st.floats(1, 100), st.integers(100, 2500)), min_size=2, max_size=8), st.data())
def test_a_suspect_keeps_everything_and_gets_nothing(
    stages: tuple[StageCost, ...], machines: list[tuple[float, int]], data: st.DataObject
) -> None:
    """Goal: to be suspected has no consequence for what a node hosts; it is being gone that moves it."""
    nodes = [node(index, gflops, memory) for index, (gflops, memory) in enumerate(machines)]
    plan = make_plan(request(stages, nodes, None, ""), POLICY)
    index = data.draw(st.integers(0, len(nodes) - 1))
    nodes[index] = replace(nodes[index], state=SUSPECT, reason="two beats are missing")

    def there(of: model_pb2.Plan) -> set[tuple[str, int]]:
        return {(item.replica, item.role) for item in of.assignments if item.pnode_id == nodes[index].node_id}

    assert there(make_plan(request(stages, nodes, plan, "p"), POLICY)) == there(plan)
    lost = list(nodes)
    lost[index - 1] = replace(nodes[index - 1], state=OFFLINE, reason="silent")
    assert there(make_plan(request(stages, lost, plan, "p"), POLICY)) <= there(plan), "what another one loses goes elsewhere"
    nodes[index] = replace(nodes[index], state=OFFLINE, reason="silent")
    assert there(make_plan(request(stages, nodes, plan, "p"), POLICY)) == set()
