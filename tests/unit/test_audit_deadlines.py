"""Goal: who is here has ten minutes to bring evidence, who is gone less; after a late audit the next has longer; a drawn pass is repeated by the verifier."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dcnr.errors import Refused
from dcnr.intervals import IntervalSet
from orchestrator.audit_case import AUDIT_S, CHALLENGE_S, LONGEST_CHALLENGE_S, LOOK_S
from orchestrator.audit_events import Bundle, Pay, People, Report, SendChallenge, SendTask, Word
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.draw import FIRST_PASSES, Secret, Task, task_of
from trust.ledger import Interval, Ledger, Verdict
from trust.separation import Party, Separation
from trust.standing import State

NAME, SECRET, VERIFIER = "a" * 64, Secret(b"k" * 32), Party("v")
ACCUSED = Candidate(Party("accused"), State.PROBATION, True)
AUDITOR = Candidate(Party("auditor"), State.ACTIVE, True)


def desk(name: str = NAME) -> AuditDesk:
    numbers = itertools.count()
    made = AuditDesk(SECRET, Separation(single_host=True), lambda: f"{next(numbers):032x}")
    one = Interval(name, 0, "a", "a.0", "accused", IntervalSet.span(0, 1), Verdict.OPEN)
    made.chronicle(Ledger({}, {name: one}), 0.0)
    return made


def tasks_of(made: AuditDesk) -> list[SendTask]:
    return [one for one in made.take() if isinstance(one, SendTask)]


def decided_at(people: People) -> float:
    made, now_s = desk(), 0.0
    while not made.decisions():
        now_s += 1.0
        made.tick(people, now_s)
    [decision] = made.decisions()
    assert decision.verdict is Verdict.UNVERIFIABLE
    return now_s


def test_who_is_gone_has_less_than_a_minute_and_who_is_here_ten() -> None:
    assert decided_at(People()) == CHALLENGE_S
    assert decided_at(People({"accused": ACCUSED})) == LONGEST_CHALLENGE_S


def test_each_challenge_gives_who_is_asked_that_much_longer_up_to_ten_minutes() -> None:
    """Repeated with the first one's time, none told a PNode that it had more: its evidence had to be there after 45 s."""
    made, given = desk(), dict[float, float]()
    for now_s in range(0, 700, 5):
        made.tick(People({"accused": ACCUSED}), float(now_s))
        given |= {float(now_s): one.until_s for one in made.take() if isinstance(one, SendChallenge)}
    assert given == {asked_s: min(asked_s + CHALLENGE_S, LONGEST_CHALLENGE_S) for asked_s in given}
    asked = sorted(given)
    assert all(later < given[earlier] for earlier, later in itertools.pairwise(asked)), "it is asked again before its time is over"
    assert max(given.values()) == LONGEST_CHALLENGE_S


def test_each_late_audit_doubles_the_time_of_the_next() -> None:
    made, people, given = desk(), People(verifiers=(VERIFIER,)), list[float]()
    made.answered("accused", NAME, Bundle("b" * 64, 1), 0.0)
    for now_s in range(0, 1000, 5):
        made.tick(people, float(now_s))
        given += [one.until_s - now_s for one in made.take() if isinstance(one, SendTask)]
    assert given[:3] == [AUDIT_S, 2 * AUDIT_S, 4 * AUDIT_S]


def test_who_says_itself_that_its_time_was_over_was_late_too() -> None:
    """An auditor stops at its deadline and says so, before anybody misses its answer: each next one had as little time."""
    made, people, given = desk(), People(verifiers=(VERIFIER,)), list[float]()
    made.answered("accused", NAME, Bundle("b" * 64, 1), 0.0)
    now_s = LOOK_S
    for _ in range(3):
        made.tick(people, now_s)
        [task] = tasks_of(made)
        given.append(task.until_s - now_s)
        made.reported(Report(task.task_id, "v", NAME, Word.REFUSED), task.until_s)
        now_s = task.until_s + LOOK_S
    assert given == [AUDIT_S, 2 * AUDIT_S, 4 * AUDIT_S]
    made.tick(people, now_s)
    [task] = tasks_of(made)
    made.reported(Report(task.task_id, "v", NAME, Word.REFUSED), now_s + 1.0)
    made.tick(people, now_s + 1.0 + LOOK_S)
    [again] = tasks_of(made)
    assert again.until_s - (now_s + 1.0 + LOOK_S) == task.until_s - now_s, "whoever refuses at once lacks something else"


