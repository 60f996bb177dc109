"""How often a living PNode is taken for gone, and how soon a dead one is: days of beats over home links, judged by the real inventory, in virtual time.

A beat is a small write on a TCP stream over a home's line (`simulation.home_line`). What makes judgements faster goes over the same lines (ADR 0018):
looks of the orchestrator and of helpers at whoever has missed a beat, as real connections with their retransmissions; and the word of neighbours,
whose connections to it break after so long without a message, and which tell it with their own beats until they reach it again.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dcnr import limits
from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from membership.probing import NUM_HELPERS, PROBE_BUDGET_S
from membership.service import PROBE_TIMEOUT_S
from orchestrator.inventory import Inventory
from pnode.exchange import BEAT_S, SILENCE_S
from simulation.home_line import Home, HomeLink
from simulation.kernel import Kernel

DAY_S: Final = 86_400.0
LOOK_S: Final = 0.5
"""How often the inventory is judged here; the service looks as often, and whenever something happens."""
NUM_NEIGHBOURS: Final = 4
"""Of a PNode, by the plan: whose connections to it can break."""
CONNECT_RTO_S: Final = 1.0
"""Before the first packet of a connection is sent again; it doubles (RFC 6298)."""
TRY_S: Final = 2.0
"""Of a neighbour that opens its connection again."""
AFTER_S: Final = 60.0
"""The dead are waited for so long."""
MODEL: Final = "watched"
OFFLINE, SUSPECT = orchestrator_pb2.NODE_STATE_OFFLINE, orchestrator_pb2.NODE_STATE_SUSPECT


@dataclass(frozen=True, slots=True)
class Tally:
    """What one run showed."""

    node_days: float
    num_false_offline: int
    num_false_suspect: int
    detected_s: tuple[float, ...]
    """Of each real death, the time until the inventory said so."""
    false_reasons: tuple[str, ...] = ()
    """Of each living PNode that was taken for gone, what the inventory said."""
    num_failed_looks: int = 0
    """At PNodes that lived."""
    num_broken: int = 0
    """Connections of neighbours to PNodes that lived."""

    @property
    def num_by_witness(self) -> int:
        """Of those, the ones that were not silent for the full time: a second witness made them gone sooner."""
        return sum(not reason.startswith(f"silent for {limits.SILENT_BEATS} ") for reason in self.false_reasons)

    @property
    def false_per_node_day(self) -> float:
        """Living nodes taken for gone, per node and day."""
        return self.num_false_offline / self.node_days


class Line(Home):
    """A home's line whose spells are known from the start, so that all that goes over it suffers the same ones, in whatever order it is asked."""

    def __init__(self, link: HomeLink, rng: random.Random, until_s: float) -> None:
        super().__init__(link, rng)
        self.dead_s = math.inf
        """From then on nothing leaves the machine."""
        self._bursts_s = _drawn(rng, link.bursts_per_hour, link.burst_s, until_s)
        self._aways_s = _drawn(rng, link.away_per_hour, link.away_s, until_s)

    @property
    def spells(self) -> list[tuple[float, float]]:
        """All of both kinds: from when to when."""
        return [*self._bursts_s, *self._aways_s]

    def is_lost(self, at_s: float) -> bool:
        """As `Home.is_lost`."""
        if at_s >= self.dead_s or _has(self._aways_s, at_s):
            return True
        return self.rng.random() < (self.link.burst_loss if _has(self._bursts_s, at_s) else self.link.loss)


def _drawn(rng: random.Random, per_hour: float, length_s: tuple[float, float], until_s: float) -> list[tuple[float, float]]:
    spells, at_s = list[tuple[float, float]](), rng.expovariate(per_hour / 3600.0)
    while at_s < until_s:
        end_s = at_s + rng.uniform(*length_s)
        spells.append((at_s, end_s))
        at_s = end_s + rng.expovariate(per_hour / 3600.0)
    return spells


def _has(spells: Sequence[tuple[float, float]], at_s: float) -> bool:
    index = bisect_right(spells, (at_s, math.inf)) - 1
    return index >= 0 and at_s < spells[index][1]


def tally(seed: int, *, num_nodes: int, days: float, link: HomeLink | None = None, witnessed: bool = True) -> Tally:
    """Runs so many nodes for so many days; every other one dies (falls silent, as a machine without power) at the end. ``witnessed`` False: nobody looks,
    and no neighbour says anything, so that silence alone counts.
    """
    kernel, end_s = Kernel(seed), days * DAY_S
    names = [f"{number:040x}" for number in range(num_nodes)]
    lines = {name: Line(link or HomeLink(), kernel.rng(f"link/{name}"), end_s + AFTER_S) for name in names}
    for name in names[::2]:
        lines[name].dead_s = end_s
    return _Judged(lines, kernel.rng("looks"), end_s, witnessed=witnessed).tally(num_nodes * days)


