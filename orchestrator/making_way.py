"""Room for a VNode that waits although the nodes could hold everything: primaries that fit elsewhere leave the node that would take it. Pure.

A plan places one VNode after the other, so a large one with few FLOPs may find each node that could hold it in part taken by small ones which any other
node could hold. Of the nodes that would have to be cleared the one is chosen that the fewest replicas leave, and of these the fewest bytes. In a plan that
nobody has heard of they sit elsewhere at once; in one that follows another they hand over (`orchestrator.moving`), all of them together, and only where
afterwards there is room: so each such move ends with one VNode less that waits, and what has come to rest stays.

One step far: nobody leaves to make room for who leaves. So a packing that only a longer chain of moves would reach is not found, and neither is one in which
the primary of a VNode with siblings would have to move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dcnr.v1 import model_pb2
from orchestrator.board import Board
from orchestrator.costs import StageCost
from orchestrator.loads import Load, Seat
from orchestrator.moving import begin_move, may_move
from orchestrator.placement import lacks_room, soonest

MAX_NODES: Final = 16
"""Nodes that one VNode which waits looks at, those that lack least."""
MAX_SEARCHES: Final = 256
"""Places that one plan looks for in this way: each looks at all nodes."""


@dataclass(frozen=True, slots=True)
class _Way:
    """Who would leave ``load`` for which nodes."""

    load: Load
    moves: tuple[tuple[Seat, Load], ...]

    @property
    def effort(self) -> tuple[int, int, str]:
        """The least counts."""
        return len(self.moves), sum(seat.memory_bytes for seat, _ in self.moves), self.load.offer.node_id


def make_way(board: Board, waiting: Sequence[str]) -> list[str]:
    """Clears nodes for VNodes that wait. Returns those that wait still: in a plan that follows another all of them, until who leaves has handed over."""
    if board.moving:
        return list(waiting)
    left, still = [MAX_SEARCHES], list(waiting)
    for cost in sorted((board.costs[vnode] for vnode in waiting), key=lambda cost: (-cost.memory_bytes, cost.vnode)):
        way = _find(board, cost, left)
        if way is not None and board.request.goes_on:
            for seat, target in way.moves:
                begin_move(board, seat, target, f"{cost.vnode} has no other place")
            return still
        if way is not None:
            _rearrange(board, cost, way)
            still.remove(cost.vnode)
    return still


def _find(board: Board, cost: StageCost, left: list[int]) -> _Way | None:
    if board.seats[cost.vnode]:
        return None
    ways: list[_Way] = []
    columns = board.columns
    for row in np.argsort(-columns.free_bytes, kind="stable").tolist():
        load = columns.loads[row]
        if load.hosted and load.offer.memory_bytes >= cost.memory_bytes and lacks_room(board, cost, load):
            ways += [way for way in [_clear(board, cost, load, left)] if way is not None]
            if len(ways) == MAX_NODES or left[0] <= 0:
                break
    return min(ways, key=lambda way: way.effort, default=None)


def _clear(board: Board, cost: StageCost, load: Load, left: list[int]) -> _Way | None:
    """Who would leave this node, the largest first, and nobody whose place is not needed. The board is as it was.

    The VNode sits there for the time being: so nobody leaves for the place from which it came.
    """
    chosen = [seat for seat in load.seats if _may_leave(board, seat)]
    trials = [board.seat(cost, load, model_pb2.ROLE_PRIMARY, "")]
    moves: list[tuple[Seat, Load]] = []
    for seat in sorted(chosen, key=lambda seat: (-seat.memory_bytes, -seat.disk_bytes, seat.replica)):
        if _has_room(board, load, ()) or left[0] <= 0:
            break
        left[0] -= 1
        board.leave(seat)
        target = soonest(board, seat.cost, seat.role)
        if target is None:
            board.put_back(seat)
            continue
        moves.append((seat, target))
        trials.append(board.seat(seat.cost, target, seat.role, ""))
    has_room, needed, back = _has_room(board, load, ()), list[tuple[Seat, Load]](), list[Seat]()
    for seat, target in reversed(moves):
        if _has_room(board, load, (*back, seat)):
            back.append(seat)
        else:
            needed.append((seat, target))
    for trial in reversed(trials):
        board.leave(trial)
        board.next_replica -= 1
    for seat, _ in reversed(moves):
        board.put_back(seat)
    return _Way(load, tuple(needed)) if has_room else None


def _may_leave(board: Board, seat: Seat) -> bool:
    """Only copies, and in a plan that goes on only those that can hand over."""
    is_only = seat.role == model_pb2.ROLE_PRIMARY and len(board.seats[seat.cost.vnode]) == 1
    return is_only and (not board.request.goes_on or (may_move(board, seat) and seat.replica in board.request.live))


def _has_room(board: Board, load: Load, back: Sequence[Seat]) -> bool:
    """Whether the node holds what sits there, and those that come ``back``: contributors and standbys would go (`orchestrator.placement.make_room`)."""
    helpers = [seat for seat in load.seats if seat.role != model_pb2.ROLE_PRIMARY]
    memory = load.free_bytes + sum(seat.memory_bytes for seat in helpers) - sum(seat.memory_bytes for seat in back)
    disk = load.free_disk_bytes + sum(seat.disk_bytes for seat in helpers) - sum(seat.disk_bytes for seat in back)
    hosted = load.hosted - len(helpers) + len(back)
    return memory >= 0 and disk >= 0 and hosted <= load.most(board.policy.max_vnodes_per_node)


def _rearrange(board: Board, cost: StageCost, way: _Way) -> None:
    """Nobody has heard of this plan yet."""
    for seat, target in way.moves:
        board.leave(seat)
        board.seat(
            seat.cost,
            target,
            seat.role,
            f"{seat.reason}; moved on from {way.load.offer.node_id[:8]}, where {cost.vnode} has its only place",
        )
    board.seat(cost, way.load, model_pb2.ROLE_PRIMARY, "others that fit elsewhere made room")
