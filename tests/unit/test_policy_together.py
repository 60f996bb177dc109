"""Goal: draws, standings, ways back and the share that is shown hold together: cheats of every kind tried keep no more in the ledger than is shown."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache

import pytest

from dcnr.intervals import IntervalSet
from trust.draw import Secret, floors_of, is_drawn, rate
from trust.exposure import CAUGHT, Drawn, Life, exposure_of
from trust.going_back import Cause, gone_back, way_back
from trust.ledger import Interval, Ledger, Named, Verdict
from trust.standing import SHADOW_UNITS, WORKING, Faulted, Passed, ShadowPassed, Standing, State, Unverified, after, begun, folded
from vnode.checks.claims import MAX_STEPS

STEPS, NUM_INTERVALS, INTERVAL_S = 16, 240, 600.0
FLOORS = floors_of(0.0)


class Habit(Enum):
    """How a node cheats: how often, from which interval on, whether it withholds the evidence of what is drawn, and the batches of what is right and wrong."""

    HONEST = (0.0, 0, False, STEPS, STEPS)
    UNEVEN = (0.0, 0, False, 0, 0)
    RARE = (0.01, 0, False, STEPS, STEPS)
    OFTEN = (0.2, 0, False, STEPS, STEPS)
    ALWAYS = (1.0, 0, False, STEPS, STEPS)
    LATE = (0.2, 120, False, STEPS, STEPS)
    WITHHOLDING = (0.05, 0, True, STEPS, STEPS)
    LATE_WITHHOLDING = (0.5, 120, True, STEPS, STEPS)
    LARGE = (0.05, 120, False, 1, MAX_STEPS)
    LARGE_WITHHOLDING = (0.05, 120, True, 1, MAX_STEPS)

    @property
    def is_honest(self) -> bool:
        return self.value[0] == 0.0


@dataclass
class Node:
    """One volunteer with a VNode of its own, audited by somebody honest."""

    habit: Habit
    rng: random.Random
    secret: Secret
    now_s: float = 1e6
    standing: Standing = field(default_factory=lambda: begun(1e6))
    ledger: Ledger = field(default_factory=lambda: Ledger({"a": (Named("0", ()),)}, {}))
    bad: set[str] = field(default_factory=set)
    life: list[Drawn] = field(default_factory=list)
    over: list[Life] = field(default_factory=list)
    num_quarantines: int = 0
    num_audits: int = 0
    num_learned: int = 0
    """Batches, also what went back since."""

    def work(self, number: int) -> None:
        """One interval, from the draw to what follows from it."""
        self.now_s += INTERVAL_S
        often, since, withholds, right, wrong = self.habit.value
        name = f"i{number}"
        cheats = number >= since and self.rng.random() < often
        size = (wrong if cheats else right) or self.rng.randint(1, 2 * STEPS - 1)
        p = rate(self.standing.record(self.now_s, size), self.standing.state, FLOORS, trusted=False)
        drawn = is_drawn(self.secret, name, p)
        self._named(name, number, size, Verdict.OPEN if drawn else Verdict.SPARED)
        self.life.append(Drawn(size, p))
        self.num_audits += drawn
        if cheats:
            self.bad.add(name)
        if not drawn:
            return
        if cheats and withholds:
            self._back(name, Cause.UNVERIFIABLE)
            self.standing = after(self.standing, Unverified(self.now_s, self.now_s))
        elif cheats and self.rng.random() < CAUGHT:
            self._back(name, Cause.FAULT)
            self.standing = after(self.standing, Faulted(self.now_s, self.now_s, "e", "caught"))
            self._rehab()
        else:
            intervals = {**self.ledger.intervals, name: replace(self.ledger.intervals[name], verdict=Verdict.PASSED)}
            self.ledger = replace(self.ledger, intervals=intervals)
            self.standing = after(self.standing, Passed(self.now_s, self.now_s, size))

    def _named(self, name: str, number: int, size: int, verdict: Verdict) -> None:
        line, first = self.ledger.lines["a"], self.num_learned
        self.num_learned += size
        interval = Interval(name, number, "a", "a.0", "x", IntervalSet.span(first, first + size), verdict)
        kept = (*line, Named(name, (name,)))
        self.ledger = Ledger({"a": kept}, {**self.ledger.intervals, name: interval})

    def _back(self, name: str, cause: Cause) -> None:
        self.ledger = gone_back(self.ledger, way_back(self.ledger, name, cause, {}))
        self.over.append(Life(self.life, is_over=True))
        self.life = []

    def _rehab(self) -> None:
        self.num_quarantines += 1
        assert self.standing.state is State.QUARANTINED
        self.now_s = self.standing.until_s
        self.standing = folded(self.standing, [ShadowPassed(self.now_s)] * SHADOW_UNITS)
        assert self.standing.state in WORKING

    @property
    def lives(self) -> list[Life]:
        """All of them, the one that goes on last."""
        return [*self.over, Life(self.life, is_over=False)]

    @property
    def bad_steps(self) -> int:
        """What is wrong in the lineage in the end."""
        names = (name for one in self.ledger.lines["a"] for name in one.intervals)
        return sum(len(self.ledger.intervals[name].batches) for name in names if name in self.bad)


@cache
def lived(habit: Habit, seed: int) -> Node:
    rng = random.Random(seed)
    node = Node(habit, rng, Secret(rng.randbytes(32)))
    for number in range(NUM_INTERVALS):
        node.work(number)
    return node


@pytest.mark.parametrize("habit", [habit for habit in Habit if not habit.is_honest], ids=lambda habit: habit.name.lower())
def test_no_habit_keeps_more_in_the_ledger_than_is_shown(habit: Habit) -> None:
    nodes = [lived(habit, seed) for seed in range(8)]
    shown = exposure_of([life for node in nodes for life in node.lives])
    kept = sum(node.bad_steps for node in nodes)
    scatter = 3 * math.sqrt(max(habit.value[3:]) * shown.undetected_steps)
    assert kept <= shown.undetected_steps + scatter
    assert sum(len(node.bad) for node in nodes) > 0, "there was something to find"


def test_an_honest_node_is_never_blamed_and_is_audited_less_and_less() -> None:
    node = lived(Habit.HONEST, 1)
    assert (node.num_quarantines, node.standing.state, node.bad_steps) == (0, State.ACTIVE, 0)
    rates = [one.rate for one in node.life]
    assert rates[:10] == [1.0] * 10
    assert rates[-1] < 0.35
    assert node.num_audits < NUM_INTERVALS / 2
    assert node.ledger.num_cleared("a") == NUM_INTERVALS + 1


def test_who_passed_many_small_intervals_is_audited_like_a_newcomer_in_large_ones() -> None:
    """A PNode says itself where its intervals end: 4000 audits of one batch are no record for an interval of 4096."""
    standing = folded(begun(0.0), [Passed(0.0, 0.0, 1)] * 4000)
    assert rate(standing.record(0.0, 1), standing.state, FLOORS, trusted=False) == FLOORS.untrusted
    assert rate(standing.record(0.0, MAX_STEPS), standing.state, FLOORS, trusted=False) == 1.0
    nodes = [lived(Habit.LARGE, seed) for seed in range(8)]
    offered = MAX_STEPS * sum(len(node.bad) for node in nodes)
    assert offered > 20 * MAX_STEPS
    assert sum(node.bad_steps for node in nodes) < 0.05 * offered, "what checks miss"
    assert all(node.num_quarantines > 0 for node in nodes if node.bad)


def test_intervals_of_uneven_sizes_cost_an_honest_node_next_to_nothing() -> None:
    even, uneven = (sum(lived(habit, seed).num_audits for seed in range(8)) for habit in (Habit.HONEST, Habit.UNEVEN))
    assert uneven < 1.1 * even
    assert all(lived(Habit.UNEVEN, seed).num_quarantines == 0 for seed in range(8))


def test_who_always_cheats_brings_in_next_to_nothing_and_ends_in_long_quarantines() -> None:
    nodes = [lived(Habit.ALWAYS, seed) for seed in range(5)]
    assert all(node.num_quarantines > 80 for node in nodes)
    assert sum(node.bad_steps for node in nodes) < 0.03 * 5 * NUM_INTERVALS * STEPS


def test_to_withhold_evidence_costs_the_record() -> None:
    """Without that, whoever hands over nothing when a cheat is drawn would be audited as rarely as an honest node."""
    honest, withholding = (
        sum(lived(habit, seed).num_audits for seed in range(4)) for habit in (Habit.HONEST, Habit.LATE_WITHHOLDING)
    )
    assert withholding > 1.5 * honest
