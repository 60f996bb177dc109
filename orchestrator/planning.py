"""Between the decider and the planner: what the planner is asked, and what its answer changes, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dcnr.errors import InvalidInput
from dcnr.intervals import IntervalSet
from dcnr.tempo import Tempo
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.builds import able
from orchestrator.inventory import Inventory
from orchestrator.offers import ExpectedPace, PlanRequest
from orchestrator.progress import held_of
from orchestrator.silence import NodeRecord
from orchestrator.view import JobFacts, ModelView

MAX_REASON: Final = 500
NEW_HOLDER: Final = "the head has a new holder; nothing moves"
ROLES: Final = {model_pb2.ROLE_PRIMARY: "primary", model_pb2.ROLE_CONTRIBUTOR: "contributor", model_pb2.ROLE_STANDBY: "standby"}


@dataclass(frozen=True, slots=True)
class PlanChange:
    """One replica that a plan places, promotes or takes away: an event for history and watchers."""

    kind: str
    replica: str
    reason: str
    facts: Mapping[str, str] = field(default_factory=dict)


class LiveReplicas(Mapping[str, int]):
    """A plan's replicas that report to be at work, with the number of batches in their state. Beats count as they are now; each is read when asked for."""

    def __init__(self, hosted: Mapping[str, Iterable[model_pb2.Assignment]], nodes: Mapping[str, NodeRecord]) -> None:
        self._beats = {
            item.replica: record.beat
            for pnode_id, items in hosted.items()
            if (record := nodes.get(pnode_id)) is not None
            for item in items
        }

    def __getitem__(self, replica: str) -> int:
        beat = self._beats[replica]
        report = next((item for item in beat.replicas if item.replica == replica), None)
        if report is None or report.state != orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE:
            raise KeyError(replica)
        return len(held_of(report))

    def __iter__(self) -> Iterator[str]:
        return (replica for replica in self._beats if replica in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def plan_request(
    view: ModelView,
    job: JobFacts,
    inventory: Inventory,
    now: float,
    *,
    network_id: str,
    holder: str,
    since_last_plan_s: float,
    now_unix_ms: int,
    expected: Mapping[tuple[str, str], ExpectedPace],
) -> PlanRequest:
    """Everything that the next plan depends on."""
    head = view.head
    durable = {vnode: len(lineage) for vnode, lineage in view.durable(head.active.job_id).items()}
    before = view.plan if view.plan is not None and view.plan.job_id == head.active.job_id else None
    return PlanRequest(
        network_id=network_id,
        model=view.model,
        job_id=head.active.job_id,
        graph_digest=job.request.graph_digest,
        epoch=head.epoch,
        holder=holder,
        stages=job.costs,
        nodes=able(inventory.offers(now), job.needs),
        previous=view.plan,
        previous_digest=head.plan_digest,
        lead_batches=int(job.request.lead_batches),
        unit_batches=int(job.request.unit_batches),
        since_last_plan_s=since_last_plan_s,
        now_unix_ms=now_unix_ms,
        allow_moves=head.active.state == model_pb2.JOB_STATE_RUNNING,
        reason="",
        halted=head.active.state == model_pb2.JOB_STATE_PAUSED,
        live=LiveReplicas(view.hosted, inventory.nodes()),
        handed_over=handed_over(view, inventory),
        tempo=next_tempo(before, job.request.batches_per_s, head.active.state, max(durable.values(), default=0), now_unix_ms),
        durable=durable,
        fences={one.vnode: int(one.first_replica) for one in view.manifest.fences} if view.manifest is not None else {},
        expected=expected,
    )


def next_tempo(
    before: model_pb2.Plan | None, batches_per_s: float, state: model_pb2.JobState.ValueType, num_durable: int, now_unix_ms: int
) -> model_pb2.Tempo | None:
    """When batches are due by the next plan of a job, of which ``before`` is the last; None for a job without a tempo.

    The schedule begins with the first plan in which nothing waits, or with what is durable where plans had none. It stands still while the job is paused, and
    goes on with the batch that was due next: nobody has to catch up on a time in which nothing was to be learned. What a fault costs is caught up on.
    """
    if not batches_per_s:
        return None
    known = tempo_of(before)
    if before is None or known is None:
        return model_pb2.Tempo(batches_per_s=batches_per_s, from_unix_ms=now_unix_ms, from_batch=num_durable)
    is_paused = state == model_pb2.JOB_STATE_PAUSED
    begins = before.halted or (len(before.waiting) > 0 and state == model_pb2.JOB_STATE_PLACING)
    if is_paused and not before.halted:
        return model_pb2.Tempo(batches_per_s=batches_per_s, from_unix_ms=now_unix_ms, from_batch=known.end(now_unix_ms / 1000))
    if begins and not is_paused:
        return model_pb2.Tempo(batches_per_s=batches_per_s, from_unix_ms=now_unix_ms, from_batch=known.from_batch)
    return before.tempo


def tempo_of(plan: model_pb2.Plan | None) -> Tempo | None:
    """What a plan says of it; None where it says nothing, or what cannot be."""
    try:
        return Tempo.of(plan.tempo) if plan is not None and plan.HasField("tempo") else None
    except InvalidInput:
        return None


def handed_over(view: ModelView, inventory: Inventory) -> frozenset[str]:
    """Replicas of the plan that were to hand over, say that they have, and of which the manifest names all that they say they learned."""
    found: set[str] = set()
    for item in view.moving:
        record = inventory.nodes().get(item.pnode_id)
        report = next((one for one in record.beat.replicas if one.replica == item.replica), None) if record is not None else None
        if report is not None and report.state == orchestrator_pb2.ASSIGNMENT_STATE_RELEASED and view.plan is not None:
            named = view.durable(view.plan.job_id).get(item.vnode, IntervalSet.empty())
            if not held_of(report) - named:
                found.add(item.replica)
    return frozenset(found)


def plan_changes(before: model_pb2.Plan | None, after: model_pb2.Plan) -> list[PlanChange]:
    """What ``after`` changes against ``before``; a plan of another job places everything anew."""
    old = {item.replica: item for item in before.assignments} if before is not None and before.job_id == after.job_id else {}
    led = {item.vnode: item for item in old.values() if item.role == model_pb2.ROLE_PRIMARY}
    kept = {item.replica for item in after.assignments}
    changes: list[PlanChange] = []
    relocated: set[str] = set()
    for item in after.assignments:
        was, role = old.get(item.replica), ROLES.get(item.role, "")
        lost = led.get(item.vnode)
        if was is None and item.role == model_pb2.ROLE_PRIMARY and lost is not None:
            relocated.add(lost.replica)
            facts = {"pnode": item.pnode_id, "from_replica": lost.replica, "from_pnode": lost.pnode_id}
            changes.append(PlanChange("replica_relocated", item.replica, item.reason, facts))
        elif was is None:
            changes.append(PlanChange("replica_placed", item.replica, item.reason, {"pnode": item.pnode_id, "role": role}))
        elif was.role != item.role:
            changes.append(PlanChange("replica_promoted", item.replica, item.reason, {"pnode": item.pnode_id, "role": role}))
        elif was.hands_over_to != item.hands_over_to:
            kind = "replica_hands_over" if item.hands_over_to else "replica_kept"
            changes.append(PlanChange(kind, item.replica, item.reason, {"pnode": item.pnode_id, "to": item.hands_over_to}))
    why = {(row.vnode, row.pnode_id): row.reason for row in after.rejections}
    moved = {item.vnode for item in after.assignments if item.replica not in old}
    for name in sorted(old.keys() - kept - relocated):
        item = old[name]
        otherwise = "another replica takes its place" if item.vnode in moved else "the plan has another use for its node"
        reason = why.get((item.vnode, item.pnode_id), otherwise)
        facts = {"pnode": item.pnode_id, "role": ROLES.get(item.role, "")}
        changes.append(PlanChange("replica_released", name, reason, facts))
    return changes


def plan_reason(before: model_pb2.Plan | None, after: model_pb2.Plan) -> str:
    """In words: why ``after`` replaces ``before``."""
    if before is None or before.job_id != after.job_id:
        return f"job {after.job_id} begins"
    changes = plan_changes(before, after)
    if changes:
        told = "; ".join(f"{change.replica.rpartition('.')[0]}: {change.reason}" for change in changes[:4])
        return told[:MAX_REASON]
    if list(before.waiting) != list(after.waiting):
        return f"now waiting: {', '.join(after.waiting) or 'nothing'}"
    if before.epoch != after.epoch:
        return NEW_HOLDER
    if before.halted != after.halted:
        return "the job is paused" if after.halted else "the job goes on"
    if before.lead_batches != after.lead_batches:
        return f"the lead in force is {after.lead_batches}"
    return "replicas share their batches by their present speed"


def plan_at_rest(before: model_pb2.Plan, head: model_pb2.Head, holder: str, *, stays: bool) -> model_pb2.Plan:
    """The plan that follows ``before`` while no job runs: of this term, with everything where it is, or with nothing placed."""
    plan = model_pb2.Plan(
        network_id=before.network_id,
        model=before.model,
        graph_digest=before.graph_digest,
        next_replica=before.next_replica,
        reason=f"job {before.job_id} has ended" if before.job_id else NEW_HOLDER,
    )
    if stays:
        plan.CopyFrom(before)
        plan.reason = NEW_HOLDER
    plan.number, plan.parent_digest = before.number + 1, head.plan_digest
    plan.epoch, plan.holder = head.epoch, holder
    return plan
