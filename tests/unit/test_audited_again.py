"""Goal: what passed on the word alone of an auditor that is found out since, for whatever it did, is audited once more while its evidence is there; what a
job ends with is always audited, by two.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from dcnr.intervals import IntervalSet
from orchestrator.accounts import Accounts
from orchestrator.audit_bundles import MAX_BUNDLES, Bundles
from orchestrator.audit_case import AUDIT_S, GIVE_UP_S
from orchestrator.audit_events import Bundle, Pay, People, Report, SendChallenge, SendTask, VerifyRecord, Word
from orchestrator.audits import AuditDesk
from orchestrator.decider import GRANT_LIFETIME_S
from trust.auditors import Candidate
from trust.draw import LAST_BATCHES, LAST_PART, Secret, Task, is_last, task_of
from trust.ledger import Interval, Ledger, Named, Verdict
from trust.overturned import AGAIN_S, Truth
from trust.separation import Party, Separation
from trust.standing import State

SECRET, VERIFIER = Secret(b"k" * 32), Party("v")
AUDITORS = {name: Candidate(Party(name), State.ACTIVE, True) for name in ("a0", "a1")}
ACCUSED = {"accused": Candidate(Party("accused"), State.PROBATION, True)}
NAMES = [
    name
    for name in (f"{number:064x}" for number in range(1000))
    if {task_of(SECRET, name, auditor, asked, 0) for auditor in AUDITORS for asked in (0, 1)} == {Task.REAL}
][:3]
"""Of intervals whose auditors are believed."""
CANARY = next(name for name in (f"{number:064x}" for number in range(1000)) if task_of(SECRET, name, "a0", 0) is not Task.REAL)
"""Of one that the verifier repeats if that one audits it."""
FINDS: Mapping[tuple[str, str], Word] = MappingProxyType({})
BUNDLE = Bundle("b" * 64, 1)


class Desk:
    """A desk with three intervals of one PNode, one named after the other; everybody answers at once, and manifests take in what is decided."""

    def __init__(self, **people: object) -> None:
        numbers = itertools.count()
        self.desk = AuditDesk(SECRET, Separation(single_host=True), lambda: f"{next(numbers):032x}")
        self.intervals: dict[str, Interval] = {}
        self.people = replace(People(ACCUSED | {"a0": AUDITORS["a0"]}, (VERIFIER,)), **people)  # type: ignore[arg-type]
        self.now_s = 0.0
        self.asked: list[tuple[int, str]] = []
        """(interval, who audited it)."""
        self.paid: list[str] = []
        self.proves = True
        """Whether a record of a fault holds."""
        self.tells()

    def tells(self) -> None:
        """A manifest takes in what is decided, and names the next interval."""
        for one in self.desk.decisions():
            self.intervals[one.interval] = replace(self.intervals[one.interval], verdict=one.verdict)
        at = len(self.intervals)
        if at < len(NAMES) and all(one.verdict is not Verdict.OPEN for one in self.intervals.values()):
            name = NAMES[at]
            self.intervals[name] = Interval(name, at, "a", "a.0", "accused", IntervalSet.span(at, at + 1), Verdict.OPEN)
        self.desk.chronicle(Ledger({}, dict(self.intervals)), self.now_s)

    def rounds(self, number: int = 12, finds: Mapping[tuple[str, str], Word] = FINDS) -> list[Verdict]:
        """The verdicts after so many. ``finds``: words by (auditor, interval) that are no pass."""
        for _ in range(number):
            self.now_s += 1.0
            self.desk.tick(self.people, self.now_s)
            while actions := self.desk.take():
                for action in actions:
                    match action:
                        case SendChallenge():
                            self.desk.answered("accused", action.interval, BUNDLE, self.now_s)
                        case SendTask():
                            at = NAMES.index(action.interval) if action.interval in NAMES else 1
                            self.asked.append((at, action.auditor))
                            word = finds.get((action.auditor, action.interval), Word.PASS)
                            found = Report(action.task_id, action.auditor, action.interval, word, "loss", "f" * 64, "d" * 64)
                            self.desk.reported(found, self.now_s)
                        case VerifyRecord():
                            self.desk.verified(action.interval, action.auditor, self.now_s, proven=self.proves, part="loss")
                        case Pay():
                            self.paid.append(action.auditor)
                            self.finds_out(action.auditor)
            self.tells()
        return [self.intervals[name].verdict for name in NAMES if name in self.intervals]

    def finds_out(self, auditor: str = "a0") -> None:
        """It is in quarantine from now on; another one is here."""
        gone = replace(AUDITORS[auditor], state=State.QUARANTINED)
        self.people = replace(self.people, candidates=ACCUSED | AUDITORS | {auditor: gone}, found_out=frozenset({auditor}))


def test_what_only_the_found_out_has_passed_is_audited_once_more() -> None:
    world = Desk()
    assert world.rounds() == [Verdict.PASSED] * 3
    assert sorted(world.asked) == [(0, "a0"), (1, "a0"), (2, "a0")]
    world.asked.clear()
    world.finds_out()
    assert world.rounds() == [Verdict.PASSED] * 3
    assert {at for at, _ in world.asked} == {0, 1, 2}
    assert {auditor for _, auditor in world.asked} <= {"a1", "v"}
    assert {at for at, auditor in world.asked if auditor == "v"} == {0, 1, 2}, "the verifier repeats what is audited again"
    world.asked.clear()
    world.rounds()
    assert not world.asked, "once is enough"


def test_without_a_verifier_too_and_never_a_third_time() -> None:
    world = Desk(verifiers=())
    world.rounds()
    world.asked.clear()
    world.finds_out()
    assert world.rounds(24) == [Verdict.PASSED] * 3
    assert sorted(world.asked) == [(0, "a1"), (1, "a1"), (2, "a1")]
    world.finds_out("a1")
    world.people = replace(world.people, candidates=world.people.candidates | {"a0": AUDITORS["a0"]})
    world.asked.clear()
    world.rounds()
    assert not world.asked, "two have passed it, and it was looked at again already"


def test_what_was_waved_through_fails_when_its_auditor_is_found_out() -> None:
    world = Desk()
    world.rounds()
    world.finds_out()
    found = world.rounds(finds={(auditor, NAMES[1]): Word.FAULT for auditor in ("a1", "v")})
    assert found == [Verdict.PASSED, Verdict.FAILED, Verdict.PASSED]


def test_evidence_that_the_store_may_have_let_go_is_not_asked_for() -> None:
    """Nobody else has it any more, and what cannot be verified costs who did it half of its record."""
    world = Desk()
    world.rounds()
    world.now_s += AGAIN_S
    world.asked.clear()
    world.finds_out()
    assert world.rounds() == [Verdict.PASSED] * 3
    assert not world.asked


def test_who_slanders_once_takes_nothing_back_that_it_passed_long_ago() -> None:
    """Its lie is not about that, and nobody has the evidence any more: it would go back unseen, with hours of work of others on top."""
    world = Desk()
    assert world.rounds(2) == [Verdict.PASSED, Verdict.PASSED, Verdict.OPEN]
    del world.intervals[NAMES[2]]
    world.desk.chronicle(Ledger({}, dict(world.intervals)), world.now_s)
    world.now_s += AGAIN_S
    world.tells()
    world.proves = False
    assert world.rounds(finds={("a0", NAMES[2]): Word.FAULT}) == [Verdict.PASSED] * 3
    assert world.paid == ["a0"]
    assert sorted(world.asked) == [(0, "a0"), (1, "a0"), (2, "a0"), (2, "v")]


@pytest.mark.parametrize("after_s", [0.0, AGAIN_S])
def test_who_waves_one_through_takes_back_nothing_of_which_the_evidence_may_be_gone(after_s: float) -> None:
    """For the price of one wrong interval of a friend an auditor had everything sent back that it had ever passed alone: days of work of honest people."""
    world = Desk(num_batches=3)
    assert world.rounds(2) == [Verdict.PASSED, Verdict.PASSED, Verdict.OPEN]
    del world.intervals[NAMES[2]]
    world.desk.chronicle(Ledger({}, dict(world.intervals)), world.now_s)
    world.now_s += after_s
    world.tells()
    found = world.rounds(finds={("v", NAMES[2]): Word.FAULT})
    assert (world.paid, found) == (["a0"], [Verdict.PASSED, Verdict.PASSED, Verdict.FAILED])
    again = {at for at, auditor in world.asked if at < 2 and auditor == "v"}
    assert again == (set() if after_s else {0, 1}), "what it passed lately is audited again"


@pytest.mark.parametrize("is_known", [True, False])
def test_who_tells_the_truth_where_anybody_could_know_that_it_is_repeated_is_believed_no_more_for_that(is_known: bool) -> None:
    """What is open again stands in manifests: one fault told there, and nothing that it had waved through before was looked at any more."""
    world = Desk(candidates=ACCUSED | {"a0": AUDITORS["a0"]})
    assert world.rounds(1) == [Verdict.PASSED, Verdict.OPEN]
    name = CANARY if not is_known else NAMES[1]
    one = replace(world.intervals.pop(NAMES[1]), name=name, verdict=Verdict.SPARED if is_known else Verdict.OPEN)
    world.intervals[name] = one
    world.desk.take()
    world.desk.chronicle(Ledger({"a": (Named("s", (name,)),)}, dict(world.intervals)), world.now_s)
    world.people = replace(world.people, left={"a": (one,)} if is_known else {})
    world.desk.tick(world.people, world.now_s)
    world.tells()
    world.people = replace(world.people, left={})
    world.rounds(2, finds={("a0", name): Word.FAULT})
    assert world.intervals[name].verdict is Verdict.FAILED
    world.asked.clear()
    world.finds_out()
    world.rounds(2)
    assert ((0, "v") in world.asked) == is_known


def test_a_successor_has_audited_again_what_a_liar_passed_lately_and_nothing_older() -> None:
    """The store still has that evidence, and whose work it was its name."""
    world = Desk(verifiers=(), candidates=ACCUSED | AUDITORS)
    world.desk = AuditDesk(SECRET, Separation(single_host=True), lambda: "0" * 32)
    verdicts = (Verdict.PASSED, Verdict.PASSED, Verdict.FAILED)
    world.intervals = {
        name: Interval(name, at, "a", "a.0", "accused", IntervalSet.span(at, at + 1), verdict)
        for at, (name, verdict) in enumerate(zip(NAMES, verdicts, strict=True))
    }
    world.desk.chronicle(Ledger({}, dict(world.intervals)), AGAIN_S)
    passes = [Report("t" * 32, "a0", name, Word.PASS, digest="d" * 64) for name in NAMES]
    world.desk.recalled(passes, [-1.0, 1.0, 2.0])
    world.desk.proven({NAMES[2]: ""})
    assert [one.auditor for one in world.desk.take() if isinstance(one, Pay)] == ["a0"]
    world.desk.tick(replace(world.people, found_out=frozenset({"a0", "a1"})), AGAIN_S)
    assert [(one.interval, one.verdict) for one in world.desk.decisions()] == [(NAMES[1], Verdict.OPEN)]


def test_what_another_one_has_passed_too_stays() -> None:
    world = Desk(redundancy={"a": 3}, candidates=ACCUSED | AUDITORS)
    world.rounds()
    assert {auditor for _, auditor in world.asked} == set(AUDITORS)
    world.asked.clear()
    world.finds_out()
    world.rounds()
    assert not world.asked


def test_what_only_two_have_passed_who_are_both_found_out_is_audited_again() -> None:
    """Two of a kind that looked at what a job ends with: each stood for the other, whatever they were found out for."""
    world = Desk(redundancy={"a": 3}, candidates=ACCUSED | AUDITORS)
    assert world.rounds(2)[:1] == [Verdict.PASSED]
    assert sorted(auditor for at, auditor in world.asked if at == 0) == ["a0", "a1"]
    world.asked.clear()
    world.people = replace(world.people, found_out=frozenset(AUDITORS), candidates=ACCUSED)
    world.rounds(3)
    assert (0, "v") in world.asked


def test_what_passes_after_its_auditor_was_found_out_is_audited_again_as_well() -> None:
    """Its word was heard before, the manifest comes after."""
    world = Desk()
    world.desk.tick(world.people, 1.0)
    world.desk.answered("accused", NAMES[0], BUNDLE, 1.0)
    [task] = [one for one in world.desk.take() if isinstance(one, SendTask)]
    world.desk.reported(Report(task.task_id, "a0", NAMES[0], Word.PASS, digest="d" * 64), 1.0)
    assert [one.verdict for one in world.desk.decisions()] == [Verdict.PASSED]
    world.finds_out()
    world.desk.tick(world.people, 2.0)
    world.now_s = 2.0
    world.tells()
    world.rounds()
    assert (0, "v") in world.asked


def test_two_look_at_the_end_of_a_job_one_of_them_the_verifier_where_nobody_else_is_free() -> None:
    alone = Desk(num_batches=3)
    assert alone.rounds() == [Verdict.PASSED] * 3
    assert alone.asked == [(0, "a0"), (1, "a0"), (2, "a0"), (2, "v")]
    both = Desk(num_batches=3, candidates=ACCUSED | AUDITORS)
    assert both.rounds() == [Verdict.PASSED] * 3
    assert sorted(auditor for at, auditor in both.asked if at == 2) == ["a0", "a1"]
    assert len(both.asked) == 4
    silent = Desk(num_batches=3)
    silent.rounds(5, {("v", NAMES[2]): Word.REFUSED})
    assert silent.intervals[NAMES[2]].verdict is Verdict.OPEN
    silent.now_s += GIVE_UP_S
    assert silent.rounds(5, {("v", NAMES[2]): Word.REFUSED}) == [Verdict.PASSED] * 3, "a verifier that cannot look holds up no job"
    without = Desk(num_batches=3, verifiers=())
    assert without.rounds() == [Verdict.PASSED] * 3
    assert without.asked == [(0, "a0"), (1, "a0"), (2, "a0")], "nobody waits for somebody who may never come"


@pytest.mark.parametrize(
    ("batches", "num_batches", "wanted"),
    [
        (IntervalSet.span(0, 9 * LAST_PART - 9), 9 * LAST_PART, False),
        (IntervalSet.span(0, 9 * LAST_PART - 8), 9 * LAST_PART, True),
        (IntervalSet.span(0, 10**9 - LAST_BATCHES), 10**9, False),
        (IntervalSet.span(0, 10**9 - LAST_BATCHES + 1), 10**9, True),
        (IntervalSet.of((3, 5), (60, 64)), 64, True),
        (IntervalSet.span(0, 63), 64, False),
        (IntervalSet.span(0, 1), 1, True),
        (IntervalSet.span(0, 1), 0, False),
        (IntervalSet.empty(), 64, False),
    ],
)
def test_a_job_ends_with_whatever_holds_one_of_its_last_batches(batches: IntervalSet, num_batches: int, wanted: bool) -> None:
    assert is_last(batches, 0, num_batches) is wanted


@pytest.mark.parametrize(
    ("num_held", "num_batches", "wanted"), [(630, 640, True), (629, 640, False), (63, 64, True), (0, 0, False)]
)
def test_a_job_ends_with_whatever_comes_last(num_held: int, num_batches: int, wanted: bool) -> None:
    assert {is_last(batches, num_held, num_batches) for batches in (IntervalSet.empty(), IntervalSet.span(0, 1))} == {wanted}


def test_two_look_at_what_comes_last_though_it_holds_early_batches() -> None:
    name, held = NAMES[0], "e" * 64
    before = Interval(held, 0, "a", "a.0", "accused", IntervalSet.span(1, 64), Verdict.SPARED)
    last = Interval(name, 1, "a", "a.0", "accused", IntervalSet.span(0, 1), Verdict.OPEN)
    line = (Named("0", ()), Named("1", (held,)), Named("2", (name,)))
    numbers = itertools.count()
    desk = AuditDesk(SECRET, Separation(single_host=True), lambda: f"{next(numbers):032x}")
    desk.tick(People(ACCUSED | AUDITORS, (VERIFIER,), num_batches=64), 0.0)
    desk.chronicle(Ledger({"a": line}, {held: before, name: last}), 0.0)
    desk.answered("accused", name, BUNDLE, 0.0)
    [task] = [one for one in desk.take() if isinstance(one, SendTask)]
    desk.reported(Report(task.task_id, task.auditor, name, Word.PASS, digest="d" * 64), 1.0)
    assert not desk.decisions(), "another one is asked"
    [task] = [one for one in desk.take() if isinstance(one, SendTask)]
    desk.reported(Report(task.task_id, task.auditor, name, Word.PASS, digest="d" * 64), 2.0)
    assert [one.verdict for one in desk.decisions()] == [Verdict.PASSED]


def test_what_is_heard_or_known_later_counts() -> None:
    accounts = Accounts()

    def said(interval: str, auditor: str = "a0") -> Report:
        return Report("0" * 32, auditor, interval, Word.PASS, digest="d" * 64)

    accounts.heard(said("i"), is_canary=False)
    assert accounts.passed_alone({"a0"}) == {"i": "a0"}
    accounts.heard(said("j"), is_canary=False)
    assert accounts.passed_alone({"a0"}) == {"i": "a0", "j": "a0"}
    accounts.see("i", Truth.RIGHT)
    assert accounts.passed_alone({"a0"}) == {"j": "a0"}
    accounts.recall([said("k"), said("j", "a1")])
    assert accounts.passed_alone({"a0"}) == {"k": "a0"}
    assert accounts.passed_alone({"a0", "a1"}) == {"k": "a0", "j": "a1"}, "nobody who is believed has passed that either"
    accounts.heard(said("j", "a2"), is_canary=False)
    assert accounts.passed_alone({"a0", "a1"}) == {"k": "a0"}
    assert accounts.passed_alone(()) == {}


def test_what_is_shown_later_blames_nobody_who_passed_what_was_shown_before() -> None:
    """Evidence of what is audited again may be forgotten, and its author brings something else."""
    accounts, name = Accounts(), NAMES[0]
    accounts.heard(Report("t" * 32, "a0", name, Word.PASS, digest="d" * 64, bundle=BUNDLE.digest), is_canary=False)
    accounts.see(name, Truth.WRONG, "c" * 64)
    assert accounts.settle() == []
    accounts.recall([Report("t" * 32, "a1", name, Word.PASS, digest="e" * 64, bundle="c" * 64)])
    assert [one.auditor for one in accounts.settle()] == ["a1"]
    accounts.see(name, Truth.WRONG, BUNDLE.digest)
    assert [one.auditor for one in accounts.settle()] == ["a0"]


def test_the_store_keeps_evidence_for_longer_than_it_is_opened_again() -> None:
    assert AGAIN_S + 2 * AUDIT_S <= GRANT_LIFETIME_S


def test_of_evidence_the_oldest_is_forgotten() -> None:
    found = Bundles()
    for number in range(MAX_BUNDLES + 1):
        found.came(str(number), BUNDLE, 0.0)
    assert found.of("0") is None
    assert not found.take_again("0", 1.0, also_told=True)
    assert found.of("1") is BUNDLE
    assert found.take_again("1", AGAIN_S, also_told=False)
    assert not found.take_again("1", 1.0, also_told=False)
    assert not found.take_again("2", AGAIN_S + 1, also_told=False)
