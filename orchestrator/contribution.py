"""Who contributes: a replica whose PNode beats and reports, but of which no manifest comes to name anything new, is of no use where it is. Pure.

Only what a manifest names counts, never a report: reports say what a replica claims or waits for. A replica that waits for others, or for the audit of what
it did, and has brought everything that it claims, is not to blame. What is brought and goes back, since its PNode shows no evidence of it, is nothing either:
whoever stays and shows none would hold its VNode still. Time is counted only while this orchestrator decides, so that a store that was away accuses
nobody.

A primary that does not come to work at all, whether its PNode says why or not, has as long as its state takes to get there, twice over, and `NEVER_S` at
least. That is what a download or a restore takes that goes on; whoever waits for room on its disk, or for something that only it cannot reach, waits no longer
than this where somebody else could do the work. A machine whose owner has paused it, that leaves, or that is out of reach, is no matter of patience: plans
place nothing there.

A contributor is of no use either where it goes on though far more of its work waits for audits than an honest replica lets there be: its VNode is cleared, and
its job completed, no sooner than they are done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dcnr import limits
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, owned
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.audit_events import Unshown
from orchestrator.observing import NEVER_S
from orchestrator.offers import PLACEABLE, NodeOffer
from orchestrator.planning import tempo_of
from orchestrator.progress import Report, lineage_of
from orchestrator.silence import NodeRecord
from orchestrator.view import JobFacts, ModelView

PATIENCE_S: Final = 120.0
"""A replica may be without contribution for this long, and for `PATIENCE_CHECKPOINTS` of its job's checkpoint intervals."""
PATIENCE_CHECKPOINTS: Final = 4.0
USELESS_FOR_S: Final = 600.0
"""A node that did not contribute gets nothing new for so long where others fit."""
UNKNOWN_LINE_MBIT: Final = 8.0
"""Of a node that does not say how fast its line is: a slow home's. Who is moved before its state can have come is moved in circles."""
LONGEST_PROVISION_S: Final = 7200.0
"""What a node says of its line gives nobody longer than this to come to work."""
LOOKED_AT: Final = frozenset((model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_SETTLING))
MAX_UNSHOWN: Final = 2
"""So many intervals in a row go back since their PNode shows nothing of them; then another one gets the place."""
MAX_STEP_S: Final = 2.0
"""Two looks further apart than this say that this orchestrator did something else meanwhile."""


@dataclass(frozen=True, slots=True)
class Useless:
    """A node that keeps a VNode's primary without contributing, with the reason for the event and the plan."""

    node_id: str
    vnode: str
    replica: str
    reason: str
    came_to_work: bool = True


@dataclass(slots=True)
class _Stint:
    num_durable: int
    idle_s: float = 0.0
    away_s: float = 0.0
    """Not at work; what it is at work pays for it, so that nobody begins anew with every visit."""


