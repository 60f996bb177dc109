"""Bugs to plant, one for each rule of the data plane: each breaks the rule and nothing else, and the checkers must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.v1 import vnode_pb2
from simulation.authority import Authority
from simulation.checkers import Checkers
from simulation.replica_shell import ReplicaShell
from vnode import core as core_module
from vnode import intake as intake_module
from vnode.contributing import Contributing
from vnode.core import ReplicaCore
from vnode.due import Due
from vnode.events import Forward, FrameArrived, NeedHeard
from vnode.floor import Behind
from vnode.holding import Holding
from vnode.intake import Intake, LaneWork
from vnode.merge_events import AnchorArrived, AnswerMerge, MergeAsked, MergeUnanswered, Rebase
from vnode.merging import Merging
from vnode.outlet import Outlet, _Ask, _Link
from vnode.replica_config import ReplicaConfig
from vnode.snapshots import Snapshots
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Verdict
from vnode.ways import Edge

Plant = Callable[[pytest.MonkeyPatch], None]


def mode_of_the_computation(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: a frame keeps the mode in which it was computed, and a receiver learns from TRAIN frames only."""
    computed_again: set[tuple[int, int]] = set()
    forwarded = ReplicaCore._forwarded

    def remember(self: ReplicaCore, event: Any) -> None:
        if event.lane.is_train:
            computed_again.add((id(self._outlet), event.batch))
        forwarded(self, event)

    def mode(self: Outlet, lane: Lane, batch: int, ask: _Ask) -> Mode:
        if not lane.is_train:
            return Mode.EVAL
        return Mode.FORWARD_ONLY if (id(self), batch) in computed_again else Mode.TRAIN

    def takes(self: Checkers, shell: ReplicaShell, lane: Lane, batch: int, mode: int) -> bool:
        learns = lane.is_train and batch not in shell.state.lineage
        return not (learns and mode == vnode_pb2.MODE_FORWARD_ONLY)

    patch.setattr(ReplicaCore, "_forwarded", remember)
    patch.setattr(Outlet, "_mode", mode)
    patch.setattr(Checkers, "takes", takes)


