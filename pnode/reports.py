"""A replica's report out of its core's view: every wait names what, from whom, since when and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2, orchestrator_pb2
from pnode.frames import intervals_message
from vnode.evaluation import Evaluation
from vnode.replica_view import NeedView, ReplicaView
from vnode.vocabulary import Role

MAX_NEEDS: Final = 16
MAX_NEED_INTERVALS: Final = 64
MAX_EXITS: Final = 16
_ROLES: Final = {
    Role.PRIMARY: model_pb2.ROLE_PRIMARY, Role.CONTRIBUTOR: model_pb2.ROLE_CONTRIBUTOR, Role.STANDBY: model_pb2.ROLE_STANDBY,
}  # fmt: skip


@dataclass(slots=True)
class Rate:
    """Batches per second, moving average over reports."""

    per_s: float = 0.0
    _count: int = 0
    _at_s: float | None = None

    def seen(self, count: int, now_s: float) -> float:
        """The rate after ``count`` batches were counted so far."""
        if self._at_s is None:
            self._count, self._at_s = count, now_s
        elif now_s - self._at_s >= 0.5:
            rate = (count - self._count) / (now_s - self._at_s)
            self.per_s = rate if not self.per_s else self.per_s + 0.3 * (rate - self.per_s)
            self._count, self._at_s = count, now_s
        return self.per_s


@dataclass(frozen=True, slots=True)
class Measured:
    """What the shell measured beside the core."""

    step_s: float
    loss: float
    rate: float
    spool_bytes: int
    restored_from: str
    checkpoint_digest: str
    depth: int
    """Position of this VNode among the exits, from 1."""
    num_unlearned: int = 0
    """Batches tried in vain since one was learned."""
    num_steps: int = 0
    """Batches of which ``step_s`` is the average."""


def replica_report(
    view: ReplicaView, measured: Measured, state: orchestrator_pb2.AssignmentState.ValueType, reason: str, now_s: float
) -> orchestrator_pb2.ReplicaReport:
    """The report of a replica that has a core."""
    counters = view.counters
    return orchestrator_pb2.ReplicaReport(
        replica=view.replica,
        vnode=view.vnode,
        incarnation=view.incarnation,
        state=state,
        reason=reason or view.stopped_why or view.paused_why,
        lineage=intervals_message(view.lineage),
        num_learned=len(view.lineage),
        durable=intervals_message(view.durable),
        step_s=measured.step_s,
        rate=measured.rate,
        floor=view.floor,
        floor_vnode=view.floor_vnode,
        loss=measured.loss,
        needs=[_need(need, now_s) for need in view.needs[:MAX_NEEDS]],
        num_forwarded=counters.forwarded,
        num_duplicates=counters.duplicates,
        spool_bytes=measured.spool_bytes,
        exits=[_exit(view.vnode, result, measured.depth) for result in view.evaluations[-MAX_EXITS:]],
        checkpoint_digest=measured.checkpoint_digest,
        held_back_by=view.held_back_by or "",
        restored_from=measured.restored_from,
        role=_ROLES[view.role],
        unmerged=intervals_message(view.unmerged),
        num_merged=view.num_merged,
        num_refused=view.num_refused,
        num_unlearned=measured.num_unlearned,
        num_steps=measured.num_steps,
        num_durable=len(view.durable),
        num_unmerged=len(view.unmerged),
    )


def bare_report(
    replica: ReplicaId, vnode: str, incarnation: int, state: orchestrator_pb2.AssignmentState.ValueType, reason: str, *,
    role: model_pb2.Role.ValueType, restored_from: str,
) -> orchestrator_pb2.ReplicaReport:  # fmt: skip
    """The report of a replica without a core: not ready yet, or failed on the way."""
    return orchestrator_pb2.ReplicaReport(
        replica=replica,
        vnode=vnode,
        incarnation=incarnation,
        state=state,
        reason=reason[:512],
        role=role,
        restored_from=restored_from,
    )


def _need(need: NeedView, now_s: float) -> orchestrator_pb2.NeedReport:
    batches = need.wanted | need.forward_only
    if len(batches.bounds) > 2 * MAX_NEED_INTERVALS:
        batches = IntervalSet(batches.bounds[: 2 * MAX_NEED_INTERVALS])
    age_s = max(0.0, now_s - need.since_s)
    return orchestrator_pb2.NeedReport(
        from_replica=need.predecessor or "", batches=intervals_message(batches), since_s=age_s, why=need.why
    )


def _exit(vnode: str, result: Evaluation, depth: int) -> model_pb2.ExitResult:
    return model_pb2.ExitResult(
        vnode=vnode,
        split=result.lane.split,
        step=result.step,
        count=result.count,
        correct=result.correct,
        sum_loss=result.sum_loss,
        complete=result.complete,
        depth=depth,
        round=result.lane.round,
    )
