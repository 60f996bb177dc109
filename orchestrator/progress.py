"""How far the active job is, put together from the view and the reports of the primaries. Pure."""

from __future__ import annotations

from collections.abc import Callable

from dcnr import limits
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.exits import ExitBook
from orchestrator.inventory import Inventory
from orchestrator.jobs import Progress, intervals
from orchestrator.view import ModelView

Report = Callable[[model_pb2.Assignment], orchestrator_pb2.ReplicaReport | None]


def reports_of(inventory: Inventory, now: float) -> Report:
    """The newest report of an assignment's replica by its PNode."""

    def report(item: model_pb2.Assignment) -> orchestrator_pb2.ReplicaReport | None:
        found = inventory.report(item.pnode_id, item.replica, now)
        return found[0] if found is not None else None

    return report


def progress_of(
    view: ModelView, report: Report, exits: ExitBook, since_manifest_complete_s: float, num_late: int
) -> Progress | None:
    """The active job's progress; None without an active job whose graph could be read. ``num_late``: intervals that will be drawn late."""
    job, job_id = view.job, view.head.active.job_id
    if job is None or not job_id or job.request.job_id != job_id:
        return None
    order = tuple(cost.vnode for cost in job.costs)
    placed = view.plan is not None and view.plan.job_id == job_id and not view.plan.waiting
    for item in view.plan.assignments if view.plan is not None and view.plan.job_id == job_id else ():
        if item.role != model_pb2.ROLE_PRIMARY:
            continue
        found = report(item)
        if found is None or found.state != orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE:
            placed = False
    return Progress(
        stateful=order,
        sources=tuple(cost.vnode for cost in job.costs if cost.is_source),
        num_batches=job.num_batches,
        placed=placed,
        durable=view.durable(job_id),
        exits=exits.test_results(job.request_digest, order),
        since_manifest_complete_s=since_manifest_complete_s,
        settling_deadline_s=job.request.settling_deadline_s or limits.SETTLING_DEADLINE_S,
        num_open_audits=num_late + (len(view.chain.open_intervals()) if view.chain is not None else 0),
    )


def unmerged_of(report: orchestrator_pb2.ReplicaReport) -> IntervalSet:
    """What a contributor has learned that is in no anchor yet."""
    return intervals(report.unmerged)


def held_of(report: orchestrator_pb2.ReplicaReport) -> IntervalSet:
    """Everything that a replica's state has learned, merged or not: batches of its job, as far as it says (`orchestrator.reported`)."""
    return lineage_of(report) | unmerged_of(report)


def lineage_of(report: orchestrator_pb2.ReplicaReport) -> IntervalSet:
    """A reported lineage."""
    return intervals(report.lineage)
