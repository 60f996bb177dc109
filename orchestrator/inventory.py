"""The inventory: what this orchestrator knows of each PNode, from its own stream, its reports, neighbours' evidence and own probes. Pure.

A PNode whose stream broke, or whose daemon says that its worker died, is lost after a short grace; a silent one after three told intervals; one that
a neighbour cannot reach either and that does not answer our own probe sooner. Each state carries its reason. A node that comes back is simply
there again: leaving is never punished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dcnr import limits
from dcnr.v1 import membership_pb2, orchestrator_pb2
from orchestrator.planner import NodeOffer

REATTACH_GRACE_S: Final = 1.0
"""A broken stream or a dead worker may come back within this time without losing its place."""
START_GRACE_S: Final = 10.0
"""After a takeover or a start, PNodes of the plan that are not attached yet are expected for this long."""
EVIDENCE_S: Final = 10.0
"""A neighbour's evidence counts for this long."""
MAY_RETURN_S: Final = 120.0
"""For this long a lost node's VNodes wait for it where nobody else fits."""
FORGET_S: Final = 3600.0
"""A node that is gone for longer is dropped from the inventory."""
REFUSED_AFTER_S: Final = 3.0
"""An assignment that failed for this long under a living worker goes elsewhere."""
REFUSED_FOR_S: Final = 120.0
"""For this long the node is not asked again to host that VNode."""
PAUSE_S: Final = 1.5
"""A look at the inventory this much after the last one says that this process stood still; looks come several times a second."""
HAND_OVER_S: Final = 8.0
"""A node that leaves politely keeps what it hosts for at most this long, until its last checkpoints are durable."""
MAX_NODES: Final = 4096
_UNTOLD_BYTES: Final = 1 << 62
MEASURED_BATCHES: Final = 32
"""A measured step time counts once the replica has learned this many batches."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A node's state in this view, with its reason."""

    state: orchestrator_pb2.NodeState.ValueType
    reason: str


