"""Goal: a worker process that audits passes honest work and proves every cheat; its record proves itself again in another process, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from nursery import forking, nursery
from worker_rig import JOB, MODEL, NETWORK_ID, DaemonEnd, Job, make_job, worker

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.errors import Refused, Unavailable
from dcnr.graph import graph_to_bytes, stages_of_graph
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from examples.byzantine.behaviours import BEHAVIOURS, Behaviour
from examples.byzantine.interval import Interval, Party, Work, make_interval
from orchestrator.audit_events import Bundle, Pay, People, Report, SendTask, VerifyRecord, Word
from orchestrator.auditing import Auditing
from orchestrator.audits import AuditDesk
from orchestrator.own_eyes import OwnEyes
from orchestrator.signal import Signal
from orchestrator.standings import Standings
from orchestrator.view import JobFacts
from pnode.samples import StagedSamples
from pnode.supervisor import WORKER
from pnode.verifying import WorkerVerifier
from trust.auditors import Candidate
from trust.commits import Place
from trust.draw import Secret, Task, task_of
from trust.envelope import digest_of_envelope, open_single
from trust.evidence import Exhibit, verify
from trust.identity import NodeKey
from trust.ledger import Interval as Open
from trust.ledger import Ledger, Verdict
from trust.separation import Party as TrustParty
from trust.separation import Separation
from trust.standing import State
from vnode.bundle import read_bundle
from vnode.checks.torch_record import Entry
from vnode.checks.verifying import Evidence
from vnode.registry import default_registry
from vnode.state import parse, serialise
from vnode.torch_stage import schema_of
from vnode.vocabulary import TRAIN_LANE, Mode

NUM_STEPS = 5
ACCUSED, NEIGHBOUR = Party(NETWORK_ID), Party(NETWORK_ID)
SEED = b"s" * 32
REPLAY, SKETCH, REFEREE = model_pb2.CHECK_KIND_REPLAY, model_pb2.CHECK_KIND_SKETCH, model_pb2.CHECK_KIND_REFEREE


@dataclass(frozen=True)
class Case:
    """A staged job, and intervals in it."""

    job: Job
    brought: list[str]

    def interval(self, vnode: str, behaviour: Behaviour | None = None, *, state_every: int = 2) -> Interval:
        stage = next(one for one in stages_of_graph(self.job.graph, default_registry()) if one.id == vnode)
        samples = StagedSamples(self.job.manifest_path, self.job.shard_dir, self.job.graph)
        rng = np.random.default_rng(5)
        shape = (self.job.batch_size, *stage.inputs[0].spec.shape)
        entries = [
            Entry(
                batch, Mode.FORWARD_ONLY if batch == 1 else Mode.TRAIN,
                (samples.read_input(TRAIN_LANE, batch) if stage.is_source else rng.standard_normal(shape, dtype=np.float32),),
                samples.read_target(TRAIN_LANE, batch),
            )
            for batch in range(NUM_STEPS)
        ]  # fmt: skip
        work = Work(
            Place(NETWORK_ID, MODEL, JOB, vnode), stage, default_registry(), self.job.num_batches, 7, self.job.states[vnode].read_bytes(), entries,
            state_every=state_every,
        )  # fmt: skip
        return make_interval(work, ACCUSED, None if stage.is_source else NEIGHBOUR, behaviour)

    def evidence(self, path: Path, interval: Interval, *, shard_dir: Path | None = None) -> Evidence:
        interval.write(path)

        async def bring(dataset: str, digest: str) -> None:
            self.brought.append(digest)

        return Evidence(
            path,
            graph_to_bytes(self.job.graph),
            self.job.num_batches,
            self.job.manifest_path,
            shard_dir or self.job.shard_dir,
            bring,
        )


def task(evidence: Evidence, vnode: str, check: model_pb2.CheckKind.ValueType = REPLAY) -> model_pb2.AuditTask:
    data = evidence.bundle.read_bytes()
    return model_pb2.AuditTask(
        network_id=NETWORK_ID, model=MODEL, job_id=JOB, vnode=vnode, task_id="7" * 32, bundle_digest=digest_of(data), bundle_bytes=len(data),
        check=check, seed=SEED,
    )  # fmt: skip


@asynccontextmanager
async def verifier(folder: Path, key: NodeKey, *, forked: bool = True) -> AsyncIterator[WorkerVerifier]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    start = forking(nursery("workers")) if forked else WORKER
    made = WorkerVerifier(key, NETWORK_ID, clock=SystemClock(), directory=folder, environment=environment, start=start)
    try:
        yield made
    finally:
        await made.close()


def report_in(audited: local_pb2.WorkerAudited, key: NodeKey) -> model_pb2.AuditReport:
    payload, signer = open_single(audited.report, identity_pb2.DOMAIN_AUDIT_REPORT)
    report = model_pb2.AuditReport.FromString(payload)
    delegation = identity_pb2.Delegation.FromString(report.delegation.payload)
    assert delegation.worker_public_key == signer.public_der
    assert (report.pnode_id, report.task_id) == (key.node_id, "7" * 32)
    assert len(report.bundle_digest) == 64, "which evidence it looked at"
    return report


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(make_job(tmp_path / "job"), [])


def test_honest_work_passes_every_cheat_is_proven_and_its_record_proves_itself_again_elsewhere(tmp_path: Path, case: Case) -> None:
    keys = NodeKey.generate(), NodeKey.generate()

    async def scenario() -> None:
        async with verifier(tmp_path / "one", keys[0], forked=False) as one, verifier(tmp_path / "two", keys[1]) as two:
            for vnode in ("s1", "s2"):
                evidence = case.evidence(tmp_path / vnode, case.interval(vnode))
                report = report_in(await one.audit(task(evidence, vnode), evidence), keys[0])
                assert report.finding == model_pb2.AUDIT_FINDING_PASS, report
                assert [source.pnode_id for source in report.sources] == ([NEIGHBOUR.node.node_id] if vnode == "s2" else [])
            assert case.brought, "targets are read from shards that the verifier asked for"
            records = {}
            for behaviour in BEHAVIOURS:
                evidence = case.evidence(tmp_path / behaviour.name, case.interval("s2", behaviour))
                audited = await one.audit(task(evidence, "s2"), evidence)
                report = report_in(audited, keys[0])
                assert report.finding == model_pb2.AUDIT_FINDING_FAULT, (behaviour.name, report)
                assert report.record_digest == digest_of(audited.record)
                assert report.interval == digest_of_envelope(_statement(evidence.bundle))
                records[behaviour.name] = audited.record, evidence
            for name, (record, evidence) in records.items():
                residual = await two.measure(record, evidence)
                proven = verify(record, NETWORK_ID, measured(residual), 1.0)
                assert proven.accused == ACCUSED.node.node_id, name
            await forged(two, records)

    async def forged(two: WorkerVerifier, records: dict[str, tuple[bytes, Evidence]]) -> None:
        """What an auditor makes up about honest work, or about another interval, proves nothing."""
        interval = case.interval("s2")
        evidence = case.evidence(tmp_path / "honest", interval)
        made_up = model_pb2.FaultRecord.FromString(records["tenfold"][0])
        with pytest.raises(Refused, match="not of the interval"):
            await two.measure(made_up.SerializeToString(), evidence)
        del made_up.statements[:], made_up.logs[:], made_up.challenged[:]
        made_up.statements.append(_statement(evidence.bundle))
        made_up.logs.append(interval.log_bytes)
        made_up.challenged.append(interval.commit.state_digest)
        made_up.residual = 1e9
        data = made_up.SerializeToString()
        residual = await two.measure(data, evidence)
        assert residual <= 1.0
        with pytest.raises(Refused, match="is no fault"):
            verify(data, NETWORK_ID, measured(residual), 1.0)

    asyncio.run(scenario())


def test_what_a_verifier_could_not_look_at_is_not_refuted(tmp_path: Path, case: Case) -> None:
    """A disk that fails it for a while says nothing of the evidence: whoever told a true fault must not be blamed for making it up."""
    tenfold = next(one for one in BEHAVIOURS if one.name == "tenfold")
    evidence = case.evidence(tmp_path / "tenfold", case.interval("s2", tenfold))

    async def scenario() -> None:
        async with verifier(tmp_path / "one", NodeKey.generate()) as one, verifier(tmp_path / "two", NodeKey.generate()) as two:
            record = (await one.audit(task(evidence, "s2"), evidence)).record
            with pytest.raises(Unavailable) as failed:
                await two.measure(record, replace(evidence, bundle=tmp_path / "swept"))
            assert failed.value.code == "not_measured"
            assert await two.measure(record, evidence) > 1.0, "a moment later it is proven"

    asyncio.run(scenario())


def test_what_the_orchestrators_own_verifier_found_is_proven_without_another_check(tmp_path: Path, case: Case) -> None:
    key, store, job = NodeKey.generate(), MemoryStore(SystemClock(), random.Random(1)), case.job
    tenfold = next(one for one in BEHAVIOURS if one.name == "tenfold")
    evidence = case.evidence(tmp_path / "tenfold", case.interval("s2", tenfold))
    asked = task(evidence, "s2")
    facts = laid_out(store, job, evidence)

    async def unasked() -> JobFacts:
        raise Unavailable("it is measured again", code="measured")

    async def scenario() -> None:
        async with verifier(tmp_path / "one", key) as one:
            eyes = OwnEyes(store, NETWORK_ID, tmp_path / "eyes", one)
            audited = await eyes.audit(asked, facts)
            record = model_pb2.FaultRecord.FromString(audited.record)
            proven = await eyes.prove(record, audited.record, unasked)
            assert (proven.accused, proven.residual) == (ACCUSED.node.node_id, report_in(audited, key).residual)
            record.residual = 1e9  # a record that it did not write
            with pytest.raises(Unavailable, match="measured again"):
                await eyes.prove(record, record.SerializeToString(deterministic=True), unasked)

    asyncio.run(scenario())


def test_a_fault_is_proven_over_the_evidence_that_was_audited_and_over_no_other(tmp_path: Path, case: Case) -> None:
    """An accused may sign a state in between that nothing leads to, and show it to a friend alone: whoever passed what was shown to it is not to blame."""
    key, store, job = NodeKey.generate(), MemoryStore(SystemClock(), random.Random(1)), case.job
    shown, hidden = split(case, tmp_path)
    name = digest_of_envelope(_statement(shown.bundle))
    assert name == digest_of_envelope(_statement(hidden.bundle))
    said = list[str]()
    history = SimpleNamespace(say=lambda kind, *words, **facts: said.append(kind))

    async def scenario() -> None:
        async with verifier(tmp_path / "one", key) as one:
            eyes = OwnEyes(store, NETWORK_ID, tmp_path / "eyes", one)
            facts = laid_out(store, job, shown, hidden)
            assert report_in(await eyes.audit(task(shown, "s2"), facts), key).finding == model_pb2.AUDIT_FINDING_PASS
            slander = await one.audit(task(hidden, "s2"), hidden)
            assert report_in(slander, key).finding == model_pb2.AUDIT_FINDING_FAULT
            store.rewind(keys.evidence(MODEL, "s2", digest_of(slander.record)), slander.record)

            async def known(job_id: str) -> JobFacts:
                return facts

            clock = SimpleNamespace(wall=lambda: 5.0, monotonic=lambda: 2.0)
            shared = SimpleNamespace(
                own_eyes=eyes,
                store=store,
                standings=Standings(),
                clock=clock,
                history=history,
                policy=SimpleNamespace(network_id=NETWORK_ID, single_host=False),
            )
            auditing = Auditing(
                MODEL, shared, view=lambda: None, job=known, plan=known, is_holder=lambda: True, wake=Signal()  # type: ignore[arg-type]
            )  # fmt: skip
            auditing._desk = desk = desk_of(name, Bundle(digest_of(shown.bundle.read_bytes()), 9))
            [first] = (action for action in desk.take() if isinstance(action, SendTask))
            desk.reported(Report(first.task_id, first.auditor, name, Word.PASS, digest="d" * 64), 2.0)
            [second] = (action for action in desk.take() if isinstance(action, SendTask))
            record = digest_of(slander.record)
            desk.reported(Report(second.task_id, second.auditor, name, Word.FAULT, "weights", record, "e" * 64), 2.0)
            [look] = (action for action in desk.take() if isinstance(action, VerifyRecord))
            await auditing._verify(look)
            assert (said, desk.decisions()) == (["fault_not_proven"], ())
            [own] = (action for action in desk.take() if isinstance(action, SendTask))
            desk.reported(Report(own.task_id, own.auditor, name, Word.PASS), 3.0)
            assert [one.verdict for one in desk.decisions()] == [Verdict.PASSED]
            assert [one.auditor for one in desk.take() if isinstance(one, Pay)] == [second.auditor]

    asyncio.run(scenario())


def split(case: Case, folder: Path) -> tuple[Evidence, Evidence]:
    """Two bundles of one interval, whose log names a state after two entries that is none: without that state, and with it."""
    interval = case.interval("s2")
    at = next(at for at, (part, _) in enumerate(interval.parts) if part.kind == model_pb2.EVIDENCE_KIND_STATE and part.entry == 2)
    stage = next(one for one in stages_of_graph(case.job.graph, default_registry()) if one.id == "s2")
    part, data = interval.parts.pop(at)
    info, tensors = parse(data, schema_of(stage, default_registry()))
    turned = serialise(schema_of(stage, default_registry()), info, {name: -value for name, value in tensors.items()})
    interval.log.steps[1].state_digest = digest_of(turned)
    interval.restate()
    statement = interval.signed()
    shown = case.evidence(folder / "shown", interval)
    interval.write(shown.bundle, statement=statement)
    interval.parts.insert(at, (part, turned))
    hidden = case.evidence(folder / "hidden", interval)
    interval.write(hidden.bundle, statement=statement)
    return shown, hidden


def laid_out(store: MemoryStore, job: Job, *evidence: Evidence) -> JobFacts:
    """The store holds what a check of that evidence reads; the job."""
    manifest = job.manifest_path.read_bytes()
    request = model_pb2.JobRequest(dataset_name="dots", dataset_digest=digest_of(manifest), num_batches=job.num_batches)
    store.rewind(keys.dataset_manifest("dots", request.dataset_digest), manifest)
    for one in evidence:
        data = one.bundle.read_bytes()
        store.rewind(keys.evidence(MODEL, "s2", digest_of(data)), data)
    for digest, path in job.shards.items():
        store.rewind(keys.shard("dots", digest), path.read_bytes())
    return JobFacts(request, "", job.graph, evidence[0].graph, (), ())


def desk_of(name: str, bundle: Bundle) -> AuditDesk:
    """A desk with that interval and its evidence, which two auditors have to look at; a verifier is there."""
    secret = next(
        secret
        for secret in (Secret(bytes([number]) * 32) for number in range(256))
        if all(task_of(secret, name, auditor, asked, 0) is Task.REAL for auditor in ("p", "q") for asked in (0, 1))
    )
    desk = AuditDesk(secret, Separation(single_host=True), map("{:032x}".format, count()).__next__)
    here = {node_id: Candidate(TrustParty(node_id), State.ACTIVE, True) for node_id in ("accused", "p", "q")}
    desk.tick(People(here, (TrustParty("v"),), redundancy={"s2": 3}), 1.0)
    desk.chronicle(Ledger({}, {name: Open(name, 0, "s2", "s2.1", "accused", IntervalSet.span(0, 4), Verdict.OPEN)}), 1.0)
    desk.answered("accused", name, bundle, 1.0)
    return desk


def measured(residual: float) -> Callable[[Exhibit, model_pb2.FaultRecord], float]:
    return lambda exhibit, told: residual


def _statement(bundle: Path) -> identity_pb2.Envelope:
    with read_bundle(bundle) as opened:
        return identity_pb2.Envelope.FromString(bytes(opened.data(model_pb2.EVIDENCE_KIND_STATEMENT)))


def test_what_cannot_be_checked_is_said_and_blames_nobody(tmp_path: Path, case: Case) -> None:
    """Torn and foreign bundles, contradictions, a referee with and without the states that he needs, and checks that do not apply: one process survives all."""
    key = NodeKey.generate()

    async def scenario() -> None:
        async with verifier(tmp_path / "one", key) as one:

            async def found(
                interval: Interval, check: model_pb2.CheckKind.ValueType = REPLAY, **changes: object
            ) -> model_pb2.AuditReport:
                evidence = case.evidence(tmp_path / "bundle", interval)
                asked = task(evidence, "s2", check)
                for name, value in changes.items():
                    setattr(asked, name, value)
                return report_in(await one.audit(asked, evidence), key)

            honest = case.interval("s2")
            torn = case.evidence(tmp_path / "torn", honest)
            torn.bundle.write_bytes(torn.bundle.read_bytes()[:-5])
            unverifiable = model_pb2.AUDIT_FINDING_UNVERIFIABLE
            assert report_in(await one.audit(task(torn, "s2"), torn), key).finding == unverifiable
            assert (await found(case.interval("s1"))).finding == unverifiable
            assert (await found(honest, first_statement="f" * 64)).finding == unverifiable, (
                "what comes before its anchor is left out"
            )
            silent = case.interval("s1")
            silent.say_nothing_of_outputs([3])
            unsaid = await found(silent, vnode="s1")
            assert (unsaid.finding, "entry 3 does not say" in unsaid.reason) == (unverifiable, True), "s2 reads it"
            assert (await found(honest, REFEREE)).finding == unverifiable
            assert (await found(case.interval("s2", state_every=1), REFEREE)).finding == model_pb2.AUDIT_FINDING_PASS
            refused = model_pb2.AUDIT_FINDING_REFUSED
            assert (await found(honest, seed=b"short")).finding == refused
            assert (await found(honest, vnode="s9")).finding == refused
            assert (await found(honest, until_unix_ms=1000)).finding == refused
            assert (await found(honest, model_pb2.CHECK_KIND_UNSPECIFIED)).finding == refused
            given_up = asyncio.create_task(found(honest))
            await asyncio.wait({given_up}, timeout=0.01)
            given_up.cancel()
            await asyncio.wait({given_up})
            assert (await found(honest)).finding == model_pb2.AUDIT_FINDING_PASS, (
                "an audit that nobody waits for keeps no other one waiting"
            )
            honest.log.steps[2].loss *= 2
            honest.restate()
            broken = await found(honest)
            assert (broken.finding, broken.part, broken.residual) == (model_pb2.AUDIT_FINDING_FAULT, "form", float("inf"))

    asyncio.run(scenario())


def test_a_worker_that_cheats_hands_over_what_convicts_it(tmp_path: Path) -> None:
    """Two real workers train a chain, the second one with gradients ten times too large; what each hands over on request is audited by a third process."""
    job, key = make_job(tmp_path / "job"), NodeKey.generate()
    case, cheat = Case(job, []), ("-m", "examples.byzantine", "--behaviour", "tenfold")

    async def audited(one: WorkerVerifier, end: DaemonEnd, vnode: str) -> tuple[local_pb2.WorkerAudited, Evidence]:
        await end.until(lambda: any(item.replica == f"{vnode}.1" for item in end.snapshots), 120)
        interval = digest_of_envelope(end.snapshots[-1].commit)
        bundle = tmp_path / "bundles" / vnode
        wish = local_pb2.GatherEvidence(
            replica=f"{vnode}.1", interval=interval, path=str(bundle), evidence_dir=str(tmp_path / vnode)
        )
        await end.pipe.send(local_pb2.ToWorker(gather=wish))
        await end.until(lambda: bool(end.gathered), 120)
        assert end.gathered[-1].reason == ""
        evidence = Evidence(bundle, graph_to_bytes(job.graph), job.num_batches, job.manifest_path, job.shard_dir, no_need)
        return await one.audit(task(evidence, vnode), evidence), evidence

    async def no_need(dataset: str, digest: str) -> None:
        case.brought.append(digest)

    async def scenario() -> None:
        async with verifier(tmp_path / "one", key) as one, worker(tmp_path) as first, worker(tmp_path, program=cheat) as second:
            around = {"s1": first, "s2": second}
            for vnode, end in around.items():
                await end.host(
                    job, vnode, around, audited=True, evidence_dir=str(tmp_path / vnode), evidence_bytes=64 << 20, checkpoint_s=2
                )  # fmt: skip
            await second.introduce("s1", first)
            passed = report_in((await audited(one, first, "s1"))[0], key)
            assert passed.finding == model_pb2.AUDIT_FINDING_PASS, passed
            found, evidence = await audited(one, second, "s2")
            report = report_in(found, key)
            assert report.finding == model_pb2.AUDIT_FINDING_FAULT, report
            assert {(source.vnode, source.pnode_id) for source in report.sources} == {("s1", first.pnode_id)}
            proven = verify(found.record, NETWORK_ID, measured(await one.measure(found.record, evidence)), 1.0)
            assert proven.accused == second.pnode_id

    asyncio.run(scenario())
