"""A plan as a message, put together from one piece per VNode: what did not change since the plan before is not written again. Pure.

A piece is a serialised plan that holds nothing but the assignments of one VNode. Serialised messages merge when they are put behind each other, so
head and pieces together are the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dcnr.v1 import model_pb2
from orchestrator.board import Board
from orchestrator.costs import StageCost, spool_batches
from orchestrator.loads import Seat
from orchestrator.placement import Rejections

WIDEST: Final = 2
"""Where one hole holds the floor, sources may be so many times the job's lead ahead: as much again as what is on its way."""
_Shape = tuple[tuple[object, ...], ...]


class PlanWriter:
    """Keeps the pieces from plan to plan, in the order of the stages."""

    def __init__(self, stages: Sequence[StageCost]) -> None:
        self._order = {cost.vnode: index for index, cost in enumerate(stages)}
        self._read = {name for cost in stages for name in cost.predecessors}
        self._pieces = dict.fromkeys(self._order, b"")
        self._shapes: dict[str, _Shape] = dict.fromkeys(self._order, ())
        self._spools: dict[str, tuple[int, int, str]] = {}
        """Of VNodes that are read from: what the smallest spool holds, where that is less than the widest lead; place and reason."""

    def rewrite(self, board: Board) -> tuple[list[model_pb2.Assignment], bool]:
        """Takes in what was touched. Returns these rows, and whether any VNode has other replicas, places, roles or weights than before."""
        written: list[model_pb2.Assignment] = []
        changed = False
        for vnode in sorted(board.touched, key=self._order.__getitem__):
            seats = sorted(board.seats[vnode], key=lambda seat: seat.rank)
            rows = [*([board.away[vnode]] if vnode in board.away else ()), *(seat.row() for seat in seats)]
            shape = tuple(shape_of(row) for row in rows)
            changed = changed or shape != self._shapes[vnode]
            self._pieces[vnode], self._shapes[vnode] = model_pb2.Plan(assignments=rows).SerializeToString(), shape
            self._note_spool(board, vnode, seats)
            written += rows
        return written, changed

    def plan(self, board: Board, rejections: Rejections, waiting: Sequence[str]) -> model_pb2.Plan:
        """The whole plan."""
        request = board.request
        lead, widest, lead_reason = self._lead_in_force(board)
        head = model_pb2.Plan(
            network_id=request.network_id,
            model=request.model,
            number=request.previous.number + 1 if request.previous is not None else 1,
            parent_digest=request.previous_digest,
            job_id=request.job_id,
            graph_digest=request.graph_digest,
            epoch=request.epoch,
            holder=request.holder,
            rejections=[row for row in rejections.rows() if not _is_taken(board, row)],
            waiting=sorted(waiting),
            lead_batches=lead,
            lead_reason=lead_reason,
            widest_lead_batches=widest,
            reason=request.reason,
            next_replica=board.next_replica,
            halted=request.halted,
            tempo=request.tempo,
        )
        return model_pb2.Plan.FromString(b"".join((head.SerializeToString(), *self._pieces.values())))

    def _note_spool(self, board: Board, vnode: str, seats: Sequence[Seat]) -> None:
        self._spools.pop(vnode, None)
        cost, widest = board.costs[vnode], WIDEST * _lead_wanted(board)
        for seat in seats if vnode in self._read else ():
            held = spool_batches(cost, seat.load.offer.disk_bytes)
            if seat.works and held < min(widest, self._spools.get(vnode, (widest,))[0]):
                reason = f"the spool of {vnode} on {seat.load.offer.node_id[:8]} holds {held} batches"
                self._spools[vnode] = (held, self._order[vnode], reason)

    def _lead_in_force(self, board: Board) -> tuple[int, int, str]:
        """The smaller of the job's lead (at least one unit) and what the smallest spool that anyone reads from holds; how wide it may get; why."""
        wanted = _lead_wanted(board)
        held, _, reason = min(self._spools.values(), default=(WIDEST * wanted, 0, ""))
        return (held, held, reason) if held < wanted else (wanted, held, "set by the job")


def shape_of(row: model_pb2.Assignment) -> tuple[object, ...]:
    """What of an assignment makes one plan differ from another."""
    return row.replica, row.pnode_id, row.role, row.weight, row.hands_over_to, row.stays


def _lead_wanted(board: Board) -> int:
    return max(board.request.lead_batches, board.request.unit_batches, 1)


def _is_taken(board: Board, row: model_pb2.Rejection) -> bool:
    return any(seat.load.offer.node_id == row.pnode_id for seat in board.seats[row.vnode])
