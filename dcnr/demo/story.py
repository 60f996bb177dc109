"""What happened, told by the views of the network alone: progress, kills and how long each took to be noticed, decided and made good. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcnr.sdk.siblings import siblings
from dcnr.v1 import orchestrator_pb2

ACTIVE = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE


@dataclass(frozen=True, slots=True)
class Resumed:
    """With what another copy of a VNode goes on in the place of one that was killed."""

    num_durable: int
    """Batches that manifests named all the while, from the kill until the copy worked."""
    num_learned: int
    """Batches that it had, as first seen."""
    is_from_start: bool
    """It began with checkpoint 0."""

    @property
    def good(self) -> bool:
        """Whether it was restored, where there was something to be restored from."""
        return self.num_durable == 0 or not self.is_from_start


@dataclass(slots=True)
class Kill:
    """One SIGKILL and what followed; times in seconds on the demo's clock, None until seen."""

    kind: str
    name: str
    node_id: str
    at_s: float
    vnodes: tuple[str, ...] = ()
    epoch: int = 0
    plan_number: int = 0
    learned_before: int = 0
    durable: dict[str, int] = field(default_factory=dict)
    """By VNode that it hosted: batches that manifests named, the fewest since."""
    resumed: dict[str, Resumed] = field(default_factory=dict)
    """By VNode, once another copy of it works."""
    suspected_s: float | None = None
    """Gets nothing new from here on; what it has stays."""
    gone_s: float | None = None
    """Taken for gone: what it had is placed elsewhere."""
    decided_s: float | None = None
    training_s: float | None = None

    @property
    def settled(self) -> bool:
        """Whether everything that was to follow has been seen."""
        return self.decided_s is not None and self.training_s is not None


@dataclass(slots=True)
class Counters:
    """Sums over all lives of a VNode's replicas."""

    forwarded: int = 0
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class Accused:
    """A PNode in quarantine, with the evidence against it."""

    at_s: float
    reason: str
    evidence: str


