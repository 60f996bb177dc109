"""Goal: where audits are in force, a worker's statements name the log of its steps, and on request everything behind them is there, also after its death; every
digest fits, and another machine that runs the interval again finds what was claimed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from worker_rig import DaemonEnd, Job, make_job, worker

from dcnr.graph import stages_of_graph
from dcnr.ids import digest_of
from dcnr.tensor import TensorHeader, decode
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.samples import StagedSamples
from trust.delegation import open_past_delegation
from trust.envelope import check_signature, digest_of_envelope, parse_envelope
from trust.late_draw import UNLEARNED
from trust.step_logs import contradiction_in, open_log
from vnode.bundle import Bundle, read_bundle
from vnode.checks.claims import Claim, ClaimedStep
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.torch_record import as_array
from vnode.registry import default_registry
from vnode.signed_frames import FrameNumber, statement
from vnode.state import MAX_NUMBER, parse, serialise
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of
from vnode.vocabulary import TRAIN_LANE, Mode, Peer

STATE, INPUT, OUTPUT = model_pb2.EVIDENCE_KIND_STATE, model_pb2.EVIDENCE_KIND_INPUT, model_pb2.EVIDENCE_KIND_OUTPUT


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 300))  # type: ignore[arg-type]


def audited(job: Job, vnode: str) -> dict[str, Any]:
    return {"audited": True, "evidence_dir": str(job.root / f"evidence-{vnode}"), "evidence_bytes": 64 << 20}


async def gathered(end: DaemonEnd, job: Job, vnode: str, interval: str) -> local_pb2.EvidenceGathered:
    wish = local_pb2.GatherEvidence(
        replica=f"{vnode}.1",
        interval=interval,
        path=str(job.root / "bundles" / interval),
        evidence_dir=str(job.root / f"evidence-{vnode}"),
    )
    await end.pipe.send(local_pb2.ToWorker(gather=wish))
    await end.until(lambda: any(item.interval == interval for item in end.gathered), 120)
    return next(item for item in reversed(end.gathered) if item.interval == interval)


def last_of(end: DaemonEnd, vnode: str) -> local_pb2.SnapshotReady:
    return next(item for item in reversed(end.snapshots) if item.replica == f"{vnode}.1")


def opened(bundle: Bundle) -> tuple[model_pb2.Commit, model_pb2.StepLog]:
    """The statement and its log, which fit."""
    envelope = parse_envelope(bytes(bundle.data(model_pb2.EVIDENCE_KIND_STATEMENT)))
    commit = model_pb2.Commit.FromString(envelope.payload)
    log = open_log(bytes(bundle.data(model_pb2.EVIDENCE_KIND_STEPS)), commit)
    assert contradiction_in(commit, log) is None
    return commit, log


def check_digests(bundle: Bundle, commit: model_pb2.Commit, log: model_pb2.StepLog) -> None:
    """Every state, input and output is what the log or the statement names; every input over a link is signed by who sent it."""
    states = {0: commit.parent_digest, len(log.steps): commit.state_digest}
    states |= {entry: step.state_digest for entry, step in enumerate(log.steps[:-1], start=1) if step.state_digest}
    assert {part.entry for part in bundle.parts(STATE)} == set(states)
    assert all(digest_of(bundle.data(STATE, entry=entry)) == digest for entry, digest in states.items())
    keys: dict[tuple[str, int], bytes] = {}
    for entry, step in enumerate(log.steps):
        for port, digest in enumerate(step.inputs):
            data, part = (
                bundle.data(INPUT, entry=entry, batch=step.batch, port=port),
                bundle.part(INPUT, entry=entry, batch=step.batch, port=port),
            )
            assert blake3(data).digest() == digest
            if part.HasField("frame"):
                check_proof(part, digest.hex(), keys)
        for port, output in enumerate(step.outputs):
            assert blake3(bundle.data(OUTPUT, entry=entry, batch=step.batch, port=port)).digest() == output.digest


def check_proof(part: model_pb2.EvidencePart, digest: str, keys: dict[tuple[str, int], bytes]) -> None:
    proof = part.frame
    sender = (proof.source_replica, proof.source_incarnation)
    if proof.HasField("delegation"):
        keys[sender] = open_past_delegation(proof.delegation, network_id="5" * 40).worker_public_der
    header = TensorHeader(proof.dtype, tuple(proof.shape), proof.codec, part.size_bytes, digest)
    number = FrameNumber(TRAIN_LANE, part.batch, Mode.FORWARD_ONLY if proof.forward_only else Mode.TRAIN)
    said = statement(Peer(*sender), proof.target_replica, number, header, proof.step)  # type: ignore[arg-type]
    check_signature(identity_pb2.DOMAIN_FRAME, said, keys[sender], proof.signature)


def claim_of(job: Job, vnode: str, bundle: Bundle, log: model_pb2.StepLog) -> Claim:
    """As an auditor decodes it. Stages here read one input, of as many values as their output has."""
    samples = StagedSamples(job.manifest_path, job.shard_dir, job.graph)
    stage = next(item for item in stages_of_graph(job.graph, default_registry()) if item.id == vnode)
    steps = []
    for entry, step in enumerate(log.steps):
        target = samples.read_target(TRAIN_LANE, step.batch)
        shape = (len(target), *stage.inputs[0].spec.shape)

        def tensor(kind: Any, codec: str, digest: bytes, entry: int = entry, batch: int = step.batch, shape: Any = shape) -> Any:
            data = bundle.data(kind, entry=entry, batch=batch)
            return decode(TensorHeader("float32", shape, codec, len(data), digest.hex()), data)

        if step.inputs:
            codec = bundle.part(INPUT, entry=entry, batch=step.batch).frame.codec or "raw"
            taken = tensor(INPUT, codec, step.inputs[0])
        else:
            taken = samples.read_input(TRAIN_LANE, step.batch)
        output = tensor(OUTPUT, step.outputs[0].codec, step.outputs[0].digest) if step.outputs else np.zeros(shape, np.float32)
        mode = Mode.FORWARD_ONLY if step.forward_only else Mode.TRAIN
        codec = step.outputs[0].codec if step.outputs else "raw"
        steps.append(ClaimedStep(step.batch, mode, (taken,), target, int(step.num_learned), output, codec, step.loss, step.lr))
    return Claim(tuple(steps), {part.entry: bytes(bundle.data(STATE, entry=part.entry)) for part in bundle.parts(STATE)})


def replayed(job: Job, vnode: str, claim: Claim) -> list[Any]:
    """What does not fit. Outputs that nobody wanted are not looked at."""
    registry = default_registry()
    stage = next(item for item in stages_of_graph(job.graph, registry) if item.id == vnode)
    compute = TorchCompute(stage, registry, num_batches=job.num_batches, seed=int(job.graph.train.seed))
    tolerances = checks_of_stage(stage, registry).replay()
    found = list(replay(compute, schema_of(stage, registry), claim, tolerances, as_array=as_array))
    assert {item.part for item in found} >= {"loss", "weights", "lineage"}
    wanted = [item for item in found if item.part != "output" or claim.steps[item.step].output.any()]
    return [item for item in wanted if item.residual > item.tolerance]


def test_everything_behind_a_statement_is_there_and_runs_again(tmp_path: Path) -> None:
    """A chain over two workers: one interval with inputs from the data set, one with rounded and signed inputs; states in between made again."""
    job = make_job(tmp_path, num_stages=2, passes=14, codec="bf16")

    async def scenario() -> None:
        async with worker(tmp_path) as first, worker(tmp_path) as second:
            around = {"s1": first, "s2": second}
            await first.host(job, "s1", around, **audited(job, "s1"))
            await second.host(job, "s2", around, **audited(job, "s2"))
            await second.introduce("s1", first)
            for vnode, end in around.items():
                await end.until(lambda end=end: bool(end.snapshots), 120)
                made = await gathered(end, job, vnode, digest_of_envelope(last_of(end, vnode).commit))
                assert made.reason == ""
                assert digest_of(Path(made.path).read_bytes()) == made.digest
                with read_bundle(Path(made.path)) as bundle:
                    commit, log = opened(bundle)
                    check_digests(bundle, commit, log)
                    assert sum(not step.forward_only for step in log.steps) == job.num_batches
                    assert any(step.state_digest for step in log.steps)
                    assert all(bool(step.inputs) is (vnode == "s2") for step in log.steps)
                    assert all(part.frame.codec == "bf16" for part in bundle.parts(INPUT))
                    assert replayed(job, vnode, claim_of(job, vnode, bundle, log)) == []

    run(scenario)


def test_evidence_outlives_a_worker_and_goes_with_the_verdict(tmp_path: Path) -> None:
    """Both stages in one worker: what is handed over inside has no signature. The worker dies; the next one finds the interval, and frees it when told."""
    job = make_job(tmp_path, num_stages=2)

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            around = {"s1": end, "s2": end}
            for vnode in around:
                await end.host(job, vnode, around, **audited(job, vnode))
            await end.until(lambda: len({item.replica for item in end.snapshots}) == 2, 120)
            interval = digest_of_envelope(last_of(end, "s2").commit)
            end.process.kill()
        async with worker(tmp_path, incarnation=2) as end:
            made = await gathered(end, job, "s2", interval)
            with read_bundle(Path(made.path)) as bundle:
                commit, log = opened(bundle)
                check_digests(bundle, commit, log)
                assert not any(part.HasField("frame") for part in bundle.parts(INPUT))
                assert replayed(job, "s2", claim_of(job, "s2", bundle, log)) == []
            await end.host(job, "s2", {"s1": end, "s2": end}, **audited(job, "s2"))
            await end.until(lambda: bool(end.reports) and end.reports["s2.1"].state != 0, 120)
            verdicts = local_pb2.WorkerVerdicts(replica="s2.1", decided=[interval], num_open=5)
            folder = job.root / "evidence-s2"

            async def freed() -> bool:
                await end.pipe.send(local_pb2.ToWorker(verdicts=verdicts))
                return interval not in {path.read_text() for path in folder.glob("*/name")}

            while not await freed():
                await end.until(lambda: True)
                await asyncio.sleep(0.05)
            await end.until(lambda: end.reports["s2.1"].reason.startswith("waiting_for_audit"), 120)
            end.gathered.clear()
            assert "no evidence" in (await gathered(end, job, "s2", interval)).reason

    run(scenario)


def test_a_state_that_gives_nothing_finite_is_told_and_its_replica_stays(tmp_path: Path) -> None:
    """Weights that are far too large, as a cheat may leave them behind: the holder hears how many batches were tried in vain."""
    job = make_job(tmp_path, num_stages=1, passes=4)
    stage = next(item for item in stages_of_graph(job.graph, default_registry()) if item.id == "s1")
    schema = schema_of(stage, default_registry())
    info, arrays = parse(job.states["s1"].read_bytes(), schema)
    large = {name: array * np.float32(1e30) if array.dtype == np.float32 else array for name, array in arrays.items()}
    job.states["s1"].write_bytes(serialise(schema, info, large))

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            await end.host(job, "s1", {"s1": end}, **audited(job, "s1"))
            await end.until(lambda: "s1.1" in end.reports and end.reports["s1.1"].num_unlearned >= UNLEARNED, 120)
            report = end.reports["s1.1"]
            assert (report.num_learned, report.state) == (0, orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE)
            assert report.restored_from == digest_of(job.states["s1"].read_bytes())

    run(scenario)


@pytest.mark.parametrize("ends", [False, True], ids=["counted to the end", "beyond all numbers"])
def test_whoever_follows_a_state_at_the_end_of_all_numbers_writes_down_what_it_learns_or_says_that_it_cannot(
    tmp_path: Path, ends: bool
) -> None:
    """Whoever leaves it behind may have learned honestly but for that: each loss is as ever."""
    job = make_job(tmp_path, num_stages=1, of_images=True)
    stage = next(item for item in stages_of_graph(job.graph, default_registry()) if item.id == "s1")
    schema = schema_of(stage, default_registry())
    info, arrays = parse(job.states["s1"].read_bytes(), schema)
    name = "w/component.conv.weight"
    arrays = {**arrays, name: arrays[name] * np.float32(1e20)} if ends else arrays
    job.states["s1"].write_bytes(serialise(schema, replace(info, step=MAX_NUMBER), arrays))

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            await end.host(job, "s1", {"s1": end}, **audited(job, "s1"))
            await end.until(lambda: bool(end.snapshots or ("s1.1" in end.reports and end.reports["s1.1"].num_unlearned)), 120)
            assert bool(end.snapshots) is not ends
            assert end.reports["s1.1"].num_unlearned == (UNLEARNED if ends else 0)

    run(scenario)
