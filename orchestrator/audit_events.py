"""What goes into and comes out of `orchestrator.audits.AuditDesk`. Times are seconds of network time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from trust.auditors import Candidate
from trust.going_back import Cause
from trust.ledger import Interval, Verdict
from trust.overturned import Payment, Truth
from trust.separation import Party


class Word(Enum):
    """What an auditor says of an interval."""

    PASS = "pass"
    DOUBT = "doubt"
    FAULT = "fault"
    UNVERIFIABLE = "unverifiable"
    REFUSED = "refused"
    """It cannot: nothing is said."""
    UNREAD = "unread"
    """Nobody was asked: where the interval begins could not be read. ``Report.part`` is the code of why."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Evidence as the accused handed it over: an object of the store."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Sender:
    """Who signed inputs of an interval. No replica: nobody but the accused, which handed them over inside its own worker."""

    vnode: str
    replica: str = ""
    pnode_id: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A finding whose signature, signer and form the shell has found right."""

    task_id: str
    auditor: str
    interval: str
    word: Word
    part: str = ""
    """Which comparison was worst."""
    record: str = ""
    """Digest of the fault record; with a fault."""
    digest: str = ""
    """Of the signed report."""
    senders: tuple[Sender, ...] = ()
    """Where the inputs came from, as the evidence proves it."""
    bundle: str = ""
    """Digest of the evidence that was audited; empty where it does not say."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An interval that doubts took back."""

    number: int
    """Its place in the chain."""
    state: str
    """The checkpoint before it."""
    num_known: int
    """The chain had numbered so many intervals then, also those that nobody is to judge: what was named later has no part in it."""
    at_s: float
    """When."""
    is_again: bool = False
    """Whether doubts took back what went on from the same checkpoint before, and this one was learned since."""


@dataclass(frozen=True, slots=True)
class People:
    """Who is here now."""

    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    """Attached PNodes by id; ``is_free``: they lend anything at the moment."""
    verifiers: tuple[Party, ...] = ()
    """This orchestrator, if it has that role."""
    involved: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By VNode: PNodes that have a part in what its replicas do."""
    redundancy: Mapping[str, int] = field(default_factory=dict)
    """By VNode: executions that its graph asks for, the replica's own included."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """By VNode: the checkpoint from which its replica says that nothing can be learned."""
    doubtful: Mapping[str, TakenBack] = field(default_factory=dict)
    """By VNode: what doubts took back last."""
    recent: frozenset[str] = frozenset()
    """Intervals that were spared so lately that their evidence must be there."""
    left: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    """By VNode: spared intervals of PNodes that were found out since, the oldest first."""
    ahead: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By VNode: those whose outputs reach it, the nearest first."""
    found_out: frozenset[str] = frozenset()
    """PNodes that were put into quarantine so lately that what they passed as auditors may be audited again."""
    num_batches: int = 0
    """Of the job; 0: not known."""
    has_time: bool = True
    """Whether the job is not over before an interval that is opened now can be judged."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict for the next manifest."""

    interval: str
    verdict: Verdict
    reason: str
    cause: Cause | None = None
    """Of failed and unverifiable."""
    evidence: str = ""
    """Digest of the fault record behind a verdict of failed."""


# Actions


@dataclass(frozen=True, slots=True)
class SendChallenge:
    """Ask the accused for its evidence."""

    interval: str
    vnode: str
    replica: str
    pnode_id: str
    until_s: float


@dataclass(frozen=True, slots=True)
class SendTask:
    """Ask somebody to audit."""

    task_id: str
    interval: str
    vnode: str
    auditor: str
    is_verifier: bool
    bundle: Bundle
    until_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class VerifyRecord:
    """Look at a fault record with own eyes."""

    interval: str
    record: str
    auditor: str
    part: str
    bundle: str
    """Digest of the evidence that was audited: what other evidence shows is not about what others passed."""


@dataclass(frozen=True, slots=True)
class Pay:
    """An auditor is at fault itself. ``evidence``: digest of its signed report."""

    auditor: str
    payment: Payment
    interval: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Late:
    """An audit did not come in time, or evidence did not."""

    node_id: str
    interval: str


@dataclass(frozen=True, slots=True)
class Unshown:
    """An accused that was here has shown nothing of what it did that counts, in the whole of its time or with what it brought: ``num`` intervals of that VNode
    in a row.
    """

    pnode_id: str
    vnode: str
    replica: str
    num: int
    reason: str
    is_late: bool = True
    """Whether it is a result that was not in time. What others doubt is not."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is true of an interval, as seen with own eyes."""

    interval: str
    vnode: str
    accused: str
    bundle: Bundle
    truth: Truth


Action = SendChallenge | SendTask | VerifyRecord | Pay | Late | Unshown | Known


@dataclass(frozen=True, slots=True)
class Wait:
    """Of an open interval: who has to act, until when, and what comes then."""

    interval: str
    vnode: str
    replica: str
    accused: str
    owner: str
    until_s: float
    why: str
    alone_s: float = 0.0
    """Since when nobody is found who may audit it; 0: somebody is, or its evidence is not here."""
    party: Party = field(default_factory=lambda: Party(""))
    """Where its accused belonged when that brought its evidence."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An open interval in which somebody measured a little more than the tolerance."""

    interval: str
    accused: str
    auditor: str
    at_s: float
