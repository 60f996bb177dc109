"""Which VNodes leave a node that is of no use to them: those that another one can take. Pure.

A node that brings nothing of a VNode (`orchestrator.contribution`) costs its job less than nobody at all, and may be all there is: it is asked whether another
place fits, not whether anybody else is there. What else it hosts stays.
"""

from __future__ import annotations

from orchestrator.board import Board
from orchestrator.loads import Seat
from orchestrator.placement import has_place
from orchestrator.succession import Loss, as_planned, may_lead


def displaced(board: Board) -> list[Loss]:
    """Takes off what is of no use where it is and has another place, and returns it. Call when everything that stays is seated."""
    losses: list[Loss] = []
    for node_id in sorted(load.offer.node_id for load in board.loads.values() if load.offer.useless and load.seats):
        load = board.loads[node_id]
        for seat in sorted(load.seats, key=lambda seat: seat.replica):
            why = load.offer.useless.get(seat.cost.vnode)
            if why and not load.offer.handing_over and _leaves(board, seat):
                losses.append(Loss(as_planned(board, seat), why))
    return losses


def _leaves(board: Board, seat: Seat) -> bool:
    """Takes a replica off, and puts it back where the VNode has no other place."""
    is_moving = seat in board.moving
    board.leave(seat)
    if any(may_lead(other) for other in board.seats[seat.cost.vnode]) or has_place(board, seat.cost):
        return True
    board.put_back(seat)
    if is_moving:
        board.moving.add(seat)
    return False
