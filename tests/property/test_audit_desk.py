"""Goal: in any order of reports, deaths, returns, lies and takeovers every open interval is decided once, or has an owner and a deadline; nobody audits itself.

Whatever happened before: where a verifier is there and answers, everything is decided within bounded time; where there is none, once auditors answer anything.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dcnr.errors import Refused, Stale
from dcnr.intervals import IntervalSet
from orchestrator.accounts import FINDINGS
from orchestrator.audit_case import AUDIT_S, CHALLENGE_S, LONGEST_CHALLENGE_S, LOOK_S, MAX_DOUBLED
from orchestrator.audit_events import (
    Bundle,
    Decision,
    Known,
    Late,
    Pay,
    People,
    Report,
    SendChallenge,
    SendTask,
    VerifyRecord,
    Word,
)
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.draw import Secret
from trust.folding import NEXT
from trust.ledger import Interval, Ledger, Verdict
from trust.separation import Party, Separation
from trust.standing import State

NODES = tuple(
    Candidate(Party(f"n{number}", f"o{number}", f"s{number}"), State.PROBATION if number == 5 else State.ACTIVE, True)
    for number in range(6)
)
VERIFIER = Party("verifier", "operator", "s9")
NUM_BATCHES = 4
"""The job ends with whatever comes from here on."""
LONGEST_S = LONGEST_CHALLENGE_S + 40 * (AUDIT_S + LOOK_S)
"""Of anything, once a verifier is there and answers."""


class Desks(RuleBasedStateMachine):
    """One chain of verdicts, and the desks of its holders."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.rng = 0.0, random.Random(0)
        self.intervals: dict[str, Interval] = {}
        self.here = {one.party.node_id: one for one in NODES}
        self.has_verifier = False
        self.found_out = frozenset[str]()
        self.takes_over()

    def takes_over(self) -> None:
        """A successor that knows the chain alone."""
        self.desk = AuditDesk(
            Secret(self.rng.randbytes(32)), Separation(), lambda: f"{self.rng.getrandbits(128):032x}"
        )  # fmt: skip
        self.challenged: dict[str, SendChallenge] = {}
        self.tasks: dict[str, SendTask] = {}
        self.records: list[VerifyRecord] = []
        self.decided: dict[str, Decision] = {}
        self.tells()
        self.ticks(0.0)

    def tells(self) -> None:
        """A manifest is under the head."""
        self.decided = {}
        self.desk.chronicle(Ledger({}, dict(self.intervals)), self.now_s)
        self.act()

    def ticks(self, seconds: float) -> None:
        """Time passes."""
        self.now_s += seconds
        verifiers = (VERIFIER,) if self.has_verifier else ()
        people = People(dict(self.here), verifiers, {"a": frozenset({"n4"})}, found_out=self.found_out, num_batches=NUM_BATCHES)
        self.desk.tick(people, self.now_s)
        self.act()

    def act(self) -> None:
        """Takes what is to be done; nothing is done twice, and nobody is asked about itself."""
        for action in self.desk.take():
            match action:
                case SendChallenge():
                    assert action.pnode_id == self.intervals[action.interval].pnode_id
                    self.challenged[action.interval] = action
                case SendTask():
                    one = self.intervals[action.interval]
                    assert action.auditor not in (one.pnode_id, "n4", "n5"), "neither itself, nor a part in it, nor in probation"
                    assert action.is_verifier == (action.auditor == "verifier")
                    assert action.is_verifier or action.auditor in self.here
                    self.tasks[action.task_id] = action
                case VerifyRecord():
                    self.records.append(action)
                case Known() | Late() | Pay():
                    pass

    def hears(self, report: Report) -> None:
        """A report that may come too late, or about what an earlier holder asked."""
        try:
            self.desk.reported(report, self.now_s)
        except (Stale, Refused) as error:
            if error.code not in ("task_over", "not_asked"):
                raise
        self.act()

    def name(self, pick: int, names: Iterable[str]) -> str:
        """One of them."""
        found = sorted(names)
        return found[pick % len(found)]

    @initialize(accused=st.lists(st.integers(0, 5), min_size=2, max_size=5), refuses=st.integers(0, 9))
    def begin(self, accused: list[int], refuses: int) -> None:
        """Audits are under way from the first moment on."""
        for number in accused:
            self.opens(number)
        self.answers(refuses)

    @rule(accused=st.integers(0, 5))
    def opens(self, accused: int) -> None:
        """A manifest names one interval more."""
        number = len(self.intervals)
        batches = IntervalSet.of((number, number + 1))
        name = f"{number:064x}"
        self.intervals[name] = Interval(name, number, "a", f"a.{accused}", f"n{accused}", batches, Verdict.OPEN)
        self.tells()

    @rule(seconds=st.sampled_from((0.1, 5.0, 6.0, 20.0, 61.0, 130.0)))
    def waits(self, seconds: float) -> None:
        """Time passes."""
        self.ticks(seconds)

    @precondition(lambda self: self.challenged)
    @rule(refuses=st.integers(0, 9))
    def answers(self, refuses: int) -> None:
        """The accused answer, all but perhaps one with their evidence."""
        for number, name in enumerate(sorted(self.challenged)):
            bundle = Bundle("e" * 64, 10) if number != refuses else None
            self.desk.answered(self.intervals[name].pnode_id, name, bundle, self.now_s)
        self.act()

    @precondition(lambda self: self.tasks)
    @rule(words=st.lists(st.sampled_from(Word), min_size=1, max_size=4))
    def reports(self, words: list[Word]) -> None:
        """Auditors say something, perhaps too late."""
        for task_id, word in zip(sorted(self.tasks), words, strict=False):
            task = self.tasks.pop(task_id)
            report = Report(task.task_id, task.auditor, task.interval, word, "loss", "f" * 64, "d" * 64)
            for forged in (replace(report, auditor="n5"), replace(report, task_id="0" * 32)):
                with pytest.raises(Refused):
                    self.desk.reported(forged, self.now_s)
            if word in FINDINGS:
                for elsewhere in (replace(report, interval="f" * 64), replace(report, bundle="c" * 64)):
                    with pytest.raises((Refused, Stale)):
                        self.desk.reported(elsewhere, self.now_s)
            self.hears(report)

    @precondition(lambda self: self.records)
    @rule(pick=st.integers(0, 99), outcome=st.sampled_from((True, False, None, "unmeasured")))
    def looks(self, pick: int, outcome: bool | str | None) -> None:
        """A record is verified, or cannot be had, or nobody here can measure it."""
        record = self.records.pop(pick % len(self.records))
        if outcome is None:
            self.desk.unverified(record.interval, record.auditor, self.now_s, "not_read")
        elif isinstance(outcome, str):
            self.desk.unverified(record.interval, record.auditor, self.now_s, "no_verifier")
        else:
            self.desk.verified(record.interval, record.auditor, self.now_s, proven=outcome, part="loss")
        self.act()

    @rule(number=st.integers(0, 5), verifier=st.booleans())
    def comes_or_goes(self, number: int, verifier: bool) -> None:
        """A node leaves or is back; so does the verifier."""
        node_id = f"n{number}"
        if self.here.pop(node_id, None) is None:
            self.here[node_id] = NODES[number]
        self.has_verifier = verifier
        self.ticks(0.5)

    @rule(number=st.integers(0, 5))
    def is_found_out(self, number: int) -> None:
        """One of them goes into quarantine, or is forgotten again."""
        self.found_out ^= {f"n{number}"}
        self.ticks(0.5)

    @rule(pick=st.integers(0, 99))
    def equivocates(self, pick: int) -> None:
        """Two signed statements about one step turn up."""
        self.desk.equivocated([self.name(pick, self.intervals), "x"], "9" * 64)

    @rule()
    def names(self) -> None:
        """A manifest takes in what is decided."""
        for decision in self.desk.decisions():
            before = self.intervals[decision.interval]
            assert decision.verdict in NEXT[before.verdict], "a manifest can say it"
            assert (decision.verdict is Verdict.FAILED) == bool(decision.evidence), "nobody fails without evidence"
            self.intervals[decision.interval] = replace(before, verdict=decision.verdict)
        self.tells()

    @rule(chance=st.integers(0, 5))
    def dies(self, chance: int) -> None:
        """The holder dies, another one takes over."""
        if not chance:
            self.takes_over()

    @invariant()
    def holds(self) -> None:
        """Always."""
        self.desk.check()
        opened = {name for name, one in self.intervals.items() if one.verdict is Verdict.OPEN}
        waits = self.desk.waits(self.now_s)
        assert {one.interval for one in waits} == opened
        assert all(one.owner for one in waits)
        longest_s = max(CHALLENGE_S, AUDIT_S * 2.0**MAX_DOUBLED)
        assert all(one.until_s <= self.now_s + longest_s for one in waits), "every wait has a limit"
        for decision in self.desk.decisions():
            known = self.decided.setdefault(decision.interval, decision)
            assert known.verdict is decision.verdict or decision.evidence == "9" * 64, "never two verdicts"

    def teardown(self) -> None:
        """From here on a verifier answers, and the accused do, if they are here."""
        self.has_verifier, began_s = True, self.now_s
        while any(one.verdict is Verdict.OPEN for one in self.intervals.values()):
            assert self.now_s - began_s < LONGEST_S * (1 + len(self.intervals)), "everything is decided in bounded time"
            for name in sorted(self.challenged):
                if self.intervals[name].pnode_id in self.here:
                    self.desk.answered(self.intervals[name].pnode_id, name, Bundle("e" * 64, 10), self.now_s)
            for task in list(self.tasks.values()):
                if task.is_verifier:
                    self.reports_pass(task)
            for record in self.records:
                self.desk.verified(record.interval, record.auditor, self.now_s, proven=False)
            self.challenged, self.records = {}, []
            self.ticks(10.0)
            self.names()

    def reports_pass(self, task: SendTask) -> None:
        """The verifier finds nothing."""
        del self.tasks[task.task_id]
        self.hears(Report(task.task_id, task.auditor, task.interval, Word.PASS))


