"""Who contributes: a replica whose PNode beats and reports, but of which no manifest comes to name anything new, is of no use where it is. Pure.

Only what a manifest names counts, never a report: reports say what a replica claims or waits for. A replica that waits for others, or for the audit of what
it did, and has brought everything that it claims, is not to blame. Time is counted only while this orchestrator decides, so that a store that was away accuses
nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dcnr import limits
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.offers import PLACEABLE, NodeOffer
from orchestrator.planning import tempo_of
from orchestrator.progress import Report, lineage_of
from orchestrator.view import ModelView

PATIENCE_S: Final = 120.0
"""A replica may be without contribution for this long, and for `PATIENCE_CHECKPOINTS` of its job's checkpoint intervals."""
PATIENCE_CHECKPOINTS: Final = 4.0
USELESS_FOR_S: Final = 600.0
"""A node that did not contribute is not asked again for so long."""
WORKING: Final = frozenset((model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_SETTLING))
MAX_STEP_S: Final = 2.0
"""Two looks further apart than this say that this orchestrator did something else meanwhile."""


@dataclass(frozen=True, slots=True)
class Useless:
    """A node that keeps a replica without contributing, with the reason for the event and the plan."""

    node_id: str
    replica: str
    reason: str


@dataclass(slots=True)
class _Stint:
    num_durable: int
    idle_s: float = 0.0


class Contributions:
    """What each replica has brought since it was placed, as this orchestrator saw it."""

    def __init__(self) -> None:
        self._stints: dict[tuple[str, str], _Stint] = {}
        self._useless: dict[str, tuple[float, str]] = {}
        self._looked_at: float | None = None

    def look(self, view: ModelView, report: Report, now: float, now_wall: float) -> list[Useless]:
        """Counts the time since the last look; returns who is found to be of no use now. What is not due yet by the job's tempo nobody owes."""
        if (
            view.job is None
            or view.plan is None
            or view.head.active.state not in WORKING
            or view.plan.job_id != view.head.active.job_id
        ):
            return []
        durable, checkpoint_s = view.durable(view.plan.job_id), view.job.request.checkpoint_s or limits.CHECKPOINT_S
        step_s = min(MAX_STEP_S, now - self._looked_at) if self._looked_at is not None else 0.0
        self._looked_at = now
        patience_s = max(PATIENCE_S, PATIENCE_CHECKPOINTS * checkpoint_s)
        tempo = tempo_of(view.plan)
        num_due = min(view.job.num_batches, tempo.end(now_wall)) if tempo is not None else view.job.num_batches
        audited = {one.replica for one in view.chain.open_intervals()} if view.chain is not None else set[str]()
        stints: dict[tuple[str, str], _Stint] = {}
        found: list[Useless] = []
        for item in view.plan.assignments:
            if item.role != model_pb2.ROLE_PRIMARY:
                continue
            key, held = (item.vnode, item.pnode_id), durable.get(item.vnode, IntervalSet.empty())
            stint = stints[key] = self._stints.get(key) or _Stint(len(held))
            if len(held) < stint.num_durable:
                stint.num_durable = len(held)  # it went back
            elif len(held) > stint.num_durable:
                stint.num_durable, stint.idle_s = len(held), 0.0
            elif _owes(report(item), held, num_due, is_audited=item.replica in audited):
                stint.idle_s += step_s
            if stint.idle_s >= patience_s:
                stint.idle_s = 0.0
                reason = f"{item.replica} says that it works, but no checkpoint of it has brought anything for {patience_s:.0f} s"
                self._useless[item.pnode_id] = (now, reason)
                found.append(Useless(item.pnode_id, item.replica, reason))
        self._stints = stints
        return found

    def judged(self, offers: Sequence[NodeOffer], now: float) -> tuple[NodeOffer, ...]:
        """The offers, in quarantine those that were found to be of no use lately; where nobody else is there that can build it, nobody is sent away."""
        self._useless = {node: known for node, known in self._useless.items() if now - known[0] < USELESS_FOR_S}
        if not any(item.state in PLACEABLE and not item.lacks and item.node_id not in self._useless for item in offers):
            return tuple(offers)
        return tuple(self._judged(item) for item in offers)

    def _judged(self, offer: NodeOffer) -> NodeOffer:
        known = self._useless.get(offer.node_id)
        return replace(offer, state=orchestrator_pb2.NODE_STATE_QUARANTINED, reason=known[1]) if known is not None else offer


def _owes(report: orchestrator_pb2.ReplicaReport | None, durable: IntervalSet, num_due: int, *, is_audited: bool) -> bool:
    """Whether a replica claims more than it has brought, or has something left to learn that is due and waits for nobody. ``is_audited``: intervals of it
    wait for their audit, and with more than a few it has to stop; each is decided within its deadlines, so nobody hides behind that.
    """
    if report is None or report.state != orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE:
        return False
    waits = is_audited or bool(report.held_back_by) or any(need.from_replica for need in report.needs)
    return bool(lineage_of(report) - durable) or (not waits and bool(IntervalSet.span(0, num_due) - durable))
