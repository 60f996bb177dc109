"""The inventory: what this orchestrator knows of each PNode, from its own stream, its reports, neighbours' evidence and own probes. Pure.

A PNode whose stream broke, or whose daemon says that its worker died, is lost after a short grace; a silent one after three told intervals; sooner
where others confirm it: own probes that used to be answered, or neighbours. Each state carries its reason. A node that comes back is simply there again:
leaving is never punished.

A fact costs the same however many nodes there are: a node is judged anew when a fact about it may change its state, or when time may, never with
every beat of others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.offers import USABLE, NodeOffer
from orchestrator.silence import FORGET_S, Judgement, NodeRecord, judge, next_look
from trust.addresses import is_public, split_address, subnet_of

START_GRACE_S: Final = 10.0
"""After a takeover or a start, PNodes of the plan that are not attached yet are expected for this long."""
MAY_RETURN_S: Final = 120.0
"""For this long a lost node's VNodes wait for it where nobody else fits."""
AWAITED_S: Final = 30.0
"""For this long what a lost node helped with waits for it where only busy nodes could take it: killed processes are back sooner."""
REFUSED_AFTER_S: Final = 3.0
"""An assignment that failed for this long under a living worker goes elsewhere."""
REFUSED_FOR_S: Final = 120.0
"""For this long the node is not asked again to host that VNode."""
PAUSE_S: Final = 1.5
"""A look at the inventory this much after the last one says that this process stood still; looks come several times a second."""
HAND_OVER_S: Final = 15.0
"""A node that leaves politely keeps what it hosts for at most this long, until its last checkpoints are durable and its frames are taken."""
HOSTED: Final = frozenset((orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, orchestrator_pb2.ASSIGNMENT_STATE_PROVISIONING))
"""A lost node's replicas in these states are awaited with it."""
MAX_NODES: Final = 4096
_UNTOLD_BYTES: Final = 1 << 62
MAX_ACCUSERS: Final = 16
"""Neighbours whose word is kept per node."""
RECORD_S: Final = 3600.0
"""Losses count against a node's record for this long."""
MAX_LOSSES: Final = 8
MEASURED_BATCHES: Final = 32
"""A measured step time counts once the replica has learned this many batches."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A node changed its state: an event for history and watchers, and a reason to plan anew."""

    node_id: str
    before: orchestrator_pb2.NodeState.ValueType
    after: orchestrator_pb2.NodeState.ValueType
    reason: str


