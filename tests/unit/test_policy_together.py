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

STEPS, NUM_INTERVALS, INTERVAL_S = 16, 240, 600.0
FLOORS = floors_of(0.0)


class Habit(Enum):
    """How a node cheats: how often, from which interval on, and whether it withholds the evidence of what is drawn."""

    HONEST = (0.0, 0, False)
    RARE = (0.01, 0, False)
    OFTEN = (0.2, 0, False)
    ALWAYS = (1.0, 0, False)
    LATE = (0.2, 120, False)
    WITHHOLDING = (0.05, 0, True)
    LATE_WITHHOLDING = (0.5, 120, True)


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

    def work(self, number: int) -> None:
        """One interval, from the draw to what follows from it."""
        self.now_s += INTERVAL_S
        often, since, withholds = self.habit.value
        name = f"i{number}"
        p = rate(self.standing.passes.seen(self.now_s), self.standing.state, FLOORS, trusted=False)
        drawn = is_drawn(self.secret, name, p)
        self._named(name, number, Verdict.OPEN if drawn else Verdict.SPARED)
        self.life.append(Drawn(STEPS, p))
        self.num_audits += drawn
        cheats = number >= since and self.rng.random() < often
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
            self.standing = after(self.standing, Passed(self.now_s, self.now_s))

    def _named(self, name: str, number: int, verdict: Verdict) -> None:
        line = self.ledger.lines["a"]
        interval = Interval(name, number, "a", "a.0", "x", IntervalSet.span(STEPS * number, STEPS * (number + 1)), verdict)
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
        return STEPS * sum(name in self.bad for one in self.ledger.lines["a"] for name in one.intervals)


@cache
def lived(habit: Habit, seed: int) -> Node:
    rng = random.Random(seed)
    node = Node(habit, rng, Secret(rng.randbytes(32)))
    for number in range(NUM_INTERVALS):
        node.work(number)
    return node


@pytest.mark.parametrize("habit", [habit for habit in Habit if habit is not Habit.HONEST], ids=lambda habit: habit.name.lower())
def test_no_habit_keeps_more_in_the_ledger_than_is_shown(habit: Habit) -> None:
    nodes = [lived(habit, seed) for seed in range(8)]
    shown = exposure_of([life for node in nodes for life in node.lives])
    kept = sum(node.bad_steps for node in nodes)
    scatter = 3 * math.sqrt(STEPS * shown.undetected_steps)
    assert kept <= shown.undetected_steps + scatter
    assert sum(STEPS * len(node.bad) for node in nodes) > 0, "there was something to find"


def test_an_honest_node_is_never_blamed_and_is_audited_less_and_less() -> None:
    node = lived(Habit.HONEST, 1)
    assert (node.num_quarantines, node.standing.state, node.bad_steps) == (0, State.ACTIVE, 0)
    rates = [one.rate for one in node.life]
    assert rates[:10] == [1.0] * 10
    assert rates[-1] < 0.35
    assert node.num_audits < NUM_INTERVALS / 2
    assert node.ledger.num_cleared("a") == NUM_INTERVALS + 1


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
