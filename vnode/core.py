"""The replica core: every batch is learned at most once per state, and a gap is always being asked for. Pure, torch-free.

Events go in with their time, instructions come out; the shell carries them out (see `vnode.events`). The parts: `vnode.intake`
(what this replica lacks), `vnode.outlet` (what its successors ask), `vnode.spool` (which outputs are kept), `vnode.floor` (how far
everyone behind is), `vnode.evaluation` (rounds), `vnode.snapshots`. Here they meet: which computation comes next. At most one is
under way, so snapshots lie between steps.
"""

from __future__ import annotations

from dataclasses import replace

from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from vnode import events as ev
from vnode.evaluation import TEST_LANE, VALIDATION, Rounds
from vnode.events import TRAIN_LANE, Event, Forward, Instruction, Lane, Learn, Mode, SendAck, SendDurable, Stop, TakeSnapshot
from vnode.floor import Behind
from vnode.intake import Intake, LaneWork, lane_work
from vnode.outlet import Outlet
from vnode.replica_config import MAX_ASKED_ROUNDS, MAX_KEPT_ROUNDS, STATEMENT_GAP_S, ReplicaConfig, backoff_s, lowest_intervals
from vnode.replica_view import Counters, ReplicaView
from vnode.snapshots import Snapshots
from vnode.spool import Spool

_NONE = IntervalSet.empty()
_MAX_FAILED_BATCHES = 1024


