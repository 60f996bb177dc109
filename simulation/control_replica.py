"""One replica of the control world: what its state holds, which part of that is merged, and how a contributor's work reaches its primary.

The chain of signed commits and deltas is the real one, and so is the primary's judgement of deltas (`simulation.control_merges`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from orchestrator.jobs import intervals_message
from pnode.chain import CommitChain, Standing
from simulation.control_merges import Anchor, Desk, Owed
from trust.late_draw import UNLEARNED
from vnode.merging import Merging
from vnode.vocabulary import Peer, Verdict

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
    standing: Standing
    chain: CommitChain
    merging: Merging
    ready_s: float
    advanced_s: float
    epoch: int = 0
    role: model_pb2.Role.ValueType = model_pb2.ROLE_PRIMARY
    shares: tuple[Share, ...] = ()
    siblings: tuple[model_pb2.Neighbour, ...] = ()
    primary: model_pb2.Neighbour = field(default_factory=model_pb2.Neighbour)
    desk: Desk = field(default_factory=Desk)
    owed: Owed = field(default_factory=Owed)
    anchor: IntervalSet = field(default_factory=IntervalSet.empty)
    """A contributor's: what its primary had when they last exchanged."""
    anchored: bool = False
    exchanged_s: float = 0.0
    asks_from_s: float = 0.0
    """Until then what it exchanged last is on its way."""
    part: float = 0.0
    kept: IntervalSet = field(default_factory=IntervalSet.empty)
    """What the newest state on the chain holds."""
    steps: str = ""
    """Where audits are in force: digest of what stands for a log of steps."""
    snapshot_s: float = 0.0
    anew: bool = False
    """The last snapshot was refused: another one, even of the same batches."""
    finished: bool = False
    halted: bool = False
    """Its job is paused: it learns nothing; what it has learned is merged, kept and answered as before."""
    hand_over_s: float = 0.0
    """Above 0: its VNode moves; it hands over, and learns on where that takes longer."""
    told_s: float = 0.0
    """When it heard that it hands over."""
    restored_from: str = ""
    is_broken: bool = False
    """Nothing can be learned from what it restored."""
    is_tainted: bool = False
    """Its state holds something wrong."""
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
        return (
            IntervalSet.empty() if self.leads else self.fresh | (IntervalSet.empty() if self.owed.is_merged else self.owed.batches)
        )

    def hands_over(self, now_s: float) -> bool:
        """Whether it learns nothing for that."""
        return self.hand_over_s > 0.0 and (now_s < self.told_s + self.hand_over_s or self.has_handed_over)

    @property
    def has_handed_over(self) -> bool:
        """Whether everything in its state is durable."""
        return self.hand_over_s > 0.0 and not self.lineage - self.durable

    def told(self, message: local_pb2.HostReplica, now_s: float) -> bool:
        """The daemon's word on epoch, role, siblings, moves and pauses; True if it has just become primary."""
        if (message.assignment.hand_over_s > 0.0) != (self.hand_over_s > 0.0):
            self.hand_over_s, self.told_s = message.assignment.hand_over_s, now_s
        siblings = self.siblings = tuple(message.assignment.siblings)
        was_told, led = bool(self.epoch), self.leads
        self.epoch, self.role, self.halted = int(message.epoch), message.assignment.role, message.halted
        self.shares = tuple(Share(ReplicaId(item.replica), item.weight) for item in siblings)
        leaders = [item for item in siblings if item.role == model_pb2.ROLE_PRIMARY]
        if leaders and leaders[0].replica != self.primary.replica:
            self.primary.CopyFrom(leaders[0])
        elif not leaders:
            self.primary.Clear()
        if was_told and self.leads and not led:
            self._lead()
            return True
        return False

    def learn(self, count: int, now_s: float) -> IntervalSet:
        """So many batches more of those that it owns and lacks, lowest first."""
        fresh = self.lacks(now_s).first(count)
        for batch in fresh:
            self.chain.learned(batch, 1.0)
        self.lineage = self.lineage | fresh
        return fresh

    def lacks(self, now_s: float) -> IntervalSet:
        """What it may learn by itself now: what its siblings own comes to it by merges."""
        may_learn = (self.leads or self.anchored) and not self.halted and not self.hands_over(now_s)
        return self._owned() - self.lineage if may_learn else IntervalSet.empty()

    def _owned(self) -> IntervalSet:
        if len(self.shares) < 2:
            return IntervalSet.span(0, self.num_batches)
        return _split(self.shares, self.num_batches, self.unit_batches)[ReplicaId(self.replica)]

    def take_in(self, delta: identity_pb2.Envelope, lineage: IntervalSet) -> None:
        """A sibling's delta is in the state from here on."""
        self.chain.merged(delta, max(1, len(self.shares)))
        self.lineage = lineage
        self.num_merged += 1

    @property
    def fresh(self) -> IntervalSet:
        """What it has learned on its anchor."""
        return self.lineage - self.anchor - self.owed.batches

    def stand(self, anchor: Anchor, primary: Peer) -> None:
        """Goes on from the primary's anchor. What it learned on the one before is handed in; what that lacks of an older delta it has learned, unless audits
        are in force.
        """
        fresh, owed = self.fresh, self.owed
        takes_back = bool(owed.batches) and not self.steps and owed.batches.isdisjoint(anchor.lineage)
        if fresh and fresh.isdisjoint(anchor.lineage) and not takes_back:
            owed.hand_in(self, fresh, anchor, primary)
            self.lineage = anchor.lineage | fresh
        else:
            kept = owed.batches if takes_back else IntervalSet.empty()
            keep_after = not self.steps and fresh.isdisjoint(anchor.lineage | kept)
            self.chain.rebase(anchor.digest, anchor.commits, keep_open=takes_back, keep_after=keep_after)
            self.lineage = anchor.lineage | kept | (fresh if keep_after else IntervalSet.empty())
            owed.settled()
        self.anchor, self.kept, self.anchored = anchor.lineage, anchor.kept, True

    def judged(self, verdict: Verdict) -> None:
        """What became of its delta."""
        self.num_merged += verdict is Verdict.MERGED
        self.num_refused += verdict is Verdict.REFUSED
        self.owed.is_merged = verdict is Verdict.MERGED
        if verdict is Verdict.REFUSED:
            self.lineage = self.lineage - self.owed.batches
            self.owed.settled()

    def _lead(self) -> None:
        """The primary from here on; its own delta that no anchor shows is merged first."""
        fresh = self.fresh
        if self.owed.delta is not None:
            self.merging.plan(self.shares)
            self.chain.merged(self.owed.delta, self.merging.num_learning)
        self.chain.lead(fresh)
        self.owed.settled()

    def report(self, step_s: float, now_s: float) -> orchestrator_pb2.ReplicaReport:
        """As the PNode sees it."""
        state = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE
        if self.hands_over(now_s):
            given, giving = orchestrator_pb2.ASSIGNMENT_STATE_RELEASED, orchestrator_pb2.ASSIGNMENT_STATE_RELEASING
            state = given if self.has_handed_over else giving
        report = orchestrator_pb2.ReplicaReport(
            replica=self.replica, vnode=self.vnode, incarnation=self.incarnation, state=state,
            lineage=intervals_message(self.lineage), num_learned=len(self.lineage), durable=intervals_message(self.durable),
            step_s=step_s, rate=self.rate, role=self.role, unmerged=intervals_message(self.unmerged), num_merged=self.num_merged,
            num_refused=self.num_refused, restored_from=self.restored_from, num_unlearned=UNLEARNED if self.is_broken else 0,
        )  # fmt: skip
        if self.leads and len(self.lineage) == self.num_batches:
            report.exits.add(vnode=self.vnode, split="test", step=self.num_batches, count=8, correct=4, sum_loss=1.0, complete=True)
        return report


@lru_cache(maxsize=4096)
def _split(shares: tuple[Share, ...], num_batches: int, unit_batches: int) -> Mapping[ReplicaId, IntervalSet]:
    return split(shares, num_batches, unit_batches)
