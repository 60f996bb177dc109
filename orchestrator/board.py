"""A plan in the making: which replica sits where, what that takes of each node, and how the replicas of a VNode share its batches. Pure.

A replica's share of the batches is its weight over the sum of its VNode's weights, so a node's time per batch of the job is the sum of share times
step over what it hosts, and the pace is that of the slowest node. Weights follow the nodes' speeds for that stage. They change only where the
replicas of a VNode change, and then only by more than the hysteresis factor: every changed weight moves units between replicas.

A board outlives its plan: the next one begins with the same seats, and looks at the VNodes that are unfinished or touched by what nodes offer now.
Every figure follows from seats and offers alone, never from the order of changes, so a board that was carried on says the same as a new one.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dcnr.v1 import model_pb2
from orchestrator.columns import Columns
from orchestrator.costs import StageCost, predicted_step_s
from orchestrator.loads import WORKING, Load, Seat, bounded
from orchestrator.offers import NodeOffer, PlanPolicy, PlanRequest

NUMBER_RANGES: Final = 900_000
RANGE_SIZE: Final = 1_000
"""Replica numbers: each model begins in a range of its own."""
TERM_SIZE: Final = 100_000
"""Each term gives numbers above those of all terms before: in a store that went back a plan does not tell how many were given since."""
CORRECTION_STEP: Final = 1.1
"""What everybody's measurements say together counts in steps of this factor: it concerns every node, and is never exact."""


def first_replica(model: str) -> int:
    """Where a model's replica numbers begin: apart from those of other models, since a PNode may host two whose VNodes share names."""
    return int.from_bytes(hashlib.sha256(model.encode()).digest()[:4], "big") % NUMBER_RANGES * RANGE_SIZE


def next_replica(request: PlanRequest) -> int:
    """The first number that the next plan may give. Numbers only grow, and none is given twice, also where a term follows a head that went back: its epoch is
    above all that were seen.
    """
    before = int(request.previous.next_replica) if request.previous is not None else 0
    return max(before, first_replica(request.model) + TERM_SIZE * request.epoch)


