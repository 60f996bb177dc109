"""Goal: what rests on inputs that no plan had there is unverifiable; honest moves between plans are not, and nothing is lost while plans are read."""

from __future__ import annotations

import asyncio

import pytest

from dcnr.errors import Corrupt, Unavailable
from dcnr.v1 import model_pb2
from orchestrator.audit_events import Report, Sender, Word
from orchestrator.audit_words import report_of
from orchestrator.senders import Seats, held

X, Y, Z = (letter * 40 for letter in "abc")
PLANS = {
    "before": model_pb2.Plan(job_id="other", assignments=[model_pb2.Assignment(replica="a.9", vnode="a", pnode_id=Z)]),
    "first": model_pb2.Plan(job_id="j", parent_digest="before", assignments=[model_pb2.Assignment(replica="a.1", vnode="a", pnode_id=X)]),
    "second": model_pb2.Plan(
        job_id="j", parent_digest="first",
        assignments=[model_pb2.Assignment(replica="a.3", vnode="a", pnode_id=Y), model_pb2.Assignment(replica="b.2", vnode="b", pnode_id=Y)],
    ),
}  # fmt: skip


class Store:
    """Plans by digest, for whoever comes when it is not away."""

    def __init__(self) -> None:
        self.num_read, self.is_away = 0, False

    async def read(self, digest: str) -> model_pb2.Plan:
        if self.is_away and digest == "first":
            raise Unavailable("the store is away")
        self.num_read += 1
        return PLANS[digest]


def seats() -> Seats:
    found = Seats("j")
    asyncio.run(found.follow("second", Store().read))
    return found


@pytest.mark.parametrize(
    ("sender", "accused", "is_strange"),
    [
        (Sender("a", "a.1", X), Y, False),
        (Sender("a", "a.3", Y), X, False),
        (Sender("a", "a.3", X), Y, True),
        (Sender("a", "a.7", Y), Y, True),
        (Sender("a", "a.9", Z), Y, True),
        (Sender("a"), Y, False),
        (Sender("a"), X, False),
        (Sender("b"), X, True),
        (Sender("a"), Z, True),
    ],
    ids=["before it moved", "where it is", "elsewhere", "in no plan", "of another job", "its own", "its own once", "never hosted", "no part"],
)  # fmt: skip
def test_senders_are_those_of_the_plans_of_the_job(sender: Sender, accused: str, is_strange: bool) -> None:
    assert bool(seats().stranger([Sender("a", "a.1", X), sender], accused)) is is_strange


@pytest.mark.parametrize(
    ("word", "told"),
    [(Word.PASS, Word.UNVERIFIABLE), (Word.DOUBT, Word.UNVERIFIABLE), (Word.FAULT, Word.FAULT), (Word.REFUSED, Word.REFUSED)],
)
def test_a_pass_on_strangers_values_proves_nothing_and_a_fault_stands(word: Word, told: Word) -> None:
    strange = Report("t" * 32, Z, "i" * 64, word, senders=(Sender("a", "a.7", Y),))
    assert held(strange, seats(), Y).word is told
    planned = Report("t" * 32, Z, "i" * 64, word, senders=(Sender("a", "a.1", X),))
    assert held(planned, seats(), Y) is planned


def test_plans_are_read_once_and_again_after_a_trouble() -> None:
    store, found = Store(), Seats("j")
    store.is_away = True
    with pytest.raises(Unavailable):
        asyncio.run(found.follow("second", store.read))
    assert not found.covers("second")
    store.is_away = False
    for _ in range(2):
        asyncio.run(found.follow("second", store.read))
    assert found.covers("second")
    assert found.covers("first")
    assert store.num_read == 1 + 3


def test_senders_are_read_from_a_report_and_hostile_ones_are_refused() -> None:
    told = model_pb2.AuditReport(task_id="a" * 32, pnode_id=X, finding=model_pb2.AUDIT_FINDING_PASS, interval="b" * 64)
    told.sources.add(vnode="a", replica="a.1", pnode_id=Y, incarnation=3)
    told.sources.add(vnode="b")
    assert report_of(told, "").senders == (Sender("a", "a.1", Y), Sender("b"))
    for wrong in (
        {"vnode": "a/b"},
        {"vnode": "b", "replica": "a.1", "pnode_id": Y},
        {"vnode": "a", "replica": "a.1", "pnode_id": "../x"},
    ):
        bad = model_pb2.AuditReport()
        bad.CopyFrom(told)
        bad.sources.add(**wrong)  # type: ignore[arg-type]
        with pytest.raises(Corrupt):
            report_of(bad, "")
