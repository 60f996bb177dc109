"""Why things are as they are: a placement and what was refused for it, a node's state, and who needs a missing batch, from whom, since when."""

from __future__ import annotations

from typing import Final

from dcnr.errors import Corrupt, NotFound
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.jobs import intervals
from orchestrator.progress import lineage_of
from orchestrator.runtime import ModelRuntime, Shared

MAX_LINES: Final = 256


def explain_node(shared: Shared, node_id: str) -> list[orchestrator_pb2.Explanation]:
    """A node's state and the newest events about it."""
    judgement = shared.inventory.judgement(node_id)
    name = orchestrator_pb2.NodeState.Name(judgement.state).removeprefix("NODE_STATE_").lower()
    lines = [_line(node_id, name, judgement.reason)]
    for event in reversed(shared.history.about({node_id}, 32)):
        lines.append(_line(node_id, event.kind, event.reason, **dict(event.facts)))
    return lines[:MAX_LINES]


def explain_model(runtime: ModelRuntime, vnode: str, batch: int | None) -> list[orchestrator_pb2.Explanation]:
    """The plan's reasons for one VNode or all, what each primary waits for, or the story of one batch."""
    view = runtime.view
    lines: list[orchestrator_pb2.Explanation] = []
    if runtime.trouble or runtime.decider.trouble:
        lines.append(_line(runtime.model, "store", runtime.trouble or runtime.decider.trouble))
    if view is None:
        return [*lines, _line(runtime.model, "unknown", runtime.loop.core.reason or "the head has not been read yet")]
    if view.plan is None:
        return [*lines, _line(runtime.model, "unplaced", "the head names no plan")]
    _check_named(view.plan, vnode)
    if batch is not None:
        return [*lines, *_batch(runtime, view.plan, vnode, batch)][:MAX_LINES]
    lines.append(
        _line(
            f"plan {view.plan.number}", "in force", view.plan.reason, lead=view.plan.lead_batches, lead_reason=view.plan.lead_reason
        )
    )
    for item in view.plan.assignments:
        if vnode in ("", item.vnode, *item.hosted):
            lines.extend(_assignment(runtime, item))
    for name in view.plan.waiting:
        if vnode in ("", name):
            lines.append(_line(name, "waiting", "no node can take it now"))
    for refused in view.plan.rejections:
        if vnode in ("", refused.vnode):
            lines.append(_line(refused.vnode, "rejected", refused.reason, pnode=refused.pnode_id))
    return lines[:MAX_LINES]


def _check_named(plan: model_pb2.Plan, vnode: str) -> None:
    """Raises NotFound where the plan says nothing of that name: nobody should take the silence for an answer."""
    named = {item.vnode for item in plan.assignments} | {item.vnode for item in plan.rejections} | set(plan.waiting)
    named.update(name for item in plan.assignments for name in item.hosted)
    if vnode and named and vnode not in named:
        known = ", ".join(sorted(named))
        raise NotFound(
            f"the plan has no VNode {vnode!r} (it has: {known})", code="no_such_vnode",
            remedy="name one of these, or a node's id",
        )  # fmt: skip


def _assignment(runtime: ModelRuntime, item: model_pb2.Assignment) -> list[orchestrator_pb2.Explanation]:
    lines = [
        _line(
            item.vnode, "placed", item.reason, replica=item.replica, pnode=item.pnode_id, predicted_step_s=f"{item.predicted_step_s:.4g}",
            memory_bytes=item.memory_bytes,
        )
    ]  # fmt: skip
    found = runtime.shared.inventory.report(item.pnode_id, item.replica, runtime.shared.clock.monotonic())
    if found is None:
        lines.append(_line(item.replica, "silent", f"no report from {item.pnode_id[:8]} reaches this orchestrator"))
        return lines
    report, age_s = found
    state = orchestrator_pb2.AssignmentState.Name(report.state).removeprefix("ASSIGNMENT_STATE_").lower()
    reason = report.reason or f"has learned {report.num_learned} batches"
    lines.append(_line(item.replica, state, reason, report_age_s=f"{age_s:.1f}", held_back_by=report.held_back_by))
    for need in report.needs:
        shown = ", ".join(f"[{one.first}, {one.end})" for one in need.batches.intervals[:4])
        lines.append(_line(item.replica, "needs", f"{shown}{_origin(need)} for {need.since_s:.1f} s: {need.why}"))
    return lines


def _batch(runtime: ModelRuntime, plan: model_pb2.Plan, vnode: str, batch: int) -> list[orchestrator_pb2.Explanation]:
    view = runtime.view
    assert view is not None
    durable = view.durable(plan.job_id)
    lines: list[orchestrator_pb2.Explanation] = []
    for item in plan.assignments:
        if vnode not in ("", item.vnode, *item.hosted):
            continue
        subject = f"{item.vnode} batch {batch}"
        if batch in durable.get(item.vnode, IntervalSet.empty()):
            lines.append(_line(subject, "durable", "in a checkpoint that the manifest names"))
            continue
        found = runtime.shared.inventory.report(item.pnode_id, item.replica, runtime.shared.clock.monotonic())
        if found is None:
            lines.append(_line(subject, "unknown", f"{item.replica} on {item.pnode_id[:8]} does not report here"))
        elif batch in lineage_of(found[0]):
            lines.append(_line(subject, "learned", f"by {item.replica}, not durable yet"))
        else:
            lines.append(_needed(subject, item, found[0], batch))
    return lines


def _needed(
    subject: str, item: model_pb2.Assignment, report: orchestrator_pb2.ReplicaReport, batch: int
) -> orchestrator_pb2.Explanation:
    for need in report.needs:
        try:
            wanted = intervals(need.batches)
        except Corrupt:
            continue
        if batch in wanted:
            reason = f"{item.replica} needs it{_origin(need)} for {need.since_s:.1f} s: {need.why}"
            return _line(subject, "needed", reason, replica=item.replica, source=need.from_replica, since_s=f"{need.since_s:.1f}")
    if report.held_back_by:
        return _line(subject, "held back", f"{item.replica} waits until {report.held_back_by} has caught up", replica=item.replica)
    return _line(subject, "not reached", f"{item.replica} has not come to it yet", replica=item.replica, pnode=item.pnode_id)


def _origin(need: orchestrator_pb2.NeedReport) -> str:
    """From which replica; a source asks none, it reads the data set."""
    return f" from {need.from_replica}" if need.from_replica else ""


def _line(subject: str, verdict: str, reason: str, **inputs: object) -> orchestrator_pb2.Explanation:
    shown = {name: str(value) for name, value in list(inputs.items())[:32] if value not in ("", None)}
    return orchestrator_pb2.Explanation(subject=subject, verdict=verdict, reason=reason, inputs=shown)
