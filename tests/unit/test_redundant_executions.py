"""Goal: where a graph asks for so many executions of each interval, the verifier's is one of them, and an interval that passes with fewer says so."""

from __future__ import annotations

import itertools

import pytest

from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from orchestrator.audit_case import GIVE_UP_S
from orchestrator.audit_events import Bundle, Decision, People, Report, SendTask, Word
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.draw import Secret
from trust.ledger import Interval, Ledger, Verdict
from trust.separation import Party, Separation
from trust.standing import State

NAME = digest_of(b"interval")
INTERVAL = Interval(NAME, 0, "a", "a.0", "accused", IntervalSet.span(0, 8), Verdict.OPEN)
FIND_NOTHING: dict[str, Word] = {}


def audited(
    num_auditors: int, redundancy: int, *, has_verifier: bool, says: dict[str, Word] = FIND_NOTHING
) -> tuple[Decision, list[str], float]:
    """The decision, who was asked for it, and how long it took."""
    here = {f"n{at}": Candidate(Party(f"n{at}", f"o{at}", f"s{at}"), State.ACTIVE, True) for at in range(num_auditors)}
    here["accused"] = Candidate(Party("accused", "o99", "s99"), State.ACTIVE, True)
    people = People(here, (Party("v", "operator", "s98"),) if has_verifier else (), redundancy={"a": redundancy})
    desk, now_s, asked = (
        AuditDesk(Secret(b"k" * 32), Separation(), map("{:032x}".format, itertools.count()).__next__),
        0.0,
        list[str](),
    )
    desk.tick(people, now_s)
    desk.chronicle(Ledger({}, {NAME: INTERVAL}), now_s)
    desk.answered("accused", NAME, Bundle("b" * 64, 9), now_s)
    while not desk.decisions():
        for task in [one for one in desk.take() if isinstance(one, SendTask)]:
            asked.append(task.auditor)
            desk.reported(Report(task.task_id, task.auditor, NAME, says.get(task.auditor, Word.PASS), digest="d" * 64), now_s)
        desk.check()
        now_s += 1.0
        assert now_s < 4 * GIVE_UP_S
        desk.tick(people, now_s)
    [found] = desk.decisions()
    return found, asked, now_s


@pytest.mark.parametrize("num_auditors", [2, 5])
def test_the_verifiers_pass_is_one_of_the_executions_and_no_more(num_auditors: int) -> None:
    found, asked, took_s = audited(num_auditors, 4, has_verifier=True)
    assert (found.verdict, len(asked), len(set(asked))) == (Verdict.PASSED, 3, 3)
    assert took_s < 5.0
    assert num_auditors == 5 or "v" in asked


@pytest.mark.parametrize("has_verifier", [False, True])
def test_what_passes_with_fewer_executions_than_its_graph_asks_for_says_so(has_verifier: bool) -> None:
    found, asked, took_s = audited(1, 4, has_verifier=has_verifier)
    assert (found.verdict, len(asked)) == (Verdict.PASSED, 1 + has_verifier)
    assert f"{1 + has_verifier} of 3 executions" in found.reason
    assert took_s >= GIVE_UP_S


def test_a_doubt_is_not_over_before_all_executions_found_nothing() -> None:
    found, asked, _ = audited(6, 5, has_verifier=False, says={f"n{at}": Word.DOUBT for at in range(1)})
    assert found.verdict is Verdict.PASSED
    assert len(asked) - ("n0" in asked) == 4


def test_who_asks_for_nothing_waits_for_nobody() -> None:
    for redundancy in (1, 2):
        found, asked, took_s = audited(0, redundancy, has_verifier=True)
        assert (found.reason, asked) == ("the verifier found nothing", ["v"])
        assert took_s < 5.0