class _Judged:
    """One history: beats, looks and neighbours' words reach an inventory in the order of their moments."""

    def __init__(self, lines: dict[str, Line], rng: random.Random, end_s: float, *, witnessed: bool) -> None:
        self._lines, self._rng, self._end_s, self._witnessed = lines, rng, end_s, witnessed
        self._inventory = Inventory()
        self._looks: list[tuple[float, str, float, bool]] = []
        self._near = _neighbours(list(lines))
        self._words = {name: list[tuple[float, float, str]]() for name in lines}
        self._num_failed = self._num_broken = 0
        for name, others in self._near.items() if witnessed else ():
            for other in others:
                for broken_s, back_s in broken(lines[name], lines[other], end_s + AFTER_S):
                    self._num_broken += broken_s < end_s
                    self._words[other].append((broken_s, back_s, name))
        hosted = {name: [model_pb2.Assignment(vnode=name, replica=f"{name}.1", pnode_id=name)] for name in lines}
        self._inventory.planned(MODEL, hosted, {name: tuple(others) for name, others in self._near.items()})

    def tally(self, node_days: float) -> Tally:
        """Runs it."""
        inventory, counts, reasons = self._inventory, {OFFLINE: 0, SUSPECT: 0}, list[str]()
        died: dict[str, float] = {}
        for name in self._lines:
            inventory.attached(name, 0.0)
            inventory.beat(name, 0.0, self._beat(name, 0.0), limits.HEARTBEAT_S)
            inventory.probed(name, 0.0, reachable=True)
        arrivals = heapq.merge(*(_arrivals(name, line, self._end_s + AFTER_S) for name, line in self._lines.items()))
        last_s, now_s = dict.fromkeys(self._lines, 0.0), 0.0
        for at_s, name, sent_s in [*arrivals, (self._end_s + AFTER_S, "", 0.0)]:
            while now_s + LOOK_S <= at_s:
                now_s += LOOK_S
                self._answered(now_s)
                for change in inventory.tick(now_s):
                    if now_s <= self._end_s:
                        counts[change.after] = counts.get(change.after, 0) + 1
                        reasons += [change.reason] * (change.after == OFFLINE)
                    elif change.after == OFFLINE and self._lines[change.node_id].dead_s <= self._end_s:
                        died.setdefault(change.node_id, now_s - last_s[change.node_id])
                for missed in inventory.take_missed():
                    self._look(missed, now_s)
            if name:
                for accused in inventory.beat(name, at_s, self._beat(name, sent_s), limits.HEARTBEAT_S):
                    self._look(accused, at_s)
                last_s[name] = at_s
        dead = [name for name, line in self._lines.items() if line.dead_s <= self._end_s]
        detected_s = tuple(died.get(name, math.inf) for name in dead)
        return Tally(node_days, counts[OFFLINE], counts[SUSPECT], detected_s, tuple(reasons), self._num_failed, self._num_broken)

    def _beat(self, name: str, sent_s: float) -> orchestrator_pb2.Beat:
        """What a PNode says, with whom it cannot reach."""
        beat = orchestrator_pb2.Beat(worker_alive=True, capability=membership_pb2.Capability(accepts_work=True))
        for broken_s, back_s, subject in self._words[name]:
            if broken_s <= sent_s < back_s:
                beat.evidence.add(pnode_id=subject, broken=True, since_s=sent_s - broken_s)
        return beat

    def _look(self, name: str, now_s: float) -> None:
        """The orchestrator, and helpers over their own lines, try to reach it. Where nobody answers at all the look says nothing (`membership.probing`)."""
        if not self._witnessed:
            return
        others = [other for other in self._lines if other != name]
        helpers = [self._lines[other] for other in self._rng.sample(others, min(NUM_HELPERS, len(others)))]
        subject, until_s = self._lines[name], now_s + PROBE_BUDGET_S
        found_s, answered = [_connected_s([subject], now_s, until_s)], not helpers
        for helper in helpers:
            asked_s = _connected_s([helper], now_s, until_s)
            if asked_s is not None:
                reached_s = _connected_s([subject, helper], asked_s, asked_s + PROBE_TIMEOUT_S)
                told_s = _carried_s([helper], asked_s + PROBE_TIMEOUT_S if reached_s is None else reached_s, until_s)
                if told_s is not None:
                    answered = True
                    found_s.append(None if reached_s is None else told_s)
        ends = [at_s for at_s in found_s if at_s is not None and at_s <= until_s]
        if ends or answered:
            self._num_failed += not ends and now_s <= self._end_s
            heapq.heappush(self._looks, (min(ends, default=until_s), name, now_s, bool(ends)))

    def _answered(self, now_s: float) -> None:
        """Looks that have ended by now."""
        while self._looks and self._looks[0][0] <= now_s:
            at_s, name, asked_s, reachable = heapq.heappop(self._looks)
            self._inventory.probed(name, at_s, reachable=reachable, asked_at=asked_s)


