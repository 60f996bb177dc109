"""Which reports of replicas count, of what PNodes say in their beats: those that can be true of a replica that a plan can have given them. Pure.

A report whose batches are none of the job's has no effect but that its replica counts as failed, with that reason: so another PNode gets it. One of a
replica that no plan can have given anybody is left out. Reports of replicas of an older plan are normal: they go when the PNode has let them go. What a
plan that was not read here yet may have given says nothing either; it is held against that plan when it was read.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from dcnr.errors import Corrupt, DcnrError, RemoteFault
from dcnr.ids import ReplicaId, number_of, vnode_of
from dcnr.v1 import orchestrator_pb2
from orchestrator.jobs import intervals
from orchestrator.view import ModelView

MAX_TOLD: Final = 8192
"""Refusals that are remembered so as to be told once."""
MAX_NAME: Final = 128
"""Of a replica's name, as it is told."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A report that does not count, for the history."""

    pnode_id: str
    replica: str
    error: DcnrError


class Reported:
    """Holds reports against the plans under the heads."""

    def __init__(self) -> None:
        self._views: dict[str, ModelView] = {}
        self._told: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def follow(self, view: ModelView) -> None:
        """This is the newest view of its model."""
        self._views[view.model] = view

    def counted(self, pnode_id: str, beat: orchestrator_pb2.Beat) -> tuple[orchestrator_pb2.Beat, list[Refusal]]:
        """The beat as far as it counts, itself where all of it does; and what was refused for the first time: once for each replica of a plan, and once a
        PNode for all that no plan has, however many names it makes up.
        """
        views = [self._view_of(pnode_id, report.replica) for report in beat.replicas]
        why = [self._why_not(view, beat, report) for view, report in zip(views, beat.replicas, strict=True)]
        if not any(why):
            return beat, []
        counted = orchestrator_pb2.Beat()
        counted.CopyFrom(beat)
        del counted.replicas[:]
        refused: list[Refusal] = []
        for view, report, error in zip(views, beat.replicas, why, strict=True):
            if error is None:
                counted.replicas.append(report)
                continue
            if view is not None:
                failed = orchestrator_pb2.ASSIGNMENT_STATE_FAILED
                counted.replicas.add(
                    replica=report.replica,
                    vnode=vnode_of(ReplicaId(report.replica)),
                    incarnation=report.incarnation,
                    state=failed,
                    reason=error.message,
                )
            key = pnode_id, report.replica if view is not None else "", error.code
            if key not in self._told:
                refused.append(Refusal(pnode_id, report.replica[:MAX_NAME], error))
                self._told[key] = None
            self._told.move_to_end(key)
        while len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        return counted, refused

    def _why_not(
        self, view: ModelView | None, beat: orchestrator_pb2.Beat, report: orchestrator_pb2.ReplicaReport
    ) -> DcnrError | None:
        """Why a report does not count; None where it does. ``view``: whose plan gives the replica to that PNode."""
        if view is None and self._is_of_no_plan(beat, report.replica):
            return RemoteFault("it reports a replica that no plan has named", code="unknown_replica")
        if report.vnode != vnode_of(ReplicaId(report.replica)):
            return RemoteFault("it reports a replica under another VNode's name", code="wrong_vnode")
        if view is None:  # nobody reads its batches before it is held against the plan that gave it
            return None
        try:
            learned = [intervals(sets) for sets in (report.lineage, report.unmerged, report.durable)]
        except Corrupt as error:
            return Corrupt(f"it reports batches that are no set: {error.message}", code=error.code)
        if view.plan is None or view.job is None or view.job.request.job_id != view.plan.job_id:
            return None
        num_batches = view.job.num_batches
        said = max(int(report.num_learned), *(batches.bounds[-1] if batches else 0 for batches in learned))
        if said > num_batches:
            return RemoteFault(f"it reports batches up to {said} of a job that has {num_batches}", code="batches_out_of_range")
        return None

    def _view_of(self, pnode_id: str, replica: str) -> ModelView | None:
        """Whose plan gives that replica to that PNode."""
        for view in self._views.values():
            if any(item.replica == replica for item in view.hosted_by(pnode_id)):
                return view
        return None

    def _is_of_no_plan(self, beat: orchestrator_pb2.Beat, replica: str) -> bool:
        """Whether no plan can have given it: the PNode obeys one that was read here, and the numbers of all plans up to those here are lower."""
        if all(beat.plan_digest != view.head.plan_digest for view in self._views.values() if view.plan is not None):
            return False
        try:
            number = number_of(replica)
        except ValueError:
            return True
        return all(number >= view.plan.next_replica for view in self._views.values() if view.plan is not None)
