"""A plan in the making: which replica sits where, what that takes of each node, and how the replicas of a VNode share its batches.

A replica's share of the batches is its weight over the sum of its VNode's weights, so a node's time per batch of the job is the sum of share times
step over what it hosts, and the pace is that of the slowest node. Weights follow the nodes' speeds for that stage. They change only where the
replicas of a VNode change, and then only by more than the hysteresis factor: every changed weight moves units between replicas.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dcnr.v1 import model_pb2
from orchestrator.costs import StageCost, disk_bytes, predicted_step_s, spool_bytes
from orchestrator.offers import PLACEABLE, NodeOffer, PlanPolicy, PlanRequest
from orchestrator.ranks import Ranks

NUMBER_RANGES: Final = 900_000
RANGE_SIZE: Final = 1_000
"""Replica numbers: each model begins in a range of its own, at most nine digits."""
MAX_CORRECTION: Final = 8.0
"""A measured step counts for at most this factor over or under the prediction."""
MAX_DOUBT: Final = 4
LOSS_DOUBT: Final = 0.25
"""Each late loss of a node makes it look slower by this part, up to `MAX_DOUBT` of them, when something new is placed."""
WORKING: Final = frozenset((model_pb2.ROLE_PRIMARY, model_pb2.ROLE_CONTRIBUTOR))
"""Roles that own units."""


@dataclass(slots=True)
class Load:
    """A node while a plan is made."""

    offer: NodeOffer
    correction: float
    free_bytes: int
    free_disk_bytes: int
    seconds: float = 0.0
    """Per batch of the job."""
    hosted: int = 0
    is_open: bool = field(init=False)
    """Whether it takes anything new."""
    spool_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.is_open = self.offer.state in PLACEABLE and self.offer.accepts_work
        self.spool_bytes = spool_bytes(self.offer.disk_bytes)

    def step_s(self, cost: StageCost) -> float:
        """Seconds per batch of a stage here, as measured or else as predicted and corrected."""
        predicted = predicted_step_s(cost, self.offer.gflops)
        measured = self.offer.measured.get(cost.vnode, 0.0)
        return bounded(measured, predicted) if measured > 0.0 else predicted * self.correction

    def disk(self, cost: StageCost) -> int:
        """Disk that a stage reserves here."""
        return disk_bytes(cost, self.spool_bytes)

    @property
    def doubt(self) -> float:
        """A factor on this node's times for what is newly placed: good records are preferred."""
        return 1.0 + LOSS_DOUBT * min(self.offer.num_losses, MAX_DOUBT)


@dataclass(slots=True)
class Seat:
    """One replica on one node; what it takes there is kept by the board."""

    cost: StageCost
    replica: str
    load: Load
    role: model_pb2.Role.ValueType
    reason: str
    weight: float = 0.0
    seconds: float = 0.0
    memory_bytes: int = 0

    @property
    def works(self) -> bool:
        """Whether it owns units."""
        return self.role in WORKING


def first_replica(model: str) -> int:
    """Where a model's replica numbers begin: apart from those of other models, since a PNode may host two whose VNodes share names."""
    return int.from_bytes(hashlib.sha256(model.encode()).digest()[:4], "big") % NUMBER_RANGES * RANGE_SIZE