def _neighbours(names: Sequence[str]) -> dict[str, set[str]]:
    """A ring: those next to a PNode, and next to these."""
    offsets = [offset for step in range(1, NUM_NEIGHBOURS // 2 + 1) for offset in (step, -step)]
    return {name: {names[(index + offset) % len(names)] for offset in offsets} - {name} for index, name in enumerate(names)}


def _connected_s(lines: Sequence[Line], at_s: float, until_s: float) -> float | None:
    """When a connection over these lines stands; None where it does not by then. A try goes there and back over each."""
    rto_s = CONNECT_RTO_S
    while at_s <= until_s:
        if not any(line.is_lost(at_s) or line.is_lost(at_s) for line in lines):
            return at_s + sum(2 * line.rng.uniform(*line.link.latency_s) for line in lines)
        at_s, rto_s = at_s + rto_s, 2 * rto_s
    return None


def broken(subject: Line, neighbour: Line, until_s: float) -> list[tuple[float, float]]:
    """When the connection of a neighbour to a PNode breaks, and when it is there again. It is looked at around spells of either line only: without one five
    losses in a row, which it takes, do not happen.
    """
    found, done_s = list[tuple[float, float]](), 0.0
    spells = sorted([*subject.spells, *neighbour.spells, *([(subject.dead_s, until_s)] if subject.dead_s < until_s else [])])
    for begin_s, end_s in spells:
        sent_s = heard_s = max(done_s, begin_s - BEAT_S)
        while sent_s < min(end_s + SILENCE_S, until_s):
            came_s = _carried_s((subject, neighbour), sent_s, heard_s + SILENCE_S)
            if came_s is None:
                broken_s = heard_s + SILENCE_S
                back_s = _reopened_s((subject, neighbour), broken_s, until_s)
                found.append((broken_s, back_s))
                sent_s = heard_s = back_s
            else:
                sent_s, heard_s = sent_s + BEAT_S, max(heard_s, came_s)
        done_s = max(done_s, sent_s)
    return found


def _carried_s(lines: Sequence[Line], sent_s: float, until_s: float) -> float | None:
    """When a message arrives over both lines; None where it has not by then."""
    rto_s = lines[0].link.least_rto_s
    while any(line.is_lost(sent_s) for line in lines):
        sent_s, rto_s = sent_s + rto_s, 2 * rto_s
        if sent_s > until_s:
            return None
    came_s = sent_s + sum(line.rng.uniform(*line.link.latency_s) for line in lines)
    return came_s if came_s <= until_s else None


def _reopened_s(lines: Sequence[Line], at_s: float, until_s: float) -> float:
    """When a neighbour that tries again and again has its connection back, or the end."""
    while at_s < until_s:
        if (up_s := _connected_s(lines, at_s, at_s + TRY_S)) is not None:
            return min(up_s, until_s)
        at_s += TRY_S
    return until_s


def _arrivals(name: str, line: Line, end_s: float) -> Iterator[tuple[float, str, float]]:
    """When the beats of one node arrive, in order, and when they were sent."""
    sent_s = arrived_s = 0.0
    while sent_s < min(end_s, line.dead_s):
        arrived_s = _delivered_s(line, sent_s, arrived_s)
        if arrived_s < end_s:
            yield arrived_s, name, sent_s
        sent_s += limits.HEARTBEAT_S * line.rng.uniform(0.8, 1.0)


def _delivered_s(line: Line, sent_s: float, after_s: float) -> float:
    """As `Home.arrival_s`; never where the machine dies before it is through."""
    at_s, rto_s = sent_s, line.link.least_rto_s
    while line.is_lost(at_s):
        at_s, rto_s = at_s + rto_s, 2 * rto_s
        if at_s >= line.dead_s:
            return math.inf
    return max(after_s, at_s + line.rng.uniform(*line.link.latency_s))