class Inventory:
    """See the module. Every method takes the monotonic time at which its fact became known."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeRecord] = {}
        self._ticked_at: float | None = None
        self._num_attached = 0
        self._stirred: set[str] = set()
        """Nodes about which something became known since the last look."""
        self._looks: list[tuple[float, str]] = []
        """A heap: when to look at whom."""
        self._overdue: set[str] = set()

    # Facts

    def advertised(self, advert: membership_pb2.Advert, now: float) -> None:
        """Gossip has a PNode's advert: known, though not attached."""
        record = self._record(advert.node_id, now)
        record.software = advert.software
        record.address = advert.control_addresses[0] if advert.control_addresses else ""
        record.subnet = _public_subnet(record.address)
        record.incarnation = max(record.incarnation, advert.incarnation)
        if record.beat_at is None:
            record.capability.CopyFrom(advert.capability)
            self._stirred.add(advert.node_id)

    def expect(self, node_id: str, now: float) -> None:
        """The plan under the head names this PNode: it is given time to attach here."""
        record = self._record(node_id, now)
        if record.beat_at is None:
            record.expected_until = max(record.expected_until, now + START_GRACE_S)
            self._stirred.add(node_id)

    def attached(self, node_id: str, now: float) -> None:
        """A stream of this PNode opened."""
        record = self._record(node_id, now)
        if record.gone_at is not None:
            record.worker_seen, record.worker_dead_since = False, None  # a new life: its worker is still to come
        record.streams += 1
        self._num_attached += record.streams == 1
        self._stirred.add(node_id)

    def detached(self, node_id: str, now: float, reason: str) -> None:
        """One stream of this PNode ended; the newest one counts, so a quick reconnection is no loss."""
        record = self._record(node_id, now)
        if record.streams == 1:
            self._num_attached -= 1
            record.detached_at, record.detached_reason = now, reason
        record.streams = max(0, record.streams - 1)
        self._stirred.add(node_id)

    def beat(self, node_id: str, now: float, beat: orchestrator_pb2.Beat, interval_s: float) -> list[str]:
        """A heartbeat. Returns PNodes that it accuses: the shell probes them."""
        record = self._record(node_id, now)
        record.beat_at, record.beat, record.interval_s = now, beat, interval_s
        record.probe_failed_at, record.probe_asked = None, False
        record.accusers.clear()
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
        if beat.draining or not beat.worker_alive or record.judgement.state != orchestrator_pb2.NODE_STATE_ACTIVE:
            self._stirred.add(node_id)
        return self._accuse(node_id, now, beat)

    def _accuse(self, node_id: str, now: float, beat: orchestrator_pb2.Beat) -> list[str]:
        accused: set[str] = set()
        for evidence in beat.evidence:
            other = self._nodes.get(evidence.pnode_id)
            if other is None or evidence.pnode_id == node_id:
                continue
            if node_id in other.accusers or len(other.accusers) < MAX_ACCUSERS:
                other.accusers[node_id] = (now, evidence.broken)
            accused.add(evidence.pnode_id)
        self._stirred |= accused
        return sorted(accused)

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
            record.answers = record.answers or reachable
            record.probe_failed_at = None if reachable else now
            self._stirred.add(node_id)

    def vanished(self, node_id: str) -> None:
        """Gossip knows the node no longer: one that was never attached here, or has been offline since, is forgotten with it."""
        record = self._nodes.get(node_id)
        if record is not None and record.streams == 0 and record.beat_at is None and not record.expected_until:
            del self._nodes[node_id]

    def is_leaving(self, node_id: str) -> bool:
        """Whether the node said in its last beat that it hands over."""
        record = self._nodes.get(node_id)
        return record is not None and record.beat.draining

    def tick(self, now: float) -> list[Transition]:
        """Judges every node whose state may have changed and returns what did."""
        if self._ticked_at is not None and (stood_s := now - self._ticked_at) > PAUSE_S:
            self._forgive(stood_s)
        self._ticked_at = now
        while self._looks and self._looks[0][0] <= now:
            due, node_id = heappop(self._looks)
            found = self._nodes.get(node_id)
            if found is not None and found.look_at == due:
                found.look_at = math.inf
                self._stirred.add(node_id)
        stirred, self._stirred = sorted(self._stirred), set()
        changes: list[Transition] = []
        for node_id in stirred:
            record = self._nodes.get(node_id)
            if record is not None:
                changes.extend(self._look(record, now))
        return changes

    def _look(self, record: NodeRecord, now: float) -> list[Transition]:
        """Judges one node, and notes when to look at it again."""
        before, record.judgement = record.judgement, judge(record, now)
        after = record.judgement
        changes: list[Transition] = []
        if after.state != before.state:
            changes.append(Transition(record.node_id, before.state, after.state, after.reason))
            gone = after.state == orchestrator_pb2.NODE_STATE_OFFLINE
            record.gone_at = now if gone else None
            if gone and before.state in USABLE and record.beat_at is not None and not record.beat.draining:
                record.lost_at = [*record.lost_at[1 - MAX_LOSSES :], now]
                record.lost_with = frozenset(item.vnode for item in record.beat.replicas if item.state in HOSTED)
        if record.gone_at is not None and now >= record.gone_at + FORGET_S:
            self._num_attached -= record.streams > 0
            del self._nodes[record.node_id]
            return changes
        if record.is_overdue(now) and record.answers and not record.probe_asked:
            record.probe_asked = True
            self._overdue.add(record.node_id)
        at = next_look(record, now)
        if at < record.look_at:
            record.look_at = at
            heappush(self._looks, (at, record.node_id))
        return changes

    def take_overdue(self) -> list[str]:
        """PNodes of which a beat is missing, each once per silence: the shell probes them."""
        taken, self._overdue = sorted(self._overdue), set()
        return taken

    def _forgive(self, stood_s: float) -> None:
        """An orchestrator that stood still itself accuses nobody of silence: all waits go on where they were."""
        for record in self._nodes.values():
            if record.beat_at is not None:
                record.beat_at += stood_s
            record.detached_at += stood_s
            record.probe_failed_at = None
            record.accusers.clear()
        self._stirred.update(self._nodes)

    # Questions

    def nodes(self) -> Mapping[str, NodeRecord]:
        """All records, by node id."""
        return self._nodes

    def num_attached(self) -> int:
        """PNodes with a stream here."""
        return self._num_attached

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
                may_return=_may_return(record, now),
                measured={
                    item.vnode: item.step_s
                    for item in record.beat.replicas
                    if item.step_s > 0.0 and item.num_learned >= MEASURED_BATCHES
                },
                refused={vnode: why for vnode, (when, why) in record.refused.items() if now - when < REFUSED_FOR_S},
                subnet=record.subnet,
                uplink_mbit=record.capability.uplink_mbit,
                awaited=_awaited(record, now),
                num_losses=sum(now - when < RECORD_S for when in record.lost_at),
            )
            for _, record in sorted(self._nodes.items())
            if record.beat_at is not None or record.expected_until > 0.0
        )

    def check(self) -> None:
        """Asserts what must always hold."""
        assert len(self._nodes) <= MAX_NODES
        assert all(record.streams >= 0 and record.node_id == key for key, record in self._nodes.items())
        assert self._num_attached == sum(record.streams > 0 for record in self._nodes.values())
        due = {node_id for _, node_id in self._looks} | self._stirred
        assert all(record.node_id in due or record.look_at == math.inf for record in self._nodes.values())

    def _record(self, node_id: str, now: float) -> NodeRecord:
        record = self._nodes.get(node_id)
        if record is None:
            if len(self._nodes) >= MAX_NODES:
                idle = [item for item in self._nodes.values() if item.streams == 0]
                oldest = min(idle or self._nodes.values(), key=lambda item: (item.seen_at, item.node_id))
                self._num_attached -= oldest.streams > 0
                del self._nodes[oldest.node_id]
            record = self._nodes[node_id] = NodeRecord(node_id, now)
        record.seen_at = now
        return record


