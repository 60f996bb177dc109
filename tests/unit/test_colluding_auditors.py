"""Goal: 12 PNodes of 40 that cheat and pass each other are all found out within 200 audits; where only they may audit what they do, by canaries alone."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest

from dcnr.intervals import IntervalSet
from orchestrator.audit_events import Bundle, Pay, People, Report, SendChallenge, SendTask, VerifyRecord, Word
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.draw import Secret
from trust.ledger import Interval, Ledger, Verdict
from trust.separation import Party, Separation
from trust.standing import State

NODES, COLLUDERS, AUDITS, EVERY_S = 40, 12, 200, 10.0
VERIFIER = Party("v", "operator", "s99")


class Network:
    """A real desk with a verifier; every PNode is of another owner and subnet. Colluders cheat in all that they do, and as auditors find nothing."""

    def __init__(self, seed: int, *, honest: State = State.ACTIVE) -> None:
        self.rng, self.now_s, self.num_audits = random.Random(seed), 0.0, 0
        self.colluders = frozenset(f"n{number}" for number in range(COLLUDERS))
        parties = [Party(f"n{number}", f"o{number}", f"s{number}") for number in range(NODES)]
        self.here = {
            one.node_id: Candidate(one, State.ACTIVE if one.node_id in self.colluders else honest, True) for one in parties
        }
        self.workers = frozenset(self.here) if honest is State.ACTIVE else self.colluders
        self.intervals: dict[str, Interval] = {}
        self.found_out: set[str] = set()
        self.desk = AuditDesk(Secret(self.rng.randbytes(32)), Separation(), map("{:032x}".format, count()).__next__)

    def run(self) -> int:
        """How many colluders are found out once so many audits were given to auditors; the verifier's own are not counted."""
        while self.num_audits < AUDITS and not self.colluders <= self.found_out:
            worker = self.rng.choice(sorted(self.workers - self.found_out))
            name = self.rng.randbytes(32).hex()
            at = len(self.intervals)
            self.intervals[name] = Interval(name, at, "a", "a.0", worker, IntervalSet.span(at, at + 1), Verdict.OPEN)
            for _ in range(3):  # what is found of it, what is opened again for that, and what is found of that
                self.now_s += EVERY_S / 3
                self.desk.chronicle(Ledger({}, dict(self.intervals)), self.now_s)
                self.desk.tick(People(dict(self.here), (VERIFIER,), found_out=frozenset(self.found_out)), self.now_s)
                self.act()
                for decided in self.desk.decisions():
                    self.intervals[decided.interval] = replace(self.intervals[decided.interval], verdict=decided.verdict)
                    if decided.verdict is Verdict.FAILED:
                        self.is_found_out(self.intervals[decided.interval].pnode_id)
        assert self.found_out <= self.colluders, "nobody honest is blamed"
        return len(self.found_out)

    def act(self) -> None:
        """Everybody answers at once."""
        while actions := self.desk.take():
            for action in actions:
                match action:
                    case SendChallenge():
                        self.desk.answered(action.pnode_id, action.interval, Bundle("b" * 64, 9), self.now_s)
                    case SendTask():
                        self.num_audits += not action.is_verifier
                        word = self.word_of(action.auditor, self.intervals[action.interval].pnode_id)
                        said = Report(action.task_id, action.auditor, action.interval, word, "loss", "f" * 64, "d" * 64)
                        self.desk.reported(said, self.now_s)
                    case VerifyRecord():
                        self.desk.verified(action.interval, action.auditor, self.now_s, proven=True)
                    case Pay():
                        self.is_found_out(action.auditor)

    def word_of(self, auditor: str, worker: str) -> Word:
        """What somebody says of somebody's work."""
        return Word.FAULT if worker in self.colluders and auditor not in self.colluders else Word.PASS

    def is_found_out(self, node_id: str) -> None:
        """It is in quarantine from now on."""
        self.found_out.add(node_id)
        self.here[node_id] = replace(self.here[node_id], state=State.QUARANTINED)


def test_12_of_40_that_collude_are_found_out_within_200_audits_in_95_of_100_seeds() -> None:
    found = Counter(Network(seed).run() for seed in range(100))
    assert sum(number for colluders, number in found.items() if colluders == COLLUDERS) >= 95, found


def test_where_nobody_but_colluders_may_audit_them_canaries_find_them_out() -> None:
    """Who is found out by one takes down whom it passed, and who passed it."""
    found = Counter(Network(seed, honest=State.PROBATION).run() for seed in range(100))
    assert sum(number for colluders, number in found.items() if colluders == COLLUDERS) >= 95, found


def test_without_canaries_colluders_among_themselves_would_never_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trust.draw.CANARY_RATE", 0.0)
    monkeypatch.setattr("trust.draw.FIRST_CANARY_RATE", 0.0)
    assert {Network(seed, honest=State.PROBATION).run() for seed in range(3)} == {0}
