"""What a replica lacks: stated to its predecessors, taken in, joined; never more inputs waiting than the window. Pure, torch-free.

A window is a batch number, the same for all edges: it ends above the W-th lowest batch still needed, so it never refuses the
lowest one and two full edges cannot wait for each other (PROTOCOL.md, rule 5). Where needs appear below what is held already, the
highest batch gives way. What has been awaited in vain for a while does not count: a predecessor's replica that stands still would else
fill the window with batches that nobody brings, and starve this one while others have plenty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from vnode.events import EdgeUp, FrameArrived, InputFailed, Instruction, ReadInput, SendNeed, SendWindow
from vnode.replica_config import STATEMENT_GAP_S, ReplicaConfig, lowest_intervals
from vnode.replica_view import NeedView
from vnode.vocabulary import TRAIN_LANE, Lane, TensorHandle
from vnode.ways import Edge, Stated

_NONE = IntervalSet.empty()
LATE_S: Final = 0.3
"""A replica that has had nothing to learn for so long opens its window further. A waiting source costs nothing more, so being wrong is cheap."""


@dataclass(frozen=True, slots=True)
class LaneWork:
    """What a lane needs now: to learn or evaluate (``wanted``), because asked (``forward_only``), and what of it may be begun."""

    wanted: IntervalSet
    forward_only: IntervalSet
    needed: IntervalSet
    may_begin: IntervalSet
    """The part of ``needed`` that no rule holds back; its lowest W batches are the window."""
    end: int
    within: IntervalSet


def lane_work(
    config: ReplicaConfig,
    lane: Lane,
    wanted: IntervalSet,
    forward_only: IntervalSet,
    held_back: IntervalSet,
    late: IntervalSet = _NONE,
) -> LaneWork:
    """The work of a lane with its window, which ends so far up that W batches are in it that are not late."""
    needed = wanted | forward_only
    may_begin = needed - held_back
    within = may_begin.first(config.window(lane))
    highest = within.highest()
    full = len(within) == config.window(lane)
    above = -1 if highest is None else highest
    held_from = held_back.lowest()
    end = above + 1 if full else max(above + 1, config.size(lane) if held_from is None else held_from)
    if late:
        beyond = (may_begin - late).first(config.window(lane)).highest()
        end = config.size(lane) if beyond is None else max(end, beyond + 1)
    return LaneWork(wanted, forward_only, needed, may_begin, end, within)


def _without(asked: Mapping[ReplicaId | None, IntervalSet], here: IntervalSet) -> Mapping[ReplicaId | None, IntervalSet]:
    lacking = ((replica, batches - here) for replica, batches in asked.items())
    return {replica: batches for replica, batches in lacking if batches}


class Intake:
    """Inputs on their way in."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._config = config
        self._edges = {edge: Edge() for edge in config.edges}
        self._held: dict[Lane, dict[int, dict[int, TensorHandle]]] = {}
        self._reading: set[tuple[int, Lane, int]] = set()
        self._read_again: dict[tuple[int, Lane, int], float] = {}
        self._computing: tuple[Lane, int] | None = None
        self._work: dict[Lane, LaneWork] = {}
        self._parts: dict[tuple[int, Lane], Mapping[ReplicaId | None, IntervalSet]] = {}
        """By edge and lane, what is lacking and of whom it is asked, as of the last `set_work`; what is computed since then is not lacking either."""
        self._parts_of: dict[tuple[int, Lane], tuple[Mapping[ReplicaId | None, IntervalSet], IntervalSet]] = {}
        """What each of them follows from: what each replica would be asked for, and what is here."""
        self._waiting_for: dict[tuple[int, Lane, ReplicaId | None], tuple[int, float]] = {}
        self._idle_s = float("inf")
        self.late = _NONE
        """Training batches that were awaited in vain while there was nothing else to do."""
        self._sequence = 0
        self.num_duplicates = 0
        self.num_evicted = 0

    def plan(self, predecessors: Mapping[int, tuple[Share, ...]]) -> None:
        """Whom to ask for which batches from now on; what arrives from others is taken in all the same."""
        for number, edge in self._edges.items():
            edge.plan(predecessors.get(number, ()), self._config)

    def edge_up(self, event: EdgeUp) -> None:
        """The way is open: everything is stated anew."""
        if event.edge in self._edges:
            self._edges[event.edge].up(event.source.replica, self._config)

    def edge_down(self, edge: int, source: ReplicaId) -> None:
        """The way is closed; inputs that came over it stay."""
        if edge in self._edges:
            self._edges[edge].down(source)

    def open_ways(self) -> tuple[tuple[int, ReplicaId], ...]:
        """Edge and source over which something can be stated now."""
        return tuple((number, source) for number, edge in self._edges.items() for source in edge.ways)

    def next_sequence(self) -> int:
        """Numbers every statement of this replica."""
        self._sequence += 1
        return self._sequence

    def set_work(self, now_s: float, work: dict[Lane, LaneWork]) -> None:
        """What is needed from now on; inputs of anything else are let go."""
        if TRAIN_LANE not in self._work or work[TRAIN_LANE].needed != self._work[TRAIN_LANE].needed:
            self.late &= work[TRAIN_LANE].needed
        self._work = work
        for lane in list(self._held):
            needed = work[lane].needed if lane in work else _NONE
            self._held[lane] = {batch: inputs for batch, inputs in self._held[lane].items() if batch in needed}
            if not self._held[lane]:
                del self._held[lane]
        before, self._waiting_for = self._waiting_for, {}
        parts, parts_of, self._parts, self._parts_of = self._parts, self._parts_of, {}, {}
        for lane, current in work.items():
            for edge in range(self._config.num_inputs):
                key = (edge, lane)
                given = self._parts_of[key] = (self._asked(edge, lane, current.needed), self._here(edge, lane))
                self._parts[key] = parts[key] if parts_of.get(key) == given else _without(*given)
                for source, lacking in self._parts[edge, lane].items():
                    lowest = lacking.lowest()
                    if lowest is not None:
                        known = before.get((edge, lane, source))
                        self._waiting_for[edge, lane, source] = known if known and known[0] == lowest else (lowest, now_s)

    def goes_around(self, *, is_idle: bool) -> bool:
        """Whether others are asked from now on for what those own who are away, since there is nothing to learn meanwhile."""
        if not is_idle or self.ready(TRAIN_LANE):
            return False
        around = [edge for edge in self._edges.values() if edge.goes_around(self._config)]
        return bool(around)

    def waits_in_vain(self, now_s: float, due_end: int | None, *, is_idle: bool) -> bool:
        """Whether everything in the window has just become late. Never where one replica alone brings everything, nor at joins: what waits there
        for its other half takes room. Nobody is late with what is due for nobody yet (from ``due_end`` on).
        """
        others_may_bring = self._config.num_inputs == 1 and any(edge.num_owners > 1 for edge in self._edges.values())
        if not is_idle or not others_may_bring or self._held.get(TRAIN_LANE):
            self._idle_s = now_s
        if now_s - self._idle_s < LATE_S:
            return False
        work, self._idle_s = self._work[TRAIN_LANE], now_s
        awaited = work.may_begin.below(work.end if due_end is None else min(work.end, due_end)) - self.late
        self.late |= awaited
        return bool(awaited)

    def _asked(self, edge: int, lane: Lane, batches: IntervalSet) -> Mapping[ReplicaId | None, IntervalSet]:
        known = self._edges.get(edge)
        return {None: batches} if known is None else known.asked(lane, batches)

    def arrived(self, event: FrameArrived) -> None:
        """Takes in an input that is needed and new; the highest batch gives way where there are too many."""
        lane, batch, edge = event.lane, event.batch, event.edge
        self._reading.discard((edge, lane, batch))
        if edge in self._edges:
            for stated in self._edges[edge].ways.values():
                if lane in stated and batch in stated[lane].needed:
                    stated[lane].received.add(batch)
        if lane.is_train and batch in self.late and edge in self._edges:
            # The lowest comes first: what this sender has above is on its way, and must not be more than there is room for.
            self.late -= self._edges[edge].owned_with(batch).above(batch - 1)
        work = self._work.get(lane)
        held = self._held.get(lane, {})
        is_new = edge not in held.get(batch, {}) and (lane, batch) != self._computing
        if work is None or batch not in work.needed or not is_new:
            self.num_duplicates += 1
            return
        held.setdefault(batch, {})[edge] = event.tensor
        self._held[lane] = held
        if len(held) > self._config.window(lane):
            del held[max(held)]
            self.num_evicted += 1

    def input_failed(self, event: InputFailed) -> None:
        """The batch is read again after a while."""
        key = (event.edge, event.lane, event.batch)
        self._reading.discard(key)
        self._read_again[key] = event.now_s + self._config.repeat_s

    def ready(self, lane: Lane) -> list[int]:
        """Batches with all inputs here, lowest first."""
        complete = (batch for batch, inputs in self._held.get(lane, {}).items() if len(inputs) == self._config.num_inputs)
        return sorted(complete)

    def take(self, lane: Lane, batch: int) -> tuple[TensorHandle, ...]:
        """The inputs of a batch in the order of the edges; it is being computed until `done`."""
        inputs = self._held[lane].pop(batch)
        self._computing = (lane, batch)
        return tuple(inputs[edge] for edge in sorted(inputs))

    def done(self) -> None:
        """The computation is over; what failed is needed again."""
        self._computing = None

    def reads(self, now_s: float) -> list[Instruction]:
        """Inputs to read from the data set, inside the window."""
        wanted: list[ReadInput] = []
        if not self._config.input_edges:
            return []
        for lane, work in self._work.items():
            for batch in work.within:
                for edge in sorted(self._config.input_edges):
                    key = (edge, lane, batch)
                    is_here = edge in self._held.get(lane, {}).get(batch, {}) or (lane, batch) == self._computing
                    if not is_here and key not in self._reading and now_s >= self._read_again.get(key, 0.0):
                        self._reading.add(key)
                        self._read_again.pop(key, None)
                        wanted.append(ReadInput(edge, lane, batch))
        self._read_again = {key: at for key, at in self._read_again.items() if key[1] in self._work}
        return list(wanted)

    def _here(self, edge: int, lane: Lane) -> IntervalSet:
        """What needs not come over that edge."""
        here = [batch for batch, inputs in self._held.get(lane, {}).items() if edge in inputs]
        if self._computing is not None and self._computing[0] == lane:
            here.append(self._computing[1])
        return IntervalSet.of(*((batch, batch + 1) for batch in here)) if here else _NONE

    def statements(self, now_s: float) -> list[Instruction]:
        """Needs and windows that are new or due for repetition, over each way what its replica is asked for."""
        result: list[Instruction] = []
        for number, edge in self._edges.items():
            if not edge.ways:
                continue
            for lane, work in self._work.items():
                parts = self._parts[number, lane]
                for source, stated in edge.ways.items():
                    part = parts.get(source, _NONE)
                    if part or lane in stated or lane.is_train:
                        known = stated.setdefault(lane, Stated())
                        result += self._need(now_s, (number, source), lane, part, known)
                        result += self._window(now_s, (number, source), lane, work, known)
            for source, stated in edge.ways.items():
                for lane in [lane for lane in stated if lane not in self._work]:
                    if stated.pop(lane).needed:
                        result.append(SendNeed(number, source, self.next_sequence(), lane, _NONE, _NONE, _NONE))
        return result

    def _need(self, now_s: float, way: tuple[int, ReplicaId], lane: Lane, needed: IntervalSet, known: Stated) -> list[Instruction]:
        """The Need, if something was added to it, dropped after it came, much was received, or it is due again."""
        waited_s = now_s - known.at_s
        is_news = (
            (needed is not known.looked_at and bool(needed - known.needed))
            or len(known.received) >= self._config.window(lane)
            or (waited_s >= STATEMENT_GAP_S and any(batch in needed for batch in known.received))
        )
        if not is_news and waited_s < self._config.repeat_s:
            known.looked_at = needed
            return []
        again = IntervalSet.of(*((batch, batch + 1) for batch in known.received)) & needed
        known.at_s, known.needed, known.looked_at = now_s, needed, needed
        known.received.clear()
        work = self._work[lane]
        parts = map(lowest_intervals, (needed & work.wanted, needed & work.forward_only, again))
        return [SendNeed(*way, self.next_sequence(), lane, *parts)]

    def _window(self, now_s: float, way: tuple[int, ReplicaId], lane: Lane, work: LaneWork, known: Stated) -> list[Instruction]:
        """The window, if it moved by a quarter, moved back, reached the end of the lane, or is due again."""
        waited_s = now_s - known.window_at_s
        step = max(1, self._config.window(lane) // 4)
        moved = work.end - known.end
        is_news = moved < 0 or moved >= step or (moved > 0 and work.end == self._config.size(lane))
        if not is_news and waited_s < self._config.repeat_s:
            return []
        known.window_at_s, known.end = now_s, work.end
        return [SendWindow(*way, self.next_sequence(), lane, work.end)]

    def needs(self, due_end: int | None = None) -> tuple[NeedView, ...]:
        """For every edge, lane and replica asked that something is lacking from: what, since when, why. Nothing is due yet from ``due_end`` on."""
        views: list[NeedView] = []
        for (number, lane, source), (lowest, since_s) in sorted(
            self._waiting_for.items(), key=lambda item: (*item[0][:2], item[0][2] or "")
        ):
            work = self._work[lane]
            part = self._parts[number, lane].get(source, _NONE)
            why = self._why(number, lane, source, lowest)
            if lane.is_train and due_end is not None and lowest >= due_end:
                why = "not due yet by the job's tempo"
            views.append(NeedView(number, source, lane, part & work.wanted, part & work.forward_only, since_s, why))
        return tuple(views)

    def _why(self, number: int, lane: Lane, source: ReplicaId | None, lowest: int) -> str:
        work = self._work[lane]
        if lowest not in work.may_begin:
            return "held back by the floor"
        if number in self._config.input_edges:
            is_failing = (number, lane, lowest) in self._read_again
            return "could not be read from the data set" if is_failing else "being read from the data set"
        if source is None:
            return "the plan names no predecessor"
        if source not in self._edges[number].ways:
            return "no open way to the predecessor"
        return "asked for again by a successor" if lowest in work.forward_only else "not received yet"

    def check(self) -> None:
        """Raises InvariantBroken where more waits here than the window allows, or the wrong ones are asked."""
        for edge in self._edges.values():
            edge.check()
        for lane, held in self._held.items():
            if len(held) > self._config.window(lane):
                raise InvariantBroken(f"{len(held)} batches wait in {lane}", code="window_bound")
        most = sum(self._config.window(lane) for lane in self._work) * len(self._config.input_edges)
        if len(self._reading) > 4 * most + 64:
            raise InvariantBroken(f"{len(self._reading)} reads at once", code="reading_bound")