@dataclass(slots=True)
class Story:
    """Grows by one view at a time."""

    cheats: frozenset[str] = frozenset()
    """Ids of the PNodes that cheat; the network is not told."""
    accused: dict[str, Accused] = field(default_factory=dict)
    unit_batches: int = 0
    """Batches in a unit of the job; 0: not known yet."""
    lookups: dict[str, int] = field(default_factory=dict)
    """In the DHT, by PNode, as each last told."""
    first_hosted_s: dict[str, float] = field(default_factory=dict)
    """When each PNode was first seen learning."""
    kills: list[Kill] = field(default_factory=list)
    first_learned_s: float | None = None
    last_learned_s: float | None = None
    job: orchestrator_pb2.JobView = field(default_factory=orchestrator_pb2.JobView)
    counters: dict[tuple[str, str, int], Counters] = field(default_factory=dict)
    learned: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    """By VNode: batches in the newest state that the newest manifest names."""
    first_states: set[str] = field(default_factory=set)
    """Digests of checkpoints 0."""
    contributors: set[tuple[str, int]] = field(default_factory=set)
    """Copies that were seen beside a primary, with their incarnation."""
    primaries: set[str] = field(default_factory=set)
    """Replicas that were seen to be one."""
    restored_at: dict[tuple[str, int], int] = field(default_factory=dict)
    relearned: int = 0
    pnodes_used: set[str] = field(default_factory=set)

    def seen(self, now_s: float, view: orchestrator_pb2.WatchJobResponse) -> None:
        """Takes in one view."""
        self.job = view.job
        total_before = sum(self.learned.values())
        for item in view.job.vnodes:
            self._replicas(item)
            report = item.report
            if not report.replica:
                continue
            if report.state == ACTIVE:
                self.pnodes_used.add(item.assignment.pnode_id)
                self.first_hosted_s.setdefault(item.assignment.pnode_id, now_s)
                self._began(item.vnode, (report.replica, int(report.incarnation)), int(report.num_learned))
            self.learned[item.vnode] = max(self.learned.get(item.vnode, 0), int(report.num_learned))
            counters = self.counters.setdefault((item.vnode, report.replica, int(report.incarnation)), Counters())
            counters.forwarded = max(counters.forwarded, int(report.num_forwarded))
            counters.duplicates = max(counters.duplicates, int(report.num_duplicates))
        for node in view.nodes:
            if node.state == orchestrator_pb2.NODE_STATE_QUARANTINED and node.evidence and node.node_id not in self.accused:
                self.accused[node.node_id] = Accused(now_s, node.reason, node.evidence)
        if sum(self.learned.values()) > total_before:
            self.first_learned_s = now_s if self.first_learned_s is None else self.first_learned_s
            self.last_learned_s = now_s
        for kill in self.kills:
            if not kill.settled:
                (self._after_pnode if kill.kind == "PNode" else self._after_orchestrator)(now_s, kill, view)

    def _replicas(self, item: orchestrator_pb2.VNodeView) -> None:
        """What is durable of a VNode, and who is there beside its primary."""
        if item.HasField("working"):  # an orchestrator that has read no manifest yet says nothing of it
            self.durable[item.vnode] = int(item.working.step)
            if not item.working.step:
                self.first_states.add(item.working.digest)
        self.primaries.add(item.assignment.replica)
        for other in siblings(item):
            if other.report.state == ACTIVE:
                self.contributors.add((other.report.replica, int(other.report.incarnation)))

    def _began(self, vnode: str, life: tuple[str, int], num_learned: int) -> None:
        """A copy of a VNode works: what an earlier copy had learned beyond its beginning (as first seen) is learned again."""
        if life not in self.restored_at:
            self.restored_at[life] = num_learned
            self.relearned += max(0, self.learned.get(vnode, 0) - num_learned)

    def progress(self) -> float:
        """Share of all batches of all VNodes that were learned at least once."""
        wanted = len(self.job.vnodes) * int(self.job.num_batches)
        return sum(self.learned.values()) / wanted if wanted else 0.0

    def total(self) -> Counters:
        """Over everything."""
        return Counters(
            forwarded=sum(item.forwarded for item in self.counters.values()),
            duplicates=sum(item.duplicates for item in self.counters.values()),
        )  # fmt: skip

    def _after_pnode(self, now_s: float, kill: Kill, view: orchestrator_pb2.WatchJobResponse) -> None:
        node = next((item for item in view.nodes if item.node_id == kill.node_id), None)
        gone = node is None or node.state == orchestrator_pb2.NODE_STATE_OFFLINE
        moved = [
            item for item in view.job.vnodes if item.vnode in kill.vnodes and item.assignment.pnode_id not in ("", kill.node_id)
        ]
        self._resumed(kill, moved)
        if kill.gone_s is None and (gone or len(moved) == len(kill.vnodes)):
            kill.gone_s = now_s
        if kill.suspected_s is None and (
            kill.gone_s is not None or (node is not None and node.state == orchestrator_pb2.NODE_STATE_SUSPECT)
        ):
            kill.suspected_s = now_s
        if kill.decided_s is None and len(moved) == len(kill.vnodes):
            kill.decided_s = now_s
        if kill.decided_s is not None and kill.training_s is None and all(self._learns(item) for item in moved):
            kill.training_s = now_s

    def _resumed(self, kill: Kill, moved: list[orchestrator_pb2.VNodeView]) -> None:
        """With what the copies in the place of those that were killed begin."""
        for vnode in kill.durable.keys() - kill.resumed.keys():
            kill.durable[vnode] = min(kill.durable[vnode], self.durable.get(vnode, 0))
        for item in moved:
            report = item.report
            life = (report.replica, int(report.incarnation))
            if item.vnode not in kill.resumed and report.replica == item.assignment.replica and life in self.restored_at:
                is_new = report.restored_from in {"", *self.first_states} and life not in self.contributors
                kill.resumed[item.vnode] = Resumed(kill.durable.get(item.vnode, 0), self.restored_at[life], is_new)

    def _after_orchestrator(self, now_s: float, kill: Kill, view: orchestrator_pb2.WatchJobResponse) -> None:
        if view.job.epoch > kill.epoch and view.job.holder != kill.node_id:
            kill.suspected_s = kill.gone_s = kill.decided_s = now_s if kill.decided_s is None else kill.decided_s
        if kill.training_s is None and sum(self.learned.values()) > kill.learned_before:
            kill.training_s = now_s

    def _learns(self, item: orchestrator_pb2.VNodeView) -> bool:
        report = item.report
        began = self.restored_at.get((report.replica, int(report.incarnation)))
        complete = report.num_learned >= self.job.num_batches > 0
        return (
            report.replica == item.assignment.replica
            and report.state == ACTIVE
            and began is not None
            and (report.num_learned > began or complete)
        )
