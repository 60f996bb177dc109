"""The replica core: every batch is learned at most once per state, and a gap is always being asked for. Pure, torch-free.

Events go in with their time, instructions come out; the shell carries them out (see `vnode.events`). The parts: `vnode.holding`
(what the state has and what it has still to learn), `vnode.intake` (what is asked of whom), `vnode.outlet` (what successors ask),
`vnode.spool` (which outputs are kept), `vnode.floor` (how far everyone behind is), `vnode.evaluation` (rounds), `vnode.snapshots`, and
between replicas of one VNode `vnode.contributing` and `vnode.merging`. Here they meet: which computation comes next. At most one is
under way, so snapshots and merges lie between steps.
"""

from __future__ import annotations

from dataclasses import replace

from dcnr.errors import InvariantBroken
from dcnr.ids import VNodeId
from dcnr.intervals import IntervalSet
from vnode import events as ev
from vnode import merge_events as mev
from vnode.contributing import Contributing
from vnode.due import Due, NetworkTime
from vnode.entries import Entries
from vnode.evaluation import TEST_LANE, VALIDATION, Rounds
from vnode.events import Event, Forward, Instruction, Learn, Stop, TakeSnapshot
from vnode.floor import Behind
from vnode.holding import Holding
from vnode.intake import Intake, LaneWork, lane_work
from vnode.lead import Lead
from vnode.merging import NOT_PRIMARY, Merging
from vnode.outlet import Outlet
from vnode.replica_config import HALTED, MAX_ASKED_ROUNDS, MAX_KEPT_ROUNDS, ReplicaConfig
from vnode.replica_view import Computation, Counters, ReplicaView, words
from vnode.retries import Retries
from vnode.snapshots import Snapshots
from vnode.spool import Spool
from vnode.statements import Statements
from vnode.training_work import TrainingWork
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Role

_NONE = IntervalSet.empty()