class Contributions:
    """What each replica has brought since it was placed, as this orchestrator saw it."""

    def __init__(self) -> None:
        self._stints: dict[tuple[str, str], _Stint] = {}
        self._useless: dict[tuple[str, str], tuple[float, str]] = {}
        """By node and VNode: when it was found, and why."""
        self._buried: dict[tuple[str, str], tuple[float, int]] = {}
        """By PNode and VNode: since when so much of it is to be judged, and its newest interval of the time in which it may not have known that yet."""
        self._looked_at: float | None = None

    def look(self, view: ModelView, report: Report, nodes: Mapping[str, NodeRecord], now: float, now_wall: float) -> list[Useless]:
        """Counts the time since the last look; returns who is found to be of no use now. What is not due yet by the job's tempo nobody owes."""
        plan, job, active = view.plan, view.job, view.head.active
        if job is None or plan is None or active.state not in LOOKED_AT or plan.job_id != active.job_id:
            return []
        durable, checkpoint_s = view.durable(plan.job_id), job.request.checkpoint_s or limits.CHECKPOINT_S
        step_s = min(MAX_STEP_S, now - self._looked_at) if self._looked_at is not None else 0.0
        self._looked_at = now
        patience_s = max(PATIENCE_S, PATIENCE_CHECKPOINTS * checkpoint_s)
        tempo = tempo_of(plan)
        num_due = min(job.num_batches, tempo.end(now_wall)) if tempo is not None else job.num_batches
        audited = {one.replica for one in view.chain.open_intervals()} if view.chain is not None else set[str]()
        sizes = {cost.vnode: cost.state_bytes for cost in job.costs}
        excused = view.chain.crowded() if view.chain is not None else frozenset[tuple[str, str]]()
        stints: dict[tuple[str, str], _Stint] = {}
        found = self._burying(view, excused, now)
        for item in plan.assignments:
            if item.role != model_pb2.ROLE_PRIMARY:
                continue
            key, held, said = (item.vnode, item.pnode_id), durable.get(item.vnode, IntervalSet.empty()), report(item)
            stint = stints[key] = self._stints.get(key) or _Stint(len(held))
            if len(held) < stint.num_durable:
                stint.num_durable = len(held)  # it went back
            elif len(held) > stint.num_durable:
                stint.num_durable, stint.idle_s, stint.away_s = len(held), 0.0, 0.0
            elif active.state == model_pb2.JOB_STATE_PLACING or (item.pnode_id, item.vnode) in excused:
                pass
            elif _owes(said, held, _own(item, plan, job, num_due), is_audited=item.replica in audited):
                stint.idle_s += step_s
            if said is not None and said.state == orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE:
                stint.away_s = max(0.0, stint.away_s - step_s)
            elif _should_work(item, said, nodes.get(item.pnode_id)):
                stint.away_s += step_s
            provision_s = _provision_s(sizes.get(item.vnode, 0), nodes.get(item.pnode_id))
            if stint.idle_s >= patience_s:
                stint.idle_s = 0.0
                reason = f"{item.replica} says that it works, but no checkpoint of it has brought anything for {patience_s:.0f} s"
                found.append(Useless(item.pnode_id, item.vnode, item.replica, reason))
            elif stint.away_s >= provision_s:
                stint.away_s = 0.0
                reason = f"{item.replica} has not come to work for {provision_s:.0f} s: {_why_away(said)}"
                found.append(Useless(item.pnode_id, item.vnode, item.replica, reason, came_to_work=False))
        self._stints = stints
        self._useless.update(((one.node_id, one.vnode), (now, one.reason)) for one in found)
        return found

    def _burying(self, view: ModelView, crowded: frozenset[tuple[str, str]], now: float) -> list[Useless]:
        """Contributors of which more waits for audits than is taken in of a primary, and which still bring more: an honest replica has stopped by then. Their
        deltas are named with the checkpoints of others, who have nothing to do with that.
        """
        self._buried = {key: known for key, known in self._buried.items() if key in crowded}
        newest: dict[tuple[str, str], int] = {}
        for one in view.chain.to_judge() if view.chain is not None and crowded else ():
            newest[one.pnode_id, one.vnode] = one.number
        found: list[Useless] = []
        for item in view.plan.assignments if view.plan is not None and crowded else ():
            key = (item.pnode_id, item.vnode)
            if item.role == model_pb2.ROLE_PRIMARY or key not in crowded:
                continue
            since, known = self._buried.get(key, (now, newest[key]))
            self._buried[key] = (since, newest[key] if now <= since + PATIENCE_S else known)
            if newest[key] > self._buried[key][1]:
                self._buried[key] = (now, newest[key])
                reason = f"{item.replica} goes on though more of its work waits for audits than an honest replica lets there be"
                found.append(Useless(item.pnode_id, item.vnode, item.replica, reason))
        return found

    def unshown(self, one: Unshown, now: float) -> Useless | None:
        """Who is there and shows no evidence of what it learned: after `MAX_UNSHOWN` intervals in a row it is of no use, whatever it has brought."""
        if one.num < MAX_UNSHOWN:
            return None
        self._useless[one.pnode_id, one.vnode] = (now, reason := f"{one.num} intervals of {one.vnode} in a row: {one.reason}")
        return Useless(one.pnode_id, one.vnode, one.replica, reason)

    def judged(self, offers: Sequence[NodeOffer], now: float) -> tuple[NodeOffer, ...]:
        """The offers, with the VNodes to which the node was of no use lately. Whether others fit is the planner's to say (`orchestrator.displacing`)."""
        self._useless = {key: known for key, known in self._useless.items() if now - known[0] < USELESS_FOR_S}
        by_node: dict[str, dict[str, str]] = {}
        for (node_id, vnode), (_, reason) in sorted(self._useless.items()):
            by_node.setdefault(node_id, {})[vnode] = reason
        return tuple(replace(item, useless=by_node[item.node_id]) if item.node_id in by_node else item for item in offers)


def _own(item: model_pb2.Assignment, plan: model_pb2.Plan, job: JobFacts, num_due: int) -> IntervalSet:
    """What of the batches that are due a primary has to learn itself: nobody is blamed for what others of its VNode do not bring."""
    shares = [Share(ReplicaId(one.replica), one.weight) for one in plan.assignments if one.vnode == item.vnode]
    due = IntervalSet.span(0, num_due)
    if len(shares) < 2:
        return due
    return due & owned(ReplicaId(item.replica), shares, job.num_batches, max(1, int(job.request.unit_batches)))


def _owes(report: orchestrator_pb2.ReplicaReport | None, durable: IntervalSet, own: IntervalSet, *, is_audited: bool) -> bool:
    """Whether a replica claims more than it has brought, or has something of its own left to learn that waits for nobody. ``is_audited``: intervals of it
    wait for their audit, and with more than a few it has to stop; each is decided within its deadlines, so nobody hides behind that.
    """
    if report is None or report.state != orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE:
        return False
    waits = is_audited or bool(report.held_back_by) or any(need.from_replica for need in report.needs)
    return bool(lineage_of(report) - durable) or (not waits and bool(own - durable))


def _should_work(item: model_pb2.Assignment, report: orchestrator_pb2.ReplicaReport | None, record: NodeRecord | None) -> bool:
    """Whether a primary that is not at work could be: its PNode beats and takes work, has not said that it cannot, and it does not hand over."""
    if record is None or record.judgement.state not in PLACEABLE or not record.capability.accepts_work or item.hands_over_to:
        return False
    return report is None or report.state != orchestrator_pb2.ASSIGNMENT_STATE_FAILED


def _provision_s(state_bytes: int, record: NodeRecord | None) -> float:
    """How long a primary may take to come to work: twice what its state takes over the node's line."""
    downlink_mbit = (record.capability.downlink_mbit if record is not None else 0.0) or UNKNOWN_LINE_MBIT
    state_s = state_bytes * 8 / (downlink_mbit * 1e6)
    return min(LONGEST_PROVISION_S, max(NEVER_S, 2 * state_s))


def _why_away(report: orchestrator_pb2.ReplicaReport | None) -> str:
    if report is None:
        return "its PNode says nothing of it"
    state = orchestrator_pb2.AssignmentState.Name(report.state).removeprefix("ASSIGNMENT_STATE_").lower()
    return f"{state}, {report.reason}" if report.reason else state
