"""Who is here for the audit desk, and what of that concerns audits: who may audit, who has a part in what, and whose state nobody can learn from. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dcnr import limits
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.audit_case import AUDIT_S, LONGEST_CHALLENGE_S
from orchestrator.audit_doubters import Doubters
from orchestrator.audit_events import People
from orchestrator.builds import lacks
from orchestrator.verdicts import behind_of
from orchestrator.view import ModelView
from trust.auditors import Candidate
from trust.late_draw import SPARED_KEPT_S, UNLEARNED, left_behind, spared_lately
from trust.ledger import Interval
from trust.overturned import AGAIN_S
from trust.separation import Party
from trust.standing import State

if TYPE_CHECKING:
    from orchestrator.runtime import Shared
    from orchestrator.standings import Standings

HERE: Final = frozenset(
    (
        orchestrator_pb2.NODE_STATE_ACTIVE,
        orchestrator_pb2.NODE_STATE_PROBATION,
        orchestrator_pb2.NODE_STATE_SUSPECT,
        orchestrator_pb2.NODE_STATE_REHAB,
    )
)


def people_of(view: ModelView, shared: Shared, doubters: Doubters | None = None) -> People:
    """As this orchestrator sees them now. ``doubters``: of its desk, if it has one."""
    now_s, candidates = shared.clock.wall(), dict[str, Candidate]()
    needs = view.job.needs if view.job is not None else frozenset[str]()
    for record in shared.inventory.nodes().values():
        if record.streams > 0:
            state = shared.standings.of(record.node_id, now_s).state
            is_free = (
                record.judgement.state in HERE
                and record.capability.accepts_work
                and record.beat.worker_alive
                and not lacks(record.builds, needs)
            )
            candidates[record.node_id] = Candidate(Party(record.node_id, record.owner, record.subnet), state, is_free)
    involved: dict[str, set[str]] = {}
    for item in view.plan.assignments if view.plan is not None else ():
        involved.setdefault(item.vnode, set()).add(item.pnode_id)
    can_look = shared.own_eyes is not None and shared.own_eyes.can_measure
    verifiers = (Party(shared.key.node_id),) if can_look else ()
    stages, costs = (view.job.stages, view.job.costs) if view.job is not None else ((), ())
    redundancy = {stage.id: stage.redundancy for stage in stages}
    broken = _broken(view, shared)
    has_time = _has_time(view, LONGEST_CHALLENGE_S)
    doubters = doubters if doubters is not None else Doubters()
    # What is open when the job ends has no credit; but what goes back again and again is learned by nobody before it ends.
    doubtful = {vnode: one for vnode, one in doubters.taken_back.items() if has_time or one.is_again}
    late, recent = {*broken, *doubtful}, frozenset[str]()
    if view.chain is not None and (late or doubters.held):
        recent = frozenset(spared_lately(view.chain.ledger, view.chain.chronicle.told, now_s))
    behind = behind_of(costs) if late else {}
    ahead = {vnode: tuple(cost.vnode for cost in reversed(costs) if vnode in behind[cost.vnode]) for vnode in late}
    parts = {vnode: frozenset(names) for vnode, names in involved.items()}
    looks_again = _has_time(view, 2 * AUDIT_S) and (can_look or any(one.state is State.ACTIVE for one in candidates.values()))
    found_out = frozenset(shared.standings.found_out_s(now_s - AGAIN_S)) if looks_again else frozenset[str]()
    num_batches = int(view.job.request.num_batches) if view.job is not None else 0
    left = left_of(view, shared.standings, now_s)
    return People(candidates, verifiers, parts, redundancy, broken, doubtful, recent, left, ahead, found_out, num_batches, has_time)


def left_of(view: ModelView, standings: Standings, now_s: float) -> dict[str, tuple[Interval, ...]]:
    """What PNodes that were found out since have done in the active job and was spared: it will be drawn (`trust.late_draw`).

    Nothing where the job settles and would be over before a PNode has had its time to show evidence: what is open then keeps its result uncleared.
    """
    if view.chain is None or not _has_time(view, LONGEST_CHALLENGE_S):
        return {}
    return left_behind(view.chain.ledger, view.chain.chronicle.told, standings.found_out_s(now_s - SPARED_KEPT_S / 2), now_s)


def _has_time(view: ModelView, needed_s: float) -> bool:
    """Whether the job is not over before an interval that is opened now can be judged."""
    if view.job is None or view.head.active.state != model_pb2.JOB_STATE_SETTLING:
        return True
    deadline_s = view.job.request.settling_deadline_s or limits.SETTLING_DEADLINE_S
    return view.head.active.settling_s + needed_s <= deadline_s


def _broken(view: ModelView, shared: Shared) -> dict[str, str]:
    """By VNode: the checkpoint that counts and from which a replica of the plan says that it can learn nothing."""
    found: dict[str, str] = {}
    now = shared.clock.monotonic()
    for item in view.plan.assignments if view.plan is not None and view.chain is not None else ():
        known = shared.inventory.report(item.pnode_id, item.replica, now)
        if known is None or known[0].num_unlearned < UNLEARNED:
            continue
        state = known[0].checkpoint_digest or known[0].restored_from
        assert view.chain is not None
        if any(one.digest == state for one in view.chain.ledger.lines.get(item.vnode, ())):
            found[item.vnode] = state
    return found
