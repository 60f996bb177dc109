"""Goal: a store that denies a read of evidence disproves nothing: who cheated is found at the next look, an auditor's fault is not taken for made up, and what
proves it stays in the store.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from audited_rig import NODES, drawn, judged, name_of, piece
from audited_rig import Job as Manifests

from dataservice import keys
from dataservice.memory import Fault, MemoryStore, Operation, PlannedFaults
from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.audit_case import NOT_MEASURED
from orchestrator.audit_events import VerifyRecord
from orchestrator.audit_retention import EvidenceKeeper
from orchestrator.auditing import Auditing
from orchestrator.equivocations import Equivocations
from orchestrator.others_verdicts import LOOK_AGAIN_S, OthersVerdicts
from orchestrator.own_eyes import OwnEyes
from orchestrator.signal import Signal
from orchestrator.standings import Standings
from orchestrator.view import ModelView
from trust.delegation import make_delegation
from trust.envelope import digest_of_envelope, seal
from trust.evidence import verify
from trust.folding import Told
from trust.identity import NodeKey
from trust.ledger import Verdict
from trust.standing import State

NOW_S, NETWORK, MODEL = 1_700_000_000.0, "5" * 40, "m"
NODE, WORKER = NodeKey.generate(), NodeKey.generate()
EVIDENCE = f"models/{MODEL}/evidence/"


class Wall:
    """A clock that is set."""

    now_s = NOW_S

    def wall(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


def commit_of(state: str, **words: str) -> identity_pb2.Envelope:
    commit = model_pb2.Commit(
        network_id=NETWORK, model=MODEL, job_id="j", vnode="a", replica="a.0", incarnation=3, parent_digest="1" * 64, state_digest=state,
        batches=[1], losses=[0.5], sequence=7, delegation=make_delegation(NODE, NETWORK, WORKER.public_der, 3, ["127.0.0.1:1"], NOW_S), **words,
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_COMMIT, commit, WORKER)


def record_of_two_commits() -> bytes:
    """A ban that signatures alone prove."""
    known, found = Equivocations(NETWORK, MODEL), None
    checkpoint = model_pb2.Checkpoint(job_id="j", vnode="a", replica="a.0", pnode_id=NODE.node_id)
    for state in ("2" * 64, "3" * 64):
        found = known.brought(checkpoint, commit_of(state))
    assert found is not None
    return found[1]


def record_of_wrong_words() -> bytes:
    """A fault that signatures alone prove: a log of another VNode than the commit that names it."""
    log = model_pb2.StepLog(network_id=NETWORK, model=MODEL, job_id="j", vnode="b").SerializeToString()
    record = model_pb2.FaultRecord(
        kind=model_pb2.FAULT_KIND_COMPUTATION, network_id=NETWORK, model=MODEL, job_id="j", vnode="a", seed=b"s" * 32, logs=[log],
        statements=[commit_of("2" * 64, steps_digest=digest_of(log))], challenged=[digest_of(log)], bundle_digest="e" * 64,
    )  # fmt: skip
    return record.SerializeToString()


class Rig:
    """One orchestrator's knowledge of a fault record that lies in a store which denies its first read."""

    def __init__(self, root: Path, data: bytes) -> None:
        self.clock, self.said, self.data = Wall(), list[str](), data
        self.evidence = digest_of(self.data)
        self.statements = [digest_of_envelope(one) for one in model_pb2.FaultRecord.FromString(self.data).statements]
        self.store = MemoryStore(self.clock, random.Random(1), faults=PlannedFaults([(Operation.GET, EVIDENCE, Fault.DENIED)]))
        self.store.rewind(keys.evidence(MODEL, "a", self.evidence), self.data)
        history = SimpleNamespace(say=lambda kind, *words, **facts: self.said.append(kind))
        self.shared = SimpleNamespace(
            own_eyes=OwnEyes(self.store, NETWORK, root, None), store=self.store, standings=Standings(), clock=self.clock, history=history,
            policy=SimpleNamespace(network_id=NETWORK, audits_drawn=True, single_host=False),
        )  # fmt: skip

    def told(self, interval: str, pnode_id: str = NODE.node_id) -> Told:
        """That somebody's interval failed, by that record."""
        return Told(pnode_id, interval, Verdict.FAILED, NOW_S, NOW_S, self.evidence)

    async def job(self, job_id: str) -> object:
        raise Unavailable("not needed", code="no_job")


def look(others: OthersVerdicts) -> None:
    """At everything that is told and not looked at."""
    view = ModelView(MODEL, model_pb2.Head(), b"", manifest=model_pb2.Manifest(entries=[model_pb2.ManifestEntry(vnode="a")]))

    async def once() -> None:
        async with asyncio.TaskGroup() as group:
            others.look(view, group)

    asyncio.run(once())


def test_a_proven_cheat_that_another_named_is_found_at_the_next_look(tmp_path: Path) -> None:
    rig = Rig(tmp_path, record_of_two_commits())
    standings = rig.shared.standings
    standings.chain(MODEL, (rig.told(rig.statements[1]),))
    others = OthersVerdicts(MODEL, rig.shared, rig.job, Signal())  # type: ignore[arg-type]
    look(others)
    assert rig.said == []
    assert [one.evidence for _, one in standings.unverified()] == [rig.evidence], "it is still to be looked at"
    rig.clock.now_s += LOOK_AGAIN_S
    look(others)
    assert standings.of(NODE.node_id, rig.clock.now_s).state is State.BANNED