def test_a_pass_that_is_drawn_is_repeated_by_the_verifier_and_whoever_passed_what_is_wrong_pays() -> None:
    name = next(f"{number:064x}" for number in range(1000) if task_of(SECRET, f"{number:064x}", "auditor", 0) is not Task.REAL)
    made = desk(name)
    made.tick(People({"accused": ACCUSED, "auditor": AUDITOR}, (VERIFIER,)), 1.0)
    made.answered("accused", name, Bundle("b" * 64, 1), 1.0)
    [task] = [one for one in made.take() if isinstance(one, SendTask)]
    made.reported(Report(task.task_id, "auditor", name, Word.PASS, digest="d" * 64), 2.0)
    assert not made.decisions(), "its word is not enough"
    [again] = [one for one in made.take() if isinstance(one, SendTask)]
    assert again.is_verifier
    made.reported(Report(again.task_id, "v", name, Word.FAULT, "output", "f" * 64), 3.0)
    made.verified(name, "v", 4.0, proven=True, part="output")
    [decision] = made.decisions()
    assert decision.verdict is Verdict.FAILED
    assert [one.auditor for one in made.take() if isinstance(one, Pay)] == ["auditor"]


@pytest.mark.parametrize(("num_passes", "is_repeated"), [(0, True), (FIRST_PASSES - 1, True), (FIRST_PASSES, False)])
def test_an_auditors_first_passes_are_repeated_by_the_verifier_more_often_than_later_ones(
    num_passes: int, is_repeated: bool
) -> None:
    name = next(
        name
        for name in (f"{number:064x}" for number in range(1000))
        if task_of(SECRET, name, "auditor", 0, 0) is not Task.REAL is task_of(SECRET, name, "auditor", 0)
    )
    made = desk(name)
    earlier = [Report("0" * 32, "auditor", f"{number:064x}", Word.PASS, digest="d" * 64) for number in range(num_passes)]
    made.recalled(earlier, [0.0] * num_passes)
    made.tick(People({"accused": ACCUSED, "auditor": AUDITOR}, (VERIFIER,)), 1.0)
    made.answered("accused", name, Bundle("b" * 64, 1), 1.0)
    [task] = tasks_of(made)
    made.reported(Report(task.task_id, "auditor", name, Word.PASS, digest="d" * 64), 2.0)
    assert [one.is_verifier for one in tasks_of(made)] == [True] * is_repeated
    assert bool(made.decisions()) is not is_repeated


def test_where_a_graph_asks_for_three_executions_two_auditors_repeat_the_interval() -> None:
    helpers = {name: Candidate(Party(name), State.ACTIVE, True) for name in ("first", "second")}
    name = next(
        f"{number:064x}"
        for number in range(1000)
        if {task_of(SECRET, f"{number:064x}", one, 0, 0) for one in helpers} == {Task.REAL}
    )
    made = desk(name)
    people = People({"accused": ACCUSED, **helpers}, redundancy={"a": 3})
    made.tick(people, 1.0)
    made.answered("accused", name, Bundle("b" * 64, 1), 1.0)
    asked: dict[str, str] = {}
    for now_s in (2.0, 3.0):
        made.tick(people, now_s)
        for task in [one for one in made.take() if isinstance(one, SendTask)]:
            asked[task.auditor] = task.task_id
            assert not made.decisions(), "one pass is not enough"
            made.reported(Report(task.task_id, task.auditor, name, Word.PASS, digest="d" * 64), now_s)
    made.tick(people, 4.0)
    assert set(asked) == set(helpers)
    [decision] = made.decisions()
    assert (decision.verdict, decision.reason) == (Verdict.PASSED, "each of 2 auditors found nothing")


def test_an_interval_whose_pnode_told_two_stories_fails_also_when_it_is_named_later() -> None:
    made = desk()
    late = "b" * 64
    made.equivocated([late, "c" * 64], "9" * 64)
    assert not made.decisions()
    one = Interval(late, 1, "a", "a.0", "accused", IntervalSet.span(1, 2), Verdict.OPEN)
    made.chronicle(Ledger({}, {late: one}), 5.0)
    assert [(found.interval, found.verdict, found.evidence) for found in made.decisions()] == [(late, Verdict.FAILED, "9" * 64)]


def test_two_stories_say_nothing_of_the_work_nor_of_who_audited_it() -> None:
    """A throwaway key that worked rightly cannot take back what was replayed since, and blames nobody for having passed it."""
    made, name = passed_by_an_auditor()
    passed, going_on = (Interval(one, 0, "a", "a.0", "accused", IntervalSet.span(0, 1), Verdict.PASSED) for one in (name, NAME))
    made.chronicle(Ledger({}, {name: passed, NAME: replace(going_on, verdict=Verdict.OPEN)}), 3.0)
    made.equivocated([name, NAME], "9" * 64)
    assert [(one.interval, one.verdict) for one in made.decisions()] == [(NAME, Verdict.FAILED)], "what passed stays"
    made.chronicle(Ledger({}, {name: passed, NAME: going_on}), 4.0)
    assert not made.decisions(), "also where its verdict came in between"
    assert not [one for one in made.take() if isinstance(one, Pay)]


