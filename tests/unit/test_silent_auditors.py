"""Goal: who answers no audit is asked only where nobody else can be, for an hour after the last; who answers, or was gone, is asked like anybody."""

from __future__ import annotations

import itertools
from collections import Counter

from dcnr.intervals import IntervalSet
from orchestrator.audit_case import AUDIT_S
from orchestrator.audit_events import Bundle, People, Report, SendTask, Word
from orchestrator.audit_silent import MAX_SILENT, REST_S
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.draw import Secret
from trust.ledger import Interval, Ledger, Verdict
from trust.separation import Party, Separation
from trust.standing import State

ACCUSED = Candidate(Party("accused"), State.PROBATION, True)
NUM_INTERVALS = 40


class World:
    """One interval after the other; ``silent`` lets its time pass, everybody else finds nothing."""

    def __init__(self, *auditors: str, silent: str = "silent") -> None:
        numbers = itertools.count()
        self.desk = AuditDesk(Secret(b"k" * 32), Separation(single_host=True), lambda: f"{next(numbers):032x}")
        self.names, self.now_s, self.silent = itertools.count(), 0.0, silent
        self.asked = Counter[str]()
        self.people = {"accused": ACCUSED} | {name: Candidate(Party(name), State.ACTIVE, True) for name in auditors}

    def goes_on(self) -> list[SendTask]:
        self.desk.tick(People(self.people), self.now_s)
        return [one for one in self.desk.take() if isinstance(one, SendTask)]

    def opens(self) -> str:
        """The next interval, its evidence there."""
        name = f"{next(self.names):064x}"
        one = Interval(name, 0, "a", "a.0", "accused", IntervalSet.span(0, 1), Verdict.OPEN)
        self.desk.chronicle(Ledger({}, {name: one}), self.now_s)
        self.desk.tick(People(self.people), self.now_s)
        self.desk.answered("accused", name, Bundle("b" * 64, 1), self.now_s)
        return name

    def audits(self, *, longest_s: float = 3000.0) -> float:
        """How long the next interval waits."""
        name, began_s = self.opens(), self.now_s
        while not self.desk.decisions() and self.now_s < began_s + longest_s:
            for task in self.goes_on():
                self.asked[task.auditor] += 1
                if task.auditor != self.silent:
                    self.desk.reported(Report(task.task_id, task.auditor, name, Word.PASS, digest="d" * 64), self.now_s)
            self.now_s += 5.0
        self.desk.chronicle(Ledger({}, {}), self.now_s)
        return self.now_s - began_s


def test_who_answers_nothing_is_asked_twice_in_an_hour_and_then_last() -> None:
    world = World("silent", "one", "two")
    waits = [world.audits() for _ in range(NUM_INTERVALS)]
    assert world.asked["silent"] == MAX_SILENT
    assert sum(waited >= AUDIT_S for waited in waits) == MAX_SILENT, "each of its silences held up one interval"
    world.now_s += REST_S
    [world.audits() for _ in range(NUM_INTERVALS)]
    assert world.asked["silent"] == 2 * MAX_SILENT, "then it is asked again like anybody"


def test_who_says_only_at_the_end_of_its_time_that_it_cannot_is_silent_too() -> None:
    world = World("silent", "one", "two")
    for _ in range(NUM_INTERVALS):
        name = world.opens()
        world.desk.tick(People(world.people), world.now_s)
        while not world.desk.decisions():
            for task in world.goes_on():
                world.asked[task.auditor] += 1
                word, waited_s = (Word.REFUSED, AUDIT_S - 1.0) if task.auditor == "silent" else (Word.PASS, 1.0)
                world.now_s += waited_s
                world.desk.reported(Report(task.task_id, task.auditor, name, word, digest="d" * 64), world.now_s)
    assert world.asked["silent"] == MAX_SILENT


def test_where_nobody_else_can_be_asked_it_is_asked_all_the_same() -> None:
    world = World("silent")
    world.audits()
    assert world.asked["silent"] > MAX_SILENT


def test_who_answered_in_between_is_not_silent() -> None:
    world = World("now and then", silent="now and then")
    for _ in range(3 * MAX_SILENT):
        world.audits(longest_s=AUDIT_S)
        world.silent = ""
        world.audits()
        world.silent = "now and then"
    world.people["other"] = Candidate(Party("other"), State.ACTIVE, True)
    before, world.silent = world.asked["now and then"], ""
    [world.audits() for _ in range(NUM_INTERVALS)]
    assert world.asked["now and then"] - before > NUM_INTERVALS / 4


def test_who_was_gone_when_its_time_was_over_is_not_silent() -> None:
    world = World("leaves")
    for _ in range(3 * MAX_SILENT):
        world.opens()
        leaves = world.people["leaves"]
        assert [one.auditor for one in world.goes_on()] == ["leaves"]
        del world.people["leaves"]
        world.goes_on()
        world.people["leaves"] = leaves
        world.desk.chronicle(Ledger({}, {}), world.now_s)
    world.people["other"] = Candidate(Party("other"), State.ACTIVE, True)
    world.silent = ""
    [world.audits() for _ in range(NUM_INTERVALS)]
    assert world.asked["leaves"] > NUM_INTERVALS / 4
