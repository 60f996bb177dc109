"""Between the decider and the planner: what the planner is asked, and what its answer changes, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.inventory import Inventory
from orchestrator.offers import ExpectedPace, PlanRequest
from orchestrator.progress import held_of
from orchestrator.silence import NodeRecord
from orchestrator.view import JobFacts, ModelView

MAX_REASON: Final = 500
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
    return PlanRequest(
        network_id=network_id,
        model=view.model,
        job_id=head.active.job_id,
        graph_digest=job.request.graph_digest,
        epoch=head.epoch,
        holder=holder,
        stages=job.costs,
        nodes=inventory.offers(now),
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
        durable={vnode: len(lineage) for vnode, lineage in view.durable(head.active.job_id).items()},
        fences={one.vnode: int(one.first_replica) for one in view.manifest.fences} if view.manifest is not None else {},
        expected=expected,
    )


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
        return "the head has a new holder; nothing moves"
    if before.halted != after.halted:
        return "the job is paused" if after.halted else "the job goes on"
    if before.lead_batches != after.lead_batches:
        return f"the lead in force is {after.lead_batches}"
    return "replicas share their batches by their present speed"
