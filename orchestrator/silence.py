"""When a PNode counts as silent, suspect or gone: one function of what is known of it and the time, and when to look again. Pure.

A worker that its own daemon calls dead is a loss at once: its state is gone, and until somebody is told the siblings of its replicas learn nothing of what
those owed. Silence alone takes `limits.SILENT_BEATS` told intervals. Two witnesses of different kinds are as good sooner: an ended stream with a failed
probe since, or with several neighbours' word that their connections broke; a missed beat with a neighbour's evidence and our own failed probe; a little
over two intervals with a failed probe; two intervals with several neighbours' word. A failed probe is a witness only of an address that answered before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dcnr import limits
from dcnr.v1 import membership_pb2, orchestrator_pb2
from orchestrator.offers import NO_TRACK, TrackRecord

REATTACH_GRACE_S: Final = 1.0
"""A broken stream may come back within this time without losing its place."""
EVIDENCE_S: Final = 10.0
"""A neighbour's evidence counts for this long."""
OVERDUE_BEATS: Final = 1.25
"""Told intervals without a beat after which we look ourselves; beats come after at most one."""
PROBED_BEATS: Final = 2.25
"""Told intervals of silence that are enough where our own probe fails too."""
WITNESSED_BEATS: Final = 2.0
"""Told intervals of silence that are enough where several neighbours' connections broke; none where its stream has ended too."""
WITNESSES: Final = 2
CRIED_S: Final = 86_400.0
"""So long the word of a neighbour hastens nothing, after one by which a PNode was taken for gone that was back, as it had been, within its grace: two that lie
together make one false loss of a day, not one of each stream that ends for a moment.
"""
TRAVEL_S: Final = 1.0
"""A last beat may be so long on its way: what broke before it was sent counts from then on as what broke behind it."""
BARRED: Final = frozenset((orchestrator_pb2.NODE_STATE_QUARANTINED, orchestrator_pb2.NODE_STATE_REHAB))
FORGET_S: Final = 3600.0
"""A node that is gone for longer is dropped from the inventory, unless it has a stream."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A node's state in this view, with its reason."""

    state: orchestrator_pb2.NodeState.ValueType
    reason: str
    evidence: str = ""
    """Digest of the fault record behind it; empty without one."""


