"""Goal: an orchestrator without a verifier lets an auditor's fault stand only if its record is signed by the accused, of that interval and evidence."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from dataservice import keys
from dataservice.memory import Fault, MemoryStore, Operation, PlannedFaults
from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.audit_events import Bundle, People, Report, SendTask, VerifyRecord, Word
from orchestrator.auditing import Auditing
from orchestrator.audits import AuditDesk
from orchestrator.own_eyes import OwnEyes
from orchestrator.signal import Signal
from orchestrator.view import JobFacts
from trust.auditors import Candidate
from trust.delegation import make_delegation
from trust.draw import Secret
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from trust.ledger import Interval, Ledger, Verdict
from trust.separation import Party, Separation
from trust.standing import State

NETWORK, NODE, WORKER, BUNDLE = "5" * 40, NodeKey.generate(), NodeKey.generate(), "b" * 64
DELEGATION = make_delegation(NODE, NETWORK, WORKER.public_der, 3, ["127.0.0.1:1"], SystemClock().wall())


def commit(sequence: int) -> identity_pb2.Envelope:
    statement = model_pb2.Commit(
        network_id=NETWORK, model="m", job_id="j", vnode="a", replica="a.0", incarnation=3, parent_digest="1" * 64, state_digest="2" * 64,
        batches=[1], losses=[0.5], sequence=sequence, delegation=DELEGATION,
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_COMMIT, statement, WORKER)


OURS, OTHER = commit(7), commit(8)
NAME = digest_of_envelope(OURS)


def record(statement: identity_pb2.Envelope = OURS, bundle: str = BUNDLE) -> bytes:
    return model_pb2.FaultRecord(
        kind=model_pb2.FAULT_KIND_COMPUTATION, network_id=NETWORK, model="m", job_id="j", vnode="a", statements=[statement],
        challenged=["2" * 64], seed=b"s" * 32, residual=1.0, check=model_pb2.CHECK_KIND_REPLAY, bundle_digest=bundle,
    ).SerializeToString()  # fmt: skip


def told(data: bytes, root: Path, *faults: tuple[Operation, str, Fault], is_there: bool = True) -> tuple[int, bool]:
    """How many others are asked after the first tells of that fault, and whether its accused is under doubt."""
    store = MemoryStore(SystemClock(), random.Random(1), faults=PlannedFaults(list(faults)))
    if is_there:
        store.rewind(keys.evidence("m", "a", digest_of(data)), data)
    here = {name: Candidate(Party(name), State.ACTIVE, True) for name in (NODE.node_id, "p", "q", "r")}
    desk = AuditDesk(Secret(bytes(32)), Separation(single_host=True), map("{:032x}".format, count()).__next__)
    desk.tick(People(here), 1.0)
    desk.chronicle(Ledger({}, {NAME: Interval(NAME, 0, "a", "a.0", NODE.node_id, IntervalSet.span(1, 2), Verdict.OPEN)}), 1.0)
    desk.answered(NODE.node_id, NAME, Bundle(BUNDLE, 9), 1.0)
    [first] = (one for one in desk.take() if isinstance(one, SendTask))
    desk.reported(Report(first.task_id, first.auditor, NAME, Word.FAULT, "weights", digest_of(data), "e" * 64), 2.0)
    [look] = (one for one in desk.take() if isinstance(one, VerifyRecord))

    async def job(job_id: str) -> JobFacts:
        raise Unavailable("not needed", code="no_job")

    shared = SimpleNamespace(
        own_eyes=OwnEyes(store, NETWORK, root, None), clock=SimpleNamespace(monotonic=lambda: 2.0), store=store,
        history=SimpleNamespace(say=lambda *words, **facts: None), policy=SimpleNamespace(network_id=NETWORK, single_host=True),
    )  # fmt: skip
    auditing = Auditing(
        "m", shared, view=lambda: None, job=job, plan=job, is_holder=lambda: True, wake=Signal()  # type: ignore[arg-type]
    )  # fmt: skip
    auditing._desk = desk
    asyncio.run(auditing._verify(look))
    return sum(isinstance(one, SendTask) for one in desk.take()), bool(desk.doubts())


def test_a_record_of_that_interval_stands_as_a_doubt_and_two_others_look(tmp_path: Path) -> None:
    assert told(record(), tmp_path) == (2, True)


@pytest.mark.parametrize(
    ("data", "is_there"),
    [(record(OTHER), True), (record(bundle="c" * 64), True), (record(), False)],
    ids=["another_interval", "other_evidence", "no_record"],
)
def test_what_its_record_does_not_show_is_no_measurement_and_others_look_all_the_same(
    tmp_path: Path, data: bytes, is_there: bool
) -> None:
    assert told(data, tmp_path, is_there=is_there) == (2, False)


def test_what_cannot_be_read_now_is_as_if_nothing_had_been_said(tmp_path: Path) -> None:
    away = [(Operation.GET, "models/m/evidence/", Fault.DENIED)]
    assert told(record(), tmp_path, *away) == (1, False)