class ReplicaCore:
    """One replica, whatever its role. ``lineage`` is that of the restored state."""

    def __init__(self, config: ReplicaConfig, lineage: IntervalSet, now_s: float) -> None:
        self._config = config
        self._holding = Holding(config, lineage)
        self._contributing = Contributing(config, self._holding, now_s)
        self._merging = Merging(config.num_batches)
        self._role = config.role
        self._spool = Spool(config.spool_batches, config.window_batches)
        self._intake = Intake(config)
        self._behind = Behind()
        self._outlet = Outlet(config, self._spool, self._behind)
        self._rounds = Rounds(config)
        self._statements = Statements(config, self._intake)
        self._lead, self._due = Lead(config, now_s), Due(config)
        self._busy: Computation | None = None
        self._evaluated_last = self._forwarded_last = False
        self._head_seen_s = self._now_s = now_s
        self._snapshots = Snapshots(config, lineage, now_s)
        self._work: dict[Lane, LaneWork] = {}
        self._training = TrainingWork(config, self._outlet.fits)
        self._retries, self._named, self._entries = Retries(), _NONE, Entries(config)
        self._counters = Counters()
        self._last_loss: float | None = None
        self._stopped = self._held_why = self._halted_why = ""

    # ---- entry ---------------------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        """What follows from one event. Raises InvariantBroken for an answer to a computation that is not under way."""
        if self._stopped:
            return []
        self._now_s = max(self._now_s, event.now_s)
        out: list[Instruction] = []
        self._apply(event, out)
        if self._stopped:
            return [*out, Stop(self._stopped)]
        is_idle = bool(self._work) and self._busy is None and not self._paused_why()
        wanted = self._holding.missing if is_idle else _NONE
        goes_on = self._config.is_source and self._lead.look(self._now_s, self._floor()[0], wanted)
        is_late = self._intake.waits_in_vain(self._now_s, self._due.end(self._now_s), is_idle=is_idle)
        if self._intake.goes_around(is_idle=is_idle) or is_late or goes_on or not self._is_quiet(event):
            self._take_stock(out)
        self._advance(out)
        return out

    def _is_quiet(self, event: Event) -> bool:
        """Whether no set of batches depends on what this event changes: time, the horizon, and a floor where it neither holds a source back nor gives place."""
        is_quiet = isinstance(event, ev.Tick | ev.HeadSeen | NetworkTime) or (
            isinstance(event, ev.AckHeard) and not self._config.is_source and not self._training.is_asked_again
        )
        return is_quiet and bool(self._work)

    def _apply(self, event: Event, out: list[Instruction]) -> None:
        match event:
            case ev.Tick():
                pass
            case ev.HeadSeen():
                self._head_seen_s = self._now_s
            case ev.PlanChanged():
                self._planned(event, out)
            case NetworkTime():
                self._due.told(event)
            case ev.EdgeUp():
                self._intake.edge_up(event)
                self._statements.forget()
            case ev.EdgeDown():
                self._intake.edge_down(event.edge, event.source)
            case ev.FrameArrived():
                self._intake.arrived(event)
            case ev.InputFailed():
                self._intake.input_failed(event)
            case ev.CheckpointNamed():
                self._named = event.lineage & self._holding.everything
                self._contributing.named(self._named)
            case ev.CheckpointLost():
                self._snapshots.lost(event.reason)
                self._contributing.crowded()
            case ev.Leave():
                self._holding.is_leaving = self._snapshots.is_leaving = not event.is_off
            case ev.LearningHeld():
                self._held_why = event.why
            case mev.MergeAsked():
                out += (
                    self._merging.asked(event)
                    if self._holding.leads and not self._holding.is_leaving
                    else [mev.DeferMerge(event.request, NOT_PRIMARY, "this replica does not lead")]
                )
            case mev.AnchorArrived() | mev.DeltaAnswered() | mev.MergeUnanswered():
                self._contributing.heard(event)
            case (
                ev.LinkUp() | ev.LinkDown() | ev.NeedHeard() | ev.WindowHeard() | ev.AckHeard() | ev.DurableHeard()
                | ev.FrameSent() | ev.FrameMissing()
            ):  # fmt: skip
                self._outlet.hear(event)
            case _:
                self._computed(event, out)

    def _planned(self, event: ev.PlanChanged, out: list[Instruction]) -> None:
        """The newest plan. A replica may become the primary; a primary, and who merges its own delta so as to be one, never becomes anything else."""
        if (self._holding.leads or isinstance(self._busy, mev.MergeOwn)) and event.role is not Role.PRIMARY:
            self._stopped = "the plan has another primary"
            return
        self._role = event.role
        self._holding.share(event.siblings)
        self._contributing.plan(event.primary)
        out += self._merging.plan(event.siblings)
        self._intake.plan(event.predecessors)
        self._outlet.plan(event.successors)
        self._lead.plan(event.lead_batches, event.widest_lead_batches)
        self._due.plan(event.tempo)
        self._halted_why = HALTED if event.halted else ""

    # ---- computations --------------------------------------------------------------------------------------------------------

    def _computed(self, event: Event, out: list[Instruction]) -> None:
        busy, self._busy = self._busy, None
        self._intake.done()
        match event, busy:
            case ev.Learned(), Learn() if event.batch == busy.batch:
                self._learned(event)
                if busy.keep:
                    out += self._outlet.keep(TRAIN_LANE, event.batch)
            case ev.Forwarded(), Forward() if (event.lane, event.batch) == (busy.lane, busy.batch):
                self._forwarded(event)
                if busy.keep:
                    out += self._outlet.keep(event.lane, event.batch)
            case ev.SnapshotTaken(), TakeSnapshot():
                self._snapshots.taken(event.lineage, self._now_s)
                self._entries.begin()
            case mev.DeltaMade(), mev.MakeDelta() if (event.sequence, event.batches) == (busy.sequence, busy.batches):
                self._contributing.made(busy, self._now_s)
                self._entries.begin()
            case mev.Rebased(), mev.Rebase():
                self._contributing.rebased(busy, self._now_s)
                self._entries.begin()
            case mev.OwnMerged(), mev.MergeOwn():
                self._holding.merge_own()
            case mev.MergesDone(), mev.MergeDeltas():
                self._merging.merged(busy)
                self._holding.merged(busy.lineage)
            case mev.AnchorCaptured(), mev.CaptureAnchor():
                self._merging.captured(busy)
            case ev.ComputeFailed(), _ if busy is not None:
                self._failed(event, busy, out)
            case _:
                raise InvariantBroken(f"{event!r:.200} answers nothing: under way is {busy!r:.200}", code="unexpected_answer")

    def _learned(self, event: ev.Learned) -> None:
        self._holding.learned(event.batch)
        self._entries.add()
        self._retries.done(TRAIN_LANE, event.batch)
        self._last_loss = event.loss
        self._evaluated_last = self._forwarded_last = False
        self._counters = replace(self._counters, learned=self._counters.learned + 1)

    def _forwarded(self, event: ev.Forwarded) -> None:
        self._retries.done(event.lane, event.batch)
        self._evaluated_last = not event.lane.is_train
        if event.lane.is_train:
            self._forwarded_last = True
            self._entries.add()
            self._counters = replace(self._counters, forwarded=self._counters.forwarded + 1)
        else:
            self._rounds.count(event, len(self._holding.lineage))
            self._counters = replace(self._counters, evaluated=self._counters.evaluated + 1)

    def _failed(self, event: ev.ComputeFailed, busy: Computation, out: list[Instruction]) -> None:
        """Nothing changed in the state: what was wanted is wanted as before, and tried again, later each time."""
        self._counters = replace(self._counters, failed=self._counters.failed + 1)
        if event.fatal:
            self._stopped = event.reason
            return
        match busy:
            case TakeSnapshot():
                self._snapshots.failed(self._now_s)
            case mev.MakeDelta() | mev.Rebase() | mev.MergeOwn():
                self._contributing.failed(busy, self._now_s)
            case mev.MergeDeltas() | mev.CaptureAnchor():
                out += self._merging.failed(busy, event.reason)
                for sibling, batches in self._merging.hopeless():
                    self._holding.adopt(sibling, batches)
            case Learn():
                self._retries.failed(TRAIN_LANE, busy.batch, self._now_s)
            case Forward():
                self._retries.failed(busy.lane, busy.batch, self._now_s)

    def _next(self) -> Computation | None:
        """The next computation: snapshots and merges that are due, else training and evaluation in turns, each lowest batch first."""
        if (between := self._next_between_steps()) is not None:
            return between
        train, evaluation = self._next_train(), self._next_evaluation()
        if train is not None and (evaluation is None or self._evaluated_last):
            batch, learns = train
            inputs = self._intake.take(TRAIN_LANE, batch)
            if learns:
                return Learn(batch, inputs, self._holding.num_learned, keep=self._keeps(batch))
            return Forward(TRAIN_LANE, batch, Mode.FORWARD_ONLY, inputs)
        if evaluation is not None:
            lane, batch = evaluation
            keep = self._behind.successors != frozenset() or bool(self._outlet.askers(lane, batch))
            return Forward(lane, batch, Mode.EVAL, self._intake.take(lane, batch), keep=keep, is_own=lane in self._rounds)
        return None

    def _next_between_steps(self) -> Computation | None:
        if not self._holding.leads:
            return self._contributing.computation(self._now_s, self._merging.num_learning)
        if reason := self._snapshots.reason(self._holding.lineage, self._now_s):
            return TakeSnapshot(self._holding.lineage, reason)
        return self._merging.computation(self._holding.lineage)

    def _next_train(self) -> tuple[int, bool] | None:
        """(batch, whether it is learned): the lowest that is whole, across both kinds; what was learned before takes every second turn at most where another
        can be learned. Tested against the lineage now (rule 8).
        """
        work, again, paused = self._work[TRAIN_LANE], None, self._paused_why()
        for batch in self._intake.ready(TRAIN_LANE):
            learns = batch in work.wanted
            if not learns and again is not None:
                continue
            is_allowed = not paused and batch in work.may_begin if learns else batch in work.forward_only and not self._entries.why
            if (
                is_allowed
                and self._retries.is_due(TRAIN_LANE, batch, self._now_s)
                and (batch in self._holding.lineage or self._due.may_begin(batch, self._now_s))
            ):
                if learns or not self._forwarded_last:
                    return batch, learns
                again = batch
        return (again, False) if again is not None else None

    def _next_evaluation(self) -> tuple[Lane, int] | None:
        for lane in sorted(self._work, key=lambda lane: (lane.round, lane.split)):
            if not lane.is_train:
                for batch in self._intake.ready(lane):
                    if self._retries.is_due(lane, batch, self._now_s):
                        return lane, batch
        return None

    def _keeps(self, batch: int) -> bool:
        """Whether an output can still be of use: somebody behind may ask for it."""
        if self._outlet.askers(TRAIN_LANE, batch):
            return True
        durable = self._behind.durable()
        return durable is not None and batch not in durable

    # ---- what is needed ------------------------------------------------------------------------------------------------------

    def _is_final(self) -> bool:
        """Whether the state that is durable is the last one: only then does a test result not depend on what dies next."""
        return self._holding.is_complete and self._named == self._holding.everything

    def _floor(self) -> tuple[int, VNodeId]:
        return self._behind.floor(self._holding.floor, self._config.vnode)

    def _held_back(self) -> IntervalSet:
        """Batches that must not be begun yet: too far ahead of the lowest that the state lacks, or of the floor where this is a source
        (rules 3 and 4), which begins none before the first plan.
        """
        if not self._config.is_source:
            return self._holding.out_of_reach
        if self._behind.successors is None:
            return self._holding.everything
        return self._holding.out_of_reach | self._holding.missing.above(self._lead.end(self._floor()[0]) - 1)

    def _paused_why(self) -> str:
        """Why nothing may be learned at all."""
        if self._holding.is_leaving:
            return "it hands over"
        if (silent_s := self._now_s - self._head_seen_s) > self._config.horizon_s:
            return f"no news of the head for {silent_s:.0f} s, more than the horizon"
        waits = self._snapshots.waits_why(self._holding.lineage) if self._holding.leads else self._contributing.waits_why()
        return self._halted_why or self._held_why or waits or self._entries.why

    def _find_work(self) -> dict[Lane, LaneWork]:
        """By lane, what is needed now: own gaps, and of what successors ask that which is not to be learned here first (rule 6)."""
        demanded = self._outlet.demanded()
        asked_again = demanded.get(TRAIN_LANE, _NONE)
        work = {TRAIN_LANE: self._training.of(asked_again, self._holding.missing, self._held_back(), self._intake.late)}
        own = self._rounds.wanted()
        asked = [lane for lane in sorted(demanded) if lane.split == VALIDATION][:MAX_ASKED_ROUNDS]
        if self._is_final() and TEST_LANE in demanded:
            asked.append(TEST_LANE)
        for lane in sorted({*own, *asked}):
            whole = IntervalSet.span(0, self._config.size(lane))
            evaluate = own.get(lane, _NONE) | (demanded.get(lane, _NONE) & whole if lane in asked else _NONE)
            if evaluate:
                work[lane] = lane_work(self._config, lane, evaluate, _NONE, _NONE)
        return work

    def _take_stock(self, out: list[Instruction]) -> None:
        """Who leads, what is kept and sent, and what is needed: all that follows from sets of batches alone, whatever the time."""
        holding = self._holding
        if self._role is Role.PRIMARY and not holding.leads and self._busy is None and not self._contributing.has_own:
            own = holding.lead()
            self._snapshots.force("new primary")
            out.append(mev.Lead(holding.lineage, own))
        if holding.leads:
            out += self._merging.answers(holding.lineage)
            self._rounds.open(len(holding.lineage), is_final=self._is_final())
        if (durable := self._behind.durable()) and (kept := self._spool.available(TRAIN_LANE) & durable):
            out += self._spool.remove(TRAIN_LANE, kept - self._outlet.asked().get(TRAIN_LANE, _NONE), self._outlet.pinned())
        out += self._outlet.frames()
        self._work = self._find_work()
        self._intake.set_work(self._now_s, self._work)

    def _advance(self, out: list[Instruction]) -> None:
        """What is due now: computations, questions and statements."""
        if self._busy is None:
            self._busy = self._next()
            out += [self._busy] if self._busy is not None else self._due.wake()
        if not self._holding.leads and (question := self._contributing.ask(self._now_s)) is not None:
            out.append(question)
        out += self._intake.reads(self._now_s)
        out += self._intake.statements(self._now_s)
        if self._behind.is_known and (self._holding.leads or not self._contributing.awaits_anchor):
            out += self._statements.ack(self._now_s, self._floor(), len(self._holding.lineage), self._lead.batches)
        out += self._statements.durable(self._now_s, self._behind.durable_from(self._named, self._holding.missing))

    # ---- reports -------------------------------------------------------------------------------------------------------------

    def view(self) -> ReplicaView:
        """This replica as of its last event."""
        floor, floor_vnode = self._floor()
        held_back, holding = self._held_back(), self._holding
        ready = [batch for batch in self._intake.ready(TRAIN_LANE) if batch in holding.missing]
        next_batch = ready[0] if ready else holding.missing.lowest()
        is_held_back = next_batch is not None and next_batch in held_back
        num_kept = self._spool.size(train=True) + self._spool.size(train=False)
        merges = self._merging if holding.leads else self._contributing
        return ReplicaView(
            vnode=self._config.vnode, replica=self._config.replica, incarnation=self._config.incarnation, lineage=holding.lineage,
            durable=self._named, durable_behind=self._behind.durable_from(self._named, self._holding.missing), floor=floor,
            floor_vnode=floor_vnode, lead_batches=self._lead.batches, needs=self._intake.needs(self._due.end(self._now_s)),
            counters=replace(
                self._counters, duplicates=self._intake.num_duplicates, evicted=self._intake.num_evicted,
                frames_sent=self._outlet.num_sent, frames_resent=self._outlet.num_resent,
            ),
            spool_batches=num_kept, spool_bytes=num_kept * self._config.frame_bytes, held_back_by=floor_vnode if is_held_back else None,
            paused_why=self._paused_why() or self._due.why(next_batch, self._now_s), evaluations=self._rounds.evaluations(),
            failing=self._retries.failing(), computing=words(self._busy),
            learns_no_more=holding.is_leaving and not isinstance(self._busy, Learn), owed=self._outlet.lacking() & holding.lineage,
            last_loss=self._last_loss, stopped_why=self._stopped, role=self._role, owned=holding.owned,
            unmerged=self._contributing.unmerged, num_merged=merges.num_merged, num_refused=merges.num_refused,
        )  # fmt: skip

    def check(self) -> None:
        """Raises InvariantBroken where this core contradicts itself. Used after every event in tests."""
        self._holding.check()
        self._training.forget()
        if self._work and self._find_work() != self._work:
            raise InvariantBroken("what is needed has changed, and nobody took stock of it", code="stale_work")
        if isinstance(self._busy, Learn) and self._busy.batch in self._holding.lineage:
            raise InvariantBroken(f"batch {self._busy.batch} is being learned again", code="learned_twice")
        if len(self._rounds.evaluations()) > MAX_KEPT_ROUNDS + 1:
            raise InvariantBroken("too many rounds are kept", code="rounds_bound")
        for part in (self._spool, self._intake, self._outlet, self._merging):
            part.check()