class DesksWithoutVerifier(Desks):
    """No orchestrator that holds the head has a verifier."""

    words: tuple[Word, ...] = (Word.PASS, Word.DOUBT, Word.FAULT, Word.UNVERIFIABLE)

    def ticks(self, seconds: float) -> None:
        """Time passes, and no verifier comes."""
        self.has_verifier = False
        super().ticks(seconds)

    def teardown(self) -> None:
        """From here on auditors say anything, the accused show their evidence, and the store answers."""
        self.here, began_s = {one.party.node_id: one for one in NODES}, self.now_s
        while any(one.verdict is Verdict.OPEN for one in self.intervals.values()):
            assert self.now_s - began_s < LONGEST_S * (1 + len(self.intervals)), "everything is decided in bounded time"
            for name in sorted(self.challenged):
                self.desk.answered(self.intervals[name].pnode_id, name, Bundle("e" * 64, 10), self.now_s)
            for task in list(self.tasks.values()):
                del self.tasks[task.task_id]
                said = self.rng.choice(self.words)
                self.hears(Report(task.task_id, task.auditor, task.interval, said, "loss", "f" * 64, "d" * 64))
            for record in self.records:
                self.desk.unverified(record.interval, record.auditor, self.now_s, "no_verifier")
            self.challenged, self.records = {}, []
            self.ticks(10.0)
            self.names()


TestDesks = Desks.TestCase
TestDesks.settings = settings(max_examples=100, stateful_step_count=40)
TestDesksWithoutVerifier = DesksWithoutVerifier.TestCase
TestDesksWithoutVerifier.settings = settings(max_examples=60, stateful_step_count=40)


def test_where_every_auditor_is_silent_a_busy_verifier_has_each_interval_in_turn() -> None:
    """And nobody who did not answer is asked again before it has looked: three intervals at once once took hours."""
    world = Desks()
    for accused in (4, 4, 4):
        world.opens(accused)
    world.answers(0)
    world.teardown()
    assert {one.verdict for one in world.intervals.values()} == {Verdict.PASSED}


def test_where_every_auditor_finds_a_fault_and_nobody_can_measure_it_each_interval_is_taken_back() -> None:
    """They stayed open for ever, and stopped the replica."""
    world = DesksWithoutVerifier()
    world.words = (Word.FAULT,)
    for accused in (1, 2, 3):
        world.opens(accused)
    world.teardown()
    assert {one.verdict for one in world.intervals.values()} == {Verdict.UNVERIFIABLE}