@dataclass(frozen=True, slots=True)
class Transition:
    """A node changed its state: an event for history and watchers, and a reason to plan anew."""

    node_id: str
    before: orchestrator_pb2.NodeState.ValueType
    after: orchestrator_pb2.NodeState.ValueType
    reason: str


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
    worker_dead_since: float | None = None
    draining_since: float | None = None
    interval_s: float = limits.HEARTBEAT_S
    capability: membership_pb2.Capability = field(default_factory=membership_pb2.Capability)
    software: str = ""
    address: str = ""
    incarnation: int = 0
    accused_at: float | None = None
    accused_by: str = ""
    probe_failed_at: float | None = None
    expected_until: float = 0.0
    gone_at: float | None = None
    failing_since: dict[str, float] = field(default_factory=dict)
    refused: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By VNode: when the node refused it, and why."""
    judgement: Judgement = field(default_factory=lambda: Judgement(orchestrator_pb2.NODE_STATE_UNSPECIFIED, ""))


class Inventory:
    """See the module. Every method takes the monotonic time at which its fact became known."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeRecord] = {}
        self._ticked_at: float | None = None

    # Facts

    def advertised(self, advert: membership_pb2.Advert, now: float) -> None:
        """Gossip has a PNode's advert: known, though not attached."""
        record = self._record(advert.node_id, now)
        record.software = advert.software
        record.address = advert.control_addresses[0] if advert.control_addresses else ""
        record.incarnation = max(record.incarnation, advert.incarnation)
        if record.beat_at is None:
            record.capability.CopyFrom(advert.capability)

    def expect(self, node_id: str, now: float) -> None:
        """The plan under the head names this PNode: it is given time to attach here."""
        record = self._record(node_id, now)
        if record.beat_at is None:
            record.expected_until = max(record.expected_until, now + START_GRACE_S)

    def attached(self, node_id: str, now: float) -> None:
        """A stream of this PNode opened."""
        record = self._record(node_id, now)
        record.streams += 1

    def detached(self, node_id: str, now: float, reason: str) -> None:
        """One stream of this PNode ended; the newest one counts, so a quick reconnection is no loss."""
        record = self._record(node_id, now)
        record.streams = max(0, record.streams - 1)
        if record.streams == 0:
            record.detached_at, record.detached_reason = now, reason

    def beat(self, node_id: str, now: float, beat: orchestrator_pb2.Beat, interval_s: float) -> list[str]:
        """A heartbeat. Returns PNodes that it accuses: the shell probes them."""
        record = self._record(node_id, now)
        record.beat_at, record.beat, record.interval_s = now, beat, interval_s
        record.probe_failed_at = record.accused_at = None
        if beat.worker_alive:
            record.worker_seen, record.worker_dead_since = True, None
        elif record.worker_dead_since is None:
            record.worker_dead_since = now
        if not beat.draining:
            record.draining_since = None
        elif record.draining_since is None:
            record.draining_since = now
        if beat.HasField("capability"):
            record.capability.CopyFrom(beat.capability)
        self._note_refusals(record, now, beat)
        accused: list[str] = []
        for evidence in beat.evidence:
            other = self._nodes.get(evidence.pnode_id)
            if other is None or evidence.pnode_id == node_id:
                continue
            other.accused_at, other.accused_by = now, node_id
            accused.append(evidence.pnode_id)
        return sorted(set(accused))

    @staticmethod
    def _note_refusals(record: NodeRecord, now: float, beat: orchestrator_pb2.Beat) -> None:
        """An assignment that stays failed under a living worker is the node's refusal; one that a dead worker took along is not."""
        failed = {
            item.vnode: item.reason
            for item in beat.replicas
            if beat.worker_alive and item.state == orchestrator_pb2.ASSIGNMENT_STATE_FAILED
        }
        record.failing_since = {vnode: record.failing_since.get(vnode, now) for vnode in failed}
        for vnode, since in record.failing_since.items():
            if now - since >= REFUSED_AFTER_S:
                record.refused[vnode] = (now, failed[vnode])

    def probed(self, node_id: str, now: float, *, reachable: bool) -> None:
        """The answer to our own probe."""
        record = self._nodes.get(node_id)
        if record is not None:
            record.probe_failed_at = None if reachable else now

    def tick(self, now: float) -> list[Transition]:
        """Judges every node anew and returns what changed."""
        if self._ticked_at is not None and (stood_s := now - self._ticked_at) > PAUSE_S:
            self._forgive(stood_s)
        self._ticked_at = now
        changes: list[Transition] = []
        for node_id in sorted(self._nodes):
            record = self._nodes[node_id]
            judgement = _judge(record, now)
            if judgement.state != record.judgement.state:
                changes.append(Transition(node_id, record.judgement.state, judgement.state, judgement.reason))
                gone = judgement.state == orchestrator_pb2.NODE_STATE_OFFLINE
                record.gone_at = now if gone else None
            record.judgement = judgement
        for node_id in [key for key, item in self._nodes.items() if item.gone_at is not None and now - item.gone_at > FORGET_S]:
            del self._nodes[node_id]
        return changes

    def _forgive(self, stood_s: float) -> None:
        """An orchestrator that stood still itself accuses nobody of silence: all waits go on where they were."""
        for record in self._nodes.values():
            if record.beat_at is not None:
                record.beat_at += stood_s
            record.detached_at += stood_s
            record.probe_failed_at = record.accused_at = None

    # Questions

    def nodes(self) -> Mapping[str, NodeRecord]:
        """All records, by node id."""
        return self._nodes

    def num_attached(self) -> int:
        """PNodes with a stream here."""
        return sum(record.streams > 0 for record in self._nodes.values())

    def judgement(self, node_id: str) -> Judgement:
        """A node's state as last judged."""
        record = self._nodes.get(node_id)
        return record.judgement if record is not None else Judgement(orchestrator_pb2.NODE_STATE_UNSPECIFIED, "never seen here")

    def report(self, node_id: str, replica: str, now: float) -> tuple[orchestrator_pb2.ReplicaReport, float] | None:
        """A replica's newest report by that PNode and its age in seconds."""
        record = self._nodes.get(node_id)
        if record is None or record.beat_at is None:
            return None
        found = next((item for item in record.beat.replicas if item.replica == replica), None)
        return (found, now - record.beat_at) if found is not None else None

    def offers(self, now: float) -> tuple[NodeOffer, ...]:
        """What the planner sees: every PNode that was ever attached here or is expected, with its state."""
        return tuple(
            NodeOffer(
                node_id=record.node_id,
                state=record.judgement.state,
                reason=record.judgement.reason,
                gflops=record.capability.gflops,
                memory_bytes=record.capability.memory_bytes if _is_told(record) else _UNTOLD_BYTES,
                disk_bytes=record.capability.disk_bytes if _is_told(record) else _UNTOLD_BYTES,
                accepts_work=record.capability.accepts_work or record.judgement.state == orchestrator_pb2.NODE_STATE_SUSPECT,
                handing_over=_handing_over(record, now),
                may_return=record.gone_at is not None and now - record.gone_at < MAY_RETURN_S,
                measured={
                    item.vnode: item.step_s
                    for item in record.beat.replicas
                    if item.step_s > 0.0 and item.num_learned >= MEASURED_BATCHES
                },
                refused={vnode: why for vnode, (when, why) in record.refused.items() if now - when < REFUSED_FOR_S},
            )
            for _, record in sorted(self._nodes.items())
            if record.beat_at is not None or record.expected_until > 0.0
        )

    def check(self) -> None:
        """Asserts what must always hold."""
        assert len(self._nodes) <= MAX_NODES
        assert all(record.streams >= 0 and record.node_id == key for key, record in self._nodes.items())

    def _record(self, node_id: str, now: float) -> NodeRecord:
        record = self._nodes.get(node_id)
        if record is None:
            if len(self._nodes) >= MAX_NODES:
                idle = [item for item in self._nodes.values() if item.streams == 0]
                oldest = min(idle or self._nodes.values(), key=lambda item: (item.seen_at, item.node_id))
                del self._nodes[oldest.node_id]
            record = self._nodes[node_id] = NodeRecord(node_id, now)
        record.seen_at = now
        return record


