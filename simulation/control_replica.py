"""One replica of the control world: what its state holds, which part of that is merged, and how a contributor's work reaches its primary.

A merge is one exchange: the primary takes the contributor's batches if they are disjoint from its lineage, and the contributor goes on from the
primary's anchor either way. States are real bytes, so a promoted replica's first commit follows on the last state that its primary had made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from orchestrator.jobs import intervals_message

MERGE_S: Final = 2.0
ALONE_S: Final = 10.0
"""A new contributor that cannot reach its primary for so long learns on what it restored."""


@dataclass(slots=True)
class Replica:
    """One replica at work."""

    replica: str
    vnode: str
    job_id: str
    num_batches: int
    unit_batches: int
    checkpoint_s: float
    horizon_s: float
    incarnation: int
    rate: float
    lineage: IntervalSet
    """Everything in its state."""
    state_digest: str
    state_commit: str
    ready_s: float
    advanced_s: float
    epoch: int = 0
    role: model_pb2.Role.ValueType = model_pb2.ROLE_PRIMARY
    shares: tuple[Share, ...] = ()
    primary: model_pb2.Neighbour = field(default_factory=model_pb2.Neighbour)
    anchor: IntervalSet = field(default_factory=IntervalSet.empty)
    """A contributor's: what its primary had when they last exchanged."""
    anchored: bool = False
    exchanged_s: float = 0.0
    part: float = 0.0
    kept: IntervalSet = field(default_factory=IntervalSet.empty)
    """What the state named by `state_digest` holds."""
    ancestors: list[identity_pb2.Envelope] = field(default_factory=list)
    """Commits that lead to that state, oldest first."""
    snapshot_s: float = 0.0
    anew: bool = False
    """The last snapshot was refused: another one, even of the same batches."""
    finished: bool = False
    durable: IntervalSet = field(default_factory=IntervalSet.empty)
    num_merged: int = 0
    num_refused: int = 0

    @property
    def leads(self) -> bool:
        """Whether it is its VNode's primary."""
        return self.role == model_pb2.ROLE_PRIMARY

    @property
    def unmerged(self) -> IntervalSet:
        """What it has learned and its primary has not taken in."""
        return IntervalSet.empty() if self.leads else self.lineage - self.anchor

    def told(self, message: local_pb2.HostReplica) -> bool:
        """The daemon's word on epoch, role and siblings; True if it has just become primary."""
        siblings = message.assignment.siblings
        was_told, led = bool(self.epoch), self.leads
        self.epoch, self.role = int(message.epoch), message.assignment.role
        self.shares = tuple(Share(ReplicaId(item.replica), item.weight) for item in siblings)
        leaders = [item for item in siblings if item.role == model_pb2.ROLE_PRIMARY]
        if leaders and leaders[0].replica != self.primary.replica:
            self.primary.CopyFrom(leaders[0])
        elif not leaders:
            self.primary.Clear()
        return was_told and self.leads and not led

    def learn(self, count: int) -> None:
        """So many batches more of those that it owns and lacks, lowest first."""
        if self.leads or self.anchored:
            self.lineage = self.lineage | (self._owned() - self.lineage).first(count)

    def _owned(self) -> IntervalSet:
        if len(self.shares) < 2:
            return IntervalSet.span(0, self.num_batches)
        return _split(self.shares, self.num_batches, self.unit_batches)[ReplicaId(self.replica)]

    def exchange(self, primary: Replica) -> None:
        """Gives the primary what is unmerged, and goes on from its anchor."""
        delta = self.unmerged
        if delta and delta.isdisjoint(primary.lineage):
            primary.lineage = primary.lineage | delta
            primary.num_merged, self.num_merged = primary.num_merged + 1, self.num_merged + 1
        elif delta:
            primary.num_refused, self.num_refused = primary.num_refused + 1, self.num_refused + 1
        self.lineage = self.anchor = primary.lineage
        self.state_digest, self.state_commit, self.kept = primary.state_digest, primary.state_commit, primary.kept
        self.ancestors = list(primary.ancestors)
        self.anchored = True

    def report(self, step_s: float) -> orchestrator_pb2.ReplicaReport:
        """As the PNode sees it."""
        report = orchestrator_pb2.ReplicaReport(
            replica=self.replica, vnode=self.vnode, incarnation=self.incarnation, state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE,
            lineage=intervals_message(self.lineage), num_learned=len(self.lineage), durable=intervals_message(self.durable),
            step_s=step_s, rate=self.rate, role=self.role, unmerged=intervals_message(self.unmerged), num_merged=self.num_merged,
            num_refused=self.num_refused,
        )  # fmt: skip
        if self.leads and len(self.lineage) == self.num_batches:
            report.exits.add(vnode=self.vnode, split="test", step=self.num_batches, count=8, correct=4, sum_loss=1.0, complete=True)
        return report


@lru_cache(maxsize=4096)
def _split(shares: tuple[Share, ...], num_batches: int, unit_batches: int) -> dict[ReplicaId, IntervalSet]:
    return split(shares, num_batches, unit_batches)
