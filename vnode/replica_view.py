"""A replica as reports show it: frozen, every wait names what, from whom, since when and why. Pure, torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from vnode.evaluation import Evaluation
from vnode.events import Forward, Learn, TakeSnapshot
from vnode.merge_events import CaptureAnchor, MakeDelta, MergeDeltas, MergeOwn, Rebase
from vnode.vocabulary import Lane, Role

Computation = Learn | Forward | TakeSnapshot | MakeDelta | Rebase | MergeOwn | MergeDeltas | CaptureAnchor


@dataclass(frozen=True, slots=True)
class NeedView:
    """What is lacking over one edge. ``since_s``: for how long the lowest of it has been the lowest, as the time it began."""

    edge: int
    predecessor: ReplicaId | None
    lane: Lane
    wanted: IntervalSet
    forward_only: IntervalSet
    since_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Counters:
    """Since the start of this incarnation."""

    learned: int = 0
    forwarded: int = 0
    """Outputs computed again because somebody asked."""
    evaluated: int = 0
    duplicates: int = 0
    """Frames that came although they were here or not needed."""
    evicted: int = 0
    """Inputs dropped to make room for lower batches."""
    frames_sent: int = 0
    frames_resent: int = 0
    """Frames sent twice on one link."""
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """Everything that a report says about one replica."""

    vnode: VNodeId
    replica: ReplicaId
    incarnation: int
    lineage: IntervalSet
    durable: IntervalSet
    """What its newest named checkpoint holds."""
    durable_behind: IntervalSet
    """Of that, what is durable in everyone behind it too."""
    floor: int
    floor_vnode: VNodeId
    lead_batches: int
    """The lead in force."""
    needs: tuple[NeedView, ...]
    counters: Counters
    spool_batches: int
    spool_bytes: int
    held_back_by: VNodeId | None
    """For a source that waits at floor + lead: whom it waits for."""
    paused_why: str
    """Why nothing is learned although it could be; empty when learning goes on."""
    evaluations: tuple[Evaluation, ...]
    failing: IntervalSet
    """Train batches that failed here and are tried again after a while."""
    computing: str
    """What is under way, in words; empty when idle."""
    learns_no_more: bool
    """It hands over, and the last step is done."""
    owed: IntervalSet
    """Learned here, and still lacking in a successor: what would have to be computed again if this replica went now."""
    last_loss: float | None
    stopped_why: str
    role: Role
    owned: IntervalSet
    """The batches that it has to learn, by the newest plan's shares."""
    unmerged: IntervalSet
    """At a contributor: of the lineage, what no primary is known to have."""
    num_merged: int
    """At the primary: deltas merged; at a contributor: own deltas merged."""
    num_refused: int
    """The same for deltas that were refused."""


def words(computation: Computation | None) -> str:
    """What is under way, for people."""
    match computation:
        case None:
            return ""
        case Learn():
            return f"learn {computation.batch}"
        case Forward():
            return f"{computation.mode.name.lower()} {computation.lane.split} {computation.batch}"
        case TakeSnapshot():
            return f"snapshot: {computation.reason}"
        case MakeDelta():
            return f"delta {computation.sequence} of {len(computation.batches)} batches"
        case Rebase():
            return "taking over the anchor"
        case MergeOwn():
            return f"merging its own delta {computation.sequence}"
        case MergeDeltas():
            return f"merging {len(computation.requests)} deltas"
        case CaptureAnchor():
            return "capturing the anchor"
