"""Where one batch stands at one VNode: durable, learned, learned but not merged, or needed, and then by whom, from whom, since when. Pure.

Who owns a batch follows from the plan's weights (`dcnr.units`), so every lacking batch has exactly one replica that is answerable for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcnr.errors import Corrupt
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, owner_of
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.jobs import intervals
from orchestrator.progress import lineage_of, unmerged_of

Reports = Mapping[str, orchestrator_pb2.ReplicaReport | None]
"""Newest report by replica; None where none reaches this orchestrator."""


def batch_lines(
    items: Sequence[model_pb2.Assignment], reports: Reports, durable: IntervalSet, unit_batches: int, batch: int
) -> list[orchestrator_pb2.Explanation]:
    """The story of ``batch`` at the VNode whose replicas ``items`` are."""
    subject = f"{items[0].vnode} batch {batch}"
    if batch in durable:
        return [line(subject, "durable", "in a checkpoint that the manifest names")]
    held: list[orchestrator_pb2.Explanation] = []
    for item in items:
        report = reports.get(item.replica)
        if report is None:
            continue
        if batch in unmerged_of(report):
            held.append(unmerged_line(subject, item, report))
        elif batch in lineage_of(report):
            if item.role == model_pb2.ROLE_PRIMARY:
                return [line(subject, "learned", f"by {item.replica}, not durable yet", replica=item.replica)]
            reason = f"{item.replica} has it from its primary, whose newest report does not show it"
            held.append(line(subject, "held", reason, replica=item.replica, pnode=item.pnode_id))
    if held:
        return held
    owner = owner_of(batch // max(1, unit_batches), [Share(ReplicaId(item.replica), item.weight) for item in items])
    lines: list[orchestrator_pb2.Explanation] = []
    for item in items:
        report = reports.get(item.replica)
        if item.replica == owner and report is None:
            reason = f"{item.replica} on {item.pnode_id[:8]} owns it and does not report here"
            lines.append(line(subject, "unknown", reason, replica=item.replica, pnode=item.pnode_id))
        elif report is not None and (item.replica == owner or _need_of(report, batch) is not None):
            lines.append(_needed(subject, item, report, batch))
    return lines or [line(subject, "unknown", "no replica owns it")]


def unmerged_line(subject: str, item: model_pb2.Assignment, report: orchestrator_pb2.ReplicaReport) -> orchestrator_pb2.Explanation:
    """What a contributor has learned and its primary has not taken in."""
    batches = unmerged_of(report)
    shown = ", ".join(f"[{first}, {end})" for first, end in batches.pairs()[:4])
    reason = f"{item.replica} has learned {len(batches)} batches that its primary has not taken in yet: {shown}"
    counts = {"merged": report.num_merged, "refused": report.num_refused}
    return line(subject, "unmerged", reason, replica=item.replica, pnode=item.pnode_id, **counts)


def _need_of(report: orchestrator_pb2.ReplicaReport, batch: int) -> orchestrator_pb2.NeedReport | None:
    """What the replica waits for, if that batch is in it."""
    for need in report.needs:
        try:
            if batch in intervals(need.batches):
                return need
        except Corrupt:
            continue
    return None


def _needed(
    subject: str, item: model_pb2.Assignment, report: orchestrator_pb2.ReplicaReport, batch: int
) -> orchestrator_pb2.Explanation:
    need = _need_of(report, batch)
    if need is not None:
        reason = f"{item.replica} needs it{origin(need)} for {need.since_s:.1f} s: {need.why}"
        return line(subject, "needed", reason, replica=item.replica, source=need.from_replica, since_s=f"{need.since_s:.1f}")
    if report.held_back_by:
        return line(subject, "held back", f"{item.replica} waits until {report.held_back_by} has caught up", replica=item.replica)
    return line(subject, "not reached", f"{item.replica} has not come to it yet", replica=item.replica, pnode=item.pnode_id)


def origin(need: orchestrator_pb2.NeedReport) -> str:
    """From which replica; a source asks none, it reads the data set."""
    return f" from {need.from_replica}" if need.from_replica else ""


def line(subject: str, verdict: str, reason: str, **inputs: object) -> orchestrator_pb2.Explanation:
    """One line; inputs that say nothing are left out."""
    shown = {name: str(value) for name, value in list(inputs.items())[:32] if value not in ("", None)}
    return orchestrator_pb2.Explanation(subject=subject, verdict=verdict, reason=reason, inputs=shown)
