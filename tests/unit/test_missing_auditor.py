"""Goal: an interval that nobody may audit says so, with the reason and what to do; what is only busy, or young, alarms nobody."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from dcnr.intervals import IntervalSet
from orchestrator.audit_case import GIVE_UP_S, LOOK_S
from orchestrator.audit_events import Bundle, People, Report, SendTask, Word
from orchestrator.audit_missing import ALONE_S, REMEDY, Missing
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.draw import Secret
from trust.ledger import MAX_UNCLEARED, Interval, Ledger, Verdict
from trust.separation import Party, Separation
from trust.standing import State

START_S = 1_800_000_000.0
VERIFIER = Party("v" * 40)
ACCUSED = Candidate(Party("accused!", "o8", "s8"), State.PROBATION, True)


def person(name: str, state: State = State.ACTIVE, owner: str = "o1", subnet: str = "s1", *, is_free: bool = True) -> Candidate:
    return Candidate(Party(name, owner, subnet), state, is_free)


class Waiting:
    """A desk whose accused has shown its evidence of some intervals; time passes as long as anybody likes."""

    def __init__(self, *others: Candidate, has_verifier: bool = False, num_open: int = 1) -> None:
        self.told: list[str] = []
        self.here(*others, has_verifier=has_verifier)
        self.desk, self.now_s = AuditDesk(Secret(bytes(32)), Separation(), map("{:032x}".format, count()).__next__), START_S
        self.missing = Missing(Separation(), self.told.append)
        self.desk.tick(self.people, self.now_s)
        names = [f"{number:064x}" for number in range(num_open)]
        opened = {
            name: Interval(name, number, "a", "a.0", "accused!", IntervalSet.span(number, number + 1), Verdict.OPEN)
            for number, name in enumerate(names)
        }
        self.desk.chronicle(Ledger({}, opened), self.now_s)
        for name in names:
            self.desk.answered("accused!", name, Bundle("b" * 64, 9), self.now_s)

    def here(self, *others: Candidate, has_verifier: bool = False) -> None:
        self.people = People({one.party.node_id: one for one in (ACCUSED, *others)}, (VERIFIER,) if has_verifier else ())

    def after(self, seconds: float, *, settles: bool = False) -> Missing:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += LOOK_S
            self.desk.tick(self.people, self.now_s)
            self.missing.look(self.desk.waits(self.now_s), self.people, self.now_s, settles=settles)
        return self.missing

    @property
    def why(self) -> str:
        """What is explained of the first interval."""
        return self.missing.explained(self.desk.waits(self.now_s), self.people, self.now_s)[0].why


def test_whoever_looks_hears_after_a_minute_why_nobody_audits_and_what_to_do() -> None:
    waiting = Waiting(
        person("young", State.PROBATION), person("newer", State.PROBATION), person("mine", owner="o8"), person("nameless", owner=""),
        person("near", subnet="s8"), person("nowhere", subnet=""),
    )  # fmt: skip
    assert not waiting.after(ALONE_S - LOOK_S).words, "whoever restarts is back by then"
    words = waiting.after(2 * LOOK_S).words
    assert words.startswith("nobody audits what a.0 on accused! did: no other PNode may audit it: probation (2), ")
    for reason in ("a subnet that is not known (1)", "an owner that is not known (1)", "the same owner (1)", "the same subnet (1)"):
        assert reason in words
    assert words.endswith(f"the orchestrator that decides has no verifier; {REMEDY}")
    assert "no verifier" in waiting.why
    assert REMEDY in waiting.why
    waiting.after(600.0)
    assert waiting.told == [words], "told once"


def test_without_anybody_else_that_is_said() -> None:
    assert "no other PNode is here" in Waiting().after(2 * ALONE_S).words


@pytest.mark.parametrize(("num_open", "stops"), [(1, False), (MAX_UNCLEARED, False), (MAX_UNCLEARED + 1, True)])
def test_training_is_held_up_once_a_replica_may_learn_no_more_or_only_the_end_is_missing(num_open: int, stops: bool) -> None:
    waiting = Waiting(num_open=num_open)
    found = waiting.after(2 * ALONE_S)
    assert found.words
    assert bool(found.holds_up) is stops
    assert waiting.after(LOOK_S, settles=True).holds_up == found.words


def test_where_somebody_may_audit_nobody_is_alarmed_however_many_wait_for_it() -> None:
    for waiting in (
        Waiting(has_verifier=True, num_open=9), Waiting(person("auditor"), num_open=9), Waiting(person("busy", is_free=False), person("auditor")),
    ):  # fmt: skip
        found = waiting.after(ALONE_S - LOOK_S)
        found = waiting.after(2 * LOOK_S)
        assert (found.words, found.holds_up, waiting.told) == ("", "", [])


def test_when_an_auditor_comes_it_is_over_and_when_it_goes_it_is_told_again() -> None:
    waiting = Waiting()
    waiting.after(2 * ALONE_S)
    waiting.here(person("auditor"))
    assert not waiting.after(2 * LOOK_S).words
    assert "an audit" in waiting.why
    waiting.here()
    assert not waiting.after(ALONE_S - LOOK_S).words
    assert waiting.after(3 * LOOK_S).words
    assert len(waiting.told) == 2


def test_what_somebody_has_said_is_decided_by_that_after_a_while() -> None:
    waiting = Waiting(person("auditor"))
    [asked] = [one for one in waiting.desk.take() if hasattr(one, "task_id")]
    waiting.desk.reported(Report(asked.task_id, "auditor", asked.interval, Word.DOUBT), waiting.now_s)
    assert not waiting.after(GIVE_UP_S - LOOK_S).words
    waiting.after(2 * LOOK_S)
    assert waiting.desk.decisions()


def test_who_has_shown_its_evidence_and_left_is_audited_by_others_all_the_same() -> None:
    """Nobody was known any more to be of another owner than it: its VNode was never cleared again, and its job did not end."""
    waiting = Waiting(person("other", is_free=False), person("mine", owner="o8", is_free=False))
    waiting.after(LOOK_S)
    waiting.people = People(
        {name: replace(one, is_free=True) for name, one in waiting.people.candidates.items() if one is not ACCUSED}
    )
    waiting.desk.take()
    waiting.after(2 * LOOK_S)
    assert [one.auditor for one in waiting.desk.take() if isinstance(one, SendTask)] == ["other"]
    waiting.people = People({"mine": person("mine", owner="o8")})
    words = waiting.after(ALONE_S + 200 * LOOK_S).words
    assert "the same owner (1)" in words


def test_what_everybody_refuses_is_asked_ever_more_rarely() -> None:
    """Evidence that no volunteer has the memory for, say: all were asked every five seconds, for ever. Who comes later is asked within minutes."""
    waiting, asked = Waiting(person("first"), person("second", owner="o2", subnet="s2")), list[float]()

    def refuses(seconds: float) -> None:
        end_s = waiting.now_s + seconds
        while waiting.now_s < end_s:
            for one in waiting.desk.take():
                if isinstance(one, SendTask):
                    asked.append(waiting.now_s)
                    waiting.desk.reported(Report(one.task_id, one.auditor, one.interval, Word.REFUSED), waiting.now_s)
            waiting.after(1.0)

    refuses(6 * 3600.0)
    assert 100 < len(asked) < 400
    assert len([at for at in asked if at < START_S + 60.0]) >= 6, "first it is tried again soon: who is busy, or paused, is back"
    waiting.here(person("third", owner="o3", subnet="s3"))
    waiting.desk.take()
    waiting.after(200.0)
    assert [one.auditor for one in waiting.desk.take() if isinstance(one, SendTask)] == ["third"]
