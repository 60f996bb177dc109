"""The daemon's side of audits: which tasks this machine takes, what is brought for them, and how what was found gets back to who asked.

A task is taken from the holder of the confirmed head alone, one at a time, and only within the volunteer's limits. What it needs is fetched and verified
like what a replica needs; the check itself is the worker's. A task that is asked again is answered again; its files are gone when it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from dataservice.objects import ObjectClient
from dcnr import limits
from dcnr.errors import Corrupt, DcnrError, Unavailable, disk_trouble
from dcnr.ids import NodeId, check_digest, digest_of
from dcnr.v1 import data_pb2, identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Term, check_asked
from pnode.budget import AUDIT, Budget, Reservation
from pnode.home import Home
from pnode.orders import HostingOptions
from pnode.placing import Say
from pnode.provision import Provisioner
from trust.envelope import open_single, parse
from trust.network import NetworkPolicy
from vnode.bundle import MAX_HEADERS_BYTES
from vnode.costs import ReplicaCost

DECODED: Final = 4
"""What is read of a bundle takes so many times its size in memory at most: int8 values become float32;"""
STATES_HELD: Final = 6
"""and never more than so many states beside the replica that is run again, since tensors are read one after the other (measured: 4 to 5 with AdamW),"""
MAX_INDEX_BYTES: Final = 3 * MAX_HEADERS_BYTES
"""and what says where in the bundle its parts lie."""
MAX_ANSWERS: Final = 16
UPLOAD_AGAIN_S: Final = 2.0
_TASK_ID: Final = re.compile(r"[0-9a-f]{32}")


class AuditTasks:
    """One per daemon. ``say`` brings a report to an orchestrator; ``term`` is the confirmed one of a model; ``busy`` why no work is taken now, or empty;
    ``freed`` is called when what a task had reserved is free again.
    """

    def __init__(
        self, *, node_id: NodeId, policy: Callable[[], NetworkPolicy], home: Home, objects: ObjectClient, provisioner: Provisioner,
        budget: Budget, options: HostingOptions, term: Callable[[str], Term | None], busy: Callable[[], str], freed: Callable[[], None],
        send: Callable[[local_pb2.ToWorker], Awaitable[bool]], say: Callable[[NodeId, orchestrator_pb2.PNodeMessage], bool], tell: Say,
        now_wall: Callable[[], float], group: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        self._node_id, self._policy, self._directory, self._shards = node_id, policy, home.audits, home.cache
        self._objects, self._provisioner, self._budget, self._options = objects, provisioner, budget, options
        self._term, self._busy, self._freed, self._send, self._say, self._tell = term, busy, freed, send, say, tell
        self._now_wall, self._group = now_wall, group
        self._asked: OrderedDict[str, NodeId] = OrderedDict()
        self._answers: OrderedDict[str, identity_pb2.Envelope] = OrderedDict()
        self._current = ""
        self._found: asyncio.Future[local_pb2.WorkerAudited] | None = None
        self._work: asyncio.Task[None] | None = None

    async def asked(self, orchestrator: NodeId, envelope: identity_pb2.Envelope) -> None:
        """A task from an orchestrator's stream. Whatever is not the holder's word is told and left."""
        try:
            task = self._open(envelope)
        except DcnrError as error:
            self._tell("audit_task_refused", orchestrator, f"{error.code}: {error.message}")
            return
        self._asked[task.task_id] = orchestrator
        while len(self._asked) > MAX_ANSWERS:
            self._asked.popitem(last=False)
        if (answer := self._answers.get(task.task_id)) is not None:
            self._say(orchestrator, orchestrator_pb2.PNodeMessage(audit_report=answer))
        elif task.task_id == self._current:
            return
        elif why := "another audit is under way" if self._current else self._busy():
            await self._refuse(task, why)
        else:
            self._current = task.task_id
            self._work = self._group.create_task(self._take(task))

    async def audited(self, audited: local_pb2.WorkerAudited) -> None:
        """The worker's answer."""
        if audited.task_id == self._current and self._found is not None and not self._found.done():
            self._found.set_result(audited)
        else:
            self._answer(audited)

    def worker_down(self, reason: str) -> None:
        """Nobody will answer any more."""
        if self._found is not None and not self._found.done():
            self._found.set_exception(Unavailable(f"the worker is gone: {reason}", code="no_worker"))

    def stop(self) -> None:
        """Ends what is under way."""
        if self._work is not None:
            self._work.cancel()

    def _open(self, envelope: identity_pb2.Envelope) -> model_pb2.AuditTask:
        payload, signer = open_single(envelope, identity_pb2.DOMAIN_AUDIT_TASK)
        task = parse(model_pb2.AuditTask, payload)
        check_asked(task, signer.node_id, node_id=self._node_id, policy=self._policy(), term=self._term(task.model))
        if _TASK_ID.fullmatch(task.task_id) is None:
            raise Corrupt("a task without a name", code="bad_task")
        check_digest(task.bundle_digest)
        check_digest(task.request_digest)
        if not 0 < task.bundle_bytes <= limits.MAX_OBJECT_BYTES:
            raise Corrupt(f"a bundle of {task.bundle_bytes} bytes", code="bad_task")
        return task

    async def _take(self, task: model_pb2.AuditTask) -> None:
        bundle = self._directory / f"{task.task_id}.bundle"
        try:
            async with asyncio.timeout(task.until_unix_ms / 1000 - self._now_wall()):
                order = await self._prepared(task, bundle)
                self._found = asyncio.get_running_loop().create_future()
                if not await self._send(local_pb2.ToWorker(audit=order)):
                    raise Unavailable("the worker does not run", code="no_worker")
                self._tell("audit_begun", task.vnode, f"task {task.task_id[:8]}, {task.bundle_bytes} bytes of evidence")
                audited = await self._found
                if audited.record:
                    await self._upload(task, audited.record)
            self._answer(audited)
        except TimeoutError:
            self._tell("audit_late", task.vnode, f"task {task.task_id[:8]} was not done in time")
        except DcnrError as error:
            self._tell("audit_refused", task.vnode, f"{error.code}: {error.message}")
            await self._refuse(task, error.message)
        finally:
            self._current, self._found = "", None
            self._budget.release(AUDIT)
            self._freed()
            with contextlib.suppress(OSError):
                bundle.unlink(missing_ok=True)

    async def _prepared(self, task: model_pb2.AuditTask, bundle: Path) -> local_pb2.WorkerAudit:
        """Everything verified and on this disk. Raises Refused where the volunteer's limits or the job do not admit it, and what the store says."""
        wanted = model_pb2.DesiredState(model=task.model, job_id=task.job_id, request_digest=task.request_digest)
        job = await self._provisioner.job(wanted)
        cost = self._provisioner.cost(job, task.vnode)
        size_bytes = int(task.bundle_bytes)
        used = await self._options.used_disk_bytes()
        needed, free = Reservation(audit_bytes(cost, size_bytes), size_bytes), self._options.free_disk_bytes()
        self._budget.admit(AUDIT, needed, free_disk_bytes=free, used_disk_bytes=used)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for left in self._directory.iterdir():  # by a life that was cut short
                left.unlink()
        except OSError as error:
            raise disk_trouble("no room for evidence", error) from error
        await self._objects.read_file(_evidence(task, task.bundle_digest), bundle, max_bytes=size_bytes)
        try:
            if bundle.stat().st_size != size_bytes:
                raise Corrupt("a bundle of another size than its task says", code="bad_task")
        except OSError as error:
            raise disk_trouble("the evidence cannot be read", error) from error
        return local_pb2.WorkerAudit(
            task=task, bundle_path=str(bundle), graph=job.graph_bytes, num_batches=job.request.num_batches,
            dataset_manifest_path=str(job.dataset_manifest), shard_dir=str(self._shards), threads=self._options.threads,
            cpu_share=self._options.cpu_share,
        )  # fmt: skip

    async def _upload(self, task: model_pb2.AuditTask, record: bytes) -> None:
        """The record is in the store; tried until the task's time is over. Raises Refused, Corrupt."""
        while True:
            try:
                await self._objects.write_bytes(_evidence(task, digest_of(record)), record, directory=self._directory)
            except Unavailable as error:
                self._tell("audit_waits", task.vnode, error.message)
                await asyncio.sleep(UPLOAD_AGAIN_S)
            else:
                return

    async def _refuse(self, task: model_pb2.AuditTask, why: str) -> None:
        """The worker signs it, so that another one is asked at once."""
        await self._send(local_pb2.ToWorker(audit=local_pb2.WorkerAudit(task=task, refusal=why)))

    def _answer(self, audited: local_pb2.WorkerAudited) -> None:
        orchestrator = self._asked.get(audited.task_id)
        if orchestrator is None:
            return
        self._answers[audited.task_id] = audited.report
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        self._say(orchestrator, orchestrator_pb2.PNodeMessage(audit_report=audited.report))


def audit_bytes(cost: ReplicaCost, bundle_bytes: int) -> int:
    """Memory for the audit of a bundle of that size: what is read of it at a time, beside the replica that learns it again."""
    return cost.memory_bytes + min(DECODED * bundle_bytes, STATES_HELD * cost.state_bytes + MAX_INDEX_BYTES)


def _evidence(task: model_pb2.AuditTask, digest: str) -> data_pb2.ObjectRef:
    return data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_EVIDENCE, model=task.model, owner=task.vnode, digest=digest)
