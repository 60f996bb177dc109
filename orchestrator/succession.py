"""Who goes on: which replicas of the plan before stay, which are lost and why, and which living replica becomes the primary of a VNode that lost its own.

A successor is the living replica whose state holds most, contributors before standbys, unless the newest checkpoint holds more: then a new
replica restores that, and nothing durable is learned again.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.v1 import model_pb2
from orchestrator.board import Board, Load, Seat
from orchestrator.costs import StageCost
from orchestrator.offers import PLACEABLE, USABLE


@dataclass(frozen=True, slots=True)
class Loss:
    """A replica that cannot stay."""

    assignment: model_pb2.Assignment
    reason: str

    @property
    def told(self) -> str:
        """In words."""
        return f"{self.assignment.pnode_id[:8]}: {self.reason}"


def keep(board: Board) -> list[Loss]:
    """Seats what can stay, primaries first so that no other replica takes their room; returns what cannot."""
    request = board.request
    if request.previous is None or not request.goes_on:
        return []
    costs = {cost.vnode: cost for cost in request.stages}
    losses: list[Loss] = []
    for item in sorted(request.previous.assignments, key=lambda item: item.role):
        cost = costs.get(item.vnode)
        if cost is None:
            continue
        load = board.loads.get(item.pnode_id)
        why = _why_lost(cost, load, board)
        if load is None or why:
            losses.append(Loss(item, why))
        else:
            board.seat(cost, load, item.role, item.reason, replica=item.replica)
    return losses


def heir(board: Board, vnode: str) -> Seat | None:
    """The replica that becomes primary; None where none lives, or where the newest checkpoint holds more than any."""
    live = board.request.live
    fit = [seat for seat in board.seats[vnode] if seat.replica in live and _may_lead(seat.load)]
    best = max(fit, key=lambda seat: (live[seat.replica], seat.works, _number(seat)), default=None)
    if best is None or live[best.replica] < board.request.durable.get(vnode, 0):
        return None
    return best


def weakest(board: Board, vnode: str) -> Seat | None:
    """The sibling whose place a restored primary takes where no other node is left."""
    live = board.request.live
    fit = [seat for seat in board.seats[vnode] if _may_lead(seat.load)]
    return min(fit, key=lambda seat: (live.get(seat.replica, -1), seat.works, _number(seat)), default=None)


def _number(seat: Seat) -> int:
    return -int(seat.replica.rpartition(".")[2])


def _may_lead(load: Load) -> bool:
    offer = load.offer
    return offer.state in PLACEABLE and offer.accepts_work and not offer.handing_over


def _why_lost(cost: StageCost, load: Load | None, board: Board) -> str:
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
    siblings = board.seats[cost.vnode]
    memory = cost.memory_bytes + (cost.sharing_bytes if siblings else 0)
    if memory > load.free_bytes or load.disk(cost) > load.free_disk_bytes:
        return "lends less than before"
    if len(siblings) == 1 and cost.sharing_bytes > siblings[0].load.free_bytes:
        return f"{siblings[0].load.offer.node_id[:8]} has no memory left to merge"
    return ""
