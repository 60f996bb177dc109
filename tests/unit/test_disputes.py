"""Goal: where no verifier can prove a fault, three who found it have the work taken back and nobody is blamed; one word clears nobody and convicts nobody."""

from __future__ import annotations

from itertools import count

import pytest

from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from orchestrator.audit_case import GIVE_UP_S
from orchestrator.audit_events import Bundle, Decision, Pay, People, Report, SendTask, VerifyRecord, Word
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.draw import Secret
from trust.going_back import Cause
from trust.ledger import Interval, Ledger, Verdict
from trust.separation import Party, Separation
from trust.standing import State

NAME = digest_of(b"interval")
INTERVAL = Interval(NAME, 0, "a", "a.0", "accused", IntervalSet.span(0, 8), Verdict.OPEN)
ACCUSED = Candidate(Party("accused", "cheat", "s99"), State.ACTIVE, True)
START_S, LONGEST_S = 1000.0, 4000.0


class Dispute:
    """A desk without a verifier, and what its auditors say, each as often as it is asked."""

    def __init__(self, *words: Word, num_owners: int = 8, key: int = 0) -> None:
        parties = [Party(f"n{at}", f"o{at % num_owners}", f"s{at % num_owners}") for at in range(len(words))]
        self.says = {party.node_id: word for party, word in zip(parties, words, strict=True)}
        self.people = People({"accused": ACCUSED, **{party.node_id: Candidate(party, State.ACTIVE, True) for party in parties}})
        self.desk = AuditDesk(Secret(key.to_bytes(32)), Separation(), map("{:032x}".format, count()).__next__)
        self.now_s, self.asked, self.paid, self.accused = START_S, list[str](), list[Pay](), set[str]()
        self.outcome = "unmeasured"
        self.desk.tick(self.people, self.now_s)
        self.desk.chronicle(Ledger({}, {NAME: INTERVAL}), self.now_s)
        self.desk.answered("accused", NAME, Bundle("b" * 64, 9), self.now_s)

    def acts(self) -> None:
        """Everything that is to be done now is done."""
        while actions := self.desk.take():
            for action in actions:
                match action:
                    case SendTask():
                        self.asked.append(action.auditor)
                        said = Report(action.task_id, action.auditor, NAME, self.says[action.auditor], "loss", "f" * 64, "d" * 64)
                        self.desk.reported(said, self.now_s)
                    case VerifyRecord():
                        self.looks(action)
                    case Pay():
                        self.paid.append(action)
            self.accused |= {one.accused for one in self.desk.doubts()}
            self.desk.check()

    def looks(self, action: VerifyRecord) -> None:
        """What a fault record comes to."""
        if self.outcome == "unmeasured":
            self.desk.unverified(NAME, action.auditor, self.now_s, "no_verifier")
        else:
            self.desk.verified(NAME, action.auditor, self.now_s, proven=False)

    def first(self) -> str:
        """Who is asked first."""
        self.acts()
        return self.asked[0]

    def decided(self) -> Decision:
        """What comes of it in the end; nobody is ever blamed."""
        while not self.desk.decisions():
            assert self.now_s < START_S + LONGEST_S, f"open after {len(self.asked)} audits"
            self.acts()
            self.now_s += 5.0
            self.desk.tick(self.people, self.now_s)
        [found] = self.desk.decisions()
        assert (found.cause is Cause.UNVERIFIABLE) == (found.verdict is Verdict.UNVERIFIABLE)
        assert (found.evidence, self.paid) == ("", [])
        return found


def asked_first(auditor: str, num_here: int) -> int:
    """A secret under which that one is the first of so many."""
    return next(key for key in range(999) if Dispute(*[Word.PASS] * num_here, key=key).first() == auditor)


def test_what_three_find_wrong_is_taken_back_where_nobody_can_prove_it() -> None:
    """It stayed open for ever, and its replica with it, since each word was forgotten that could not be measured."""
    dispute = Dispute(*[Word.FAULT] * 6)
    found = dispute.decided()
    assert (found.verdict, len(dispute.asked)) == (Verdict.UNVERIFIABLE, 3)
    assert dispute.now_s <= START_S + 5.0, "at once"
    assert "no verifier" in found.reason
    assert dispute.accused == {"accused"}, "it is under suspicion until then"


@pytest.mark.parametrize("key", range(12))
def test_one_friend_clears_nobody_whom_another_one_has_found_out(key: int) -> None:
    """The fifth who found it wrong was forgotten like the first, and the one who passed it was believed."""
    dispute = Dispute(*[Word.FAULT] * 5, Word.PASS, key=key)
    verdict = dispute.decided().verdict
    assert verdict is (Verdict.PASSED if dispute.asked == ["n5"] else Verdict.UNVERIFIABLE), "unless it is asked first, and alone"


def test_two_others_who_find_nothing_clear_whom_one_slanders() -> None:
    dispute = Dispute(Word.FAULT, *[Word.PASS] * 5, key=asked_first("n0", 6))
    assert dispute.decided().verdict is Verdict.PASSED
    assert len(dispute.asked) == 3


@pytest.mark.parametrize(
    ("words", "num_owners", "verdict"),
    [
        ([Word.FAULT], 8, Verdict.PASSED), ([Word.FAULT] * 2, 8, Verdict.UNVERIFIABLE), ([Word.FAULT] * 3, 1, Verdict.UNVERIFIABLE),
        ([Word.FAULT, Word.DOUBT], 8, Verdict.UNVERIFIABLE), ([Word.FAULT, Word.FAULT, Word.PASS], 8, Verdict.UNVERIFIABLE),
    ],
)  # fmt: skip
def test_in_a_small_network_most_of_those_who_are_there_decide_and_one_word_takes_nothing_back(
    words: list[Word], num_owners: int, verdict: Verdict
) -> None:
    dispute = Dispute(*words, num_owners=num_owners, key=asked_first("n0", len(words)))
    assert dispute.decided().verdict is verdict
    assert len(dispute.asked) == len(words)


def test_records_that_do_not_hold_take_nothing_back_however_many_tell_of_them() -> None:
    dispute = Dispute(*[Word.FAULT] * 6)
    dispute.outcome = "refuted"
    assert dispute.decided().verdict is Verdict.PASSED
    assert dispute.now_s >= START_S + GIVE_UP_S
    assert dispute.accused == set()