def _may_return(record: NodeRecord, now: float) -> bool:
    """Whether it is gone, but not for long, or back without its worker."""
    joins = record.judgement.state == orchestrator_pb2.NODE_STATE_JOINING and record.lost_at
    gone_at = record.lost_at[-1] if joins else record.gone_at
    return gone_at is not None and now - gone_at < MAY_RETURN_S


def _awaited(record: NodeRecord, now: float) -> frozenset[str]:
    """What it had when it was lost, until it takes work again or has been away for too long."""
    if record.judgement.state in USABLE or record.beat.draining or not record.lost_at or now - record.lost_at[-1] >= AWAITED_S:
        return frozenset()
    return record.lost_with


def _is_told(record: NodeRecord) -> bool:
    """Whether what the node lends is known here. One that the plan names and nobody has heard of yet is not said to lend nothing."""
    return record.beat_at is not None or record.capability.ByteSize() > 0


def _handing_over(record: NodeRecord, now: float) -> bool:
    """Whether a leaving node still brings its last checkpoints into the store, or frames to its successors."""
    if record.judgement.state != orchestrator_pb2.NODE_STATE_DRAINING or record.draining_since is None:
        return False
    if now - record.draining_since >= HAND_OVER_S or record.worker_dead_since is not None:
        return False
    giving = (orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, orchestrator_pb2.ASSIGNMENT_STATE_RELEASING)
    released = orchestrator_pb2.ASSIGNMENT_STATE_RELEASED
    return any(item.state in giving or (item.state == released and _brings(item)) for item in record.beat.replicas)


def _brings(report: orchestrator_pb2.ReplicaReport) -> bool:
    """Whether a replica holds something that nobody else has yet: a primary what is not durable, a contributor what is not merged."""
    if report.role in (model_pb2.ROLE_CONTRIBUTOR, model_pb2.ROLE_STANDBY):
        return bool(report.unmerged.intervals)
    return report.durable != report.lineage


def _public_subnet(address: str) -> str:
    """The subnet of an address on the open internet; empty for any other: there it says nothing."""
    host = split_address(address)[0] if address else ""
    return subnet_of(host) if host and is_public(host) else ""
