"""The only copy of a VNode moves without a loss: it hands over where it is, and its place is another's only when everything that it learned is durable.

A plan says to which node a replica hands over. It learns nothing more, its last state goes into the store and its successors take what it made, as on
a machine that leaves. The plan after that has a new replica in the other place, which begins with just that state. Where the new place goes away meanwhile the
move is called off, and where handing over takes too long it is given up for a while: either way the replica learns on. Moves begin only while none is under
way.
"""

from __future__ import annotations

from typing import Final

from dcnr.v1 import model_pb2
from orchestrator.board import Board
from orchestrator.costs import StageCost
from orchestrator.loads import Load, Seat
from orchestrator.placement import can_take
from orchestrator.succession import Loss, as_planned

NEWS_S: Final = 20.0
"""So much later the plan gives up: a replica whose state was durable in time waits a while for its successors (`pnode.handing.HAND_OVER_S`), and word of it may
be on its way."""
AGAIN: Final = 40
"""Who stood still in vain is not moved by choice for so many times as long: what kept it, a store that was away say, is over by then or costs little."""


def begin_move(board: Board, seat: Seat, target: Load, why: str) -> None:
    """From here on the replica hands over. Nothing else changes yet."""
    offer, policy = seat.load.offer, board.policy
    uplink_mbit = offer.uplink_mbit * policy.uplink_share
    upload_s = seat.cost.state_bytes * 8 / (uplink_mbit * 1e6) if uplink_mbit > 0.0 else 0.0
    within_s = policy.hand_over_s + 2.0 * upload_s
    board.move(seat, target.offer.node_id, within_s, _later(board, within_s + NEWS_S))
    seat.reason = f"hands over to {target.offer.node_id[:8]}: {why}"


def follow_moves(board: Board) -> list[Loss]:
    """What has become of the moves of the plan before. Whoever has handed over is off the board."""
    losses: list[Loss] = []
    request = board.request
    for seat in sorted(board.moving, key=lambda seat: seat.replica):
        target = board.loads.get(seat.hands_over_to)
        if seat.replica in request.handed_over:
            losses.append(Loss(as_planned(board, seat), "has handed over"))
            board.leave(seat)
        elif target is None or not target.is_open:
            _learns_on(board, seat, "its new place is gone")
        elif request.since_last_plan_s > seat.hand_over_s + NEWS_S or 0 < seat.until_unix_ms < request.now_unix_ms:
            _learns_on(board, seat, f"it could not hand over within {seat.hand_over_s:.0f} s", for_s=AGAIN * seat.hand_over_s)
    return losses


def may_move(board: Board, seat: Seat) -> bool:
    """Whether it has not been tried in vain a moment ago."""
    return not seat.stays or board.request.now_unix_ms > seat.until_unix_ms


def new_place(board: Board, cost: StageCost, loss: Loss | None) -> Load | None:
    """The node to which a lost primary was to move; None where that was nowhere, or it does not fit there any more."""
    load = board.loads.get(loss.assignment.hands_over_to) if loss is not None else None
    return load if load is not None and can_take(board, cost, model_pb2.ROLE_PRIMARY, load) else None


def _learns_on(board: Board, seat: Seat, why: str, *, for_s: float = 0.0) -> None:
    board.move(seat, "", 0.0, _later(board, for_s) if for_s else 0, stays=for_s > 0.0)
    seat.reason = f"kept on {seat.load.offer.node_id[:8]}: {why}"


def _later(board: Board, seconds: float) -> int:
    return board.request.now_unix_ms + round(1000 * seconds)
