"""An orchestrator's own verifier: a worker process that checks and nothing else, started when there is something to check (`vnode.checks.verifying.Verifier`).

The orchestrator stays without torch, and what a stranger's bundle may do to a process, it does to that one. The worker acts under a delegation of the
orchestrator's key, so its reports are signed like those of any auditor.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dcnr.errors import DcnrError, Refused, Unavailable
from dcnr.ports import Clock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.supervisor import WORKER, Start, Supervisor, Worker, WorkerOptions
from trust.delegation import make_delegation
from trust.envelope import open_single, parse
from trust.evidence import MAX_RECORD_BYTES
from trust.identity import NodeKey
from vnode.checks.verifying import Evidence

START_S: Final = 90.0
CHECK_S: Final = 1800.0
"""Longest check, where a task names no end."""
IDLE_S: Final = 180.0
"""A process that had nothing to check for so long is ended."""
STOP_S: Final = 2.0


class WorkerVerifier:
    """One at a time. ``directory`` is for the process's log; ``environment``, ``components`` and ``start`` as for any worker."""

    def __init__(
        self, key: NodeKey, network_id: str, *, clock: Clock, directory: Path, environment: Mapping[str, str], threads: int = 1,
        components: Sequence[str] = (), start: Start = WORKER,
    ) -> None:  # fmt: skip
        self._key, self._network_id, self._clock, self._threads = key, network_id, clock, threads
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._options = WorkerOptions(
            listen_host="127.0.0.1", data_port=0, threads=threads, device="cpu", log_path=directory / "verifier.log", environment=environment,
            components=components, start=start,
        )  # fmt: skip
        self._one = asyncio.Lock()
        self._incarnation = int(clock.wall() * 1000)
        self._up = asyncio.Event()
        self._supervisor: Supervisor | None = None
        self._running: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._evidence: Evidence | None = None
        self._answer: asyncio.Future[local_pb2.WorkerAudited] | None = None
        self._bringing: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Future[None] | None = None

    async def audit(self, task: model_pb2.AuditTask, evidence: Evidence) -> local_pb2.WorkerAudited:
        """See `vnode.checks.verifying.Verifier`."""
        return await self._ask(local_pb2.WorkerAudit(task=task), evidence)

    async def measure(self, record: bytes, evidence: Evidence) -> float:
        """See `vnode.checks.verifying.Verifier`."""
        told = parse(model_pb2.FaultRecord, record, MAX_RECORD_BYTES)
        task = model_pb2.AuditTask(
            network_id=told.network_id, model=told.model, job_id=told.job_id, vnode=told.vnode, task_id=told.bundle_digest[:32] or "measure",
            pnode_id=self._key.node_id, bundle_digest=told.bundle_digest, check=told.check, seed=told.seed,
        )  # fmt: skip
        found = await self._ask(local_pb2.WorkerAudit(task=task, record=record), evidence)
        if found.failed:
            raise Unavailable(f"the evidence cannot be measured here now: {found.failed}", code="not_measured")
        payload, _ = open_single(found.report, identity_pb2.DOMAIN_AUDIT_REPORT)
        report = parse(model_pb2.AuditReport, payload)
        if report.finding in (model_pb2.AUDIT_FINDING_UNVERIFIABLE, model_pb2.AUDIT_FINDING_REFUSED):
            raise Refused(f"the evidence cannot be measured: {report.reason}", code="unproven")
        return report.residual

    async def close(self) -> None:
        """Ends the process, if there is one."""
        async with self._one:
            await self._end()

    async def _ask(self, order: local_pb2.WorkerAudit, evidence: Evidence) -> local_pb2.WorkerAudited:
        async with self._one:
            if self._idle is not None:
                self._idle.cancel()
            self._evidence = evidence
            order.bundle_path, order.graph, order.num_batches = str(evidence.bundle), evidence.graph, evidence.num_batches
            order.dataset_manifest_path, order.shard_dir = str(evidence.dataset_manifest), str(evidence.shard_dir)
            order.threads = self._threads
            try:
                worker = await self._started()
                self._answer = asyncio.get_running_loop().create_future()
                async with asyncio.timeout(CHECK_S):
                    await worker.pipe.send(local_pb2.ToWorker(audit=order))
                    return await self._answer
            except asyncio.CancelledError:  # what is under way there would keep the next check waiting
                if self._supervisor is not None:
                    self._supervisor.kill()
                    self._up.clear()
                raise
            except TimeoutError:
                await self._end()
                raise Unavailable("the verifier did not come to an end in time", code="verifier_stuck") from None
            finally:
                self._evidence = self._answer = None
                for bringing in self._bringing:
                    bringing.cancel()
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)

    async def _started(self) -> Worker:
        if self._running is None or self._running.done():
            self._up.clear()
            self._supervisor = Supervisor(
                self._options,
                next_incarnation=self._next_incarnation,
                on_up=self._begin,
                on_message=self._heard,
                on_down=self._gone,
            )
            self._running = asyncio.create_task(self._supervisor.run(), name="verifier")
        assert self._supervisor is not None
        try:
            async with asyncio.timeout(START_S):
                await self._up.wait()
        except TimeoutError:
            raise Unavailable(f"the verifier does not start: {self._supervisor.reason}", code="no_verifier") from None
        worker = self._supervisor.worker
        if worker is None:
            raise Unavailable("the verifier has ended", code="no_verifier")
        return worker

    def _next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    async def _begin(self, worker: Worker) -> None:
        delegation = make_delegation(
            self._key, self._network_id, worker.hello.public_key, worker.incarnation, [f"127.0.0.1:{worker.hello.data_port}"], self._clock.wall()
        )  # fmt: skip
        await worker.pipe.send(local_pb2.ToWorker(delegation=delegation))
        self._up.set()

    async def _heard(self, worker: Worker, message: local_pb2.FromWorker) -> None:
        match message.WhichOneof("kind"):
            case "audited":
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message.audited)
            case "shards":
                for digest in message.shards.digests:
                    bringing = asyncio.create_task(self._bring(worker, message.shards.dataset, digest))
                    self._bringing.add(bringing)
                    bringing.add_done_callback(self._bringing.discard)

    async def _bring(self, worker: Worker, dataset: str, digest: str) -> None:
        error = "" if self._evidence is not None else "nothing is checked now"
        if self._evidence is not None:
            try:
                await self._evidence.bring(dataset, digest)
            except DcnrError as problem:
                error = problem.message
        with contextlib.suppress(DcnrError):
            await worker.pipe.send(local_pb2.ToWorker(shard_ready=local_pb2.ShardReady(digest=digest, error=error)))

    async def _gone(self, reason: str) -> None:
        self._up.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Unavailable(f"the verifier ended: {reason}", code="no_verifier"))
            self._answer.exception()  # whoever asked may be gone

    def _end_idle(self) -> None:
        self._idle = None
        if not self._one.locked():
            self._ending = asyncio.ensure_future(self.close())

    async def _end(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._supervisor is not None and self._running is not None:
            await self._supervisor.stop(within_s=STOP_S)
            await asyncio.wait({self._running}, timeout=2 * STOP_S)
            self._running.cancel()
        self._supervisor = self._running = None