@dataclass(slots=True)
class NodeRecord:
    """What is known of one PNode; times are monotonic."""

    node_id: str
    seen_at: float
    streams: int = 0
    detached_at: float = 0.0
    detached_reason: str = ""
    beat_at: float | None = None
    beat: orchestrator_pb2.Beat = field(default_factory=orchestrator_pb2.Beat)
    worker_seen: bool = False
    worker_dead: bool = False
    """By its newest beat."""
    draining_since: float | None = None
    interval_s: float = limits.HEARTBEAT_S
    capability: membership_pb2.Capability = field(default_factory=membership_pb2.Capability)
    software: str = ""
    address: str = ""
    seen_from: str = ""
    """Where its last stream came from."""
    subnet: str = ""
    is_relayed: bool = False
    """Whether its worker tells no address that others dial."""
    owner: str = ""
    public_name: str = ""
    """As far as it may be shown."""
    incarnation: int = 0
    accusers: dict[str, tuple[float, bool]] = field(default_factory=dict)
    """Neighbours that cannot reach it: when they said so, and whether their connection broke since its last beat, as far as they are believed."""
    cried_by: tuple[str, ...] = ()
    """By whose words it was taken for gone at once."""
    cried_incarnation: int = 0
    """In which life of its own it was."""
    cried_at: float = float("-inf")
    """When its own word on another PNode last proved false."""
    answers: bool = False
    """Whether a probe of ours reached it once: only then says a failed one something."""
    probe_failed_at: float | None = None
    probe_asked: bool = False
    """Whether we looked ourselves since its last beat, and since its last stream ended."""
    look_asked_at: float = float("-inf")
    """When a neighbour's word last had us look ourselves."""
    expected_until: float = 0.0
    gone_at: float | None = None
    lost_at: list[float] = field(default_factory=list)
    """When it was lost without a word, the last few times."""
    lost_with: frozenset[str] = frozenset()
    """VNodes that it hosted when it was last lost."""
    failing_since: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    """Seconds per batch by VNode, as far as they count."""
    hosts_by: str | None = None
    """The digest of the plan that gave it what it hosts, as it says; None where it hosts nothing."""
    refused: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By VNode: when the node refused it, and why."""
    judgement: Judgement = field(default_factory=lambda: Judgement(orchestrator_pb2.NODE_STATE_UNSPECIFIED, ""))
    standing: Judgement | None = None
    """What audits say of it; None where they are not in force."""
    track: TrackRecord = NO_TRACK
    """What the history says of it."""
    builds: frozenset[str] | None = None
    """What it said on its last stream that it can build; None: nothing."""
    look_at: float = float("inf")
    """When the inventory looks at it next, if nothing happens before."""

    def due(self, beats: float) -> float:
        """When it will have been silent for so many told intervals; infinity before the first beat."""
        return self.beat_at + beats * self.interval_s if self.beat_at is not None else float("inf")

    def is_missed(self, now: float) -> bool:
        """Whether a beat is missing or its stream has ended, so that a look of our own is worth it."""
        return now >= self.due(OVERDUE_BEATS) or (self.beat_at is not None and self.streams == 0)

    def is_well(self, now: float) -> bool:
        """Whether it is attached, beats in time, has its worker and is accused by nobody: then time changes nothing about it before a beat is missing."""
        is_here = self.streams > 0 and not self.worker_dead and self.gone_at is None and not self.accusers
        return is_here and self.beat_at is not None and now < self.beat_at + self.interval_s

    @property
    def is_barred(self) -> bool:
        """Whether it hosts nothing, however alive it is."""
        return self.standing is not None and self.standing.state in BARRED

    def witnesses(self, now: float) -> list[str]:
        """Neighbours whose fresh word is that they cannot reach it."""
        return sorted(name for name, (when, _) in self.accusers.items() if now < when + EVIDENCE_S)


def judge(record: NodeRecord, now: float) -> Judgement:
    """The node's state now: whether it is here, and what audits say of one that is."""
    presence, standing = _presence(record, now), record.standing
    is_here = presence.state != orchestrator_pb2.NODE_STATE_OFFLINE
    if standing is not None and is_here and (record.is_barred or presence.state == orchestrator_pb2.NODE_STATE_ACTIVE):
        return standing
    return presence


def has_broken(other: NodeRecord, by: NodeRecord, evidence: orchestrator_pb2.LinkEvidence, now: float) -> bool:
    """Whether that neighbour's connection broke since the last beat of the other one, by a word that is believed: who could not be reached before, and beat
    all the while, is not gone for that.
    """
    if not evidence.broken or now < by.cried_at + CRIED_S:
        return False
    return other.beat_at is None or now - evidence.since_s >= other.beat_at - TRAVEL_S


def note_words(record: NodeRecord, now: float) -> None:
    """Its state has just changed: by whose words, where it is taken for gone that would have had time to come back without them."""
    has_grace = record.gone_at is not None and record.streams == 0 and now < record.detached_at + REATTACH_GRACE_S
    record.cried_by = tuple(name for name in record.witnesses(now) if record.accusers[name][1]) if has_grace else ()
    record.cried_incarnation = record.incarnation


def false_words(record: NodeRecord, now: float) -> tuple[str, ...]:
    """It is attached again: whose words were false, each time once."""
    is_as_it_was = record.incarnation == record.cried_incarnation and now < record.detached_at + REATTACH_GRACE_S
    names, record.cried_by = record.cried_by if is_as_it_was else (), ()
    return names