@pytest.mark.parametrize("verdict", [Verdict.SPARED, Verdict.VOID, Verdict.DROPPED])
def test_two_stories_about_what_was_not_drawn_or_went_back_already_take_nothing_back(verdict: Verdict) -> None:
    """Nobody has looked at it, and it may be days old: for the price of a key all that others learned since would be learned again. It is drawn late."""
    made = desk()
    one = Interval(NAME, 0, "a", "a.0", "accused", IntervalSet.span(0, 1), verdict)
    made.chronicle(Ledger({}, {NAME: one}), 1.0)
    made.equivocated([NAME], "9" * 64)
    assert not made.decisions()
    if verdict is Verdict.SPARED:
        made.tick(People({"accused": ACCUSED}, left={"a": [one]}), 2.0)
        assert [(found.interval, found.verdict) for found in made.decisions()] == [(NAME, Verdict.OPEN)]


def test_a_finding_about_other_evidence_than_the_task_named_is_refused() -> None:
    """Else an auditor could say that it looked at something else, and be held to nothing."""
    made, people = desk(), People(verifiers=(VERIFIER,))
    made.tick(people, 1.0)
    made.answered("accused", NAME, Bundle("b" * 64, 1), 1.0)
    [task] = tasks_of(made)
    found = Report(task.task_id, "v", NAME, Word.PASS, bundle="c" * 64)
    with pytest.raises(Refused):
        made.reported(found, 2.0)
    made.reported(replace(found, bundle="b" * 64), 2.0)
    assert [one.verdict for one in made.decisions()] == [Verdict.PASSED]


def test_whoever_passed_what_fails_for_two_stories_pays_nothing() -> None:
    made, name = passed_by_an_auditor()
    made.equivocated([name], "9" * 64)
    assert [one.verdict for one in made.decisions()] == [Verdict.FAILED]
    assert not [one for one in made.take() if isinstance(one, Pay)]


def passed_by_an_auditor() -> tuple[AuditDesk, str]:
    """A desk whose interval an active auditor has passed, which no manifest says yet."""
    name = next(f"{number:064x}" for number in range(1000) if task_of(SECRET, f"{number:064x}", "auditor", 0, 0) is Task.REAL)
    made = desk(name)
    made.tick(People({"accused": ACCUSED, "auditor": AUDITOR}), 1.0)
    made.answered("accused", name, Bundle("b" * 64, 1), 1.0)
    [task] = tasks_of(made)
    made.reported(Report(task.task_id, "auditor", name, Word.PASS, digest="d" * 64), 2.0)
    return made, name


def with_evidence(vnodes: str) -> tuple[AuditDesk, People, list[str]]:
    """A desk with the evidence of one interval of each VNode, and a verifier that looks at the first."""
    names, made = [f"{at:x}" * 64 for at in range(1, 1 + len(vnodes))], desk()
    lines = {
        name: Interval(name, at, vnode, f"{vnode}.0", "accused", IntervalSet.span(at, at + 1), Verdict.OPEN)
        for at, (name, vnode) in enumerate(zip(names, vnodes, strict=True))
    }
    people = People({"accused": ACCUSED}, (VERIFIER,))
    made.chronicle(Ledger({}, lines), 0.0)
    made.tick(people, 1.0)
    for name in names:
        made.answered("accused", name, Bundle("b" * 64, 1), 1.0)
    return made, people, names


def test_who_waits_for_the_verifier_has_it_as_soon_as_it_is_free() -> None:
    made, _, names = with_evidence("ab")
    [task] = tasks_of(made)
    made.reported(Report(task.task_id, "v", names[0], Word.PASS), 1.5)
    assert [one.interval for one in tasks_of(made)] == [names[1]]


def test_where_a_fault_was_verified_nothing_is_begun_before_the_manifest_that_takes_back_what_follows() -> None:
    made, people, names = with_evidence("aab")
    [task] = tasks_of(made)
    made.reported(Report(task.task_id, "v", names[0], Word.FAULT, "output", "f" * 64), 2.0)
    [task] = tasks_of(made)
    assert task.interval == names[2], "only what does not go back with it"
    made.verified(names[0], "v", 3.0, proven=True, part="output")
    made.reported(Report(task.task_id, "v", names[2], Word.PASS), 4.0)
    made.tick(people, 5.0)
    assert not tasks_of(made)
    made.tick(people, 3.0 + LOOK_S)
    assert [one.interval for one in tasks_of(made)] == [names[1]], "for want of such a manifest it goes on"
