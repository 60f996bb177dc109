"""What goes into and comes out of the replica core: frozen events (each carries its time) and frozen instructions.

The shell (`pnode.host`) turns frames, links and finished computations into events and carries out instructions; the core
(`vnode.core`) decides. Tensors are opaque handles here. An *edge* is an input of this replica (index into the stage's external
inputs); a *link* is one open way to one receiving replica, numbered by the shell, never reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.tempo import Tempo
from dcnr.units import Share
from vnode.due import NetworkTime, WakeAt
from vnode.merge_events import MergeEvent, MergeInstruction
from vnode.vocabulary import Lane, Mode, Peer, Role, TensorHandle

# ---- events ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; sent at least every 0.5 s."""

    now_s: float


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """The newest plan around this replica.

    ``predecessors``: by edge (those that read the data set are absent), the shares of all replicas of the predecessor, its primary
    first: evaluations are asked of that one. ``successors``: all replicas of all successors. ``siblings``: the shares of all replicas
    of this VNode, itself included; empty for one that is alone and owns everything. ``primary``: who that is, None if nobody. ``halted``: the job
    is paused, so nobody learns. ``widest_lead_batches``: how far sources may be ahead for a while (`vnode.lead`); never below the lead.
    ``tempo``: when batches are due, in network time; None: at once.
    """

    now_s: float
    predecessors: Mapping[int, tuple[Share, ...]]
    successors: frozenset[ReplicaId]
    lead_batches: int
    siblings: tuple[Share, ...] = ()
    role: Role = Role.PRIMARY
    primary: ReplicaId | None = None
    halted: bool = False
    widest_lead_batches: int = 0
    tempo: Tempo | None = None


@dataclass(frozen=True, slots=True)
class EdgeUp:
    """A way to a replica asked over ``edge`` is open (again); everything stated over it before is forgotten by the other side."""

    now_s: float
    edge: int
    source: Peer


@dataclass(frozen=True, slots=True)
class EdgeDown:
    """The way to that replica broke, was closed by the other side, or is no longer wanted."""

    now_s: float
    edge: int
    source: ReplicaId


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """A whole, checked tensor for this batch: from a predecessor, or read from the data set for an input edge."""

    now_s: float
    edge: int
    lane: Lane
    batch: int
    tensor: TensorHandle


@dataclass(frozen=True, slots=True)
class InputFailed:
    """A batch could not be read from the data set now; it will be asked for again."""

    now_s: float
    edge: int
    lane: Lane
    batch: int


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A successor's replica opened a way to us."""

    now_s: float
    link: int
    target: Peer


@dataclass(frozen=True, slots=True)
class LinkDown:
    """That way is gone."""

    now_s: float
    link: int


@dataclass(frozen=True, slots=True)
class NeedHeard:
    """What the receiver lacks; newest sequence replaces the older, per lane."""

    now_s: float
    link: int
    sequence: int
    lane: Lane
    wanted: IntervalSet
    forward_only: IntervalSet
    evicted: IntervalSet


@dataclass(frozen=True, slots=True)
class WindowHeard:
    """The receiver takes only batches below ``end`` of that lane."""

    now_s: float
    link: int
    sequence: int
    lane: Lane
    end: int


@dataclass(frozen=True, slots=True)
class AckHeard:
    """The receiver's floor: lowest batch still to be learned by it or anything behind it, and by which VNode."""

    now_s: float
    link: int
    sequence: int
    num_learned: int
    floor: int
    floor_vnode: VNodeId


@dataclass(frozen=True, slots=True)
class DurableHeard:
    """Batches that the receiver (and all behind it) will not ask for again."""

    now_s: float
    link: int
    batches: IntervalSet


@dataclass(frozen=True, slots=True)
class FrameSent:
    """A frame left towards the receiver (its place in the link's send queue is free again)."""

    now_s: float
    link: int
    lane: Lane
    batch: int


@dataclass(frozen=True, slots=True)
class FrameMissing:
    """The spool could not give a frame that the core believed in it (damaged, disk trouble)."""

    now_s: float
    lane: Lane
    batch: int


@dataclass(frozen=True, slots=True)
class Learned:
    """A local step was made; where the Learn said ``keep``, the shell has put its output into the spool under ``batch``."""

    now_s: float
    batch: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A forward pass was made (FORWARD_ONLY in the train lane, EVAL elsewhere); its output is in the spool if ``keep`` was said.

    The three sums are of the objective over this batch (EVAL only): nats, correct, and samples or tokens.
    """

    now_s: float
    lane: Lane
    batch: int
    seconds: float
    sum_loss: float = 0.0
    correct: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class ComputeFailed:
    """The computation under way failed; nothing changed in the state. ``fatal``: this replica cannot go on.

    Lane and batch say something for Learn and Forward only. What is not fatal is tried again, later each time.
    """

    now_s: float
    lane: Lane
    batch: int
    reason: str
    fatal: bool


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The state was captured between two steps; ``lineage`` is what it holds. Upload and naming follow elsewhere."""

    now_s: float
    lineage: IntervalSet
    digest: str