def _presence(record: NodeRecord, now: float) -> Judgement:
    offline, suspect = orchestrator_pb2.NODE_STATE_OFFLINE, orchestrator_pb2.NODE_STATE_SUSPECT
    if record.beat_at is None:
        return _before_the_first_beat(record, now)
    witnesses = record.witnesses(now)
    if (why := _silence(record, now, witnesses)) is not None:
        return Judgement(offline, f"it left politely, and is silent: {why}" if record.beat.draining else why)
    if record.streams == 0:
        if now >= record.detached_at + REATTACH_GRACE_S:
            return Judgement(offline, f"its stream ended: {record.detached_reason}")
        return Judgement(suspect, f"its stream has just ended: {record.detached_reason}")
    why = record.beat.worker_reason or "no reason given"
    if record.beat.draining and record.worker_dead and record.worker_seen:
        return Judgement(offline, f"it leaves politely, and its worker is gone: {why}")
    if record.beat.draining:
        return Judgement(orchestrator_pb2.NODE_STATE_DRAINING, "leaving politely")
    if record.worker_dead:
        if not record.worker_seen or not record.capability.accepts_work:
            return Judgement(orchestrator_pb2.NODE_STATE_JOINING, f"no worker yet: {why}")
        return Judgement(offline, f"its worker is gone: {why}")
    if witnesses and now >= record.due(1.0):
        return Judgement(suspect, f"{_short(witnesses)} cannot reach it, and a beat is missing")
    if now >= record.due(2.0):
        return Judgement(suspect, "two beats are missing")
    return Judgement(orchestrator_pb2.NODE_STATE_ACTIVE, "beats, and its worker lives")


def next_look(record: NodeRecord, now: float) -> float:
    """When time alone may change the judgement next; infinity where it cannot."""
    times = [record.expected_until]
    if record.gone_at is not None:
        times.append(record.gone_at + FORGET_S)
    if record.beat_at is not None:
        if record.streams == 0:
            times.append(record.detached_at + REATTACH_GRACE_S)
        beats = (OVERDUE_BEATS, WITNESSED_BEATS, 2.0, PROBED_BEATS, limits.SILENT_BEATS)
        times.extend(record.due(count) for count in (beats if not record.accusers else (1.0, *beats)))
        times.extend(when + EVIDENCE_S for when, _ in record.accusers.values())
    return min((at for at in times if at > now), default=float("inf"))


def _before_the_first_beat(record: NodeRecord, now: float) -> Judgement:
    joining = orchestrator_pb2.NODE_STATE_JOINING
    if record.streams:
        return Judgement(joining, "attached, no beat yet")
    if now < record.expected_until:
        return Judgement(orchestrator_pb2.NODE_STATE_SUSPECT, "named by the plan, not attached here yet")
    if record.expected_until:
        return Judgement(orchestrator_pb2.NODE_STATE_OFFLINE, "named by the plan, but did not attach here")
    return Judgement(joining, "known by gossip, not attached here")


def _silence(record: NodeRecord, now: float, witnesses: list[str]) -> str | None:
    """Why the silence is a loss; None where it is not, or not yet."""
    interval_s = record.interval_s
    if now >= record.due(limits.SILENT_BEATS):
        return f"silent for {limits.SILENT_BEATS} told intervals of {interval_s:.1f} s"
    if record.probe_failed_at is not None and record.answers:
        if record.streams == 0 and record.probe_failed_at >= record.detached_at:
            return f"its stream ended: {record.detached_reason}; and it does not answer this orchestrator any more"
        if witnesses and now >= record.due(1.0):
            return f"neither {_short(witnesses)} nor this orchestrator reaches it"
        if now >= record.due(PROBED_BEATS):
            return f"silent for {PROBED_BEATS:g} told intervals of {interval_s:.1f} s, and it does not answer this orchestrator any more"
    broken = [name for name in witnesses if record.accusers[name][1]]
    if len(broken) >= WITNESSES and record.streams == 0:
        return f"its stream ended: {record.detached_reason}; and the connections of {_short(broken)} to it broke"
    if len(broken) >= WITNESSES and now >= record.due(WITNESSED_BEATS):
        return f"silent for {WITNESSED_BEATS:g} told intervals of {interval_s:.1f} s, and the connections of {_short(broken)} to it broke"
    return None


def _short(names: list[str]) -> str:
    return " and ".join(name[:8] for name in names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
