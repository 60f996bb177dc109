"""Why things are as they are: a placement and what was refused for it, a node's state, and who needs a missing batch, from whom, since when."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from dcnr.errors import NotFound
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.batch_story import batch_lines, line, origin, unmerged_line
from orchestrator.builds import lacks_of_jobs
from orchestrator.planning import ROLES, plan_request
from orchestrator.progress import reports_of
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.view import ModelView
from orchestrator.why_not import why_not
from trust.scores import credibility

MAX_LINES: Final = 256
MAX_NOT_HERE: Final = 64
"""VNodes of a model of which is told why a node hosts none."""
NO_NODE: Final = "no node could take it"


async def explain_node(shared: Shared, runtimes: Collection[ModelRuntime], node_id: str) -> list[orchestrator_pb2.Explanation]:
    """A node's state, what of the jobs here it cannot build, why it hosts nothing of a VNode, and the newest events about it."""
    judgement = shared.inventory.judgement(node_id)
    name = orchestrator_pb2.NodeState.Name(judgement.state).removeprefix("NODE_STATE_").lower()
    lines = [line(node_id, name, judgement.reason)]
    record = shared.inventory.nodes().get(node_id)
    if record is not None and (why := lacks_of_jobs(record.builds, [one.view for one in runtimes])):
        lines.append(line(node_id, "lacking", why))
    if shared.policy.audits_drawn:
        now_s = shared.clock.wall()
        standing = shared.standings.of(node_id, now_s)
        passes = standing.passes.seen(now_s)
        facts = {"passes": f"{passes:.1f}", "credibility": f"{credibility(passes):.3f}", "evidence": standing.evidence}
        lines.append(line(node_id, standing.state.value, standing.reason, **facts))
    for runtime in runtimes:
        lines += await _not_here(shared, runtime, node_id)
    for event in reversed(shared.history.about({node_id}, 32)):
        lines.append(line(node_id, event.kind, event.reason, **dict(event.facts)))
    return lines[:MAX_LINES]


async def _not_here(shared: Shared, runtime: ModelRuntime, node_id: str) -> list[orchestrator_pb2.Explanation]:
    view = runtime.view
    if view is None or view.job is None or not view.head.active.job_id or node_id not in shared.inventory.nodes():
        return []
    request = plan_request(
        view, view.job, shared.inventory, shared.clock.monotonic(), network_id=shared.policy.network_id, holder=shared.key.node_id,
        since_last_plan_s=0.0, now_unix_ms=int(shared.clock.wall() * 1000), expected=shared.records.paces(),
    )  # fmt: skip
    found = await asyncio.to_thread(why_not, request, shared.plan_policy, node_id)
    return [line(one.vnode, "fits" if one.fits else "rejected", one.reason, model=runtime.model) for one in found[:MAX_NOT_HERE]]


def explain_model(runtime: ModelRuntime, vnode: str, batch: int | None) -> list[orchestrator_pb2.Explanation]:
    """The plan's reasons for one VNode or all, what each primary waits for, or the story of one batch."""
    view = runtime.view
    lines: list[orchestrator_pb2.Explanation] = []
    if trouble := runtime.trouble or runtime.jobs_trouble or runtime.lacking or runtime.decider.trouble:
        lines.append(line(runtime.model, "store", trouble))
    if view is None:
        return [*lines, line(runtime.model, "unknown", runtime.loop.core.reason or "the head has not been read yet")]
    if view.head.active.state == model_pb2.JOB_STATE_PAUSED:
        lines.append(_paused(runtime, view.head.active.job_id))
    if view.plan is None:
        return [*lines, line(runtime.model, "unplaced", "the head names no plan")]
    _check_named(view.plan, vnode)
    if batch is not None:
        return [*lines, *evaluated(view.plan, vnode), *_batch(runtime, view.plan, vnode, batch)][:MAX_LINES]
    lines.append(
        line(
            f"plan {view.plan.number}",
            "in force",
            view.plan.reason,
            lead=view.plan.lead_batches,
            lead_reason=view.plan.lead_reason,
            batches_per_s=f"{view.plan.tempo.batches_per_s:g}" if view.plan.HasField("tempo") else "",
        )
    )
    lines += evaluated(view.plan, vnode)
    for item in view.plan.assignments:
        if vnode in ("", item.vnode, *item.hosted):
            lines.extend(_assignment(runtime, item))
    lines += waiting(view.plan, vnode)
    lines.extend(_audits(runtime, view, vnode))
    lines += rejected(view.plan, vnode)
    return lines[:MAX_LINES]


def waiting(plan: model_pb2.Plan, vnode: str) -> list[orchestrator_pb2.Explanation]:
    """Which VNodes no node could take when the plan was made."""
    return [line(name, "waiting", _found(plan, NO_NODE)) for name in plan.waiting if vnode in ("", name)]


def rejected(plan: model_pb2.Plan, vnode: str) -> list[orchestrator_pb2.Explanation]:
    """Which nodes could not take a replica when the plan was made, and why."""
    return [
        line(one.vnode, "rejected" if one.pnode_id else "waiting", _found(plan, one.reason), pnode=one.pnode_id)
        for one in plan.rejections
        if vnode in ("", one.vnode)
    ]


