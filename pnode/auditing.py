"""The worker as auditor: runs the check that a task names over somebody's bundle, or measures a fault record again, beside its own replicas.

One at a time, on a thread of its own, entry by entry, so that replicas on this machine go on and the volunteer's share of processor time is kept. Whatever a
stranger wrote can only end the audit. What is found is signed with the worker's key.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from dcnr import logs
from dcnr.errors import Corrupt, NotFound, Refused, Unavailable, disk_trouble
from dcnr.graph import graph_digest, graph_from_bytes, stages_of_graph
from dcnr.ids import digest_of
from dcnr.ports import Clock
from dcnr.specs import Registry
from dcnr.tensor import Array
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.inputs import Inputs
from pnode.pace import Pace
from pnode.samples import StagedSamples
from trust.commits import Place
from trust.comparison import Comparison
from trust.envelope import parse, seal
from trust.evidence import MAX_CHALLENGED, MAX_RECORD_BYTES, SEED_BYTES
from trust.findings import DOUBT_FACTOR, finding_of
from trust.identity import NodeKey
from trust.overturned import Finding
from trust.step_logs import Contradiction
from vnode.bundle import Bundle, read_bundle
from vnode.checks.opening import UNVERIFIABLE, Assigned, Opened, Stated, open_claim, read_stated
from vnode.checks.torch_check import Checker
from vnode.vocabulary import TRAIN_LANE, Lane

LONGEST_S: Final = 3600.0
BUSY: Final = "another audit is under way"
LOCAL: Final = (Unavailable, OSError, MemoryError)
"""What fails a check and says nothing of what is checked: a shard that cannot be had now, a disk."""
"""An audit whose task names no end is given up after this time."""
MAX_REASON: Final = 300
_FINDINGS: Final = {
    Finding.PASS: model_pb2.AUDIT_FINDING_PASS, Finding.DOUBT: model_pb2.AUDIT_FINDING_DOUBT, Finding.FAULT: model_pb2.AUDIT_FINDING_FAULT,
}  # fmt: skip
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Found:
    """How a check ended: its worst comparison, or the first one that is clearly over."""

    stated: Stated
    opened: Opened | None
    """None where the accused's own words contradict one another."""
    finding: Finding
    ratio: float
    part: str
    entry: int


@dataclass(frozen=True, slots=True)
class Auditor:
    """For whom this worker audits, and with what. ``delegation()`` is the newest one of its key."""

    network_id: str
    pnode_id: str
    key: NodeKey
    delegation: Callable[[], identity_pb2.Envelope]
    registry: Registry


