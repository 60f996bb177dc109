"""The planner: a pure function from (policy, nodes, stages, what is placed) to a plan that says where every VNode lives and why.

Equal inputs give equal plans. A VNode stays where it is unless its node is lost, leaving or quarantined, or one move would shorten the slowest
node's time per batch by more than the hysteresis factor; then exactly one VNode moves. What no node can take is listed as waiting, with the
reason of every refusal. Placement of new VNodes is longest-processing-time first (Graham 1969) onto the node that ends up least loaded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dcnr import limits
from dcnr.errors import InvariantBroken
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.costs import StageCost, disk_bytes, predicted_step_s, spool_batches

MAX_REJECTIONS: Final = 256
NUMBER_RANGES: Final = 900_000
RANGE_SIZE: Final = 1_000
"""Replica numbers: each model begins in a range of its own, at most nine digits."""
MAX_CORRECTION: Final = 8.0
"""A measured step counts for at most this factor over or under the prediction."""

USABLE: Final = frozenset(
    (orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_PROBATION, orchestrator_pb2.NODE_STATE_SUSPECT)
)
"""States in which a node keeps what it has; only `PLACEABLE` ones get more."""
PLACEABLE: Final = frozenset((orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_PROBATION))


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """What the planner may do."""

    min_gain: float = 1.3
    min_move_interval_s: float = 60.0
    max_vnodes_per_node: int = 64


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A PNode as the inventory sees it now."""

    node_id: str
    state: orchestrator_pb2.NodeState.ValueType
    reason: str
    gflops: float
    memory_bytes: int
    disk_bytes: int
    accepts_work: bool
    handing_over: bool = False
    """Leaving politely, with checkpoints on their way: keeps what it has for a few seconds more."""
    may_return: bool = False
    """Gone, but not for long: what it has may wait for it where nobody else fits."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Seconds per batch by VNode, as reported."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """VNodes that the node itself would not host, with its reason."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything a plan depends on."""

    network_id: str
    model: str
    job_id: str
    graph_digest: str
    epoch: int
    holder: str
    stages: tuple[StageCost, ...]
    nodes: tuple[NodeOffer, ...]
    previous: model_pb2.Plan | None
    previous_digest: str
    lead_batches: int
    unit_batches: int
    since_last_plan_s: float
    allow_moves: bool
    """Off while the job settles: nothing is gained any more."""
    reason: str


def first_replica(model: str) -> int:
    """Where a model's replica numbers begin: apart from those of other models, since a PNode may host two whose VNodes share names."""
    return int.from_bytes(hashlib.sha256(model.encode()).digest()[:4], "big") % NUMBER_RANGES * RANGE_SIZE


@dataclass(slots=True)
class _Load:
    """A node while a plan is made."""

    offer: NodeOffer
    correction: float
    free_bytes: int
    free_disk_bytes: int
    seconds: float = 0.0
    hosted: int = 0

    def step_s(self, cost: StageCost) -> float:
        """Seconds per batch of a stage here, as measured or else as predicted and corrected."""
        return _bounded(self.offer.measured.get(cost.vnode, 0.0), predicted_step_s(cost, self.offer.gflops), self.correction)

    def disk(self, cost: StageCost) -> int:
        """Disk that a stage reserves here."""
        return disk_bytes(cost, self.offer.disk_bytes)

    def take(self, cost: StageCost) -> None:
        """Reserves for a stage."""
        self.free_bytes -= cost.memory_bytes
        self.free_disk_bytes -= self.disk(cost)
        self.seconds += self.step_s(cost)
        self.hosted += 1

    def drop(self, cost: StageCost) -> None:
        """Takes the reservation back."""
        self.free_bytes += cost.memory_bytes
        self.free_disk_bytes += self.disk(cost)
        self.seconds -= self.step_s(cost)
        self.hosted -= 1


@dataclass(frozen=True, slots=True)
class _Place:
    replica: str
    node_id: str
    reason: str
    role: model_pb2.Role.ValueType = model_pb2.ROLE_PRIMARY


