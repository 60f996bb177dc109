"""Idle nodes get their part of what runs: a volunteer's machine that joins, or comes back when others have taken its place, is of use within seconds.

Only nodes that hold the others up give, only what the idle node does sooner by more than the hysteresis factor, and only to nodes that hosted nothing when
the plan was begun: so each node is filled once, and a join moves at most one part of everything. Contributors move at once, of each VNode one at a time
and only while all its replicas are at work: nothing waits for them. The only copy of a VNode moves when some seconds have passed without a change, and
only where all such moves together raise the rate by more than the hysteresis factor, since nothing of it is learned meanwhile.

A job's first plan is evened out in the same way, before anybody has heard of it: contributors leave nodes for any node that has less to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from dcnr.v1 import model_pb2
from orchestrator.board import Board, Load, Seat
from orchestrator.offers import EVEN
from orchestrator.placement import best, soonest

MAX_GIVERS: Final = 64
"""Nodes that one plan asks to give something, slowest first."""


@dataclass(frozen=True, slots=True)
class _Move:
    """What was done: a replica left, another one of its VNode is on the other node."""

    left: Seat
    new: Seat


@dataclass(frozen=True, slots=True)
class _Rules:
    """Who may leave, where to, and for what gain; how many a node takes."""

    may_leave: Callable[[Seat, list[_Move]], bool]
    open_to: set[str]
    gain: float
    part: int
    by_record: bool
    """Whether what the history says counts: only where nobody sits anywhere yet."""


def idle_nodes(board: Board) -> frozenset[str]:
    """Nodes that take something and have nothing."""
    return frozenset(load.offer.node_id for load in board.loads.values() if load.is_open and not load.hosted)


def even_out(board: Board) -> None:
    """Evens out a plan that nobody has heard of."""
    open_to = {load.offer.node_id for load in board.loads.values() if load.is_open}
    _moves(
        board,
        _Rules(
            lambda seat, _: seat.role == model_pb2.ROLE_CONTRIBUTOR, open_to, EVEN, board.policy.max_vnodes_per_node, by_record=True
        ),
    )


def spread(board: Board, idle: frozenset[str]) -> bool:
    """Moves replicas to idle nodes, slowest giver first; whether anything moved."""
    total, num_open = sum(load.hosted for load in board.loads.values()), sum(load.is_open for load in board.loads.values())
    part, gain = -(-total // max(1, num_open)), board.policy.min_gain

    def contributes(seat: Seat, moves: list[_Move]) -> bool:
        moved = any(move.new.cost.vnode == seat.cost.vnode for move in moves)
        return seat.role == model_pb2.ROLE_CONTRIBUTOR and not moved and _is_at_work(board, seat)

    def is_alone(seat: Seat, _: list[_Move]) -> bool:
        return seat.role == model_pb2.ROLE_PRIMARY and len(board.seats[seat.cost.vnode]) == 1 and _is_at_work(board, seat)

    if _moves(board, _Rules(contributes, set(idle), gain, part, by_record=False)):
        return True
    if board.request.since_last_plan_s < board.policy.settled_s:
        return False
    before_s = board.pace_s()
    moves = _moves(board, _Rules(is_alone, set(idle), gain, part, by_record=False))
    if before_s > gain * board.pace_s():
        return True
    for move in reversed(moves):
        _take_back(board, move)
    return False


def _moves(board: Board, rules: _Rules) -> list[_Move]:
    givers = [(-load.seconds, load.offer.node_id) for load in board.loads.values() if load.hosted > 1]
    heapify(givers)
    pace_s = board.pace_s()
    moves: list[_Move] = []
    for _ in range(MAX_GIVERS):
        if not givers or not rules.open_to:
            break
        giver = board.loads[heappop(givers)[1]]
        if giver.seconds * board.policy.min_gain < pace_s:
            break
        move = _give(board, giver, rules, moves)
        if move is None:
            continue
        moves.append(move)
        if move.new.load.hosted >= rules.part:
            rules.open_to.remove(move.new.load.offer.node_id)
        if giver.hosted > 1:
            heappush(givers, (-giver.seconds, giver.offer.node_id))
    return moves


def _give(board: Board, giver: Load, rules: _Rules, moves: list[_Move]) -> _Move | None:
    """One replica leaves this node for another one; None where none is worth it."""
    before_s = giver.seconds * _doubt(giver, rules)
    chosen = [seat for seat in giver.seats if rules.may_leave(seat, moves)]
    for seat in sorted(chosen, key=lambda seat: (-seat.seconds, seat.cost.vnode)):
        board.leave(seat)
        target = best(board, seat.cost, seat.role, None) if rules.by_record else soonest(board, seat.cost, seat.role)
        if target is None or target is giver or target.offer.node_id not in rules.open_to:
            board.seat(seat.cost, giver, seat.role, seat.reason, replica=seat.replica)
            continue
        reason = (
            f"moved from {giver.offer.node_id[:8]}, which has more to do; nothing was here"
            if board.request.goes_on
            else seat.reason
        )
        move = _Move(seat, board.seat(seat.cost, target, seat.role, reason))
        if rules.gain * target.seconds * _doubt(target, rules) <= before_s:
            return move
        _take_back(board, move)
    return None


def _doubt(load: Load, rules: _Rules) -> float:
    return load.reluctance if rules.by_record else load.doubt


def _is_at_work(board: Board, seat: Seat) -> bool:
    """Whether all replicas of its VNode are, so that one of them can be spared."""
    live = board.request.live
    return seat.cost.vnode not in board.unsettled and all(one.replica in live for one in board.seats[seat.cost.vnode])


def _take_back(board: Board, move: _Move) -> None:
    """Undoes a move, number included: nobody has heard of it."""
    board.leave(move.new)
    board.next_replica -= 1
    board.seat(move.left.cost, move.left.load, move.left.role, move.left.reason, replica=move.left.replica)
