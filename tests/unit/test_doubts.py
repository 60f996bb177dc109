"""Goal: what several auditors measured a little over the tolerance is not accepted as if nobody had; nobody is quarantined; one word takes nothing back."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from dcnr.errors import Refused
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from orchestrator.audit_case import BLIND_S, GIVE_UP_S, SOLE_S, Case, given_up, weighed
from orchestrator.audit_doubters import MAX_ALONE, WITHIN_S, Doubters
from orchestrator.audit_events import Bundle, Decision, People, Report, SendTask, Unshown, VerifyRecord, Word
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.draw import Secret
from trust.going_back import Cause
from trust.ledger import Interval, Ledger, Verdict
from trust.separation import Party, Separation
from trust.standing import REAUDIT_S, State

NAME = digest_of(b"interval")
PASS, DOUBT, FAULT, GONE = Word.PASS, Word.DOUBT, Word.FAULT, Word.UNVERIFIABLE
OTHERS, OWN_EYES = False, True


INTERVAL = Interval(NAME, 0, "a", "a.0", "accused", IntervalSet.span(0, 8), Verdict.OPEN)
START_S = 1000.0
VERIFIER = Party("verifier", "operator", "s9")


def heard(*words: Word, own: Word | None = None) -> Case:
    """An interval with its evidence, what auditors said of it, each another one, and what the verifier found."""
    case = Case(INTERVAL, 0.0, 0.0, Bundle("b" * 64, 9))
    for number, word in enumerate((*words, *([own] if own else []))):
        case.words[f"n{number}"] = Report("t" * 32, f"n{number}", NAME, word)
    if own:
        case.own.add(f"n{len(words)}")
    return case


def verdict_of(found: Decision | tuple[int, bool]) -> Verdict:
    assert isinstance(found, Decision)
    assert (found.cause is Cause.UNVERIFIABLE) == (found.verdict is Verdict.UNVERIFIABLE), "nobody is blamed without evidence"
    assert not found.evidence
    return found.verdict


def test_one_that_doubts_has_two_others_asked_at_once() -> None:
    assert weighed(heard(DOUBT), can_look=False) == (2, OTHERS) == weighed(heard(DOUBT), can_look=True)
    assert weighed(heard(DOUBT, PASS), can_look=False) == (1, OTHERS)
    assert verdict_of(weighed(heard(DOUBT, PASS, PASS), can_look=True)) is Verdict.PASSED


def test_where_both_others_doubt_too_own_eyes_decide_and_without_them_it_is_taken_back() -> None:
    shared = (DOUBT, DOUBT, DOUBT)
    assert weighed(heard(*shared), can_look=True) == (1, OWN_EYES)
    assert verdict_of(weighed(heard(*shared), can_look=False)) is Verdict.UNVERIFIABLE
    assert verdict_of(weighed(heard(*shared, own=PASS), can_look=True)) is Verdict.PASSED
    assert verdict_of(weighed(heard(*shared, own=DOUBT), can_look=True)) is Verdict.UNVERIFIABLE
    assert verdict_of(weighed(heard(*shared, PASS), can_look=False)) is Verdict.UNVERIFIABLE


def test_where_they_disagree_more_are_asked_until_one_side_has_enough() -> None:
    assert weighed(heard(DOUBT, DOUBT, PASS), can_look=False) == (1, OTHERS)
    assert verdict_of(weighed(heard(DOUBT, DOUBT, PASS, PASS), can_look=False)) is Verdict.PASSED
    assert verdict_of(weighed(heard(DOUBT, DOUBT, PASS, DOUBT), can_look=False)) is Verdict.UNVERIFIABLE


@pytest.mark.parametrize(("words", "wanted"), [((FAULT, FAULT, FAULT), 2), ((DOUBT, DOUBT, FAULT, FAULT), 1)])
def test_accusations_that_do_not_hold_are_no_measurements(words: tuple[Word, ...], wanted: int) -> None:
    """Slander takes nothing back, however many join in."""
    assert weighed(heard(*words), can_look=True) == (1, OWN_EYES)
    assert weighed(heard(*words), can_look=False) == (wanted, OTHERS)


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        (heard(DOUBT), Verdict.PASSED), (heard(DOUBT, PASS), Verdict.PASSED), (heard(DOUBT, DOUBT), Verdict.UNVERIFIABLE),
        (heard(DOUBT, DOUBT, PASS), Verdict.UNVERIFIABLE), (heard(own=DOUBT), Verdict.UNVERIFIABLE), (heard(PASS, own=DOUBT), Verdict.PASSED),
        (heard(FAULT, FAULT), Verdict.PASSED), (heard(own=FAULT), Verdict.UNVERIFIABLE), (heard(PASS, PASS, own=FAULT), Verdict.UNVERIFIABLE),
        (heard(GONE), Verdict.UNVERIFIABLE), (heard(PASS), Verdict.PASSED),
    ],
)  # fmt: skip
def test_where_nobody_else_is_here_most_decide_and_one_bare_word_does_not(case: Case, verdict: Verdict) -> None:
    assert verdict_of(given_up(case)) is verdict


def test_where_two_cannot_verify_it_own_eyes_look_and_without_them_it_is_believed() -> None:
    assert weighed(heard(GONE), can_look=True) == (1, OTHERS)
    assert weighed(heard(GONE, GONE), can_look=True) == (1, OWN_EYES)
    assert verdict_of(weighed(heard(GONE, GONE), can_look=False)) is Verdict.UNVERIFIABLE
    assert verdict_of(weighed(heard(GONE, GONE, own=PASS), can_look=True)) is Verdict.PASSED
    assert verdict_of(weighed(heard(GONE, GONE, own=GONE), can_look=True)) is Verdict.UNVERIFIABLE
    assert weighed(heard(GONE, GONE, own=DOUBT), can_look=True) == (2, OTHERS)
    assert verdict_of(weighed(heard(GONE, GONE), can_look=True, gives_up=True)) is Verdict.UNVERIFIABLE, "it does not look"


class Audited:
    """A desk with that interval, and PNodes that audit it; ``say`` is what each of them finds."""

    def __init__(self, num_here: int, *, has_verifier: bool = False, num_owners: int = 8) -> None:
        parties = [Party(f"n{at}", f"o{at % num_owners}", f"s{at % num_owners}") for at in range(num_here)]
        here = [Candidate(party, State.ACTIVE, True) for party in parties]
        here.append(Candidate(Party("accused", "o8", "s8"), State.ACTIVE, True))
        self.people = People({one.party.node_id: one for one in here}, (VERIFIER,) if has_verifier else ())
        self.desk, self.now_s = AuditDesk(Secret(bytes(32)), Separation(), map("{:032x}".format, count()).__next__), START_S
        self.desk.tick(self.people, self.now_s)
        self.desk.chronicle(Ledger({}, {NAME: INTERVAL}), self.now_s)
        self.desk.answered("accused", NAME, Bundle("b" * 64, 9), self.now_s)

    def tasks(self) -> list[SendTask]:
        return [action for action in self.desk.take() if isinstance(action, SendTask)]

    def says(self, task: SendTask, word: Word) -> None:
        self.desk.reported(Report(task.task_id, task.auditor, NAME, word), self.now_s)
        self.desk.check()

    def verdicts(self) -> list[Verdict]:
        return [verdict_of(one) for one in self.desk.decisions()]


def test_a_desk_asks_two_others_for_a_minute_and_takes_back_what_all_three_doubt() -> None:
    audited = Audited(5)
    [first] = audited.tasks()
    audited.says(first, DOUBT)
    others = audited.tasks()
    assert [one.until_s for one in others] == [START_S + REAUDIT_S] * 2
    assert len({first.auditor, *(one.auditor for one in others)}) == 3
    audited.says(others[0], DOUBT)
    assert audited.verdicts() == []
    assert [one.accused for one in audited.desk.doubts()] == ["accused"]
    audited.says(others[1], DOUBT)
    assert audited.verdicts() == [Verdict.UNVERIFIABLE]


@pytest.mark.parametrize(("word", "verdict"), [(PASS, Verdict.PASSED), (DOUBT, Verdict.UNVERIFIABLE)])
def test_a_desk_with_a_verifier_has_it_look_at_what_three_doubt(word: Word, verdict: Verdict) -> None:
    audited = Audited(5, has_verifier=True)
    for task in audited.tasks():
        audited.says(task, DOUBT)
    for task in audited.tasks():
        audited.says(task, DOUBT)
    [own] = audited.tasks()
    assert own.is_verifier
    audited.says(own, word)
    assert audited.verdicts() == [verdict]


def test_evidence_of_another_interval_that_begins_alike_shows_nothing_of_this_one() -> None:
    """A primary that has contributors may show the first of its statements only: what is found there was no word on the interval, each auditor counted as
    silent, and whoever helps the accused passed it.
    """
    audited = Audited(5)
    for _ in range(2):
        [task] = audited.tasks()
        audited.desk.reported(Report(task.task_id, task.auditor, digest_of(b"its beginning"), PASS, bundle="b" * 64), audited.now_s)
        audited.desk.check()
    assert audited.verdicts() == [Verdict.UNVERIFIABLE]


def test_a_word_on_other_evidence_is_none() -> None:
    audited = Audited(5)
    [task] = audited.tasks()
    with pytest.raises(Refused, match="other evidence than"):
        audited.desk.reported(Report(task.task_id, task.auditor, NAME, PASS, bundle="c" * 64), audited.now_s)
    assert not audited.tasks()


@pytest.mark.parametrize(("num_here", "verdict"), [(1, Verdict.PASSED), (2, Verdict.UNVERIFIABLE)])
def test_where_nobody_else_comes_a_desk_waits_and_takes_nothing_back_for_one_word(num_here: int, verdict: Verdict) -> None:
    audited = Audited(num_here)
    for _ in range(num_here):
        [task] = audited.tasks()
        audited.says(task, DOUBT)
    audited.now_s = START_S + GIVE_UP_S - 1
    audited.desk.tick(audited.people, audited.now_s)
    assert audited.verdicts() == []
    audited.now_s += 10
    audited.desk.tick(audited.people, audited.now_s)
    assert audited.verdicts() == [verdict]


@pytest.mark.parametrize(("state", "waits_s"), [(State.PROBATION, SOLE_S), (State.QUARANTINED, SOLE_S), (State.ACTIVE, GIVE_UP_S)])
def test_a_doubt_of_the_verifier_waits_a_minute_where_nobody_could_end_it_and_says_so(state: State, waits_s: float) -> None:
    """A job stood for five of its ten minutes, since nobody of a small network may give a second opinion; who is busy is waited for as long as before."""
    audited = Audited(0, has_verifier=True)
    others = {name: Candidate(Party(name, name, name), state, False) for name in ("other", "another")}
    audited.people = replace(audited.people, candidates={**audited.people.candidates, **others})
    audited.desk.tick(audited.people, audited.now_s)
    [own] = audited.tasks()
    audited.desk.reported(Report(own.task_id, own.auditor, NAME, DOUBT, "buffers"), audited.now_s)
    [wait] = audited.desk.waits(audited.now_s)
    assert (wait.owner, wait.until_s) == ("holder", START_S + waits_s)
    assert "more than the tolerance was measured in buffers: nobody is free" in wait.why
    assert "it is taken back, and nobody is blamed" in wait.why
    while not audited.verdicts():
        audited.now_s += 5.0
        audited.desk.tick(audited.people, audited.now_s)
        assert not audited.tasks(), "it has looked"
    assert audited.verdicts() == [Verdict.UNVERIFIABLE]
    assert audited.now_s == START_S + waits_s
    assert audited.desk.decisions()[0].reason == "1 of 1 measured more than the tolerance in buffers, and nobody else is here"


def interval(number: int, pnode_id: str = "accused") -> Interval:
    return replace(INTERVAL, name=digest_of(f"interval {number}".encode()), number=number, pnode_id=pnode_id)


def taken_back(audited: Audited, one: Interval, word: Word = DOUBT) -> list[Unshown]:
    """All who look at it say that."""
    audited.now_s += 60.0
    audited.desk.chronicle(Ledger({}, {one.name: one}), audited.now_s)
    audited.desk.answered(one.pnode_id, one.name, Bundle("b" * 64, 9), audited.now_s)
    found: list[Unshown] = []
    while not audited.verdicts():
        actions = audited.desk.take()
        found += [action for action in actions if isinstance(action, Unshown)]
        for task in (action for action in actions if isinstance(action, SendTask)):
            audited.desk.reported(Report(task.task_id, task.auditor, one.name, word), audited.now_s)
    return [*found, *(action for action in audited.desk.take() if isinstance(action, Unshown))]


def test_who_is_doubted_again_and_again_gives_its_place_to_another_and_is_not_blamed() -> None:
    """With inputs of its own making, as large as may be sent, a cheat makes each span one in which last bits grow: it was taken back for ever, and stayed."""
    audited = Audited(5)
    audited.desk.take()
    assert [(one.num, one.is_late) for one in taken_back(audited, interval(1))] == [(1, False)]
    assert [(one.num, one.is_late) for one in taken_back(audited, interval(2))] == [(2, False)]
    assert taken_back(audited, interval(3), PASS) == []
    assert [one.num for one in taken_back(audited, interval(4))] == [1], "what others found nothing in ends the row"
    assert [(one.num, one.is_late) for one in taken_back(audited, interval(5), GONE)] == [(2, True)]


@pytest.mark.parametrize("stays", [True, False])
def test_who_comes_within_that_minute_is_asked_and_whoever_leaves_again_may_come_back_for_a_minute(stays: bool) -> None:
    audited = Audited(0, has_verifier=True)
    [own] = audited.tasks()
    audited.says(own, DOUBT)
    alone = audited.people
    audited.now_s += SOLE_S - 5.0
    audited.people = Audited(3, has_verifier=True).people
    audited.desk.tick(audited.people, audited.now_s)
    tasks = audited.tasks()
    assert len(tasks) == 2
    audited.now_s += 10.0
    audited.people = audited.people if stays else alone
    audited.desk.tick(audited.people, audited.now_s)
    assert audited.verdicts() == []
    if stays:
        for task in tasks:
            audited.says(task, PASS)
        assert audited.verdicts() == [Verdict.PASSED]
        return
    left_s = audited.now_s
    while not audited.verdicts():
        audited.now_s += 5.0
        audited.desk.tick(audited.people, audited.now_s)
    assert audited.verdicts() == [Verdict.UNVERIFIABLE]
    assert audited.now_s == left_s + SOLE_S


def test_what_the_verifier_found_wrong_does_not_pass_because_it_cannot_prove_it() -> None:
    audited = Audited(0, has_verifier=True)
    [own] = audited.tasks()
    audited.says(own, FAULT)
    audited.desk.verified(NAME, own.auditor, START_S + 1, proven=False)
    audited.now_s = START_S + GIVE_UP_S + 1
    audited.desk.tick(audited.people, audited.now_s)
    assert audited.verdicts() == [Verdict.UNVERIFIABLE]
    assert verdict_of(weighed(heard(PASS, PASS, own=FAULT), can_look=True)) is Verdict.UNVERIFIABLE, "whoever passed it"


def test_whose_words_count_together_are_of_different_owners_and_else_the_verifier_is_asked() -> None:
    """Two doubts, or two who cannot verify, of one owner took back what anybody did."""
    audited = Audited(6, has_verifier=True, num_owners=2)
    [first] = audited.tasks()
    audited.says(first, DOUBT)
    others = audited.tasks()
    owners = [int(one.auditor[1:]) % 2 for one in (first, *others) if not one.is_verifier]
    assert sorted(owners) == [0, 1]
    assert [one.is_verifier for one in others].count(True) == 1


def test_two_who_cannot_verify_it_have_the_verifier_look_and_where_it_never_does_they_are_believed() -> None:
    audited = Audited(4, has_verifier=True)
    for _ in range(2):
        [task] = audited.tasks()
        audited.says(task, GONE)
    assert audited.verdicts() == []
    while not audited.verdicts():
        for task in audited.tasks():
            assert task.is_verifier
            audited.says(task, Word.REFUSED)
        audited.now_s += 5.0
        audited.desk.tick(audited.people, audited.now_s)
    assert audited.verdicts() == [Verdict.UNVERIFIABLE]
    assert audited.now_s >= START_S + GIVE_UP_S


@pytest.mark.parametrize("has_verifier", [False, True])
def test_where_everybody_belongs_together_and_no_verifier_looks_they_are_asked_all_the_same(has_verifier: bool) -> None:
    audited = Audited(4, has_verifier=has_verifier, num_owners=1)
    [first] = audited.tasks()
    audited.says(first, DOUBT)
    while not audited.verdicts() and audited.now_s < START_S + 4 * GIVE_UP_S:
        for task in audited.tasks():
            audited.says(task, Word.REFUSED if task.is_verifier else PASS)
        audited.now_s += 5.0
        audited.desk.tick(audited.people, audited.now_s)
    assert audited.verdicts() == [Verdict.PASSED]
    assert (audited.now_s > START_S + GIVE_UP_S - 10.0) == has_verifier, "nobody waits for a verifier that is not there"


@pytest.mark.parametrize("num_here", [1, 5])
@pytest.mark.parametrize("word", [FAULT, PASS])
def test_what_a_verifier_never_comes_to_an_end_with_is_decided_without_it_after_an_hour(num_here: int, word: Word) -> None:
    """A replay that it has no time for, or that ends its process, kept the VNode from ever getting further. What it was to repeat never passes unseen."""
    audited = Audited(num_here, has_verifier=True)
    if word is PASS:
        audited.desk._cases[NAME].is_drawn = True
    while not audited.verdicts() and audited.now_s < START_S + 4 * BLIND_S:
        for action in audited.desk.take():
            if isinstance(action, VerifyRecord):
                audited.desk.unverified(NAME, action.auditor, audited.now_s, "verifier_stuck")
            elif isinstance(action, SendTask) and not action.is_verifier:
                audited.desk.reported(
                    Report(action.task_id, action.auditor, NAME, word, record="r" * 64 * (word is FAULT)), audited.now_s
                )
        audited.now_s += 5.0
        audited.desk.tick(audited.people, audited.now_s)
        audited.desk.check()
    assert audited.verdicts() == [Verdict.PASSED if word is FAULT and num_here == 1 else Verdict.UNVERIFIABLE], (
        "one bare word takes nothing back"
    )
    assert audited.now_s >= START_S + BLIND_S


def test_who_doubts_alone_again_and_again_is_asked_no_more_for_an_hour() -> None:
    """It pays nothing for a doubt: with one key everybody was under suspicion, and audited three times over, for as long as it liked."""
    world = Audited(5)
    doubted, now_s = list[float](), START_S
    for number in range(200):
        one = replace(INTERVAL, name=f"{number:064x}", number=number)
        world.desk.chronicle(Ledger({}, {one.name: one}), now_s)
        world.desk.answered("accused", one.name, Bundle("b" * 64, 9), now_s)
        while not world.desk.decisions():
            for task in (task for task in world.tasks() if task.interval == one.name):
                word = DOUBT if task.auditor == "n0" else PASS
                doubted += [now_s] * (word is DOUBT)
                world.desk.reported(Report(task.task_id, task.auditor, one.name, word), now_s)
        assert world.verdicts() == [Verdict.PASSED]
        now_s += 30.0
        world.desk.tick(world.people, now_s)
    assert len(doubted) == 2 * MAX_ALONE, "nobody is asked no more for ever"
    assert all(later >= earlier + WITHIN_S for earlier, later in zip(doubted, doubted[MAX_ALONE:], strict=False))


def test_who_is_not_alone_with_its_doubt_is_asked_as_before() -> None:
    doubters = Doubters()
    passed, failed = Decision(NAME, Verdict.PASSED, ""), Decision(NAME, Verdict.UNVERIFIABLE, "", Cause.UNVERIFIABLE)
    for number in range(MAX_ALONE):
        doubters.judged(heard(DOUBT, PASS), passed, float(number))
        doubters.judged(heard(DOUBT, DOUBT, PASS, PASS), passed, float(number))
        doubters.judged(heard(DOUBT, PASS, PASS), failed, float(number))
        doubters.judged(heard(PASS, PASS, own=DOUBT), passed, float(number))
    assert not doubters.resting(9.0)
    for number in range(MAX_ALONE):
        doubters.judged(heard(FAULT, own=PASS), passed, float(number))
    assert doubters.resting(9.0) == {"n0"}
    assert not doubters.resting(WITHIN_S)
