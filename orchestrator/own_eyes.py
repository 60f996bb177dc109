"""What this orchestrator checks itself: audits where nobody independent is free, and every fault record before anybody is blamed.

Brings what a check reads from the store onto the disk, under its digest, and asks the verifier (`vnode.checks.verifying`), which is a process of its own. An
orchestrator without one verifies equivocations only, since those are signatures alone; computations move nobody there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import structlog

from dataservice import keys
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, Refused, Unavailable, disk_trouble
from dcnr.ids import Digest, check_digest, digest_of
from dcnr.ports import ObjectStore
from dcnr.v1 import local_pb2, model_pb2
from orchestrator.access import MAX_DATASET_MANIFEST_BYTES
from orchestrator.audit_events import Report, VerifyRecord, Word
from orchestrator.audit_words import report_of
from orchestrator.documents import get_exact, put_once
from orchestrator.view import JobFacts
from trust.envelope import parse
from trust.evidence import MAX_RECORD_BYTES, Exhibit, Proven, verify
from vnode.checks.verifying import Evidence, Verifier

_log = structlog.get_logger("orchestrator")
PIECE_BYTES: Final = 8 * limits.MIB
"""What is brought from the store is read in pieces of this size."""
MAX_CACHED_BYTES: Final = 4096 * limits.MIB
"""Of shards and manifests of data sets on the disk; above that all are fetched anew."""
MAX_MEASURED: Final = 64
"""Own findings that are remembered until their records are proven."""


class OwnEyes:
    """``verifier`` None: only what needs no tensors is verified. ``directory`` is this object's own."""

    def __init__(self, store: ObjectStore, network_id: str, directory: Path, verifier: Verifier | None) -> None:
        self._store, self._network_id, self._directory, self._verifier = store, network_id, directory, verifier
        self._turn = asyncio.Lock()
        self._measured: OrderedDict[Digest, float] = OrderedDict()
        """By fault record that the verifier has written: what it found."""

    @property
    def can_measure(self) -> bool:
        """Whether there is a verifier."""
        return self._verifier is not None

    async def audit(self, task: model_pb2.AuditTask, job: JobFacts) -> local_pb2.WorkerAudited:
        """The verifier's own finding. Raises Unavailable where there is none or it cannot, Corrupt and NotFound for a bundle that is not what was named."""
        async with self._turn, self._laid(job, task.model, task.vnode, task.bundle_digest) as evidence:
            audited = await self._there().audit(task, evidence)
        if audited.record:
            self._measured[digest_of(audited.record)] = parse(model_pb2.AuditReport, audited.report.payload).residual
            while len(self._measured) > MAX_MEASURED:
                self._measured.popitem(last=False)
        return audited

    async def prove(
        self, record: model_pb2.FaultRecord, data: bytes, job: Callable[[], Awaitable[JobFacts]], *, bundle: str = "", interval: str = "",
    ) -> Proven:  # fmt: skip
        """What a fault record proves to this process. Raises as `trust.evidence.verify`, and Unavailable where it cannot be measured here and now.

        ``bundle``, ``interval``: from which it has to be measured, if anything has to, and what it has to be about; none: whichever it names.
        What the verifier itself has just found in an audit is not measured again: it would be the same check of the same bytes by the same process.
        """
        try:
            return verify(data, self._network_id, _needs_measuring, 1.0)
        except _NeedsMeasuring as read:
            about = read.interval
        if interval and about != interval:
            raise Refused("a fault record about another interval", code="unproven")
        if bundle and record.bundle_digest != bundle:
            raise Refused("a fault record over other evidence than what was audited", code="unproven")
        if not check_digest(record.bundle_digest):
            raise Corrupt("a fault record that names no bundle", code="bad_evidence")
        residual = self._measured.get(digest_of(data))
        if residual is None:
            verifier, facts = self._there(), await job()
            async with self._turn, self._laid(facts, record.model, record.vnode, record.bundle_digest) as evidence:
                residual = await verifier.measure(data, evidence)
        return verify(data, self._network_id, lambda exhibit, told: residual, 1.0)

    async def word(self, task: model_pb2.AuditTask, job: JobFacts) -> Report:
        """What the verifier says of that interval; its record of a fault is in the store. Raises as `audit` and `keep`."""
        audited = await self.audit(task, job)
        found = parse(model_pb2.AuditReport, audited.report.payload)
        report = report_of(found, "")
        if report.word is Word.REFUSED:
            _log.warning("verifier_refused", vnode=task.vnode, reason=found.reason)
        return replace(report, record=await self.keep(task.model, task.vnode, audited.record)) if audited.record else report

    async def fault(
        self, model: str, vnode: str, told: VerifyRecord, job: Callable[[str], Awaitable[JobFacts]]
    ) -> tuple[model_pb2.FaultRecord, Proven]:
        """The record of a fault that an auditor tells of, proven. Raises as `record` and `prove`; Refused (``unproven``) where it proves anything else."""
        record, data = await self.record(model, vnode, told.record)
        proven = await self.prove(record, data, lambda: job(record.job_id), bundle=told.bundle, interval=told.interval)
        if proven.interval != told.interval or proven.kind != model_pb2.FAULT_KIND_COMPUTATION:
            raise Refused("a fault record about another interval, or about no work", code="unproven")
        return record, proven

    async def record(self, model: str, vnode: str, digest: str) -> tuple[model_pb2.FaultRecord, bytes]:
        """A stored fault record. Raises NotFound, Corrupt, Unavailable; Refused (``wrong_place``) for one about something else."""
        data = await get_exact(self._store, keys.evidence(model, vnode, digest), digest, max_bytes=MAX_RECORD_BYTES)
        record = parse(model_pb2.FaultRecord, data, MAX_RECORD_BYTES)
        if (record.network_id, record.model, record.vnode) != (self._network_id, model, vnode):
            raise Refused("a fault record about something else than its place says", code="wrong_place")
        return record, data

    async def keep(self, model: str, vnode: str, data: bytes) -> Digest:
        """Brings a fault record into the store. Raises Unavailable."""
        digest = digest_of(data)
        await put_once(self._store, keys.evidence(model, vnode, digest), data)
        reached("fault.stored")
        return digest

    async def close(self) -> None:
        """Ends the verifier's process."""
        if self._verifier is not None:
            await self._verifier.close()

    def _there(self) -> Verifier:
        if self._verifier is None:
            raise Unavailable(
                "this orchestrator has no verifier", code="no_verifier", remedy="start one with: orchestrator start --verifier"
            )
        return self._verifier

    @asynccontextmanager
    async def _laid(self, job: JobFacts, model: str, vnode: str, bundle_digest: str) -> AsyncIterator[Evidence]:
        """Everything that a check reads; the bundle goes again afterwards, or before the next check. Raises Unavailable where the disk does not bear it."""
        self._there()
        shards, bundles = self._directory / "shards", self._directory / "bundles"
        await asyncio.to_thread(_made_ready, shards, bundles)
        request = job.request
        manifest = shards / f"{check_digest(request.dataset_digest)}.manifest"
        await self._fetch(keys.dataset_manifest(request.dataset_name, request.dataset_digest), request.dataset_digest, manifest)
        bundle = bundles / check_digest(bundle_digest)
        try:
            await self._fetch(keys.evidence(model, vnode, bundle_digest), bundle_digest, bundle, limits.MAX_OBJECT_BYTES)

            async def bring(dataset: str, digest: str) -> None:
                await self._fetch(keys.shard(dataset, digest), digest, shards / check_digest(digest), limits.MAX_OBJECT_BYTES)

            yield Evidence(bundle, job.graph_bytes, job.num_batches, manifest, shards, bring)
        finally:
            with contextlib.suppress(OSError):
                bundle.unlink(missing_ok=True)

    async def _fetch(self, key: str, digest: str, path: Path, max_bytes: int = MAX_DATASET_MANIFEST_BYTES) -> None:
        """Lays the object there piece by piece: what is large passes through no memory. One above ``max_bytes`` says nothing about anybody: Unavailable."""
        if await asyncio.to_thread(_lies, path):
            return
        with _Draft(path) as draft:
            while True:
                data = await self._store.get_range(key, first=draft.num_bytes, num_bytes=PIECE_BYTES)
                if draft.num_bytes + len(data) > max_bytes:
                    raise Unavailable(f"{key} has more than {max_bytes} bytes, which are not read here", code="object_too_large")
                await asyncio.to_thread(draft.add, data)
                if len(data) < PIECE_BYTES:
                    break
            if not await asyncio.to_thread(draft.lay, digest):
                raise Corrupt(f"{key} does not have the digest it is named by", code="wrong_digest")


