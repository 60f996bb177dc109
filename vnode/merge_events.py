"""What the replicas of one VNode tell each other, as events and instructions of the core; `vnode.events` has the rest.

A contributor asks for the primary's anchor, hands in as a delta how far its state is from that, and goes on from the anchor at once; the primary merges
between its steps, and answers a delta with its verdict alone. All of it is computation on the state, so at most one of Learn, Forward, TakeSnapshot,
MakeDelta, Rebase, MergeOwn, MergeDeltas and CaptureAnchor is under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from vnode.vocabulary import Peer, Verdict

AnchorHandle = Any
"""The bytes of an anchor, whole and checked, with whatever the shell keeps of it: never looked into by the core."""
DeltaHandle = Any
"""A delta that the shell has checked in full: signature, delegation, job, bytes, and that its batches are those it names."""


# ---- events of a contributor ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeltaMade:
    """Answers MakeDelta: what was learned since the last delta is handed in, signed and kept until the next one is made; the state is the anchor."""

    now_s: float
    sequence: int
    batches: IntervalSet


@dataclass(frozen=True, slots=True)
class AnchorArrived:
    """Answers AskMerge number ``ask``, which asked for the anchor: the primary's of that moment, with its lineage."""

    now_s: float
    ask: int
    primary: Peer
    lineage: IntervalSet
    anchor: AnchorHandle


@dataclass(frozen=True, slots=True)
class DeltaAnswered:
    """Answers AskMerge number ``ask``, which brought a delta: merged, or refused for ever."""

    now_s: float
    ask: int
    primary: Peer
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class MergeUnanswered:
    """AskMerge number ``ask`` failed, or its answer did not hold: nothing is known, the core asks again. ``is_early``: who was asked lives, and does not
    know the plan yet by which it leads, or by which this replica is its sibling.
    """

    now_s: float
    ask: int
    reason: str
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Rebased:
    """Answers Rebase: the state is the anchor and what was to be kept."""

    now_s: float


@dataclass(frozen=True, slots=True)
class OwnMerged:
    """Answers MergeOwn: the delta is in the state."""

    now_s: float


# ---- events of a primary ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergeAsked:
    """A sibling asks to merge ``delta``, or for the anchor alone (``sequence`` None, no batches, no delta).

    ``request`` is the shell's number for it, never reused; it is answered by exactly one AnswerMerge or DeferMerge.
    """

    now_s: float
    request: int
    source: Peer
    sequence: int | None
    batches: IntervalSet
    delta: DeltaHandle | None
    is_astray: bool = False
    """Whether the delta begins with what does not lie behind this replica's state, or was measured against what does not lie between, where that counts."""
    num_since: int = 0
    """Batches that the state took in between what the delta begins with and what it was measured against, where that counts."""


@dataclass(frozen=True, slots=True)
class MergesDone:
    """Answers MergeDeltas: all are in the state, and the anchor after them is captured."""

    now_s: float


@dataclass(frozen=True, slots=True)
class AnchorCaptured:
    """Answers CaptureAnchor."""

    now_s: float


# ---- instructions to a contributor's shell ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakeDelta:
    """Hand in how far the state is from ``anchor``, or (``is_late``) from what it stood on, having learned ``batches`` since the last delta; the state is that
    anchor from here on, and its lineage ``lineage``. Answered by DeltaMade or ComputeFailed.

    The delta before it is in the anchor or nowhere: whatever the shell keeps of it can go.
    """

    sequence: int
    batches: IntervalSet
    anchor: AnchorHandle
    lineage: IntervalSet
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class AskMerge:
    """Bring delta ``sequence`` to the primary, which is answered by DeltaAnswered, or (None) ask for its anchor: by AnchorArrived. Or by MergeUnanswered.

    It replaces an AskMerge that is still out: that call can be ended, its answer will be ignored.
    """

    ask: int
    primary: ReplicaId
    sequence: int | None


@dataclass(frozen=True, slots=True)
class Rebase:
    """Make the state ``anchor`` + the share of the open delta that a primary would take in if ``keep_open`` + what was learned after it if ``keep_after``;
    ``num_learning`` as in MergeDeltas.

    Answered by Rebased or ComputeFailed. What is not kept is gone, and no delta is open: both count as learned after the anchor. ``lineage`` is that of the
    state afterwards.
    """

    anchor: AnchorHandle
    keep_open: bool
    keep_after: bool
    num_learning: int
    lineage: IntervalSet


@dataclass(frozen=True, slots=True)
class MergeOwn:
    """Take the open delta into the state, as a primary takes in that of a sibling: this replica is about to lead. Answered by OwnMerged or ComputeFailed.

    ``num_learning`` as in MergeDeltas; ``lineage``: of the state afterwards.
    """

    sequence: int
    num_learning: int
    lineage: IntervalSet


@dataclass(frozen=True, slots=True)
class Lead:
    """From here on this replica is the primary; not answered, and a TakeSnapshot follows before anything else is computed.

    ``lineage`` is that of the state. ``own``: what was learned on the anchor this replica stands on, which is the parent of the next commit; those batches
    are its own ones.
    """

    lineage: IntervalSet
    own: IntervalSet


# ---- instructions to a primary's shell --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergeDeltas:
    """Merge the deltas of these requests, in this order, and capture the anchor after them; answered by MergesDone or ComputeFailed.

    ``num_learning``: replicas that learn now, from which follows what each delta counts (`vnode.merging.counts_of`). ``lineage``: of the state afterwards.
    """

    requests: tuple[int, ...]
    num_learning: int
    lineage: IntervalSet


@dataclass(frozen=True, slots=True)
class CaptureAnchor:
    """Capture the anchor as the state is now; answered by AnchorCaptured or ComputeFailed."""

    lineage: IntervalSet


@dataclass(frozen=True, slots=True)
class AnswerMerge:
    """Answer the request: a delta with the verdict, a question for the anchor with the one captured last, which has the present lineage."""

    request: int
    verdict: Verdict
    code: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeferMerge:
    """Answer the request with an error, without a verdict: the sibling asks again later, or somebody else."""

    request: int
    code: str
    reason: str


MergeEvent = (
    DeltaMade | AnchorArrived | DeltaAnswered | MergeUnanswered | Rebased | OwnMerged | MergeAsked | MergesDone | AnchorCaptured
)
MergeInstruction = MakeDelta | AskMerge | Rebase | MergeOwn | Lead | MergeDeltas | CaptureAnchor | AnswerMerge | DeferMerge