def no_resend_time(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: whatever the newest Need asks for is sent again at once."""

    def is_due(self: Outlet, link: _Link, ask: _Ask, lane: Lane, batch: int) -> bool:
        return (lane, batch) not in link.sending

    patch.setattr(Outlet, "_is_due", is_due)


def needs_are_quiet(patch: pytest.MonkeyPatch) -> None:
    """What follows from a Need is found out at the next other event."""
    is_quiet = ReplicaCore._is_quiet
    patch.setattr(ReplicaCore, "_is_quiet", lambda self, event: isinstance(event, NeedHeard) or is_quiet(self, event))


def dead_replica_pins_the_floor(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: a replica that left the plan is not forgotten."""
    plan = Behind.plan

    def remember(self: Behind, successors: frozenset[ReplicaId]) -> None:
        plan(self, successors | (self._successors or frozenset()))

    patch.setattr(Behind, "plan", remember)


def unheard_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: what a successor's old incarnation said is kept for the new one."""

    def meet(self: Behind, peer: Any) -> None:
        said = self._said.get(peer.replica)
        if said is not None:
            self._said[peer.replica] = replace(said, incarnation=peer.incarnation)
        else:
            before(self, peer)

    def floor(self: Behind, own: int, vnode: VNodeId) -> tuple[int, VNodeId]:
        heard = [self._said[replica] for replica in sorted(self._successors or ()) if replica in self._said]
        return min([(own, vnode), *((said.floor, said.floor_vnode) for said in heard if said.floor)])

    before = Behind.meet
    patch.setattr(Behind, "meet", meet)
    patch.setattr(Behind, "floor", floor)


def floor_of_itself_alone(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: a replica states its own floor and not that of those behind it."""

    def floor(self: Behind, own: int, vnode: VNodeId) -> tuple[int, VNodeId]:
        return own, vnode

    patch.setattr(Behind, "floor", floor)


def sources_run_away(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: sources do not wait for those behind them."""
    patch.setattr(ReplicaCore, "_held_back", lambda self: IntervalSet.empty())


def full_join_refuses(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: the sender may go on without a window, and a full join refuses what is new, were it the lowest."""
    work = intake_module.lane_work
    arrived = Intake.arrived

    def unbounded(config: ReplicaConfig, lane: Lane, *sets: IntervalSet) -> LaneWork:
        return replace(work(config, lane, *sets), end=config.size(lane))

    def refuse(self: Intake, event: FrameArrived) -> None:
        held = self._held.get(event.lane, {})
        if event.batch in held or len(held) < self._config.window(event.lane):
            arrived(self, event)

    patch.setattr(core_module, "lane_work", unbounded)
    patch.setattr(Intake, "arrived", refuse)


def recompute_what_it_lacks(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: a batch that is asked for is computed FORWARD_ONLY even where it is still to be learned here."""

    def next_train(self: ReplicaCore) -> tuple[int, bool] | None:
        demanded = self._outlet.demanded().get(TRAIN_LANE, IntervalSet.empty())
        for batch in self._intake.ready(TRAIN_LANE):
            if batch in demanded:
                return batch, False
            if batch in self._holding.missing:
                return batch, True
        return None

    patch.setattr(ReplicaCore, "_next_train", next_train)


def requests_do_not_join(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: outputs that were computed again do not enter the spool, so that one of them answers nobody but the first."""
    forwarded = ReplicaCore._next

    def not_kept(self: ReplicaCore) -> Any:
        found = forwarded(self)
        return replace(found, keep=False) if isinstance(found, Forward) and found.lane.is_train else found

    patch.setattr(ReplicaCore, "_next", not_kept)


def lineage_tested_when_queued(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: whether a batch was learned is asked when its frame comes, not when the step is made."""
    queue: dict[int, list[int]] = {}
    arrived = Intake.arrived

    def enqueue(self: Intake, event: FrameArrived) -> None:
        arrived(self, event)
        if event.lane.is_train and event.batch in self._work[TRAIN_LANE].wanted:
            queue.setdefault(id(self), []).append(event.batch)
            self._held.setdefault(TRAIN_LANE, {}).setdefault(event.batch, {})[event.edge] = event.tensor

    def dequeue(self: ReplicaCore) -> tuple[int, bool] | None:
        ready = self._intake.ready(TRAIN_LANE)
        waiting = [batch for batch in queue.get(id(self._intake), []) if batch in ready]
        if waiting:
            queue[id(self._intake)].remove(waiting[0])
            return waiting[0], True
        return next(((batch, batch in self._holding.missing) for batch in ready), None)

    def keep_held(self: Intake, now_s: float, work: dict[Lane, LaneWork]) -> None:
        held = {batch: inputs for batch, inputs in self._held.get(TRAIN_LANE, {}).items() if batch in queue.get(id(self), [])}
        before(self, now_s, work)
        if held:
            self._held.setdefault(TRAIN_LANE, {}).update(held)

    before = Intake.set_work
    patch.setattr(ReplicaCore, "check", lambda self: None)
    patch.setattr(Intake, "arrived", enqueue)
    patch.setattr(Intake, "set_work", keep_held)
    patch.setattr(ReplicaCore, "_next_train", dequeue)


def no_last_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """Rule 9: checkpoints come every so many steps and at no other time, so the tail never becomes durable."""

    def reason(self: Snapshots, lineage: IntervalSet, now_s: float) -> str:
        return "steps" if len(lineage - self._lineage) >= self._config.checkpoint_steps else ""

    patch.setattr(Snapshots, "reason", reason)


def manifest_goes_back(patch: pytest.MonkeyPatch) -> None:
    """Rule 9: the checkpoint that came last is named, also when it is older."""
    patch.setattr(Authority, "may_replace", lambda self, shell, state: True)


# ---- replicas of one VNode --------------------------------------------------------------------------------------------------------


def everything_is_asked_of_everyone(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: a receiver does not ask the owner of a batch for it, but all replicas of the predecessor."""

    def asked(self: Edge, lane: Lane, batches: IntervalSet) -> dict[ReplicaId | None, IntervalSet]:
        return dict.fromkeys(self.owned or [None], batches)

    patch.setattr(Edge, "asked", asked)


def others_are_asked_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: whoever was asked in another one's place still is when the way to that one is open again."""
    up = Edge.up

    def stays(self: Edge, replica: ReplicaId, config: ReplicaConfig) -> None:
        away = self._away
        up(self, replica, config)
        self._away = away
        self._pass_over(away, config)

    patch.setattr(Edge, "up", stays)


def learns_what_others_own(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: a contributor needs everything that it has not learned, not its own units."""

    def share(self: Holding, siblings: Any) -> None:
        before(self, siblings)
        if self.owned:
            self.owned = self.everything
            self._count()

    before = Holding.share
    patch.setattr(Holding, "share", share)


def floor_over_what_others_own(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: a replica's floor is the lowest batch that its state lacks, whoever owns it."""

    def floor(self: Holding) -> int:
        lowest = (self.everything - self.lineage).lowest()
        return len(self.everything) if lowest is None else lowest

    patch.setattr(Holding, "floor", property(floor))


def overlap_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: what was learned after the delta stays, also where the anchor holds it already."""
    rebase = Contributing._rebase

    def keep(self: Contributing, event: AnchorArrived, num_learning: int) -> Rebase:
        return replace(rebase(self, event, num_learning), keep_after=True)

    patch.setattr(Contributing, "_rebase", keep)


def merged_delta_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a delta that was merged stays in the contributor's state beside the anchor that holds it."""
    rebase = Contributing._rebase

    def keep(self: Contributing, event: AnchorArrived, num_learning: int) -> Rebase:
        return replace(rebase(self, event, num_learning), keep_open=True)

    patch.setattr(Contributing, "_rebase", keep)


def older_anchor_counts(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: what an older anchor held counts as learned, also where a new primary lacks it."""
    rebase, hand_in = Holding.rebase, Holding.hand_in

    def remember(self: Holding, anchor: IntervalSet, *, keep_open: bool, keep_after: bool) -> None:
        rebase(self, anchor | self.anchor, keep_open=keep_open, keep_after=keep_after)

    patch.setattr(Holding, "rebase", remember)
    patch.setattr(Holding, "hand_in", lambda self, anchor: hand_in(self, anchor | self.anchor))


def no_last_delta(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: deltas come every so many steps and at no other time, so the tail is never merged."""
    patch.setattr(Contributing, "_is_due", lambda self, now_s: len(self._holding.after) >= self._config.merge_every)
    patch.setattr(Contributing, "_is_measured_against", lambda self, event, now_s: self._is_due(now_s))


def unanswered_is_merged(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a delta is sent once; without an answer it counts as merged, and the next one begins."""
    heard = Contributing.heard

    def settle(self: Contributing, event: Any) -> None:
        if isinstance(event, MergeUnanswered) and self._asked is not None and self._asked.sequence is not None:
            self._holding.anchor |= self._holding.open
            self._holding.open = IntervalSet.empty()
        heard(self, event)

    patch.setattr(Contributing, "heard", settle)


def learning_stays_over_an_anchor(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: where audits are drawn what was learned stays over another primary's anchor."""
    rebase = Contributing._rebase

    def keep(self: Contributing, event: AnchorArrived, num_learning: int) -> Rebase:
        found, after = rebase(self, event, num_learning), self._holding.after
        is_kept = after.isdisjoint(event.lineage)
        return replace(found, keep_after=is_kept, lineage=found.lineage | after if is_kept else found.lineage)

    patch.setattr(Contributing, "_rebase", keep)


def anchors_take_the_place_of_what_was_learned(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: where audits are drawn, what was learned is let go for an anchor instead of being measured against it."""
    is_measured = Contributing._is_measured_against

    def where_nobody_audits(self: Contributing, event: AnchorArrived, now_s: float) -> bool:
        return not self._config.audited and is_measured(self, event, now_s)

    patch.setattr(Contributing, "_is_measured_against", where_nobody_audits)


def merge_tested_when_queued(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: whether a delta overlaps the lineage is tested when it comes, not when it is merged."""
    passed: dict[int, set[int]] = {}
    asked, why_not = Merging.asked, Merging._why_not

    def test_now(self: Merging, event: MergeAsked) -> Any:
        if why_not(self, event, self._captured or IntervalSet.empty()) is None:
            passed.setdefault(id(self), set()).add(event.request)
        return asked(self, event)

    def trust(self: Merging, event: MergeAsked, lineage: IntervalSet) -> Any:
        is_fresh = event.request in passed.get(id(self), set()) and event not in self._under_way
        return None if is_fresh else why_not(self, event, lineage)

    patch.setattr(Merging, "asked", test_now)
    patch.setattr(Merging, "_why_not", trust)


def repeated_delta_is_merged_again(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: a question that is asked again is a new delta, and nobody looks at the lineage."""
    why_not = Merging._why_not

    def trust(self: Merging, event: MergeAsked, lineage: IntervalSet) -> Any:
        answer = why_not(self, event, lineage)
        is_repeated = answer is not None and answer[0] is not Verdict.ANCHOR and event not in self._under_way
        return None if is_repeated else answer

    patch.setattr(Merging, "_why_not", trust)


def answered_with_an_older_anchor(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: the answer goes with some anchor, not with the one that has the lineage of the moment."""

    def answers(self: Merging, lineage: IntervalSet) -> list[AnswerMerge]:
        return before(self, self._captured) if self._captured is not None else []

    before = Merging.answers
    patch.setattr(Merging, "answers", answers)


def new_primary_waits_with_its_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """Rule 9: a contributor that becomes primary checkpoints when its time comes."""
    patch.setattr(Snapshots, "force", lambda self, reason: None)


def anybody_may_record(patch: pytest.MonkeyPatch) -> None:
    """Rule 9: records of a primary that the plan has replaced are taken in."""
    patch.setattr(Authority, "may_record", lambda self, shell: True)


def any_sibling_follows(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: a lost primary is followed by the sibling that has learned least."""

    def successor(self: Authority, dead: ReplicaShell) -> ReplicaShell | None:
        return min(self._siblings(dead), key=lambda shell: len(shell.state.lineage), default=None)

    patch.setattr(Authority, "successor", successor)


def begins_before_it_is_due(patch: pytest.MonkeyPatch) -> None:
    """Rule 14: a source that has a batch learns it, whatever the tempo says."""
    patch.setattr(Due, "may_begin", lambda self, batch, now_s: True)