class Board:
    """Nodes with their loads, seats by VNode. Every call leaves loads, shares and reservations right."""

    def __init__(self, request: PlanRequest, policy: PlanPolicy) -> None:
        self.request, self.policy = request, policy
        self.costs = {cost.vnode: cost for cost in request.stages}
        nodes = sorted(request.nodes, key=lambda node: node.node_id)
        self._measured = {node.node_id: _measured(node, self.costs) for node in nodes if node.measured}
        self._common = _in_steps(self._measured)
        self.loads = {node.node_id: Load(node, self._correction(node)) for node in nodes}
        self.columns = Columns(tuple(self.loads.values()), policy.max_vnodes_per_node)
        self.seats: dict[str, list[Seat]] = {cost.vnode: [] for cost in request.stages}
        self.away: dict[str, model_pb2.Assignment] = {}
        """By VNode: a lost primary that is waited for; it takes nothing of its node."""
        self.awaited: Mapping[str, int] = awaited_by_vnode(request.nodes)
        """By VNode: nodes that hosted it when they were lost a moment ago."""
        self.unfinished: set[str] = set(self.costs)
        """VNodes that may lack something since the plan before."""
        self.touched: set[str] = set(self.costs)
        """VNodes of which something has changed since the plan before."""
        self.helpers: set[Seat] = set()
        """Every seat but primaries."""
        self.moving: set[Seat] = set()
        """Only copies that hand over to another place."""
        self.unsettled: set[str] = set()
        """VNodes whose replicas this plan has changed for a fault: they get nothing more in the same breath."""
        previous = request.previous
        self.next_replica = next_replica(request)
        self._weights: dict[str, dict[str, float]] = {}
        """By VNode and replica, as in the plan before."""
        for item in previous.assignments if previous is not None and request.goes_on else ():
            if item.role in WORKING and item.weight > 0.0:
                self._weights.setdefault(item.vnode, {})[item.replica] = item.weight

    # Changes

    def seat(self, cost: StageCost, load: Load, role: model_pb2.Role.ValueType, reason: str, *, replica: str = "") -> Seat:
        """Places a replica: the one of that name, else a new one."""
        if not replica:
            replica = f"{cost.vnode}.{self.next_replica}"
            self.next_replica += 1
        seat = Seat(cost, replica, load, role, reason)
        self.put_back(seat)
        return seat

    def put_back(self, seat: Seat) -> None:
        """A replica that was taken off is where it was, with all that is known of it."""
        seat.load.seats.append(seat)
        self.seats[seat.cost.vnode].append(seat)
        if seat.role != model_pb2.ROLE_PRIMARY:
            self.helpers.add(seat)
        self._settle(seat.cost.vnode)

    def leave(self, seat: Seat) -> None:
        """Takes a replica off again."""
        self.seats[seat.cost.vnode].remove(seat)
        seat.load.seats.remove(seat)
        self.helpers.discard(seat)
        self.moving.discard(seat)
        self._account(seat.load)
        self._settle(seat.cost.vnode)

    def promote(self, seat: Seat, reason: str) -> None:
        """The same replica goes on as its VNode's primary."""
        seat.role, seat.reason = model_pb2.ROLE_PRIMARY, reason
        self.helpers.discard(seat)
        self.unsettled.add(seat.cost.vnode)
        self._settle(seat.cost.vnode)

    def move(self, seat: Seat, to: str, within_s: float, until_unix_ms: int, *, stays: bool = False) -> None:
        """The replica hands over to that node, or to none any more; ``stays``: it is not moved by choice until then."""
        seat.hands_over_to, seat.hand_over_s, seat.stays, seat.until_unix_ms = to, within_s, stays, until_unix_ms
        (self.moving.add if to else self.moving.discard)(seat)
        self.touched.add(seat.cost.vnode)

    def reweigh(self, vnode: str, weights: Mapping[str, float]) -> None:
        """Gives the replicas of a VNode these weights."""
        self._weights.setdefault(vnode, {}).update(weights)
        self._settle(vnode)

    # From plan to plan

    def close(self) -> None:
        """The plan is made: what sits where now is what the next one begins with. `touched` and `unsettled` begin anew."""
        for vnode in self.touched:
            seats = self.seats[vnode]
            seats.sort(key=lambda seat: seat.rank)
            self._weights[vnode] = {seat.replica: seat.weight for seat in seats if seat.weight > 0.0}
        self.touched.clear()
        self.unsettled.clear()

    def offered(self, load: Load, offer: NodeOffer) -> None:
        """What a node offers now, once nothing sits there that cannot stay."""
        self.columns.leave(load)
        self._note_measured(offer)
        load.offered(offer, self._correction(offer))
        self.columns.enter(load)
        for seat in tuple(load.seats):
            self._settle(seat.cost.vnode)

    def joined(self, offer: NodeOffer) -> None:
        """A node more."""
        self._note_measured(offer)
        load = self.loads[offer.node_id] = Load(offer, self._correction(offer))
        self.columns.insert(load)

    def left(self, load: Load) -> None:
        """A node less, on which nothing sits any more."""
        self._measured.pop(load.offer.node_id, None)
        self.columns.remove(self.loads.pop(load.offer.node_id))

    def is_in_step(self) -> bool:
        """Whether corrections are still those that everybody's measurements call for."""
        return _in_steps(self._measured) == self._common

    # Questions

    def primary(self, vnode: str) -> Seat | None:
        """Where a VNode's primary sits."""
        return next((seat for seat in self.seats[vnode] if seat.role == model_pb2.ROLE_PRIMARY), None)

    def working(self, vnode: str) -> list[Seat]:
        """Primary and contributors."""
        return [seat for seat in self.seats[vnode] if seat.works]

    def slowest(self) -> Load | None:
        """The node that sets the pace; None where nothing is placed."""
        return self.columns.slowest()

    def pace_s(self) -> float:
        """Seconds per batch of the slowest node."""
        slowest = self.slowest()
        return slowest.seconds if slowest is not None else 0.0

    def speed(self, vnode: str) -> float:
        """Batches per second of all replicas of a VNode together."""
        return math.fsum(1.0 / max(seat.step_s, 1e-12) for seat in self.seats[vnode] if seat.works)

    def share_s(self, cost: StageCost, load: Load) -> float:
        """Seconds per batch that one more working replica would take of a node, at a share by its speed."""
        step_s = load.step_s(cost)
        return step_s / (1.0 + self.speed(cost.vnode) * step_s)

    def fresh_weights(self, vnode: str) -> dict[str, float]:
        """In proportion to the nodes' present speeds for that stage: batches per second."""
        return {seat.replica: _rounded(1.0 / max(seat.step_s, 1e-9)) for seat in self.seats[vnode] if seat.works}

    def open_questions(self) -> list[StageCost]:
        """Stages that may lack something, as they are placed: the largest first."""
        return sorted(
            (self.costs[vnode] for vnode in self.unfinished | self.touched), key=lambda cost: (-cost.step_flops, cost.vnode)
        )

    # Inside

    def _correction(self, offer: NodeOffer) -> float:
        """Measured over predicted seconds of everybody's VNodes, and at least that of its own.

        A node that hosts nothing is thus never taken for slower than an equal one that is busy and measured.
        """
        measured_s, predicted_s = self._measured.get(offer.node_id, (0.0, 0.0))
        return max(self._common, measured_s / predicted_s) if predicted_s > 0.0 else self._common

    def _note_measured(self, offer: NodeOffer) -> None:
        self._measured.pop(offer.node_id, None)
        if offer.measured:
            self._measured[offer.node_id] = _measured(offer, self.costs)

    def _account(self, load: Load) -> None:
        load.account()
        self.columns.note(load)

    def _settle(self, vnode: str) -> None:
        """Brings weights, shares and reservations of a VNode's replicas up to date."""
        self.touched.add(vnode)
        seats = self.seats[vnode]
        weights = self._weigh(vnode)
        total = math.fsum(weights.values())
        for seat in seats:
            seat.weight = weights.get(seat.replica, 0.0)
            seat.seconds = seat.step_s * seat.weight / total if seat.weight else 0.0
            seat.memory_bytes = seat.cost.memory_bytes + (seat.cost.sharing_bytes if len(seats) > 1 else 0)
            self._account(seat.load)

    def _weigh(self, vnode: str) -> dict[str, float]:
        """Weights of the plan before where they are still about right, in its scale."""
        before = self._weights.get(vnode)
        if not before:
            return self.fresh_weights(vnode)
        names = [seat.replica for seat in self.seats[vnode] if seat.works]
        known = [name for name in names if name in before]
        if len(known) == len(names):
            return {name: before[name] for name in names}
        fresh = self.fresh_weights(vnode)
        if not known:
            return fresh
        scale = before[known[0]] / fresh[known[0]]
        result: dict[str, float] = {}
        for replica, speed in fresh.items():
            old, new = before.get(replica, 0.0), scale * speed
            close = old > 0.0 and max(old / new, new / old) <= self.policy.min_gain
            result[replica] = old if close else _rounded(new)
        return result


