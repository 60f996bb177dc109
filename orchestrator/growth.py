"""What may change when nothing has for a while: new weights, one move, or replicas added by choice, whatever raises the rate most, and only by more than
the hysteresis factor. Pure. Moves are Graham's (1969) argument backwards: only what sits on the slowest node can help. Contributors have been evened out before
(`orchestrator.spreading`), so what moves here is the only copy of a VNode.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.v1 import model_pb2
from orchestrator.board import Board
from orchestrator.costs import StageCost
from orchestrator.evenness import unevenness
from orchestrator.filling import is_ready
from orchestrator.loads import Load, Seat
from orchestrator.moving import begin_move, may_move
from orchestrator.placement import best, cannot_share, soonest


@dataclass(frozen=True, slots=True)
class _Move:
    """A replica that would live elsewhere, and the pace then."""

    after_s: float
    seat: Seat
    target: Load


def improve(board: Board) -> None:
    """Changes the board by the best of what is worth it, if anything is."""
    before_s = board.pace_s()
    if before_s <= 0.0 or _reweigh(board, before_s):
        return
    move = _best_move(board)
    added, grown_s = grow(board, by_record=False)
    if move is None or before_s <= board.policy.min_gain * move.after_s or (added and grown_s <= move.after_s):
        return
    _take_back(board, added)
    _relocate(board, move, before_s)


def grow(board: Board, *, by_record: bool = True) -> tuple[list[Seat], float]:
    """Adds replicas where the pipeline is slowest, as long as nodes are idle enough; keeps those that together raise the rate enough.

    ``by_record`` False: whoever compares the result with what works now must not be swayed by records.
    """
    start_s = kept_s = board.pace_s()
    added: list[Seat] = []
    num_kept = 0
    while len(added) < board.policy.max_growth:
        seat = _relieve(board, by_record=by_record)
        if seat is None:
            break
        added.append(seat)
        pace_s = board.pace_s()
        if kept_s > board.policy.min_gain * pace_s:
            kept_s, num_kept = pace_s, len(added)
    _take_back(board, added[num_kept:])
    for seat in added[:num_kept]:
        seat.reason = f"added by choice, {seat.cost.vnode} held the others up: the slowest node takes {kept_s:.3g} instead of {start_s:.3g} s per batch"
    return added[:num_kept], kept_s


def _relieve(board: Board, *, by_record: bool) -> Seat | None:
    """One more replica for a VNode on the slowest node, on a node that stays faster than that."""
    slowest = board.slowest()
    if slowest is None:
        return None
    chosen = [seat for seat in slowest.seats if seat.works and _may_grow(board, seat.cost)]
    for seat in sorted(chosen, key=lambda seat: (-seat.seconds, seat.cost.vnode)):
        role = model_pb2.ROLE_CONTRIBUTOR
        load = best(board, seat.cost, role, None) if by_record else soonest(board, seat.cost, role)
        if load is not None and load.seconds + board.share_s(seat.cost, load) < slowest.seconds:
            return board.seat(seat.cost, load, model_pb2.ROLE_CONTRIBUTOR, "")
    return None


def _may_grow(board: Board, cost: StageCost) -> bool:
    has_room = len(board.working(cost.vnode)) < board.policy.max_chosen_replicas
    return cost.wanted_replicas == 0 and has_room and is_ready(board, cost.vnode) and not cannot_share(board, cost)


def _take_back(board: Board, added: list[Seat]) -> None:
    """Undoes additions, numbers included: nobody has heard of them."""
    for seat in reversed(added):
        board.leave(seat)
        board.next_replica -= 1


def _reweigh(board: Board, before_s: float) -> bool:
    """Shares by the present speeds on the slowest node, if that alone is worth it: nothing moves but units."""
    slowest = board.slowest()
    if slowest is None:
        return False
    old: dict[str, dict[str, float]] = {}
    for seat in slowest.seats:
        working = board.working(seat.cost.vnode)
        if seat.works and len(working) > 1:
            old[seat.cost.vnode] = {item.replica: item.weight for item in working}
    for vnode in sorted(old):
        board.reweigh(vnode, board.fresh_weights(vnode))
    if before_s > board.policy.min_gain * board.pace_s():
        return True
    for vnode in sorted(old):
        board.reweigh(vnode, old[vnode])
    return False


def _best_move(board: Board) -> _Move | None:
    """The one move of an only copy off the slowest node that leaves the best pace. Primaries with siblings stay: their shares shrink instead. Who
    is not at work cannot hand over.
    """
    slowest = board.slowest()
    if slowest is None:
        return None
    found: _Move | None = None
    for seat in sorted(slowest.seats, key=lambda seat: seat.cost.vnode):
        if len(board.seats[seat.cost.vnode]) > 1 or not may_move(board, seat) or seat.replica not in board.request.live:
            continue
        uneven = unevenness(board, [slowest])
        board.leave(seat)
        target = soonest(board, seat.cost, seat.role)
        if target is not None and target is not slowest:
            uneven += unevenness(board, [target])
            trial = board.seat(seat.cost, target, seat.role, "")
            after_s, evens_out = board.pace_s(), unevenness(board, [slowest, target]) < uneven
            _take_back(board, [trial])
            if evens_out and (found is None or after_s < found.after_s):
                found = _Move(after_s, seat, target)
        board.put_back(seat)
    return found


def _relocate(board: Board, move: _Move, before_s: float) -> None:
    """The replica that moves hands over."""
    begin_move(
        board, move.seat, move.target, f"the slowest node then takes {move.after_s:.3g} instead of {before_s:.3g} s per batch"
    )