@dataclass(frozen=True, slots=True)
class CheckpointNamed:
    """A manifest names a checkpoint of this VNode with that lineage; told to all its replicas."""

    now_s: float
    lineage: IntervalSet


@dataclass(frozen=True, slots=True)
class CheckpointLost:
    """The last snapshot will never be named (condemned, refused, lost), or much was written down since: take a new one. A contributor ends its interval with a
    delta, or with the next anchor where it has learned nothing.
    """

    now_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """This replica hands over: it learns nothing more, captures what it has learned, and goes on giving its successors what it has made.

    ``is_off``: not after all. It learns on.
    """

    now_s: float
    is_off: bool = False


@dataclass(frozen=True, slots=True)
class HeadSeen:
    """News of the head: the horizon starts anew."""

    now_s: float


@dataclass(frozen=True, slots=True)
class LearningHeld:
    """Nothing more may be learned for the reason ``why``; empty: it goes on. What others ask for is computed as before."""

    now_s: float
    why: str


Event = (
    Tick | PlanChanged | NetworkTime | EdgeUp | EdgeDown | FrameArrived | InputFailed | LinkUp | LinkDown
    | NeedHeard | WindowHeard | AckHeard | DurableHeard | FrameSent | FrameMissing
    | Learned | Forwarded | ComputeFailed | SnapshotTaken | CheckpointNamed | CheckpointLost | Leave | HeadSeen | LearningHeld | MergeEvent
)  # fmt: skip


# ---- instructions ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendNeed:
    """State over ``edge`` what this replica lacks."""

    edge: int
    source: ReplicaId
    sequence: int
    lane: Lane
    wanted: IntervalSet
    forward_only: IntervalSet
    evicted: IntervalSet


@dataclass(frozen=True, slots=True)
class SendWindow:
    """State over ``edge`` how far the sender may go."""

    edge: int
    source: ReplicaId
    sequence: int
    lane: Lane
    end: int


@dataclass(frozen=True, slots=True)
class SendAck:
    """State over ``edge`` how much is learned and where the floor is."""

    edge: int
    source: ReplicaId
    sequence: int
    num_learned: int
    floor: int
    floor_vnode: VNodeId


@dataclass(frozen=True, slots=True)
class SendDurable:
    """State over ``edge`` what nobody here or behind will ask for again."""

    edge: int
    source: ReplicaId
    batches: IntervalSet


@dataclass(frozen=True, slots=True)
class ReadInput:
    """Read a batch of the data set for an input edge (train lane: by batch number; evaluations: by position in the split).

    Answered by exactly one FrameArrived or InputFailed.
    """

    edge: int
    lane: Lane
    batch: int


@dataclass(frozen=True, slots=True)
class Learn:
    """Make the local step on this batch. At most one computation is outstanding at any time.

    ``num_learned`` is the size of the lineage before the step (schedules depend on it). The shell answers Learned, once the output
    is in the spool if ``keep`` says so, or ComputeFailed.
    """

    batch: int
    inputs: tuple[TensorHandle, ...]
    num_learned: int
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute the output without changing anything; answered by Forwarded or ComputeFailed. ``keep``: put it into the spool. ``is_own``: of a round of
    evaluation that this replica opened itself, whoever else asked for it.
    """

    lane: Lane
    batch: int
    mode: Mode
    inputs: tuple[TensorHandle, ...]
    keep: bool = True
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send a batch out of the spool over ``link``; answered by FrameSent or FrameMissing, unless the link goes down first."""

    link: int
    lane: Lane
    batch: int
    mode: Mode


@dataclass(frozen=True, slots=True)
class DropFrames:
    """Nobody needs these frames any more, or the spool is full: free their place."""

    lane: Lane
    batches: IntervalSet


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Capture the state now, between two steps; answered by SnapshotTaken. ``lineage`` goes into the state file."""

    lineage: IntervalSet
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """This replica cannot go on; nothing follows."""

    reason: str


Instruction = (
    SendNeed | SendWindow | SendAck | SendDurable | ReadInput | Learn | Forward | SendFrame | DropFrames | TakeSnapshot | Stop
    | WakeAt | MergeInstruction
)  # fmt: skip