def shares(assignments: Iterable[model_pb2.Assignment]) -> dict[str, float]:
    """The part of its VNode's batches that each replica of a plan owns, by replica."""
    rows: Sequence[model_pb2.Assignment] = list(assignments)
    totals: dict[str, float] = {}
    for item in rows:
        totals[item.vnode] = totals.get(item.vnode, 0.0) + item.weight
    return {item.replica: item.weight / totals[item.vnode] if item.weight else 0.0 for item in rows}


def awaited_by_vnode(nodes: Iterable[NodeOffer]) -> Mapping[str, int]:
    """How many nodes had a replica of a VNode when they were lost a moment ago."""
    return Counter(vnode for node in nodes if node.awaited for vnode in node.awaited)


def _in_steps(totals: Mapping[str, tuple[float, float]]) -> float:
    """Measured over predicted seconds of all nodes, in steps of `CORRECTION_STEP`; 1 where nothing was measured."""
    measured_s, predicted_s = math.fsum(pair[0] for pair in totals.values()), math.fsum(pair[1] for pair in totals.values())
    if measured_s <= 0.0 or predicted_s <= 0.0:
        return 1.0
    return float(CORRECTION_STEP ** round(math.log(measured_s / predicted_s, CORRECTION_STEP)))


def _measured(node: NodeOffer, costs: Mapping[str, StageCost]) -> tuple[float, float]:
    """Of all steps that a node has measured: seconds as measured, and as predicted."""
    measured_s = predicted_s = 0.0
    for vnode in sorted(node.measured):
        cost, step_s = costs.get(vnode), node.measured[vnode]
        predicted = predicted_step_s(cost, node.gflops) if cost is not None else 0.0
        if step_s > 0.0 and predicted > 0.0:
            measured_s += bounded(step_s, predicted)
            predicted_s += predicted
    return measured_s, predicted_s


def _rounded(weight: float) -> float:
    """Six digits: equal machines get equal weights."""
    return float(f"{weight:.6g}")