def make_plan(request: PlanRequest, policy: PlanPolicy) -> model_pb2.Plan:
    """The next plan. `same_placement` tells whether it differs from the previous one in anything that matters."""
    loads = _loads(request)
    places: dict[str, _Place] = {}
    rejections: list[model_pb2.Rejection] = []
    waiting: list[str] = []
    lost = _keep(request, loads, places)
    next_replica = request.previous.next_replica if request.previous is not None else first_replica(request.model)
    for cost in sorted(request.stages, key=lambda cost: (-cost.step_flops, cost.vnode)):
        if cost.vnode in places:
            continue
        best = _best(cost, loads, policy, rejections)
        old = lost.get(cost.vnode)
        if best is None:
            waiting.append(cost.vnode)
            if old is not None and _may_wait(loads, old):
                places[cost.vnode] = _Place(old.replica, old.node_id, "kept: nobody else fits, it may come back")
            continue
        best.take(cost)
        why = f"{old.node_id[:8]}: {old.reason}; " if old is not None else ""
        reason = f"{why}least loaded of those that fit: {best.seconds:.3g} s per batch with it"
        places[cost.vnode] = _Place(f"{cost.vnode}.{next_replica}", best.offer.node_id, reason)
        next_replica += 1
    if not waiting and not lost and request.allow_moves and request.since_last_plan_s >= policy.min_move_interval_s:
        next_replica = _move(request, loads, places, policy, next_replica)
    return _plan(request, loads, places, rejections, waiting, next_replica)


def same_placement(old: model_pb2.Plan | None, new: model_pb2.Plan) -> bool:
    """Whether ``new`` puts the same replicas of the same job on the same nodes, with the same roles, lead and waiting list."""
    return old is not None and _shape(old) == _shape(new)


def seconds_per_batch(plan: model_pb2.Plan) -> float:
    """Of the slowest node, as planned."""
    per_node: dict[str, float] = {}
    for item in plan.assignments:
        per_node[item.pnode_id] = per_node.get(item.pnode_id, 0.0) + item.predicted_step_s
    return max(per_node.values(), default=0.0)


def _shape(plan: model_pb2.Plan) -> tuple[object, ...]:
    places = tuple(sorted((item.replica, item.pnode_id, item.role) for item in plan.assignments))
    return plan.job_id, plan.graph_digest, places, tuple(sorted(plan.waiting)), plan.lead_batches


def _bounded(measured: float, predicted: float, correction: float) -> float:
    if measured <= 0.0:
        return predicted * correction
    return min(max(measured, predicted / MAX_CORRECTION), predicted * MAX_CORRECTION)


def _loads(request: PlanRequest) -> dict[str, _Load]:
    """Every node with its correction: measured over predicted seconds of everybody's VNodes, and at least that of its own.

    A node that hosts nothing is thus never taken for slower than an equal one that is busy and measured.
    """
    totals: dict[str, tuple[float, float]] = {}
    for node in request.nodes:
        for cost in request.stages:
            predicted, measured = predicted_step_s(cost, node.gflops), node.measured.get(cost.vnode, 0.0)
            if measured > 0.0 and predicted > 0.0:
                before = totals.get(node.node_id, (0.0, 0.0))
                totals[node.node_id] = (before[0] + _bounded(measured, predicted, 1.0), before[1] + predicted)
    predicted_s = math.fsum(pair[1] for pair in totals.values())
    common = math.fsum(pair[0] for pair in totals.values()) / predicted_s if predicted_s else 1.0
    loads: dict[str, _Load] = {}
    for node in sorted(request.nodes, key=lambda node: node.node_id):
        measured_s, own_s = totals.get(node.node_id, (0.0, 1.0))
        loads[node.node_id] = _Load(node, max(common, measured_s / own_s), node.memory_bytes, node.disk_bytes)
    return loads