class ReplicaCore:
    """One primary or sole replica. ``lineage`` is that of the restored state."""

    def __init__(self, config: ReplicaConfig, lineage: IntervalSet, now_s: float) -> None:
        self._config = config
        self._all = IntervalSet.span(0, config.num_batches)
        if lineage - self._all:
            raise InvariantBroken("the restored lineage reaches beyond the job", code="foreign_lineage")
        self._lineage = lineage
        self._spool = Spool(config.spool_batches, config.window_batches)
        self._intake = Intake(config)
        self._outlet = Outlet(config, self._spool)
        self._behind = Behind()
        self._rounds = Rounds(config)
        self._predecessors: dict[int, tuple[ReplicaId, ...]] = {}
        self._lead_batches = min(config.lead_batches, config.spool_batches)
        self._busy: Learn | Forward | TakeSnapshot | None = None
        self._evaluated_last = False
        self._head_seen_s = now_s
        self._snapshots = Snapshots(config, lineage, now_s)
        self._work: dict[Lane, LaneWork] = {}
        self._failures: dict[tuple[Lane, int], tuple[int, float]] = {}
        self._named = _NONE
        self._ack_stated: tuple[int, VNodeId, int] | None = None
        self._ack_s = self._durable_s = float("-inf")
        self._durable_stated: IntervalSet | None = None
        self._counters = Counters()
        self._last_loss: float | None = None
        self._stopped = ""
        self._now_s = now_s

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
        self._advance(out)
        return out

    def _apply(self, event: Event, out: list[Instruction]) -> None:
        config = self._config
        match event:
            case ev.Tick():
                pass
            case ev.HeadSeen():
                self._head_seen_s = self._now_s
            case ev.PlanChanged():
                self._predecessors = {edge: tuple(share.replica for share in shares) for edge, shares in event.predecessors.items()}
                self._behind.plan(event.successors)
                self._outlet.plan(event.successors)
                self._lead_batches = max(1, min(config.lead_batches, config.spool_batches, event.lead_batches))
            case ev.EdgeUp():
                self._intake.edge_up(event)
                self._ack_stated = self._durable_stated = None
                self._ack_s = self._durable_s = float("-inf")
            case ev.EdgeDown():
                self._intake.edge_down(event.edge, event.source)
            case ev.FrameArrived():
                self._intake.arrived(event)
            case ev.InputFailed():
                self._intake.input_failed(event)
            case ev.Learned() | ev.Forwarded() | ev.ComputeFailed() | ev.SnapshotTaken():
                self._computed(event, out)
            case ev.CheckpointNamed():
                self._named = event.lineage & self._all
            case ev.CheckpointLost():
                self._snapshots.lost(event.reason)
            case ev.MergeAsked():
                out.append(ev.DeferMerge(event.request, "not_primary", "this replica takes in no deltas"))
            case _:
                self._heard(event)

    def _heard(self, event: Event) -> None:
        """What comes over links. A link of an incarnation that was replaced, or one that is gone, has no say."""
        match event:
            case ev.LinkUp():
                if not self._behind.is_stale(event.target):
                    self._behind.meet(event.target)
                    self._outlet.link_up(event.link, event.target)
            case ev.LinkDown():
                gone = self._outlet.link_down(event.link)
                if gone is not None:
                    self._behind.leave(gone.replica)
            case ev.NeedHeard():
                self._outlet.needs(event)
            case ev.WindowHeard():
                self._outlet.window(event)
            case ev.AckHeard():
                target = self._outlet.target(event.link)
                if target is not None and self._outlet.accepts_ack(event.link, event.sequence):
                    self._behind.hear_floor(target, event.floor, event.floor_vnode)
            case ev.DurableHeard():
                target = self._outlet.target(event.link)
                if target is not None:
                    self._behind.hear_durable(target, event.batches)
            case ev.FrameSent():
                self._outlet.sent(event)
            case ev.FrameMissing():
                self._outlet.missing(event.lane, event.batch)
            case _:
                raise InvariantBroken(f"{event!r:.200} answers nothing", code="unexpected_answer")

    # ---- computations --------------------------------------------------------------------------------------------------------

    def _computed(self, event: ev.Learned | ev.Forwarded | ev.ComputeFailed | ev.SnapshotTaken, out: list[Instruction]) -> None:
        busy, self._busy = self._busy, None
        self._intake.done()
        match event, busy:
            case ev.Learned(), Learn() if event.batch == busy.batch:
                self._learned(event)
                if busy.keep:
                    out += self._spool.put(TRAIN_LANE, event.batch, self._outlet.pinned(), self._outlet.asked())
            case ev.Forwarded(), Forward() if (event.lane, event.batch) == (busy.lane, busy.batch):
                self._forwarded(event)
                if busy.keep:
                    out += self._spool.put(event.lane, event.batch, self._outlet.pinned(), self._outlet.asked())
            case ev.SnapshotTaken(), TakeSnapshot():
                self._snapshots.taken(event.lineage, self._now_s)
            case ev.ComputeFailed(), Learn() | Forward() | TakeSnapshot():
                self._failed(event, busy)
            case _:
                raise InvariantBroken(f"{event!r:.200} answers nothing: under way is {busy!r:.200}", code="unexpected_answer")

    def _learned(self, event: ev.Learned) -> None:
        if event.batch in self._lineage:
            raise InvariantBroken(f"batch {event.batch} was learned twice", code="learned_twice")
        self._lineage = self._lineage.add(event.batch)
        self._failures.pop((TRAIN_LANE, event.batch), None)
        self._last_loss = event.loss
        self._evaluated_last = False
        self._counters = replace(self._counters, learned=self._counters.learned + 1)

    def _forwarded(self, event: ev.Forwarded) -> None:
        self._failures.pop((event.lane, event.batch), None)
        self._evaluated_last = not event.lane.is_train
        if event.lane.is_train:
            self._counters = replace(self._counters, forwarded=self._counters.forwarded + 1)
        else:
            self._rounds.count(event, len(self._lineage))
            self._counters = replace(self._counters, evaluated=self._counters.evaluated + 1)

    def _failed(self, event: ev.ComputeFailed, busy: Learn | Forward | TakeSnapshot) -> None:
        """Nothing changed in the state: the batch is needed as before, its inputs are asked for again, later each time."""
        self._counters = replace(self._counters, failed=self._counters.failed + 1)
        if event.fatal:
            self._stopped = event.reason
        elif isinstance(busy, TakeSnapshot):
            self._snapshots.failed(self._now_s)
        else:
            lane = TRAIN_LANE if isinstance(busy, Learn) else busy.lane
            count = self._failures.get((lane, busy.batch), (0, 0.0))[0] + 1
            if len(self._failures) < _MAX_FAILED_BATCHES:
                self._failures[lane, busy.batch] = (count, self._now_s + backoff_s(count))

    def _next(self) -> Learn | Forward | TakeSnapshot | None:
        """The next computation: a snapshot that is due, else training and evaluation in turns, each lowest batch first."""
        reason = self._snapshots.reason(self._lineage, self._now_s)
        if reason:
            return TakeSnapshot(self._lineage, reason)
        train, evaluation = self._next_train(), self._next_evaluation()
        if train is not None and (evaluation is None or self._evaluated_last):
            batch, learns = train
            inputs = self._intake.take(TRAIN_LANE, batch)
            if learns:
                return Learn(batch, inputs, len(self._lineage), keep=self._keeps(batch))
            return Forward(TRAIN_LANE, batch, Mode.FORWARD_ONLY, inputs)
        if evaluation is not None:
            lane, batch = evaluation
            keep = self._behind.successors != frozenset() or bool(self._outlet.askers(lane, batch))
            return Forward(lane, batch, Mode.EVAL, self._intake.take(lane, batch), keep=keep)
        return None

    def _next_train(self) -> tuple[int, bool] | None:
        """(batch, whether it is learned): the lowest that is whole, across both kinds. Tested against the lineage now (rule 8)."""
        work = self._work[TRAIN_LANE]
        paused = self._paused_why()
        for batch in self._intake.ready(TRAIN_LANE):
            learns = batch not in self._lineage
            is_allowed = not paused and batch in work.may_begin if learns else batch in work.forward_only
            if is_allowed and self._is_due(TRAIN_LANE, batch):
                return batch, learns
        return None

    def _next_evaluation(self) -> tuple[Lane, int] | None:
        for lane in sorted(self._work, key=lambda lane: (lane.round, lane.split)):
            if not lane.is_train:
                for batch in self._intake.ready(lane):
                    if self._is_due(lane, batch):
                        return lane, batch
        return None

    def _is_due(self, lane: Lane, batch: int) -> bool:
        return self._now_s >= self._failures.get((lane, batch), (0, 0.0))[1]

    def _keeps(self, batch: int) -> bool:
        """Whether an output can still be of use: somebody behind may ask for it."""
        if self._outlet.askers(TRAIN_LANE, batch):
            return True
        durable = self._behind.durable()
        return durable is not None and batch not in durable

    # ---- what is needed ------------------------------------------------------------------------------------------------------

    def _is_final(self) -> bool:
        """Whether the state that is durable is the last one: only then does a test result not depend on what dies next."""
        return self._lineage == self._all and self._named == self._all

    def _own_floor(self) -> int:
        lowest = (self._all - self._lineage).lowest()
        return self._config.num_batches if lowest is None else lowest

    def _floor(self) -> tuple[int, VNodeId]:
        return self._behind.floor(self._own_floor(), self._config.vnode)

    def _held_back(self) -> IntervalSet:
        """Batches that a source must not begin yet (rules 3 and 4); before the first plan it begins none."""
        if not self._config.is_source:
            return _NONE
        if self._behind.successors is None:
            return self._all
        return (self._all - self._lineage).above(self._floor()[0] + self._lead_batches - 1)

    def _paused_why(self) -> str:
        """Why nothing may be learned at all."""
        silent_s = self._now_s - self._head_seen_s
        if silent_s > self._config.horizon_s:
            return f"no news of the head for {silent_s:.0f} s, more than the horizon"
        return ""

    def _find_work(self) -> dict[Lane, LaneWork]:
        """By lane, what is needed now: own gaps, and of what successors ask that which is learned but no longer kept (rule 6)."""
        demanded = self._outlet.demanded()
        wanted = self._all - self._lineage
        again = (demanded.pop(TRAIN_LANE, _NONE) & self._lineage).first(max(1, self._config.spool_batches // 2))
        work = {TRAIN_LANE: lane_work(self._config, TRAIN_LANE, wanted, again, self._held_back())}
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

    def _advance(self, out: list[Instruction]) -> None:
        """Everything that the present state allows or asks for."""
        self._rounds.open(len(self._lineage), is_final=self._is_final())
        durable = self._behind.durable()
        if durable:
            out += self._spool.remove(TRAIN_LANE, durable, self._outlet.pinned())
        out += self._outlet.frames()
        self._work = self._find_work()
        self._intake.set_work(self._now_s, self._work)
        if self._busy is None:
            self._busy = self._next()
            if self._busy is not None:
                out.append(self._busy)
        out += self._intake.reads(self._now_s)
        out += self._intake.statements(self._now_s)
        self._state_floor(out)
        self._state_durable(out)

    def _state_floor(self, out: list[Instruction]) -> None:
        """Acks, when they change and when they are due again."""
        waited_s = self._now_s - self._ack_s
        stated = (*self._floor(), len(self._lineage))
        rise = stated[0] - self._ack_stated[0] if self._ack_stated else 0
        is_news = stated != self._ack_stated and (waited_s >= STATEMENT_GAP_S or rise >= max(1, self._lead_batches // 4))
        if is_news or waited_s >= self._config.repeat_s:
            self._ack_stated, self._ack_s = stated, self._now_s
            for edge, source in self._intake.open_ways():
                out.append(SendAck(edge, source, self._intake.next_sequence(), len(self._lineage), stated[0], stated[1]))

    def _durable_behind(self) -> IntervalSet:
        """Named, still learned here, and durable in everyone behind."""
        behind = self._behind.durable()
        own = self._named & self._lineage
        return own if behind is None else own & behind

    def _state_durable(self, out: list[Instruction]) -> None:
        """The durable set, when it changes and, less often than other statements, again."""
        waited_s = self._now_s - self._durable_s
        durable = lowest_intervals(self._durable_behind())
        is_news = durable != self._durable_stated and waited_s >= STATEMENT_GAP_S
        if is_news or waited_s >= 5 * self._config.repeat_s:
            self._durable_stated, self._durable_s = durable, self._now_s
            out += [SendDurable(edge, source, durable) for edge, source in self._intake.open_ways()]

    # ---- reports -------------------------------------------------------------------------------------------------------------

    def view(self) -> ReplicaView:
        """This replica as of its last event."""
        floor, floor_vnode = self._floor()
        held_back = self._held_back()
        ready = [batch for batch in self._intake.ready(TRAIN_LANE) if batch not in self._lineage]
        next_batch = ready[0] if ready else (self._all - self._lineage).lowest()
        is_held_back = next_batch is not None and next_batch in held_back
        num_kept = self._spool.size(train=True) + self._spool.size(train=False)
        return ReplicaView(
            vnode=self._config.vnode,
            replica=self._config.replica,
            incarnation=self._config.incarnation,
            lineage=self._lineage,
            durable=self._named,
            durable_behind=self._durable_behind(),
            floor=floor,
            floor_vnode=floor_vnode,
            lead_batches=self._lead_batches,
            needs=self._intake.needs(self._predecessors),
            counters=replace(
                self._counters,
                duplicates=self._intake.num_duplicates,
                evicted=self._intake.num_evicted,
                frames_sent=self._outlet.num_sent,
                frames_resent=self._outlet.num_resent,
            ),
            spool_batches=num_kept,
            spool_bytes=num_kept * self._config.frame_bytes,
            held_back_by=floor_vnode if is_held_back else None,
            paused_why=self._paused_why(),
            evaluations=self._rounds.evaluations(),
            failing=IntervalSet.of(*((batch, batch + 1) for lane, batch in self._failures if lane.is_train)),
            computing=_words(self._busy),
            last_loss=self._last_loss,
            stopped_why=self._stopped,
            role=self._config.role,
            unmerged=_NONE,
            num_merged=0,
            num_refused=0,
        )

    def check(self) -> None:
        """Raises InvariantBroken where this core contradicts itself. Used after every event in tests."""
        self._lineage.check()
        if self._lineage - self._all:
            raise InvariantBroken("the lineage reaches beyond the job", code="foreign_lineage")
        if isinstance(self._busy, Learn) and self._busy.batch in self._lineage:
            raise InvariantBroken(f"batch {self._busy.batch} is being learned again", code="learned_twice")
        if len(self._rounds.evaluations()) > MAX_KEPT_ROUNDS + 1:
            raise InvariantBroken("too many rounds are kept", code="rounds_bound")
        self._spool.check()
        self._intake.check()
        self._outlet.check()


def _words(busy: Learn | Forward | TakeSnapshot | None) -> str:
    match busy:
        case None:
            return ""
        case Learn():
            return f"learn {busy.batch}"
        case Forward():
            return f"{busy.mode.name.lower()} {busy.lane.split} {busy.batch}"
        case TakeSnapshot():
            return f"snapshot: {busy.reason}"