def _found(plan: model_pb2.Plan, reason: str) -> str:
    """What the planner found is as old as its plan: the machines may be other ones by now."""
    return f"when plan {plan.number} was made: {reason}"


def evaluated(plan: model_pb2.Plan, vnode: str) -> list[orchestrator_pb2.Explanation]:
    """For a VNode without state: which replicas evaluate it, and with which VNode; nothing for one that has replicas of its own."""
    return [
        line(
            vnode, "evaluated", f"it has no state: {item.replica} on {item.pnode_id[:8]} evaluates it with {item.vnode}", replica=item.replica,
            pnode=item.pnode_id,
        )
        for item in plan.assignments
        if vnode in item.hosted
    ]  # fmt: skip


def _paused(runtime: ModelRuntime, job_id: str) -> orchestrator_pb2.Explanation:
    record = runtime.jobs.records.get(job_id)
    said = record.pause if record is not None and record.pause is not None else model_pb2.JobPause()
    return line(job_id, "paused", said.reason or "its maintainers have called it to a halt", statement=said.number or "")


def _audits(runtime: ModelRuntime, view: ModelView, vnode: str) -> list[orchestrator_pb2.Explanation]:
    """Of every open audit who has to act and until when; where another orchestrator decides, what is open."""
    now_s = runtime.shared.clock.monotonic()
    waits = [one for one in runtime.waits() if vnode in ("", one.vnode)]
    if waits:
        return [
            line(
                one.replica, "audit open", one.why, interval=one.interval, vnode=one.vnode, pnode=one.accused, waits_for=one.owner,
                left_s=f"{max(0.0, one.until_s - now_s):.0f}",
            )
            for one in waits
        ]  # fmt: skip
    found = view.chain.to_judge() if view.chain is not None else ()
    why = f"its audit is the business of {view.head.holder[:8]}, which decides, and says whom it waits for: name it in DCNR_ORCHESTRATORS to ask it"
    return [
        line(one.replica, "audit open", why, interval=one.name, vnode=one.vnode, pnode=one.pnode_id)
        for one in found
        if vnode in ("", one.vnode)
    ]


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
        line(
            item.vnode, "placed", item.reason, replica=item.replica, pnode=item.pnode_id, role=ROLES.get(item.role, ""),
            weight=f"{item.weight:g}", predicted_step_s=f"{item.predicted_step_s:.4g}", memory_bytes=item.memory_bytes,
        )
    ]  # fmt: skip
    found = runtime.shared.inventory.report(item.pnode_id, item.replica, runtime.shared.clock.monotonic())
    if found is None:
        lines.append(line(item.replica, "silent", f"no report from {item.pnode_id[:8]} reaches this orchestrator"))
        return lines
    report, age_s = found
    state = orchestrator_pb2.AssignmentState.Name(report.state).removeprefix("ASSIGNMENT_STATE_").lower()
    reason = report.reason or f"has learned {report.num_learned} batches"
    lines.append(line(item.replica, state, reason, report_age_s=f"{age_s:.1f}", held_back_by=report.held_back_by))
    if report.unmerged.intervals:
        lines.append(unmerged_line(item.replica, item, report))
    for need in report.needs:
        shown = ", ".join(f"[{one.first}, {one.end})" for one in need.batches.intervals[:4])
        lines.append(line(item.replica, "needs", f"{shown}{origin(need)} for {need.since_s:.1f} s: {need.why}"))
    return lines


def _batch(runtime: ModelRuntime, plan: model_pb2.Plan, vnode: str, batch: int) -> list[orchestrator_pb2.Explanation]:
    by_vnode: dict[str, list[model_pb2.Assignment]] = {}
    for item in plan.assignments:
        if vnode in ("", item.vnode, *item.hosted):
            by_vnode.setdefault(item.vnode, []).append(item)
    view = runtime.view
    assert view is not None
    active = view.head.active.job_id
    if active and plan.job_id != active:
        why = f"job {active} has no plan yet: plan {plan.number} is of {plan.job_id or 'no job'}"
        return [line(f"{vnode or runtime.model} batch {batch}", "unplaced", why)]
    durable, unit = view.durable(plan.job_id), int(view.job.request.unit_batches) if view.job is not None else 1
    report = reports_of(runtime.shared.inventory, runtime.shared.clock.monotonic())
    lines: list[orchestrator_pb2.Explanation] = []
    for name, items in by_vnode.items():
        lines += batch_lines(
            items, {item.replica: report(item) for item in items}, durable.get(name, IntervalSet.empty()), unit, batch
        )
    for name in plan.waiting:
        if vnode in ("", name) and name not in by_vnode:
            why = next((one.reason for one in plan.rejections if one.vnode == name), NO_NODE)
            lines.append(
                line(f"{name} batch {batch}", "unplaced", f"{name} has no replica that could learn it; {_found(plan, why)}")
            )
    return lines