class Auditing:
    """Lives inside the worker's task group. ``shards`` asks the daemon for shards; ``done`` takes what was found, also if that is nothing."""

    def __init__(
        self, auditor: Auditor, *, clock: Clock, executor: Executor, pace: Pace, shards: Callable[[str, Mapping[str, int]], None],
        done: Callable[[local_pb2.WorkerAudited], None], group: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        self._auditor, self._clock, self._executor, self._pace = auditor, clock, executor, pace
        self._shards, self._done, self._group = shards, done, group
        self._busy = ""
        self._inputs: Inputs | None = None

    def audit(self, order: local_pb2.WorkerAudit) -> None:
        """Begins; the answer comes to ``done``. A second one meanwhile is refused."""
        if order.refusal:
            self._tell(order, model_pb2.AUDIT_FINDING_REFUSED, reason=order.refusal)
            return
        if self._busy:
            if order.task.task_id != self._busy:
                self._tell(order, model_pb2.AUDIT_FINDING_REFUSED, reason=BUSY, failed=BUSY)
            return
        self._busy = order.task.task_id
        self._pace.limit(order.cpu_share * max(1, order.threads))
        self._group.create_task(self._audit(order))

    def shard_ready(self, digest: str, error: str) -> None:
        """A shard came, or could not."""
        if self._inputs is not None:
            self._inputs.shard_ready(digest, error)

    async def _audit(self, order: local_pb2.WorkerAudit) -> None:
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        work = _Paced(thread, self._pace)
        check: _Check | None = None
        try:
            check = _Check(order, self._auditor)
            async with asyncio.timeout(self._left_s(order.task)):
                await self._run(check, work)
            self._tell_found(order, check, work.seconds)
        except TimeoutError:
            self._tell(order, model_pb2.AUDIT_FINDING_REFUSED, reason="the time for it was over", compute_s=work.seconds)
        except Refused as error:
            unverifiable = error.code == UNVERIFIABLE
            finding = model_pb2.AUDIT_FINDING_UNVERIFIABLE if unverifiable else model_pb2.AUDIT_FINDING_REFUSED
            self._tell(order, finding, reason=error.message, check=check, compute_s=work.seconds)
        except Exception as error:  # noqa: BLE001  boundary: whatever a stranger's bundle does to a check, the worker lives
            why = logs.told("audit_failed", error, vnode=order.task.vnode)
            failed = why if isinstance(error, LOCAL) else ""
            self._tell(order, model_pb2.AUDIT_FINDING_REFUSED, reason=why, compute_s=work.seconds, failed=failed)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
            self._busy, self._inputs = "", None

    async def _run(self, check: _Check, work: _Paced) -> None:
        await work.do(check.begin)
        if check.ended:
            return
        samples = check.samples
        self._inputs = inputs = Inputs(
            samples,
            self._executor,
            lambda digests: self._shards(samples.dataset, samples.sizes(digests)),
            with_input=check.reads_input,
        )
        for batch in check.stated.batches:
            await inputs.ready(TRAIN_LANE, batch)
        loop = asyncio.get_running_loop()

        def bring(batch: int) -> None:
            asyncio.run_coroutine_threadsafe(inputs.ready(TRAIN_LANE, batch), loop).result()

        await work.do(partial(check.open, bring))
        while not check.ended:
            await work.do(check.advance)

    def _left_s(self, task: model_pb2.AuditTask) -> float:
        return task.until_unix_ms / 1000 - self._clock.wall() if task.until_unix_ms else LONGEST_S

    def _tell_found(self, order: local_pb2.WorkerAudit, check: _Check, seconds: float) -> None:
        found = check.found()
        record = b""
        if found.finding is Finding.FAULT and not order.record:
            record = record_of(order.task, found).SerializeToString(deterministic=True)
            if len(record) > MAX_RECORD_BYTES:
                raise Refused(f"a fault record of {len(record)} bytes", code=UNVERIFIABLE)
        self._tell(order, _FINDINGS[found.finding], check=check, found=found, record=record, compute_s=seconds)

    def _tell(
        self, order: local_pb2.WorkerAudit, finding: model_pb2.AuditFinding.ValueType, *, reason: str = "", check: _Check | None = None,
        found: Found | None = None, record: bytes = b"", compute_s: float = 0.0, failed: str = "",
    ) -> None:  # fmt: skip
        auditor, task = self._auditor, order.task
        report = model_pb2.AuditReport(
            network_id=auditor.network_id, model=task.model, task_id=task.task_id, pnode_id=auditor.pnode_id, finding=finding,
            delegation=auditor.delegation(), compute_s=compute_s, reason=reason[:MAX_REASON], record_digest=digest_of(record) if record else "",
            interval=check.interval if check is not None else "", bundle_digest=task.bundle_digest,
        )  # fmt: skip
        if found is not None:
            report.residual, report.part, report.entry = found.ratio, found.part, found.entry
            if found.opened is not None:
                report.sources.extend(
                    model_pb2.InputSource(vnode=one.vnode, replica=one.replica, pnode_id=one.pnode_id, incarnation=one.incarnation)
                    for one in sorted(found.opened.sources, key=lambda one: (one.vnode, one.replica, one.incarnation))
                )
        envelope = seal(identity_pb2.DOMAIN_AUDIT_REPORT, report, auditor.key)
        self._done(local_pb2.WorkerAudited(task_id=task.task_id, report=envelope, record=record, failed=failed[:MAX_REASON]))


class _Paced:
    """Blocking work on one thread, paid for like all computations of this worker. ``seconds``: what it took so far."""

    def __init__(self, thread: Executor, pace: Pace) -> None:
        self._thread, self._pace = thread, pace
        self.seconds = 0.0

    async def do(self, work: Callable[[], _Result]) -> _Result:
        begun = self._pace.begin()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self.seconds += self._pace.end(begun)
            await asyncio.sleep(self._pace.owed_s())


class _Check:
    """One audit, step by step; every method blocks and runs on the audit's thread."""

    stated: Stated
    samples: StagedSamples

    def __init__(self, order: local_pb2.WorkerAudit, auditor: Auditor) -> None:
        self._order, self._auditor = order, auditor
        self._record = parse(model_pb2.FaultRecord, order.record, MAX_RECORD_BYTES) if order.record else None
        self._kind = self._record.check if self._record is not None else order.task.check
        self._seed = self._record.seed if self._record is not None else order.task.seed
        self._opened: Opened | None = None
        self._pieces: Iterator[Comparison | None] = iter(())
        self._ahead: Comparison | None = None
        self._worst: Comparison | None = None
        self.ended = False
        self.interval = ""

    @property
    def reads_input(self) -> bool:
        """Whether the stage is a source."""
        return self._checker.assigned.stage.is_source

    def begin(self) -> None:
        """Reads what the accused has signed; over already if that contradicts itself. Raises DcnrError."""
        order, task = self._order, self._order.task
        if len(self._seed) != SEED_BYTES or task.network_id != self._auditor.network_id:
            raise Refused("a task that is none", code="bad_task")
        graph = graph_from_bytes(order.graph)
        stages = stages_of_graph(graph, self._auditor.registry)
        stage = next((one for one in stages if one.id == task.vnode), None)
        if stage is None:
            raise Refused(f"the graph has no VNode {task.vnode!r:.80} with weights", code="bad_task")
        place = Place(task.network_id, task.model, task.job_id, task.vnode)
        is_read = any(read.id == stage.id for one in stages for read in one.inputs)
        assigned = Assigned(place, stage, int(graph.train.batch_size), int(order.num_batches), str(graph.train.codec), is_read)
        self._checker = Checker(assigned, self._auditor.registry, int(graph.train.seed), graph_digest(graph))
        self.samples = StagedSamples(Path(order.dataset_manifest_path), Path(order.shard_dir), graph)
        if self.samples.num_batches != order.num_batches:
            raise Refused(
                f"the data set gives {self.samples.num_batches} batches, the job has {order.num_batches}", code="wrong_dataset"
            )
        with self._bundle() as bundle:
            self.stated = read_stated(bundle, assigned, task.first_statement)
        self.interval = self.stated.exhibit.interval
        if self._record is not None and not _is_about(self._record, self.stated):
            raise Refused("the bundle is not of the interval that the record is about", code=UNVERIFIABLE)
        self.ended = self.stated.broken is not None

    def open(self, bring: Callable[[int], None]) -> None:
        """Makes the claim; ``bring`` returns once the shards of a batch are here again, which others may have pushed out of the cache. Raises DcnrError."""
        with self._bundle() as bundle:
            maps = self._checker.maps(self._kind)
            self._opened = open_claim(self.stated, bundle, self._checker.assigned, _TrainBatches(self.samples, bring), maps=maps)
        self._pieces = self._checker.pieces(self._opened.claim, self._kind, self._seed)

    def advance(self) -> None:
        """The comparisons of one entry, or those up to the first that is clearly over; or less, where finding them takes longer than a step."""
        entry = None
        while True:
            try:
                comparison = self._ahead or next(self._pieces)
            except StopIteration:
                self.ended = True
                return
            self._ahead = None
            if comparison is None or (entry is not None and comparison.step != entry):
                self._ahead = comparison
                return
            entry = comparison.step
            if self._worst is None or comparison.ratio > self._worst.ratio:
                self._worst = comparison
            if comparison.ratio > DOUBT_FACTOR:
                self.ended = True
                return

    def found(self) -> Found:
        """How it ended. Raises Refused where nothing was compared."""
        if self.stated.broken is not None:
            return Found(self.stated, None, Finding.FAULT, math.inf, "form", self.stated.broken.entry)
        worst = self._worst
        if worst is None:
            raise Refused("there was nothing to compare", code=UNVERIFIABLE)
        return Found(self.stated, self._opened, finding_of(worst.ratio, 1.0), worst.ratio, worst.part, worst.step)

    def _bundle(self) -> Bundle:
        try:
            return read_bundle(Path(self._order.bundle_path))
        except Corrupt as error:
            raise Refused(error.message, code=UNVERIFIABLE) from error
        except OSError as error:
            raise disk_trouble("the bundle cannot be read", error) from error


class _TrainBatches:
    """The data set of a job, by number of the batch."""

    def __init__(self, samples: StagedSamples, bring: Callable[[int], None]) -> None:
        self._samples, self._bring = samples, bring

    def read_input(self, batch: int) -> Array:
        return self._read(self._samples.read_input, batch)

    def read_target(self, batch: int) -> Array:
        return self._read(self._samples.read_target, batch)

    def _read(self, read: Callable[[Lane, int], Array], batch: int) -> Array:
        """Raises Unavailable, whatever was wrong with a shard: nobody who is audited made it."""
        try:
            try:
                return read(TRAIN_LANE, batch)
            except NotFound:
                self._bring(batch)
                return read(TRAIN_LANE, batch)
        except (NotFound, Corrupt) as error:
            raise Unavailable(f"batch {batch} cannot be read: {error.message}", code="no_samples") from error


def record_of(task: model_pb2.AuditTask, found: Found) -> model_pb2.FaultRecord:
    """The evidence of a fault: what anybody needs, besides the bundle, to find it again."""
    return model_pb2.FaultRecord(
        kind=model_pb2.FAULT_KIND_COMPUTATION,
        network_id=task.network_id,
        model=task.model,
        job_id=task.job_id,
        vnode=task.vnode,
        statements=found.stated.envelopes,
        challenged=_challenged(found),
        seed=task.seed,
        residual=found.ratio,
        logs=found.stated.logs,
        bundle_digest=task.bundle_digest,
        check=task.check,
        entry=found.entry,
        part=found.part,
    )


def _challenged(found: Found) -> list[str]:
    """The states between which it shows, and the inputs and outputs of the entry, as many as a record may name: whoever measures it again reads all of its
    bundle, and names decide only that it is about what the accused stated. Of words that contradict one another, their log.
    """
    stated, opened = found.stated, found.opened
    if opened is None:
        assert stated.broken is not None
        return [_log_with(stated, stated.broken)]
    before = max(entry for entry in opened.names if entry <= found.entry)
    after = min((entry for entry in opened.names if entry > found.entry), default=before)
    tensors = [
        digest.hex()
        for step in stated.steps[found.entry : found.entry + 1]
        for digest in (*step.inputs, *(output.digest for output in step.outputs))
    ]
    return list(dict.fromkeys([opened.names[before], opened.names[after], *tensors]))[:MAX_CHALLENGED]


def _log_with(stated: Stated, broken: Contradiction) -> str:
    """Digest of the log that holds that entry."""
    end = 0
    for statement, log in zip(stated.exhibit.statements, stated.exhibit.logs, strict=True):
        end += len(log.steps)
        if broken.entry < end:
            return statement.steps_digest
    return stated.exhibit.statements[-1].steps_digest


def _is_about(record: model_pb2.FaultRecord, stated: Stated) -> bool:
    return list(record.statements) == list(stated.envelopes) and tuple(record.logs) == stated.logs
