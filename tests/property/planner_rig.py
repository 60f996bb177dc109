"""Stages, nodes and requests for tests of the planner, and what of a plan they look at."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import strategies as st

from dcnr import limits
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.costs import StageCost
from orchestrator.offers import ExpectedPace, NodeOffer, PlanPolicy, PlanRequest
from orchestrator.planner import make_plan

ACTIVE, OFFLINE = orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_OFFLINE
PRIMARY, CONTRIBUTOR, STANDBY = model_pb2.ROLE_PRIMARY, model_pb2.ROLE_CONTRIBUTOR, model_pb2.ROLE_STANDBY
POLICY = PlanPolicy()
MIB = limits.MIB
EXPECTED = {("Linear", "cpu/old"): ExpectedPace(0.3, 0.6), ("Linear", "cpu/new"): ExpectedPace(0.05, 0.08)}


def stage(index: int, replicas: int = 1, gflop: float = 1.0, memory_mib: int = 100) -> StageCost:
    before = (f"v{index - 1}",) if index else ()
    return StageCost(
        f"v{index}",
        before,
        (),
        index == 0,
        replicas,
        gflop * 1e9,
        4 * MIB,
        memory_mib * MIB,
        MIB,
        sharing_bytes=20 * MIB,
        component="Linear",
    )


def node(index: int, gflops: float = 10.0, memory_mib: int = 1000, **more: object) -> NodeOffer:
    offer = NodeOffer(f"{index:040x}", ACTIVE, "", gflops, memory_mib * MIB, 40_000 * MIB, accepts_work=True)
    return replace(offer, **more)  # type: ignore[arg-type]


def request(
    stages: list[StageCost], nodes: list[NodeOffer], previous: model_pb2.Plan | None = None, *, live: dict[str, int] | None = None,
    durable: dict[str, int] | None = None, since_s: float = 1e9, handed_over: frozenset[str] | None = None, now_s: float = 0.0,
) -> PlanRequest:  # fmt: skip
    """Where nothing is said of what lives, everything on an active node does, with 100 batches, and has handed over where it was to."""
    up = {offer.node_id for offer in nodes if offer.state == ACTIVE}
    if live is None and previous is not None:
        live = {item.replica: 100 for item in previous.assignments if item.pnode_id in up}
    rows = previous.assignments if previous is not None else ()
    told = frozenset(item.replica for item in rows if item.hands_over_to and item.pnode_id in up)
    return PlanRequest(
        "n" * 40, "m", "j", "g" * 64, 1, "h" * 40, tuple(stages), tuple(nodes), previous, "p" if previous else "", 256, 8, since_s, True,
        "test", live=live or {}, durable=durable or {}, expected=EXPECTED, handed_over=told if handed_over is None else handed_over,
        now_unix_ms=round(1000 * now_s),
    )  # fmt: skip


def moved(stages: list[StageCost], nodes: list[NodeOffer], plan: model_pb2.Plan, policy: PlanPolicy = POLICY) -> model_pb2.Plan:
    """The plan in which those that hand over in this one have done so."""
    return (
        make_plan(request(stages, nodes, plan, since_s=1.0), policy) if any(row.hands_over_to for row in plan.assignments) else plan
    )


def of(plan: model_pb2.Plan, vnode: str, role: int = PRIMARY) -> list[model_pb2.Assignment]:
    return [item for item in plan.assignments if item.vnode == vnode and item.role == role]


def hosted(plan: model_pb2.Plan) -> Counter[str]:
    return Counter(item.pnode_id for item in plan.assignments)


def uneven(plan: model_pb2.Plan) -> float:
    """What machines take where every VNode is shared by speed, as the sum of squares: reckoned from the plan alone."""
    speeds, takes = dict[str, float](), dict[str, float]()
    working = [item for item in plan.assignments if item.role != STANDBY]
    for item in working:
        speeds[item.vnode] = speeds.get(item.vnode, 0.0) + 1.0 / item.predicted_step_s
    for item in working:
        takes[item.pnode_id] = takes.get(item.pnode_id, 0.0) + 1.0 / speeds[item.vnode]
    return sum(seconds**2 for seconds in takes.values())


def down(nodes: list[NodeOffer], *gone: str) -> list[NodeOffer]:
    return [replace(item, state=OFFLINE, reason="silent") if item.node_id in gone else item for item in nodes]


STAGES = st.lists(st.tuples(st.floats(0.01, 50), st.integers(1, 900), st.integers(0, 4)), min_size=1, max_size=8).map(
    lambda rows: [stage(index, replicas, gflop, memory) for index, (gflop, memory, replicas) in enumerate(rows)]
)
NODES = st.lists(
    st.tuples(
        st.floats(0.1, 500), st.integers(1, 2500), st.sampled_from([ACTIVE, ACTIVE, OFFLINE]), st.sampled_from(["", "x", "y"]), st.integers(0, 5)
    ),
    max_size=10,
).map(
    lambda rows: [
        node(index, speed, memory, state=state, owner=owner, num_losses=losses)
        for index, (speed, memory, state, owner, losses) in enumerate(rows)
    ]
)  # fmt: skip