def _keep(request: PlanRequest, loads: dict[str, _Load], places: dict[str, _Place]) -> dict[str, _Place]:
    """Keeps what is placed on usable nodes; returns what has to go, by VNode, with the reason."""
    lost: dict[str, _Place] = {}
    if request.previous is None or request.previous.job_id != request.job_id:
        return lost
    by_vnode = {item.vnode: item for item in request.previous.assignments if item.role == model_pb2.ROLE_PRIMARY}
    for cost in request.stages:
        old = by_vnode.get(cost.vnode)
        if old is None:
            continue
        load = loads.get(old.pnode_id)
        why = _why_lost(cost, load)
        if load is None or why:
            lost[cost.vnode] = _Place(old.replica, old.pnode_id, why)
        else:
            load.take(cost)
            places[cost.vnode] = _Place(old.replica, old.pnode_id, old.reason)
    return lost


def _why_lost(cost: StageCost, load: _Load | None) -> str:
    """Why a placed stage cannot stay; empty if it can."""
    if load is None:
        return "not known any more"
    if load.offer.handing_over:
        return ""
    if load.offer.state not in USABLE:
        return load.offer.reason or "is gone"
    if not load.offer.accepts_work:
        return "takes no work at the moment"
    if cost.vnode in load.offer.refused:
        return f"refused by the node: {load.offer.refused[cost.vnode]}"
    if cost.memory_bytes > load.free_bytes or load.disk(cost) > load.free_disk_bytes:
        return "lends less than before"
    return ""


def _refusal(cost: StageCost, load: _Load, policy: PlanPolicy) -> str:
    """Why the node cannot take the stage; empty if it can."""
    offer = load.offer
    if offer.state not in PLACEABLE:
        return f"{orchestrator_pb2.NodeState.Name(offer.state).removeprefix('NODE_STATE_').lower()}: {offer.reason}"
    if not offer.accepts_work:
        return "takes no work at the moment"
    if cost.vnode in offer.refused:
        return f"refused by the node: {offer.refused[cost.vnode]}"
    if load.hosted >= policy.max_vnodes_per_node:
        return f"hosts {load.hosted} VNodes already"
    if cost.memory_bytes > load.free_bytes:
        return f"needs {_mib(cost.memory_bytes)} MiB of memory, {_mib(load.free_bytes)} of {_mib(offer.memory_bytes)} MiB are free"
    if load.disk(cost) > load.free_disk_bytes:
        return f"needs {_mib(load.disk(cost))} MiB of disk, {_mib(load.free_disk_bytes)} of {_mib(offer.disk_bytes)} MiB are free"
    return ""


def _best(cost: StageCost, loads: dict[str, _Load], policy: PlanPolicy, rejections: list[model_pb2.Rejection]) -> _Load | None:
    """The node whose time per batch is shortest with the stage on it; ties go to fewer VNodes, then to the lower id."""
    fitting: list[_Load] = []
    for load in loads.values():
        reason = _refusal(cost, load, policy)
        if reason:
            rejections.append(model_pb2.Rejection(vnode=cost.vnode, pnode_id=load.offer.node_id, reason=reason))
        else:
            fitting.append(load)
    if not loads:
        need = f"no PNode is attached; it needs {_mib(cost.memory_bytes)} MiB of memory and {_mib(disk_bytes(cost, 0))} MiB of disk"
        rejections.append(model_pb2.Rejection(vnode=cost.vnode, reason=need))
    return min(fitting, key=lambda load: (load.seconds + load.step_s(cost), load.hosted, load.offer.node_id), default=None)


def _may_wait(loads: Mapping[str, _Load], old: _Place) -> bool:
    load = loads.get(old.node_id)
    return load is not None and load.offer.may_return