def test_records_that_cannot_be_read_keep_no_other_from_being_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay unread for as long as the store lacks them: nobody was ever found out again where there were enough of them."""
    monkeypatch.setattr("orchestrator.others_verdicts.MAX_LOOKS", 4)
    rig = Rig(tmp_path, record_of_two_commits())
    lost = [
        Told(name_of(f"node {at}")[:40], name_of(f"at {at}"), Verdict.FAILED, NOW_S, NOW_S, name_of(f"lost {at}"))
        for at in range(9)
    ]
    rig.shared.standings.chain(MODEL, (*lost, rig.told(rig.statements[0])))
    others = OthersVerdicts(MODEL, rig.shared, rig.job, Signal())  # type: ignore[arg-type]
    for _ in range(6):
        look(others)
        rig.clock.now_s += LOOK_AGAIN_S
    assert rig.shared.standings.of(NODE.node_id, rig.clock.now_s).state is State.BANNED
    assert {one.evidence for _, one in rig.shared.standings.unverified()} == {one.evidence for one in lost}


def test_two_commits_of_one_number_prove_nothing_of_another_interval_or_pnode(tmp_path: Path) -> None:
    rig = Rig(tmp_path, record_of_two_commits())
    standings, stranger = rig.shared.standings, NodeKey.generate().node_id
    false = [rig.told("b" * 64), rig.told(rig.statements[0], stranger)]
    standings.chain(MODEL, tuple(false))
    others = OthersVerdicts(MODEL, rig.shared, rig.job, Signal())  # type: ignore[arg-type]
    for _ in range(2):  # the first read is denied
        look(others)
        rig.clock.now_s += LOOK_AGAIN_S
    assert rig.said == ["evidence_refuted"] * 2
    assert {standings.of(one, rig.clock.now_s).state for one in (NODE.node_id, stranger)} == {State.PROBATION}
    standings.chain(MODEL, (*false, *(rig.told(one) for one in rig.statements)))
    look(others)
    assert standings.of(NODE.node_id, rig.clock.now_s).state is State.BANNED, "what the record does prove counts all the same"
    assert standings.of(stranger, rig.clock.now_s).state is State.PROBATION
    assert standings.unverified() == []


@pytest.mark.parametrize(("data", "word"), [(record_of_wrong_words(), "proven"), (record_of_two_commits(), "made up")])
def test_a_fault_that_an_auditor_tells_of_is_read_again_and_not_taken_for_made_up(tmp_path: Path, data: bytes, word: str) -> None:
    """Over whichever evidence, where signed words contradict one another. Two stories are no fault of the work that was audited."""
    rig = Rig(tmp_path, data)
    name = verify(data, NETWORK, lambda exhibit, record: 0.0, 1.0).interval
    words: list[str] = []
    desk = SimpleNamespace(
        waits=lambda now_s: [SimpleNamespace(interval=name, vnode="a")],
        unverified=lambda *facts: words.append("unmeasured" if facts[-1] in NOT_MEASURED else "unread"),
        verified=lambda *facts, proven, **more: words.append("proven" if proven else "made up"),
    )
    auditing = Auditing(
        MODEL, rig.shared, view=lambda: None, job=rig.job, plan=rig.job, is_holder=lambda: True, wake=Signal()  # type: ignore[arg-type]
    )  # fmt: skip
    auditing._desk = desk  # type: ignore[assignment]
    for _ in range(2):
        asyncio.run(auditing._verify(VerifyRecord(name, rig.evidence, "auditor", "", "b" * 64)))
    assert words == ["unread", word]


def test_a_bundle_whose_record_could_not_be_read_stays(tmp_path: Path) -> None:
    """Where the record cannot be read now nothing is deleted: what it names would go as if nobody wanted it."""
    clock, bundle = Wall(), b"bundle of a fault"
    record = model_pb2.FaultRecord(bundle_digest=digest_of(bundle)).SerializeToString()
    store = MemoryStore(clock, random.Random(1), faults=PlannedFaults([(Operation.GET, EVIDENCE, Fault.DENIED)]))
    for data in (bundle, record):
        store.rewind(keys.evidence(MODEL, "a", digest_of(data)), data)
    job = Manifests()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), draw=drawn())
    failed = Told(NODES["x"], name_of("of an earlier job"), Verdict.FAILED, 1.0, 1.0, digest_of(record))
    chain, keeper = replace(job.chain(), earlier=(failed,)), EvidenceKeeper(store)
    clock.now_s += 9000

    async def sweep() -> None:
        await keeper.sweep(MODEL, chain, int(clock.now_s * 1000), 3_600_000)

    with pytest.raises(Unavailable):
        asyncio.run(sweep())
    asyncio.run(sweep())
    assert store.peek(keys.evidence(MODEL, "a", digest_of(bundle))) == bundle
