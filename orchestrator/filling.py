"""Replicas that are owed: as many contributors as the graph wants, and a standby where a checkpoint leaves its node too slowly. Pure.

Never in the same breath as a recovery: a VNode gets a new replica only once its primary is at work, so that nothing competes with what is being
restored. What cannot be had now is said in the plan and tried again with every plan; it stops nothing.
"""

from __future__ import annotations

from dcnr.v1 import model_pb2
from orchestrator.board import Board
from orchestrator.costs import StageCost
from orchestrator.evenness import mean_s
from orchestrator.loads import Load
from orchestrator.placement import Rejections, best, cannot_share, scored


def fill(board: Board, rejections: Rejections) -> bool:
    """Places what is owed, round by round: no VNode gets its third replica before another its second. Whether a standby was placed."""
    order = board.open_questions()
    owed = {cost.vnode: _owed(board, cost) for cost in order}
    lacking = order
    while lacking := [cost for cost in lacking if owed[cost.vnode] > 0]:
        for cost in lacking:
            owed[cost.vnode] = owed[cost.vnode] - 1 if _one_more(board, cost, rejections) else 0
    stands_by = [_stand_by(board, cost, rejections) for cost in order]
    return any(stands_by)


def is_ready(board: Board, vnode: str) -> bool:
    """Whether a VNode may get one more replica now: at the beginning of a job, or while its primary works."""
    primary = board.primary(vnode)
    if primary is None or vnode in board.unsettled or primary in board.moving:
        return False
    return not board.request.goes_on or primary.replica in board.request.live


def is_finished(board: Board, cost: StageCost) -> bool:
    """Whether a VNode has everything that it is owed: a primary, contributors, a standby where one is needed."""
    return board.primary(cost.vnode) is not None and not _owed(board, cost) and not _conflict(board, cost)


def say_short(board: Board, rejections: Rejections, why: str) -> None:
    """Names every VNode that lacks replicas, where nothing is placed now."""
    for cost in board.open_questions():
        if _owed(board, cost):
            rejections.short(cost.vnode, f"{_lacks(board, cost)}: {why}")


def _is_awaited(board: Board, cost: StageCost, load: Load) -> bool:
    """Whether a replica that is lacking is rather waited for: the node that had it may be back in a moment, and the one that would take it has its part.

    Its siblings have taken over its batches already; whoever takes it beyond its part gives it away again when the node is back.
    """
    if _owed(board, cost) > board.awaited.get(cost.vnode, 0):
        return False
    return load.seconds + board.share_s(cost, load) > mean_s(board)


def _owed(board: Board, cost: StageCost) -> int:
    return max(0, cost.wanted_replicas - len(board.working(cost.vnode))) if board.seats[cost.vnode] else 0


def _lacks(board: Board, cost: StageCost) -> str:
    return f"{_owed(board, cost)} of {cost.wanted_replicas} replicas wait"


def _one_more(board: Board, cost: StageCost, rejections: Rejections) -> bool:
    why = ("" if is_ready(board, cost.vnode) else "until its primary works") or cannot_share(board, cost)
    load = best(board, cost, model_pb2.ROLE_CONTRIBUTOR, rejections) if not why else None
    if load is not None and _is_awaited(board, cost, load):
        load, why = None, "its node was lost a moment ago and may be back, and every other one is busy"
    if load is None:
        lacks = _lacks(board, cost)
        rejections.short(cost.vnode, f"{lacks}: {why or 'no further node fits; replicas of a VNode live on different nodes'}")
        return False
    number = len(board.working(cost.vnode)) + 1
    seconds = load.seconds + board.share_s(cost, load)
    reason = f"replica {number} of {cost.wanted_replicas} wanted by the graph; {1000 * seconds:.3g} ms per batch with it, least of those that fit{scored(load)}"
    board.seat(cost, load, model_pb2.ROLE_CONTRIBUTOR, reason)
    return True


def _stand_by(board: Board, cost: StageCost, rejections: Rejections) -> bool:
    """One standby for a VNode that has no other copy and whose checkpoints take too long; False where none is needed, or none fits."""
    conflict = _conflict(board, cost)
    if not conflict or not is_ready(board, cost.vnode):
        return False
    why = cannot_share(board, cost)
    load = best(board, cost, model_pb2.ROLE_STANDBY, rejections) if not why else None
    if load is None:
        rejections.short(cost.vnode, f"a standby waits ({conflict}): {why or 'no further node fits'}")
        return False
    board.seat(cost, load, model_pb2.ROLE_STANDBY, f"standby: {conflict}")
    return True


def _conflict(board: Board, cost: StageCost) -> str:
    """Why the VNode's only copy needs a standby; empty if it does not, or is not the only one."""
    policy, primary = board.policy, board.primary(cost.vnode)
    if primary is None or len(board.seats[cost.vnode]) > 1 or not policy.max_lost_work_s:
        return ""
    uplink_mbit = primary.load.offer.uplink_mbit * policy.uplink_share
    upload_s = cost.state_bytes * 8 / (uplink_mbit * 1e6) if uplink_mbit > 0.0 else 0.0
    if upload_s <= policy.max_lost_work_s:
        return ""
    return (
        f"a checkpoint takes {upload_s:.0f} s over {policy.uplink_share:.0%} of its node's uplink, "
        f"at most {policy.max_lost_work_s:g} s of work may be lost"
    )