class Board:
    """Nodes with their loads, seats by VNode. Every call leaves loads, shares and reservations right."""

    def __init__(self, request: PlanRequest, policy: PlanPolicy) -> None:
        self.request, self.policy = request, policy
        self.loads = _loads(request)
        self.ranks = Ranks(self.loads.values())
        self.seats: dict[str, list[Seat]] = {cost.vnode: [] for cost in request.stages}
        self.away: dict[str, model_pb2.Assignment] = {}
        """By VNode: a lost primary that is waited for; it takes nothing of its node."""
        self.awaited = Counter(vnode for node in request.nodes for vnode in node.awaited)
        """By VNode: nodes that hosted it when they were lost a moment ago."""
        self.unsettled: set[str] = set()
        """VNodes whose replicas this plan has changed for a fault: they get nothing more in the same breath."""
        previous = request.previous
        self.next_replica = previous.next_replica if previous is not None else first_replica(request.model)
        self._weights = (
            {item.replica: item.weight for item in previous.assignments if item.role in WORKING and item.weight > 0.0}
            if previous is not None and request.goes_on
            else {}
        )

    # Changes

    def seat(self, cost: StageCost, load: Load, role: model_pb2.Role.ValueType, reason: str, *, replica: str = "") -> Seat:
        """Places a replica: the one of that name, else a new one."""
        if not replica:
            replica = f"{cost.vnode}.{self.next_replica}"
            self.next_replica += 1
        seat = Seat(cost, replica, load, role, reason)
        self._charge(load, 1, load.disk(cost), 0, 0.0)
        self.seats[cost.vnode].append(seat)
        self._settle(cost.vnode)
        return seat

    def leave(self, seat: Seat) -> None:
        """Takes a replica off again."""
        self.seats[seat.cost.vnode].remove(seat)
        self._charge(seat.load, -1, -seat.load.disk(seat.cost), -seat.memory_bytes, -seat.seconds)
        self._settle(seat.cost.vnode)

    def promote(self, seat: Seat, reason: str) -> None:
        """The same replica goes on as its VNode's primary."""
        seat.role, seat.reason = model_pb2.ROLE_PRIMARY, reason
        self.unsettled.add(seat.cost.vnode)
        self._settle(seat.cost.vnode)

    def reweigh(self, vnode: str, weights: Mapping[str, float]) -> None:
        """Gives the replicas of a VNode these weights."""
        self._weights.update(weights)
        self._settle(vnode)

    # Questions

    def primary(self, vnode: str) -> Seat | None:
        """Where a VNode's primary sits."""
        return next((seat for seat in self.seats[vnode] if seat.role == model_pb2.ROLE_PRIMARY), None)

    def working(self, vnode: str) -> list[Seat]:
        """Primary and contributors."""
        return [seat for seat in self.seats[vnode] if seat.works]

    def on(self, load: Load) -> list[Seat]:
        """Everything that sits on a node."""
        return [seat for seats in self.seats.values() for seat in seats if seat.load is load]

    def slowest(self) -> Load | None:
        """The node that sets the pace; None where nothing is placed."""
        return max((load for load in self.loads.values() if load.hosted), key=lambda load: load.seconds, default=None)

    def pace_s(self) -> float:
        """Seconds per batch of the slowest node."""
        slowest = self.slowest()
        return slowest.seconds if slowest is not None else 0.0

    def speed(self, vnode: str) -> float:
        """Batches per second of all replicas of a VNode together."""
        return math.fsum(1.0 / max(seat.load.step_s(seat.cost), 1e-12) for seat in self.working(vnode))

    def share_s(self, cost: StageCost, load: Load) -> float:
        """Seconds per batch that one more working replica would take of a node, at a share by its speed."""
        step_s = load.step_s(cost)
        return step_s / (1.0 + self.speed(cost.vnode) * step_s)

    def fresh_weights(self, vnode: str) -> dict[str, float]:
        """In proportion to the nodes' present speeds for that stage: batches per second."""
        return {seat.replica: _rounded(1.0 / max(seat.load.step_s(seat.cost), 1e-9)) for seat in self.working(vnode)}

    # Inside

    def _charge(self, load: Load, hosted: int, disk: int, memory: int, seconds: float) -> None:
        """Takes so much more of a node."""
        self.ranks.taken_out(load)
        load.hosted += hosted
        load.free_disk_bytes -= disk
        load.free_bytes -= memory
        load.seconds = load.seconds + seconds if load.hosted else 0.0
        self.ranks.put_back(load)

    def _settle(self, vnode: str) -> None:
        """Brings weights, shares and reservations of a VNode's replicas up to date."""
        seats = self.seats[vnode]
        weights = self._weigh(vnode)
        total = math.fsum(weights.values())
        for seat in seats:
            seat.weight = weights.get(seat.replica, 0.0)
            seconds = seat.load.step_s(seat.cost) * seat.weight / total if seat.weight else 0.0
            memory = seat.cost.memory_bytes + (seat.cost.sharing_bytes if len(seats) > 1 else 0)
            self._charge(seat.load, 0, 0, memory - seat.memory_bytes, seconds - seat.seconds)
            seat.seconds, seat.memory_bytes = seconds, memory

    def _weigh(self, vnode: str) -> dict[str, float]:
        """Weights of the plan before where they are still about right, in its scale."""
        fresh = self.fresh_weights(vnode)
        known = [(replica, self._weights[replica]) for replica in fresh if replica in self._weights]
        if len(known) == len(fresh):
            return dict(known)
        if not known:
            return fresh
        scale = known[0][1] / fresh[known[0][0]]
        result: dict[str, float] = {}
        for replica, speed in fresh.items():
            old, new = self._weights.get(replica, 0.0), scale * speed
            close = old > 0.0 and max(old / new, new / old) <= self.policy.min_gain
            result[replica] = old if close else _rounded(new)
        return result


def bounded(measured: float, predicted: float) -> float:
    """A measured step's seconds, within `MAX_CORRECTION` of what was predicted."""
    return min(max(measured, predicted / MAX_CORRECTION), predicted * MAX_CORRECTION)


def shares(assignments: Iterable[model_pb2.Assignment]) -> dict[str, float]:
    """The part of its VNode's batches that each replica of a plan owns, by replica."""
    rows: Sequence[model_pb2.Assignment] = list(assignments)
    totals: dict[str, float] = {}
    for item in rows:
        totals[item.vnode] = totals.get(item.vnode, 0.0) + item.weight
    return {item.replica: item.weight / totals[item.vnode] if item.weight else 0.0 for item in rows}


def _rounded(weight: float) -> float:
    """Six digits: equal machines get equal weights."""
    return float(f"{weight:.6g}")


def _loads(request: PlanRequest) -> dict[str, Load]:
    """Every node with its correction: measured over predicted seconds of everybody's VNodes, and at least that of its own.

    A node that hosts nothing is thus never taken for slower than an equal one that is busy and measured.
    """
    costs = {cost.vnode: cost for cost in request.stages}
    nodes = sorted(request.nodes, key=lambda node: node.node_id)
    totals: dict[str, tuple[float, float]] = {}
    for node in nodes:
        measured_s = predicted_s = 0.0
        for vnode in sorted(node.measured):
            cost, step_s = costs.get(vnode), node.measured[vnode]
            predicted = predicted_step_s(cost, node.gflops) if cost is not None else 0.0
            if step_s > 0.0 and predicted > 0.0:
                measured_s += bounded(step_s, predicted)
                predicted_s += predicted
        if predicted_s > 0.0:
            totals[node.node_id] = (measured_s, predicted_s)
    everybodys_s = math.fsum(pair[1] for pair in totals.values())
    common = math.fsum(pair[0] for pair in totals.values()) / everybodys_s if everybodys_s else 1.0
    loads: dict[str, Load] = {}
    for node in nodes:
        measured_s, predicted_s = totals.get(node.node_id, (0.0, 1.0))
        loads[node.node_id] = Load(node, max(common, measured_s / predicted_s), node.memory_bytes, node.disk_bytes)
    return loads
