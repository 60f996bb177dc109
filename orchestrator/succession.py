"""Who goes on: which replicas of the plan before stay, which are lost and why, and which living replica becomes the primary of a VNode that lost its own. Pure.

A successor is the living replica whose state holds most, contributors before standbys, unless the newest checkpoint holds more: then a new
replica restores that, and nothing durable is learned again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dcnr.ids import number_of
from dcnr.v1 import model_pb2
from orchestrator.board import Board, awaited_by_vnode, next_replica
from orchestrator.costs import StageCost
from orchestrator.loads import Load, Seat
from orchestrator.offers import PLACEABLE, USABLE, NodeOffer, PlanRequest

MAX_FRESH: Final = 64
"""More new nodes than this between two plans, and the next one begins with an empty board."""
TAKEN_BACK: Final = "what it holds was taken back: a new replica begins with the checkpoint that counts"


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
    losses: list[Loss] = []
    for item in sorted(request.previous.assignments, key=lambda item: item.role):
        cost = board.costs.get(item.vnode)
        if cost is None:
            continue
        load = board.loads.get(item.pnode_id)
        why = TAKEN_BACK if number_of(item.replica) < request.fences.get(item.vnode, 0) else _why_lost(cost, load, board)
        if load is None or why:
            losses.append(Loss(item, why))
        else:
            seat = board.seat(cost, load, item.role, item.reason, replica=item.replica)
            board.move(seat, item.hands_over_to, item.hand_over_s, int(item.until_unix_ms), stays=item.stays)
    return losses


def follow(board: Board, request: PlanRequest) -> list[Loss] | None:
    """Carries a board on, from the plan that was made with it to the next: only nodes whose offers changed are looked at. Returns what is lost.

    None where that would not be exact, and everything has to be seated anew: VNodes wait or went back, nodes lend less than is used, many came at once,
    or measurements changed everybody's correction. The board is of no use then.
    """
    if (
        board.away
        or request.previous is None
        or request.previous.waiting
        or not request.goes_on
        or board.request.stages != request.stages
        or board.request.fences != request.fences
    ):
        return None
    board.request, board.next_replica = request, next_replica(request)
    board.awaited = awaited_by_vnode(request.nodes)
    losses: list[Loss] = []
    fresh: list[NodeOffer] = []
    changed: list[Load] = []
    for offer in request.nodes:
        load = board.loads.get(offer.node_id)
        if load is None:
            fresh.append(offer)
        elif load.offer is not offer and load.offer != offer:
            losses += _lose(board, load, offer)
            board.offered(load, offer)
            changed.append(load)
    if len(board.loads) + len(fresh) > len(request.nodes):
        for node_id in sorted(board.loads.keys() - {offer.node_id for offer in request.nodes}):
            losses += _lose(board, board.loads[node_id], None)
            board.left(board.loads[node_id])
    if len(fresh) > MAX_FRESH:
        return None
    if any(load.seats and min(load.free_bytes, load.free_disk_bytes) < 0 for load in changed):
        return None
    for offer in fresh:
        board.joined(offer)
    if not board.is_in_step():
        return None  # also a node that comes may say what it measured
    return losses


def heir(board: Board, vnode: str) -> Seat | None:
    """The replica that becomes primary; None where none lives, or where the newest checkpoint holds more than any."""
    live = board.request.live
    fit = [seat for seat in board.seats[vnode] if seat.replica in live and may_lead(seat)]
    best = max(fit, key=lambda seat: (live[seat.replica], seat.works, _number(seat)), default=None)
    if best is None or live[best.replica] < board.request.durable.get(vnode, 0):
        return None
    return best


def weakest(board: Board, vnode: str) -> Seat | None:
    """The sibling whose place a restored primary takes where no other node is left."""
    live = board.request.live
    fit = [seat for seat in board.seats[vnode] if may_lead(seat)]
    return min(fit, key=lambda seat: (live.get(seat.replica, -1), seat.works, _number(seat)), default=None)


def may_lead(seat: Seat) -> bool:
    """Whether a replica's node could keep its VNode's primary."""
    offer = seat.load.offer
    return offer.state in PLACEABLE and offer.takes_work and not offer.handing_over and seat.cost.vnode not in offer.useless


def _lose(board: Board, load: Load, offer: NodeOffer | None) -> list[Loss]:
    """Takes off what cannot stay on a node that offers this now."""
    losses: list[Loss] = []
    for seat in tuple(load.seats):
        why = _why_gone(seat.cost, offer)
        if why:
            losses.append(Loss(as_planned(board, seat), why))
            board.leave(seat)
    return losses


def as_planned(board: Board, seat: Seat) -> model_pb2.Assignment:
    """As the plan before has it: what was measured since is no part of that."""
    assert board.request.previous is not None
    return next((item for item in board.request.previous.assignments if item.replica == seat.replica), None) or seat.row()


def _number(seat: Seat) -> int:
    return -int(seat.replica.rpartition(".")[2])


def _why_lost(cost: StageCost, load: Load | None, board: Board) -> str:
    """Why a placed stage cannot stay; empty if it can."""
    why = _why_gone(cost, load.offer if load is not None else None)
    if why or load is None or load.offer.handing_over:
        return why
    siblings = board.seats[cost.vnode]
    memory = cost.memory_bytes + (cost.sharing_bytes if siblings else 0)
    if memory > load.free_bytes or load.disk(cost) > load.free_disk_bytes:
        return "lends less than before"
    if len(siblings) == 1 and cost.sharing_bytes > siblings[0].load.free_bytes:
        return f"{siblings[0].load.offer.node_id[:8]} has no memory left to merge"
    return ""


def _why_gone(cost: StageCost, offer: NodeOffer | None) -> str:
    """Why a stage cannot stay on a node, whatever else is there; empty if it can."""
    if offer is None:
        return "not known any more"
    if offer.handing_over:
        return ""
    if offer.state not in USABLE:
        return offer.reason or "is gone"
    if offer.lacks:
        return offer.lacks
    if not offer.accepts_work:
        return "takes no work at the moment"
    if cost.vnode in offer.refused:
        return f"refused by the node: {offer.refused[cost.vnode]}"
    return ""