def _move(request: PlanRequest, loads: dict[str, _Load], places: dict[str, _Place], policy: PlanPolicy, next_replica: int) -> int:
    """Moves the one VNode whose move shortens the slowest node's time most, if by more than the hysteresis factor."""
    slowest = max((load for load in loads.values() if load.hosted), key=lambda load: load.seconds, default=None)
    if slowest is None:
        return next_replica
    others = sorted((load.seconds for load in loads.values()), reverse=True)
    second = others[1] if len(others) > 1 else 0.0
    best: tuple[float, str, str, StageCost] | None = None
    for cost in request.stages:
        if places[cost.vnode].node_id != slowest.offer.node_id:
            continue
        for load in loads.values():
            if load is slowest or _refusal(cost, load, policy):
                continue
            after = max(second, slowest.seconds - slowest.step_s(cost), load.seconds + load.step_s(cost))
            candidate = (after, cost.vnode, load.offer.node_id, cost)
            if best is None or candidate[:3] < best[:3]:
                best = candidate
    if best is None or slowest.seconds <= policy.min_gain * best[0]:
        return next_replica
    after, vnode, target, cost = best
    reason = (
        f"moved from {slowest.offer.node_id[:8]}: the slowest node takes {after:.3g} instead of {slowest.seconds:.3g} s per batch"
    )
    slowest.drop(cost)
    loads[target].take(cost)
    places[vnode] = _Place(f"{vnode}.{next_replica}", target, reason)
    return next_replica + 1


def _lead(request: PlanRequest, loads: Mapping[str, _Load], places: Mapping[str, _Place]) -> tuple[int, str]:
    """The smaller of the job's lead (at least one unit) and what the smallest spool that anyone reads from holds."""
    lead = max(request.lead_batches, request.unit_batches, 1)
    reason = "set by the job"
    read = {name for cost in request.stages for name in cost.predecessors}
    for cost in request.stages:
        place = places.get(cost.vnode)
        if place is None or cost.vnode not in read:
            continue
        load = loads[place.node_id]
        held = spool_batches(cost, load.offer.disk_bytes)
        if held < lead:
            lead, reason = held, f"the spool of {cost.vnode} on {place.node_id[:8]} holds {held} batches"
    return lead, reason


def _plan(
    request: PlanRequest,
    loads: Mapping[str, _Load],
    places: Mapping[str, _Place],
    rejections: Sequence[model_pb2.Rejection],
    waiting: Sequence[str],
    next_replica: int,
) -> model_pb2.Plan:
    lead, lead_reason = _lead(request, loads, places)
    plan = model_pb2.Plan(
        network_id=request.network_id,
        model=request.model,
        number=request.previous.number + 1 if request.previous is not None else 1,
        parent_digest=request.previous_digest,
        job_id=request.job_id,
        graph_digest=request.graph_digest,
        epoch=request.epoch,
        holder=request.holder,
        rejections=rejections[:MAX_REJECTIONS],
        waiting=sorted(waiting),
        lead_batches=lead,
        lead_reason=lead_reason,
        reason=request.reason,
        next_replica=next_replica,
    )
    for cost in request.stages:
        place = places.get(cost.vnode)
        if place is None:
            continue
        plan.assignments.add(
            replica=place.replica,
            vnode=cost.vnode,
            pnode_id=place.node_id,
            role=place.role,
            weight=1.0,
            reason=place.reason,
            hosted=cost.hosted,
            predicted_step_s=loads[place.node_id].step_s(cost),
            memory_bytes=cost.memory_bytes,
        )
        if cost.wanted_replicas > 1 and len(plan.rejections) < MAX_REJECTIONS:
            plan.rejections.add(vnode=cost.vnode, reason=f"{cost.wanted_replicas} replicas are wanted; this planner places one")
    check_plan(plan, request)
    return plan


def check_plan(plan: model_pb2.Plan, request: PlanRequest) -> None:
    """Asserts what every plan must keep: each VNode placed at most once, or waiting; distinct replicas."""
    vnodes = [item.vnode for item in plan.assignments]
    if len(set(vnodes)) != len(vnodes) or len({item.replica for item in plan.assignments}) != len(vnodes):
        raise InvariantBroken("a plan places a VNode or names a replica twice", code="bad_plan")
    missing = {cost.vnode for cost in request.stages} - set(vnodes) - set(plan.waiting)
    if missing:
        raise InvariantBroken(f"a plan forgets {sorted(missing)}", code="bad_plan")


def _mib(size_bytes: int) -> int:
    return size_bytes // limits.MIB