def _is_told(record: NodeRecord) -> bool:
    """Whether what the node lends is known here. One that the plan names and nobody has heard of yet is not said to lend nothing."""
    return record.beat_at is not None or record.capability.ByteSize() > 0


def _handing_over(record: NodeRecord, now: float) -> bool:
    """Whether a leaving node still brings its last checkpoints into the store."""
    if record.judgement.state != orchestrator_pb2.NODE_STATE_DRAINING or record.draining_since is None:
        return False
    if now - record.draining_since >= HAND_OVER_S or record.worker_dead_since is not None:
        return False
    return any(
        item.state in (orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, orchestrator_pb2.ASSIGNMENT_STATE_RELEASING)
        and item.durable != item.lineage
        for item in record.beat.replicas
    )


def _judge(record: NodeRecord, now: float) -> Judgement:
    offline, suspect = orchestrator_pb2.NODE_STATE_OFFLINE, orchestrator_pb2.NODE_STATE_SUSPECT
    if record.beat_at is None:
        if record.streams:
            return Judgement(orchestrator_pb2.NODE_STATE_JOINING, "attached, no beat yet")
        if now < record.expected_until:
            return Judgement(suspect, "named by the plan, not attached here yet")
        if record.expected_until:
            return Judgement(offline, "named by the plan, but did not attach here")
        return Judgement(orchestrator_pb2.NODE_STATE_JOINING, "known by gossip, not attached here")
    silent_s = now - record.beat_at
    if record.streams == 0:
        away_s = now - record.detached_at
        if away_s >= REATTACH_GRACE_S:
            return Judgement(offline, f"its stream ended: {record.detached_reason}")
        return Judgement(suspect, f"its stream ended {away_s:.1f} s ago: {record.detached_reason}")
    if silent_s >= limits.SILENT_BEATS * record.interval_s:
        return Judgement(offline, f"silent for {limits.SILENT_BEATS} told intervals of {record.interval_s:.1f} s")
    accused = record.accused_at is not None and now - record.accused_at < EVIDENCE_S
    if accused and record.probe_failed_at is not None and silent_s > record.interval_s:
        return Judgement(offline, f"neither {record.accused_by[:8]} nor this orchestrator reaches it")
    if record.beat.draining:
        return Judgement(orchestrator_pb2.NODE_STATE_DRAINING, "leaving politely")
    if record.worker_dead_since is not None:
        why = record.beat.worker_reason or "no reason given"
        if not record.worker_seen or not record.capability.accepts_work:
            return Judgement(orchestrator_pb2.NODE_STATE_JOINING, f"no worker yet: {why}")
        if now - record.worker_dead_since >= REATTACH_GRACE_S:
            return Judgement(offline, f"its worker is gone: {why}")
        return Judgement(suspect, f"its worker has just gone: {why}")
    if accused and silent_s > record.interval_s:
        return Judgement(suspect, f"{record.accused_by[:8]} cannot reach it")
    if silent_s >= 2 * record.interval_s:
        return Judgement(suspect, f"no beat for {silent_s:.1f} s")
    return Judgement(orchestrator_pb2.NODE_STATE_ACTIVE, "beats, and its worker lives")