class _NeedsMeasuring(DcnrError):
    """Signatures and form hold: what is left is arithmetic."""

    def __init__(self, interval: str) -> None:
        super().__init__("to be measured")
        self.interval = interval


def _needs_measuring(exhibit: Exhibit, record: model_pb2.FaultRecord) -> float:
    raise _NeedsMeasuring(exhibit.interval)


class _Draft:
    """A file in the making beside ``path``, which is there whole or not at all. Every call blocks, and raises Unavailable where the disk does not bear it."""

    def __init__(self, path: Path) -> None:
        self._path, self._draft = path, path.with_suffix(".part")
        self._hash, self.num_bytes = hashlib.sha256(), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)

    def add(self, data: bytes) -> None:
        """The next piece."""
        with self._told(), self._draft.open("ab" if self.num_bytes else "wb") as file:
            file.write(data)
        self._hash.update(data)
        self.num_bytes += len(data)

    def lay(self, digest: str) -> bool:
        """It is whole: it lies there, if its bytes are those."""
        if self._hash.hexdigest() != digest:
            return False
        with self._told():
            reached("laid.drafted")
            self._draft.replace(self._path)
            reached("laid.renamed")
        return True

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_trouble(f"the directory {self._path.parent.name} takes nothing", error) from error


def _lies(path: Path) -> bool:
    """Whether it is here already. Raises Unavailable where the disk does not say."""
    try:
        return path.exists()
    except OSError as error:
        raise disk_trouble(f"the directory {path.parent.name} cannot be read", error) from error


def _made_ready(shards: Path, bundles: Path) -> None:
    """Both are there; what an earlier check left of bundles is gone, and all shards where they are more than they may be. Raises Unavailable."""
    try:
        for place in (shards, bundles):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = [path for path in shards.iterdir() if path.is_file()]
        is_full = sum(path.stat().st_size for path in files) > MAX_CACHED_BYTES
        for path in (*bundles.iterdir(), *(files if is_full else ())):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise disk_trouble("evidence cannot be laid out for a check", error) from error
