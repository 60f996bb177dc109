"""The inventory: what this orchestrator knows of each PNode, from its own stream, its reports, neighbours' evidence and own probes. Pure.

A PNode whose daemon says that its worker died is lost at once, one whose stream broke after a short grace, a silent one after three told intervals; sooner
where others confirm it: own probes that used to be answered, or neighbours. Each state carries its reason. A node that comes back is simply there again:
leaving is never punished.

A fact costs the same however many nodes there are: a node is judged anew when a fact about it may change its state, or when time may, never with
every beat of others; and what it offers is put together anew only when that may have changed (`orchestrator.lending`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from dcnr.errors import Corrupt
from dcnr.v1 import identity_pb2, membership_pb2, orchestrator_pb2
from orchestrator.beat_bounds import bounded_capability, shown_text
from orchestrator.lending import MAX_REFUSED, counted_steps, is_passing, offer_of, refused_anew
from orchestrator.offers import NO_TRACK, PLACEABLE, USABLE, NodeOffer, TrackRecord
from orchestrator.silence import FORGET_S, Judgement, NodeRecord, false_words, has_broken, judge, next_look, note_words
from orchestrator.ties import NO_FEEDS, Feeds, Hosted, Ties
from trust.addresses import public_subnet
from trust.envelope import parse
from trust.public_names import shown_name

START_GRACE_S: Final = 10.0
"""After a takeover or a start, PNodes of the plan that are not attached yet are expected for this long."""
PAUSE_S: Final = 1.5
"""A look at the inventory this much after the last one says that this process stood still; looks come several times a second."""
HOSTED: Final = frozenset((orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, orchestrator_pb2.ASSIGNMENT_STATE_PROVISIONING))
"""A lost node's replicas in these states are awaited with it."""
MAX_NODES: Final = 12_288
MAX_ACCUSERS: Final = 16
"""Neighbours whose word is kept per node."""
LOOK_AGAIN_S: Final = 5.0
"""Whoever is accused is looked at for that at most once in this time: it costs connections, ours and those of a few others."""
MAX_LOSSES: Final = 8
MAX_SAID: Final = 64
"""Different sets of what PNodes can build that are remembered."""


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
        self._missed: set[str] = set()
        self._offers: dict[str, NodeOffer] = {}
        self._renewed: set[str] = set()
        """Nodes whose offers may have changed since they were last asked for."""
        self._hosting: dict[str, set[str]] = {}
        self._seated: dict[str, NodeRecord] = {}
        """Nodes that reported seats in their last beat."""
        self._standings: Mapping[str, Judgement] = {}
        self._newcomer: Judgement | None = None
        self._tracks: Mapping[str, TrackRecord] = {}
        self.ties = Ties()
        self._said: dict[frozenset[str] | None, frozenset[str] | None] = {}
        """What PNodes can build, each kept once: of thousands nearly all say the same."""

    # Facts

    def advertised(self, advert: membership_pb2.Advert, now: float, owner: str = "") -> None:
        """Gossip has a PNode's advert: known, though not attached. ``owner``: as it was verified."""
        record = self._record(advert.node_id, now)
        record.software, record.public_name = shown_text(advert.software), shown_name(advert.public_name)
        record.address = advert.control_addresses[0] if advert.control_addresses else ""
        record.subnet, record.owner = _subnet_of(record), owner
        record.is_relayed = _is_relayed(advert)
        record.incarnation = max(record.incarnation, advert.incarnation)
        self._renewed.add(advert.node_id)
        if record.beat_at is None:
            record.capability.CopyFrom(bounded_capability(advert.capability))
            self._stirred.add(advert.node_id)

    def expect(self, node_id: str, now: float) -> None:
        """The plan under the head names this PNode: it is given time to attach here."""
        record = self._record(node_id, now)
        if record.beat_at is None:
            record.expected_until = max(record.expected_until, now + START_GRACE_S)
            self._stirred.add(node_id)
            self._renewed.add(node_id)

    def attached(self, node_id: str, now: float, address: str = "", builds: frozenset[str] | None = None) -> None:
        """A stream of this PNode opened, from that address as far as it is known: where the PNode counts as being, if that is on the open
        internet. ``builds``: what it can build; None if it does not say.
        """
        record = self._record(node_id, now)
        record.builds = self._alike(builds)
        self._renewed.add(node_id)
        record.seen_from = address
        record.subnet = _subnet_of(record)
        if record.gone_at is not None:
            record.worker_seen, record.worker_dead = False, False  # a new life: its worker is still to come
            for name in self._nodes.keys() & false_words(record, now):
                self._nodes[name].cried_at = now
        record.streams += 1
        self._num_attached += record.streams == 1
        self._stirred.add(node_id)

    def detached(self, node_id: str, now: float, reason: str) -> None:
        """One stream of this PNode ended; the newest one counts, so a quick reconnection is no loss."""
        record = self._record(node_id, now)
        if record.streams == 1:
            self._num_attached -= 1
            record.detached_at, record.detached_reason, record.probe_asked = now, reason, False
        record.streams = max(0, record.streams - 1)
        self._stirred.add(node_id)

    def beat(self, node_id: str, now: float, beat: orchestrator_pb2.Beat, interval_s: float) -> list[str]:
        """A heartbeat. Returns PNodes that it accuses, and that are to be looked at: the shell probes them."""
        record = self._record(node_id, now)
        if record.beat_at is None:
            self._renewed.add(node_id)
        record.beat_at, record.beat, record.interval_s = now, beat, interval_s
        record.probe_failed_at, record.probe_asked = None, False
        record.accusers.clear()
        record.worker_seen, record.worker_dead = record.worker_seen or beat.worker_alive, not beat.worker_alive
        if not beat.draining:
            record.draining_since = None
        elif record.draining_since is None:
            record.draining_since = now
        if beat.HasField("capability") and beat.capability != record.capability:
            record.capability.CopyFrom(beat.capability)
            self._renewed.add(node_id)
        steps = counted_steps(record.steps, beat)
        if steps != record.steps:
            record.steps = steps
            self._renewed.add(node_id)
        self._note_refusals(record, now, beat)
        self._note_hosting(record, beat.plan_digest if beat.replicas else None)
        if beat.seats:
            self._seated[node_id] = record
        else:
            self._seated.pop(node_id, None)
        if beat.draining or not beat.worker_alive or record.judgement.state not in PLACEABLE:
            self._stirred.add(node_id)
        return self._accuse(node_id, now, beat)

    def _accuse(self, node_id: str, now: float, beat: orchestrator_pb2.Beat) -> list[str]:
        """Only whom a plan makes a neighbour can a PNode fail to reach; whoever is accused, however often and by whomever, is looked at now and then."""
        due: list[str] = []
        said = {evidence.pnode_id: evidence for evidence in beat.evidence if evidence.pnode_id in self._nodes}
        for name in sorted(self.ties.tied(node_id, said)):
            other = self._nodes[name]
            if node_id in other.accusers or len(other.accusers) < MAX_ACCUSERS:
                other.accusers[node_id] = (now, has_broken(other, self._nodes[node_id], said[name], now))
            self._stirred.add(name)
            if now >= other.look_asked_at + LOOK_AGAIN_S:
                other.look_asked_at = now
                due.append(name)
        return due

    def _note_hosting(self, record: NodeRecord, plan_digest: str | None) -> None:
        """``plan_digest`` None: it hosts nothing."""
        if plan_digest == record.hosts_by:
            return
        if record.hosts_by is not None:
            known = self._hosting[record.hosts_by]
            known.discard(record.node_id)
            if not known:
                del self._hosting[record.hosts_by]
        if plan_digest is not None:
            self._hosting.setdefault(plan_digest, set()).add(record.node_id)
        record.hosts_by = plan_digest

    def _note_refusals(self, record: NodeRecord, now: float, beat: orchestrator_pb2.Beat) -> None:
        """An assignment that stays failed under a living worker is the node's refusal; one that a dead worker took along is not, nor what no plan gave it."""
        failed = [item for item in beat.replicas if beat.worker_alive and item.state == orchestrator_pb2.ASSIGNMENT_STATE_FAILED]
        given = self.ties.given(record.node_id) if failed else {}
        if refused_anew(record, now, {item.vnode: item.reason for item in failed if given.get(item.replica) == item.vnode}):
            self._renewed.add(record.node_id)

    def probed(self, node_id: str, now: float, *, reachable: bool, asked_at: float = math.inf) -> bool:
        """The answer to our own probe, which was begun then; a beat since says more than a failure. Returns whether it may change anything."""
        record = self._nodes.get(node_id)
        if record is None or not (reachable or record.beat_at is None or record.beat_at <= asked_at):
            return False
        changes = (not record.answers or record.probe_failed_at is not None) if reachable else record.answers
        record.answers = record.answers or reachable
        record.probe_failed_at = None if reachable else now
        self._stirred.add(node_id)
        return changes

    def vanished(self, node_id: str) -> None:
        """Gossip knows the node no longer: one that was never attached here, or has been offline since, is forgotten with it."""
        record = self._nodes.get(node_id)
        if record is not None and record.streams == 0 and record.beat_at is None and not record.expected_until:
            self._drop(record)

    def is_leaving(self, node_id: str) -> bool:
        """Whether the node said in its last beat that it hands over."""
        record = self._nodes.get(node_id)
        return record is not None and record.beat.draining

    def stand(self, standings: Mapping[str, Judgement], newcomer: Judgement | None) -> None:
        """What audits say of PNodes, and of one that they say nothing of; None where audits are not in force."""
        self._standings, self._newcomer = standings, newcomer
        for node_id, record in self._nodes.items():
            standing = standings.get(node_id, newcomer)
            if standing != record.standing:
                record.standing = standing
                self._stirred.add(node_id)
                self._renewed.add(node_id)

    def track(self, tracks: Mapping[str, TrackRecord]) -> None:
        """What this orchestrator's history says of PNodes. It changes nobody's state."""
        self._tracks = tracks
        for node_id, record in self._nodes.items():
            track = tracks.get(node_id, NO_TRACK)
            if track != record.track:
                record.track = track
                self._renewed.add(node_id)

    def planned(self, model: str, hosted: Hosted, feeds: Feeds = NO_FEEDS) -> None:
        """The plan under that model's head, by PNode, and by VNode what feeds it: only what a plan gave it can a PNode refuse, or miss."""
        self.ties.planned(model, hosted, feeds)

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
                if node_id in self._stirred or not found.is_well(now):
                    self._stirred.add(node_id)
                else:  # it has beaten since, as nearly all have: nothing about it has changed
                    found.look_at = next_look(found, now)
                    heappush(self._looks, (found.look_at, node_id))
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
        if after != before:
            self._renewed.add(record.node_id)
        if after.state != before.state:
            changes.append(Transition(record.node_id, before.state, after.state, after.reason))
            gone = after.state == orchestrator_pb2.NODE_STATE_OFFLINE
            record.gone_at = now if gone else None
            note_words(record, now)
            if gone and before.state in USABLE and record.beat_at is not None and not record.beat.draining:
                record.lost_at = [*record.lost_at[1 - MAX_LOSSES :], now]
                record.lost_with = frozenset(item.vnode for item in record.beat.replicas if item.state in HOSTED)
        if record.gone_at is not None and now >= record.gone_at + FORGET_S and record.streams == 0:
            self._drop(record)
            return changes
        if record.is_missed(now) and record.answers and not record.probe_asked:
            record.probe_asked = True
            self._missed.add(record.node_id)
        at = next_look(record, now)
        if at < record.look_at:
            record.look_at = at
            heappush(self._looks, (at, record.node_id))
        return changes

    def take_missed(self) -> list[str]:
        """PNodes of which a beat is missing or the stream has ended, each once per silence: the shell probes them."""
        taken, self._missed = sorted(self._missed), set()
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

    def seated(self) -> Collection[NodeRecord]:
        """Records of nodes that reported seats in their last beat: few, however many there are."""
        return self._seated.values()

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
        """What the planner sees: every PNode that was ever attached here or is expected, with its state. An offer that did not change is the same object."""
        passing: set[str] = set()
        for node_id in sorted(self._renewed):
            record = self._nodes.get(node_id)
            offer = offer_of(record, now) if record is not None else None
            if offer is None:
                self._offers.pop(node_id, None)
            elif self._offers.get(node_id) != offer:
                self._offers[node_id] = offer
            if record is not None and is_passing(record, now):
                passing.add(node_id)
        self._renewed = passing
        return tuple(self._offers.values())

    def hosting_by(self) -> Mapping[str, Set[str]]:
        """PNodes that host anything, by the digest of the plan that they say gave it to them."""
        return self._hosting

    def check(self) -> None:
        """Asserts what must always hold."""
        assert len(self._nodes) <= MAX_NODES
        assert all(record.streams >= 0 and record.node_id == key for key, record in self._nodes.items())
        assert self._num_attached == sum(record.streams > 0 for record in self._nodes.values())
        hosting = {(digest, node_id) for digest, names in self._hosting.items() for node_id in names}
        assert hosting == {(item.hosts_by, item.node_id) for item in self._nodes.values() if item.hosts_by is not None}
        assert all(len(record.refused) <= MAX_REFUSED for record in self._nodes.values())
        assert set(self._seated) == {item.node_id for item in self._nodes.values() if item.beat.seats}
        due = {node_id for _, node_id in self._looks} | self._stirred
        assert all(record.node_id in due or record.look_at == math.inf for record in self._nodes.values())

    def _record(self, node_id: str, now: float) -> NodeRecord:
        record = self._nodes.get(node_id)
        if record is None:
            if len(self._nodes) >= MAX_NODES:
                idle = [item for item in self._nodes.values() if item.streams == 0]
                self._drop(min(idle or self._nodes.values(), key=lambda item: (item.seen_at, item.node_id)))
            standing = self._standings.get(node_id, self._newcomer)
            record = self._nodes[node_id] = NodeRecord(node_id, now, standing=standing, track=self._tracks.get(node_id, NO_TRACK))
        record.seen_at = now
        return record

    def _alike(self, builds: frozenset[str] | None) -> frozenset[str] | None:
        """An equal set that is known already."""
        if len(self._said) >= MAX_SAID:
            self._said.clear()
        return self._said.setdefault(builds, builds)

    def _drop(self, record: NodeRecord) -> None:
        """Forgets a node."""
        self._num_attached -= record.streams > 0
        self._note_hosting(record, None)
        self._renewed.add(record.node_id)
        self._seated.pop(record.node_id, None)
        del self._nodes[record.node_id]


def _subnet_of(record: NodeRecord) -> str:
    """Where its stream comes from; what it says only where that is not on the open internet, or it has none: by its word one machine is in any subnet."""
    return public_subnet(record.seen_from) or public_subnet(record.address)


def _is_relayed(advert: membership_pb2.Advert) -> bool:
    """Whether the advert is of a node with a worker that tells no address; the node has signed both."""
    if not advert.HasField("delegation"):
        return False
    try:
        return not parse(identity_pb2.Delegation, advert.delegation.payload).data_addresses
    except Corrupt:
        return False
