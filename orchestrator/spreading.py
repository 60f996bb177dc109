"""Work is evened out, to idle nodes first: a volunteer's machine that joins, or comes back when others have taken its place, is of use within seconds.

Only nodes that hold the others up give, and none that is suspected: it keeps what it has. Contributors move of each VNode one at a time, and only while all
its replicas are at work: nothing waits for them, so records do not count and a small gain is enough. To a node that hosted nothing when the plan was begun
they move at once, at most one part of everything; to any other one when some seconds have passed without a change. The only copy of a VNode moves only to an
idle node, after the same seconds, and where all such moves together raise the rate by more than the hysteresis factor, since nothing of it is learned
meanwhile; it hands over first (`orchestrator.moving`).

Every move lowers `orchestrator.evenness.unevenness` of all nodes, which follows from places and speeds alone: no two plans ever take turns.

A job's first plan is evened out in the same way, before anybody has heard of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from dcnr.v1 import model_pb2
from orchestrator.board import Board
from orchestrator.evenness import fair_s, unevenness
from orchestrator.loads import Load, Seat
from orchestrator.moving import begin_move, may_move
from orchestrator.offers import EVEN, PLACEABLE
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


def begin_even(board: Board) -> None:
    """Evens out a plan that nobody has heard of."""
    part = board.policy.max_vnodes_per_node
    _moves(board, _Rules(lambda seat, _: seat.role == model_pb2.ROLE_CONTRIBUTOR, _open_nodes(board), EVEN, part, by_record=True))


def even_out(board: Board) -> bool:
    """Moves contributors to whoever has less to do, slowest giver first; whether anything moved."""
    policy = board.policy
    if board.request.since_last_plan_s < policy.settled_s:
        return False
    rules = _Rules(_may_be_spared(board), _open_nodes(board), policy.even_gain, policy.max_vnodes_per_node, by_record=False)
    return bool(_moves(board, rules))


def spread(board: Board, idle: frozenset[str]) -> bool:
    """Moves replicas to idle nodes, slowest giver first; whether anything moved."""
    total, num_open = sum(load.hosted for load in board.loads.values()), sum(load.is_open for load in board.loads.values())
    part, gain = -(-total // max(1, num_open)), board.policy.min_gain

    def is_alone(seat: Seat, _: list[_Move]) -> bool:
        is_only = seat.role == model_pb2.ROLE_PRIMARY and len(board.seats[seat.cost.vnode]) == 1
        return is_only and may_move(board, seat) and _is_at_work(board, seat)

    if _moves(board, _Rules(_may_be_spared(board), set(idle), gain, part, by_record=False)):
        return True
    if board.request.since_last_plan_s < board.policy.settled_s:
        return False
    before_s = board.pace_s()
    moves = _moves(board, _Rules(is_alone, set(idle), gain, part, by_record=False))
    is_worth_it = before_s > gain * board.pace_s()
    for move in reversed(moves):
        _take_back(board, move)
        if is_worth_it:
            begin_move(board, move.left, move.new.load, move.new.reason)
    return is_worth_it


def _open_nodes(board: Board) -> set[str]:
    return {load.offer.node_id for load in board.loads.values() if load.is_open}


def _may_be_spared(board: Board) -> Callable[[Seat, list[_Move]], bool]:
    """Contributors that leave a plan in force: one of each VNode."""

    def is_spare(seat: Seat, moves: list[_Move]) -> bool:
        moved = any(move.new.cost.vnode == seat.cost.vnode for move in moves)
        return seat.role == model_pb2.ROLE_CONTRIBUTOR and not moved and _is_at_work(board, seat)

    return is_spare


def _moves(board: Board, rules: _Rules) -> list[_Move]:
    givers = [
        (-load.seconds, load.offer.node_id) for load in board.loads.values() if load.hosted > 1 and load.offer.state in PLACEABLE
    ]
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
    chosen = [seat for seat in giver.seats if rules.may_leave(seat, moves)]
    for seat in sorted(chosen, key=lambda seat: (-seat.seconds, seat.cost.vnode)):
        around = [one.load for one in board.seats[seat.cost.vnode]]
        before_s, uneven = _time_s(board, giver, seat, rules), unevenness(board, around)
        board.leave(seat)
        target = best(board, seat.cost, seat.role, None) if rules.by_record else soonest(board, seat.cost, seat.role)
        if target is None or target is giver or target.offer.node_id not in rules.open_to:
            board.put_back(seat)
            continue
        uneven += unevenness(board, [target])
        move = _Move(seat, board.seat(seat.cost, target, seat.role, seat.reason))
        after_s = _time_s(board, target, seat, rules)
        if rules.gain * after_s <= before_s and (rules.by_record or unevenness(board, [*around, target]) < uneven):
            if board.request.goes_on:
                move.new.reason = _told(move, before_s, after_s)
            return move
        _take_back(board, move)
    return None


def _time_s(board: Board, load: Load, seat: Seat, rules: _Rules) -> float:
    """What counts of a node where this replica might leave or come. Its record does not for a contributor: nothing waits for one that is lost."""
    if rules.by_record:
        return load.seconds * load.reluctance
    return fair_s(board, load) if seat.role == model_pb2.ROLE_CONTRIBUTOR else load.seconds * load.doubt


def _told(move: _Move, before_s: float, after_s: float) -> str:
    giver, is_alone = move.left.load.offer.node_id[:8], move.new.load.hosted == 1
    here = "nothing was here" if is_alone else f"{1000 * after_s:.3g} ms per batch here with it instead of {1000 * before_s:.3g}"
    return f"moved from {giver}, which has more to do; {here}"


def _is_at_work(board: Board, seat: Seat) -> bool:
    """Whether all replicas of its VNode are, so that one of them can be spared."""
    live = board.request.live
    return seat.cost.vnode not in board.unsettled and all(one.replica in live for one in board.seats[seat.cost.vnode])


def _take_back(board: Board, move: _Move) -> None:
    """Undoes a move, number included: nobody has heard of it."""
    board.leave(move.new)
    board.next_replica -= 1
    board.put_back(move.left)
