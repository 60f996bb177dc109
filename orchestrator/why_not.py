"""Why a PNode hosts no replica of a job's VNodes, as the planner sees it now: of thousands of candidates a plan names the nearest misses only. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.v1 import model_pb2
from orchestrator.board import Board
from orchestrator.offers import PlanPolicy, PlanRequest
from orchestrator.placement import hindrance
from orchestrator.succession import keep


@dataclass(frozen=True, slots=True)
class NotHere:
    """One VNode of which the PNode hosts nothing."""

    vnode: str
    fits: bool
    """Whether nothing stands in the way: what is wanted of it is elsewhere."""
    reason: str


def why_not(request: PlanRequest, policy: PlanPolicy, node_id: str) -> list[NotHere]:
    """VNode by VNode, in the order of the job; nothing for a node that the planner does not know. ``request``: what the next plan would depend on."""
    board = Board(request, policy)
    keep(board)
    load = board.loads.get(node_id)
    if load is None:
        return []
    hosted = {seat.cost.vnode for seat in load.seats}
    return [_not_here(board, cost.vnode, node_id) for cost in request.stages if cost.vnode not in hosted]


def _not_here(board: Board, vnode: str, node_id: str) -> NotHere:
    cost, seats = board.costs[vnode], board.seats[vnode]
    role = model_pb2.ROLE_CONTRIBUTOR if seats else model_pb2.ROLE_PRIMARY
    reason = hindrance(board, cost, role, board.loads[node_id])
    if reason:
        return NotHere(vnode, False, reason)
    others = ", ".join(sorted(seat.load.offer.node_id[:8] for seat in seats)[:4]) or "nobody"
    return NotHere(vnode, True, f"it would fit; hosted by {others}, and the plan wants no more replicas, or prefers another PNode")
