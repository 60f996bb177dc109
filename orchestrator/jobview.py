"""Jobs and nodes as this orchestrator shows them: read from its runtimes and inventory, with how old each fact is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from dcnr import limits
from dcnr.v1 import common_pb2, membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.beat_bounds import MAX_WHOLE, shown_text
from orchestrator.changes import TERMINAL
from orchestrator.jobs import JobRecord, state_of
from orchestrator.offers import PLACEABLE
from orchestrator.planning import tempo_of
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.silence import NodeRecord
from trust.records import VerifiedAdvert

MAX_ROUND_TRIP_S: Final = 60.0
MAX_ETA_S: Final = 1e9
"""Thirty years: nobody knows."""
MAX_INTERVALS: Final = 16
"""Of a set in an answer. A report may have thousands in each of its sets, and a few hosts with many replicas pass what one message holds."""
FRAMING_BYTES: Final = 16
"""Tag and length of one more field."""
MAX_CORES: Final = 4096.0
"""That one machine can be busy with."""


def job_view(runtime: ModelRuntime, job_id: str, *, with_vnodes: bool) -> orchestrator_pb2.JobView:
    """One job. ``with_vnodes`` False leaves out the long part."""
    shared, head, view = runtime.shared, runtime.head, runtime.view
    now = shared.clock.monotonic()
    record = runtime.jobs.records.get(job_id)
    request = record.request if record is not None else None
    active = head is not None and head.active.job_id == job_id
    shown = orchestrator_pb2.JobView(
        job_id=job_id,
        model=runtime.model,
        state=state_of(job_id, head, record),
        num_batches=request.num_batches if request is not None else 0,
        graph_digest=request.graph_digest if request is not None else "",
        expires_unix_ms=request.expires_unix_ms if request is not None else 0,
        batches_per_s=request.batches_per_s if request is not None else 0.0,
        as_of_unix_ms=int(shared.clock.wall() * 1000),
        reporter=shared.key.node_id,
        num_pnodes=sum(item.judgement.state in PLACEABLE and item.streams > 0 for item in shared.inventory.nodes().values()),
    )
    if record is not None and record.pause is not None:
        shown.pause.CopyFrom(record.pause)
    if head is not None:
        shown.epoch, shown.holder = head.epoch, head.holder
        shown.manifest_digest = head.manifest_digest if active else ""
        if active:
            shown.running_s, shown.settling_s = head.active.running_s, head.active.settling_s
    if shown.state not in TERMINAL:
        shown.held_up = held_up(runtime, job_id)
    outcome = _outcome(head, record)
    if outcome is not None:
        shown.outcome.CopyFrom(outcome)
        shown.manifest_digest = outcome.manifest_digest
    if view is not None and view.plan is not None and view.plan.job_id == job_id:
        shown.audited = view.chain is not None
        shown.plan_number, shown.plan_digest = view.plan.number, view.head.plan_digest
        if with_vnodes:
            shown.vnodes.extend(_vnodes(runtime, job_id, now))
            exposure = runtime.unnoticed.of(view)
            if exposure is not None:
                shown.unnoticed_steps, shown.cleared_steps = exposure.undetected_steps, exposure.num_steps
        shown.eta_s = eta_s(shown, view.plan, shared.clock.wall()) if shown.state != model_pb2.JOB_STATE_PAUSED else 0.0
    elif with_vnodes and view is not None and view.job is not None and view.job.request.job_id == job_id:
        shown.vnodes.extend(orchestrator_pb2.VNodeView(vnode=cost.vnode) for cost in view.job.costs)
    return shown


def held_up(runtime: ModelRuntime, job_id: str) -> str:
    """Why an open job does not go on, with what to do: nobody decides on it, or nobody audits what it waits for; empty where nothing is known of it here."""
    if runtime.auditing.has_desk and runtime.head is not None and runtime.head.active.job_id == job_id:
        return runtime.auditing.missing.holds_up
    if not runtime.lacking or not runtime.loop.core.is_orphaned(runtime.shared.clock.monotonic()):
        return ""
    record = runtime.jobs.records.get(job_id)
    off = f"call it off: dcnr job cancel {job_id}" if record is not None and record.lacks else "call off the job that needs it"
    return (
        f"nobody decides on {runtime.model}: {runtime.lacking}, and none that has it lives; "
        f"add its file to the setting components of an orchestrator and start that anew, or {off}"
    )


def node_views(
    shared: Shared, runtimes: Iterable[ModelRuntime], orchestrators: Iterable[VerifiedAdvert]
) -> list[orchestrator_pb2.NodeView]:
    """All nodes by id: PNodes of the inventory, orchestrators of gossip and this one."""
    hosted: dict[str, list[str]] = {}
    holders: set[str] = set()
    for runtime in runtimes:
        if runtime.head is not None:
            holders.add(runtime.head.holder)
        plan = runtime.view.plan if runtime.view is not None else None
        for item in plan.assignments if plan is not None else ():
            hosted.setdefault(item.pnode_id, []).append(item.replica)
    now, now_s = shared.clock.monotonic(), shared.clock.wall()
    rows = [_pnode_view(shared, record, hosted.get(record.node_id, ()), now, now_s) for record in shared.inventory.nodes().values()]
    for advert in orchestrators:
        rows.append(
            orchestrator_pb2.NodeView(
                node_id=advert.node_id,
                kind=membership_pb2.NODE_KIND_ORCHESTRATOR,
                state=orchestrator_pb2.NODE_STATE_ACTIVE,
                reason="known by gossip",
                last_seen_s=max(0.0, now_s - advert.advert.issued_unix_ms / 1000),
                incarnation=advert.advert.incarnation,
                address=advert.advert.control_addresses[0] if advert.advert.control_addresses else "",
                software=shown_text(advert.advert.software),
                holder=advert.node_id in holders,
            )
        )
    return sorted(rows, key=lambda row: row.node_id)


def listed(rows: Iterable[orchestrator_pb2.NodeView]) -> orchestrator_pb2.ListNodesResponse:
    """The first of them, as many as one message holds: a longer answer reaches nobody."""
    answer, room_bytes = orchestrator_pb2.ListNodesResponse(), limits.MAX_MESSAGE_BYTES
    for row in rows:
        room_bytes -= row.ByteSize() + FRAMING_BYTES
        if room_bytes < 0:
            break
        answer.nodes.append(row)
    return answer


def said_load(beat: orchestrator_pb2.Beat) -> membership_pb2.Load | None:
    """What a PNode states of its load; None where it states nothing, or what can be none."""
    is_one = beat.HasField("load") and 0.0 <= beat.load.cores <= MAX_CORES
    return membership_pb2.Load(cores=beat.load.cores) if is_one else None


def _pnode_view(shared: Shared, record: NodeRecord, replicas: Sequence[str], now: float, now_s: float) -> orchestrator_pb2.NodeView:
    passes = shared.standings.of(record.node_id, now_s).passes.seen(now_s)
    score, num_results = shared.records.score(record.node_id, passes)
    return orchestrator_pb2.NodeView(
        node_id=record.node_id, kind=membership_pb2.NODE_KIND_PNODE, state=record.judgement.state, reason=record.judgement.reason,
        capability=record.capability, replicas=replicas, last_seen_s=max(0.0, now - record.seen_at),
        incarnation=record.beat.incarnation or record.incarnation, address=record.address, attached=record.streams > 0,
        software=record.software, free_memory_bytes=record.beat.free_memory_bytes, owner=record.owner, evidence=record.judgement.evidence,
        passes=passes, round_trip_s=_said_s(record.beat.round_trip_s) if record.streams else 0.0, answers=record.answers,
        public_name=record.public_name, credibility=score.credibility, reliability=score.reliability, num_results=num_results,
        score=score.shown if num_results else 0, load=said_load(record.beat) if record.streams else None,
        relayed=record.is_relayed,
    )  # fmt: skip


def _said_s(seconds: float) -> float:
    """A time as a PNode states it: 0 where it can be none."""
    return seconds if 0.0 < seconds < MAX_ROUND_TRIP_S else 0.0


def _outcome(head: model_pb2.Head | None, record: JobRecord | None) -> model_pb2.Outcome | None:
    decided = next((item for item in head.decided if record is not None and item.job_id == record.job_id), None) if head else None
    return decided if decided is not None else (record.end if record is not None else None)


def _vnodes(runtime: ModelRuntime, job_id: str, now: float) -> list[orchestrator_pb2.VNodeView]:
    view = runtime.view
    assert view is not None and view.plan is not None  # noqa: PT018
    placed: dict[str, list[model_pb2.Assignment]] = {}
    for item in view.plan.assignments:
        placed.setdefault(item.vnode, []).append(item)
    order = [cost.vnode for cost in view.job.costs] if view.job is not None else sorted(placed)
    request_digest = view.job.request_digest if view.job is not None else ""
    rows: list[orchestrator_pb2.VNodeView] = []
    open_audits = Counter(one.vnode for one in view.chain.open_intervals()) if view.chain is not None else Counter[str]()
    for vnode in order:
        row = orchestrator_pb2.VNodeView(vnode=vnode, curve=runtime.exits.curve(request_digest, vnode))
        for item in sorted(placed.get(vnode, ()), key=lambda item: item.role):
            replica = row.replicas.add(assignment=item)
            found = runtime.shared.inventory.report(item.pnode_id, item.replica, now)
            if found is not None:
                _show(found[0], replica.report)
                replica.report_age_s = found[1]
            if item.role == model_pb2.ROLE_PRIMARY:
                row.assignment.CopyFrom(item)
                row.report_age_s = replica.report_age_s
                if found is not None:
                    row.report.CopyFrom(replica.report)
        working = view.working(vnode)
        if working is not None:
            row.working.CopyFrom(working)
            _cut(row.working.lineage)
        row.num_open = open_audits[vnode]
        if (cleared := view.cleared(vnode)) is not None:
            row.cleared.CopyFrom(cleared)
            _cut(row.cleared.lineage)
        rows.append(row)
    return rows


def _show(report: orchestrator_pb2.ReplicaReport, shown: orchestrator_pb2.ReplicaReport) -> None:
    """The report as it is answered: its sets cut, with their sizes."""
    shown.CopyFrom(report)
    shown.num_durable, shown.num_unmerged = _size(report.durable), _size(report.unmerged)
    for batches in (shown.lineage, shown.durable, shown.unmerged, *(need.batches for need in shown.needs)):
        _cut(batches)


def _size(batches: common_pb2.IntervalSet) -> int:
    """Also of what is no set, as a report may say of a plan that was not read here yet."""
    return min(MAX_WHOLE, max(0, sum(item.end - item.first for item in batches.intervals)))


def _cut(batches: common_pb2.IntervalSet) -> None:
    """Leaves the lowest intervals."""
    if len(batches.intervals) > MAX_INTERVALS:
        del batches.intervals[MAX_INTERVALS:]


def eta_s(shown: orchestrator_pb2.JobView, plan: model_pb2.Plan, now_wall_s: float) -> float:
    """What is left of the slowest VNode at the present rate of all its replicas, and not before the last batch is due; 0 where nobody knows."""
    times = [
        (shown.num_batches - row.report.num_learned) / rate
        for row in shown.vnodes
        if (rate := sum(item.report.rate for item in row.replicas)) > 0 and shown.num_batches >= row.report.num_learned
    ]
    tempo = tempo_of(plan)
    if times and tempo is not None:
        times.append(tempo.due_s(shown.num_batches - 1) - now_wall_s)
    left_s = max(times, default=0.0)
    return left_s if left_s < MAX_ETA_S else 0.0
