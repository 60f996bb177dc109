"""What the worker is told of a replica: its assignment, the verified job around it, and what this machine gives it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from dcnr import limits
from dcnr.v1 import local_pb2, model_pb2
from pnode.budget import Reservation
from pnode.home import Home
from pnode.provision import Job
from vnode.costs import ReplicaCost


async def nothing_used() -> Mapping[str, int]:
    """Where nothing is measured: whatever was reserved counts as not used yet."""
    return {}


@dataclass(frozen=True, slots=True)
class HostingOptions:
    """What every replica on this machine gets."""

    threads: int
    spool_bytes: int
    free_disk_bytes: Callable[[], int]
    used_disk_bytes: Callable[[], Awaitable[Mapping[str, int]]] = nothing_used
    """By whom so much of it is taken already; see `pnode.budget.Budget.admit`."""
    checkpoint_s: float = math.inf
    """The longest time between checkpoints that the owner allows. A shorter one of the job stays: the holder sends away who brings nothing for too long."""
    cpu_share: float = 0.0
    """Of the time of so many cores as threads; 0: no limit."""
    evidence_bytes: int = 0
    """Kept of each replica at most where audits are in force."""
    bulk_bytes_s: Callable[[], float] = float
    """Anchors, deltas and donated states leave at no more from now on; 0: no limit."""


class Orders:
    """One per daemon."""

    def __init__(self, home: Home, options: HostingOptions, audited: Callable[[], bool]) -> None:
        self._home, self.options, self._audited = home, options, audited

    def reservation(self, cost: ReplicaCost, assignment: model_pb2.DesiredAssignment) -> Reservation:
        """What a replica may use: of the disk three states, its spool and its evidence."""
        sharing = cost.sharing_bytes if len(assignment.siblings) > 1 else 0
        evidence = self.options.evidence_bytes if self._audited() else 0
        return Reservation(
            cost.memory_bytes + sharing, limits.KEPT_WORKING_CHECKPOINTS * cost.state_bytes + self.options.spool_bytes + evidence
        )

    def host(self, desired: model_pb2.DesiredState, assignment: model_pb2.DesiredAssignment, job: Job) -> local_pb2.HostReplica:
        """The order to host a replica, without a state: as it is, it updates one that runs."""
        request = job.request
        return local_pb2.HostReplica(
            assignment=assignment, model=desired.model, job_id=desired.job_id, graph=job.graph_bytes, num_batches=request.num_batches,
            lead_batches=desired.lead_batches or request.lead_batches, dataset_manifest_path=str(job.dataset_manifest),
            shard_dir=str(self._home.cache), checkpoint_s=min(self.options.checkpoint_s, request.checkpoint_s or limits.CHECKPOINT_S),
            checkpoint_steps=request.checkpoint_steps or limits.CHECKPOINT_STEPS, spool_bytes=self.options.spool_bytes,
            work_dir=str(self._home.work / assignment.replica), threads=self.options.threads, plan_number=desired.plan_number,
            horizon_s=request.horizon_s or limits.HORIZON_S, epoch=desired.epoch, unit_batches=request.unit_batches,
            cpu_share=self.options.cpu_share, bulk_bytes_s=self.options.bulk_bytes_s(), audited=self._audited(),
            evidence_dir=str(self._home.evidence / assignment.replica), evidence_bytes=self.options.evidence_bytes,
            halted=desired.halted, widest_lead_batches=desired.widest_lead_batches, tempo=tempo_of(desired, request),
        )  # fmt: skip


def tempo_of(desired: model_pb2.DesiredState, request: model_pb2.JobRequest) -> model_pb2.Tempo | None:
    """When batches are due: from where the holder says, at the rate that maintainers signed. None where either says nothing."""
    if not request.batches_per_s or not desired.HasField("tempo"):
        return None
    begin = desired.tempo
    return model_pb2.Tempo(batches_per_s=request.batches_per_s, from_unix_ms=begin.from_unix_ms, from_batch=begin.from_batch)
