"""Several replicas of one VNode in real worker processes: what the plan says around each, what they hand over, and a judge for it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from worker_rig import JOB, MODEL, NETWORK_ID, DaemonEnd, Job

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.graph import graph_digest, graph_to_bytes, stages_of_graph
from dcnr.ids import Digest, digest_of
from dcnr.intervals import IntervalSet
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from orchestrator.checkpoints import CheckpointJudge, Judged
from orchestrator.documents import sealed
from orchestrator.view import JobFacts, ModelView
from trust.envelope import digest_of_envelope
from trust.identity import NodeKey
from vnode.registry import default_registry

HOLDER = NodeKey.generate()
PRIMARY, CONTRIBUTOR, STANDBY = model_pb2.ROLE_PRIMARY, model_pb2.ROLE_CONTRIBUTOR, model_pb2.ROLE_STANDBY


@dataclass
class Seat:
    """A replica of the plan."""

    replica: str
    end: DaemonEnd
    role: model_pb2.Role.ValueType
    weight: float

    @property
    def vnode(self) -> str:
        return self.replica.rsplit(".", 1)[0]

    @property
    def neighbour(self) -> model_pb2.Neighbour:
        return model_pb2.Neighbour(
            replica=self.replica, vnode=self.vnode, pnode_id=self.end.pnode_id, role=self.role, weight=self.weight
        )

    @property
    def report(self) -> Any:
        return self.end.reports.get(self.replica)

    @property
    def learned(self) -> int:
        return self.report.num_learned if self.report is not None else 0


@dataclass
class Plan:
    """Who is what; `tell` makes the workers do it."""

    job: Job
    seats: list[Seat]
    number: int = 0
    changes: dict[str, Any] = field(default_factory=dict)
    told: list[model_pb2.Plan] = field(default_factory=list)
    """What an orchestrator would have named, oldest first."""

    def of(self, vnode: str) -> list[Seat]:
        return [seat for seat in self.seats if seat.vnode == vnode]

    async def tell(self) -> None:
        """The newest plan to every worker; what runs already goes on with it."""
        self.number += 1
        self.name()
        for seat in self.seats:
            await seat.end.pipe.send(local_pb2.ToWorker(host=self.order(seat)))
        for seat in self.seats:
            for other in self.around(seat):
                news = local_pb2.NeighbourAddress(
                    replica=other.replica, pnode_id=other.end.pnode_id, delegation=other.end.delegation
                )
                await seat.end.pipe.send(local_pb2.ToWorker(neighbour=news))

    def name(self) -> None:
        """What an orchestrator would put under the head."""
        assignments = [
            model_pb2.Assignment(
                replica=seat.replica, vnode=seat.vnode, pnode_id=seat.end.pnode_id, role=seat.role, weight=seat.weight
            )
            for seat in self.seats
        ]
        self.told.append(model_pb2.Plan(job_id=JOB, assignments=assignments))

    def around(self, seat: Seat) -> Iterator[Seat]:
        names = [spec.id for spec in self.job.graph.vnodes]
        before = names.index(seat.vnode) - 1
        for other in self.seats:
            if other is not seat and (other.vnode == seat.vnode or (before >= 0 and other.vnode == names[before])):
                yield other

    def order(self, seat: Seat) -> local_pb2.HostReplica:
        job, names = self.job, [spec.id for spec in self.job.graph.vnodes]
        at = names.index(seat.vnode)
        known = seat.report is not None
        state = job.states[seat.vnode]
        message = local_pb2.HostReplica(
            assignment=model_pb2.DesiredAssignment(
                replica=seat.replica, vnode=seat.vnode, role=seat.role,
                predecessors=[other.neighbour for other in self.of(names[at - 1])] if at else [],
                successors=[other.neighbour for other in self.of(names[at + 1])] if at + 1 < len(names) else [],
                siblings=[other.neighbour for other in self.of(seat.vnode)],
            ),
            model=MODEL, job_id=JOB, state_path="" if known else str(state), state_digest="" if known else digest_of(state.read_bytes()),
            graph=graph_to_bytes(job.graph), num_batches=job.num_batches, lead_batches=64, dataset_manifest_path=str(job.manifest_path),
            shard_dir=str(job.shard_dir), checkpoint_s=600, checkpoint_steps=100_000, spool_bytes=64 << 20,
            work_dir=str(job.root / f"work-{seat.replica}"), threads=1, plan_number=self.number, horizon_s=600, epoch=self.number,
            unit_batches=4,
        )  # fmt: skip
        for name, value in self.changes.items():
            setattr(message, name, value)
        return message


class Store:
    """What a daemon would have brought into the store of these snapshots, and the judge that looks at it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._store = MemoryStore(SystemClock(), random.Random(0))
        self._manifest = model_pb2.Manifest()
        for vnode, path in job.states.items():
            data = path.read_bytes()
            self._put(keys.state(MODEL, vnode, digest_of(data)), data)
            first = model_pb2.Checkpoint(vnode=vnode, digest=digest_of(data), size_bytes=len(data))
            self._manifest.entries.add(vnode=vnode, working=[first], cleared=first)

    def _put(self, key: str, data: bytes) -> None:
        self._store.rewind(key, data)

    def bring(self, snapshots: Sequence[local_pb2.SnapshotReady]) -> None:
        for ready in snapshots:
            vnode = ready.checkpoint.vnode
            for commit in (*ready.ancestors, ready.commit):
                self._put_commit(vnode, commit)
            self._put(keys.state(MODEL, vnode, Digest(ready.checkpoint.digest)), Path(ready.path).read_bytes())

    def _put_commit(self, vnode: str, commit: identity_pb2.Envelope) -> None:
        self._put(keys.commit(MODEL, vnode, digest_of_envelope(commit)), commit.SerializeToString(deterministic=True))

    def name(self, plans: Sequence[model_pb2.Plan]) -> tuple[model_pb2.Plan, str]:
        """They are in the store, one after the other; the last one with its digest."""
        digest = ""
        for plan in plans:
            plan.network_id, plan.model, plan.holder, plan.parent_digest = NETWORK_ID, MODEL, HOLDER.node_id, digest
            made = sealed(identity_pb2.DOMAIN_PLAN, plan, HOLDER)
            digest = made.digest
            self._put(keys.plan(MODEL, made.digest), made.data)
        return plans[-1], digest

    async def judge(self, ready: local_pb2.SnapshotReady, plans: Sequence[model_pb2.Plan]) -> dict[str, IntervalSet]:
        """By replica, what it learned of the checkpoint, under those plans. Raises what the judge raises."""
        checkpoint, job = ready.checkpoint, self._job
        request = model_pb2.JobRequest(job_id=JOB, graph_digest=graph_digest(job.graph), num_batches=job.num_batches)
        facts = JobFacts(request, "", job.graph, b"", stages_of_graph(job.graph, default_registry()), ())
        plan, digest = self.name(plans)
        head = model_pb2.Head(plan_digest=digest)
        view = ModelView(MODEL, head, b"", plan=plan, manifest=self._manifest, job=facts, beginning=self._manifest)
        policy: Any = SimpleNamespace(network_id=NETWORK_ID, has_listed=lambda node_id: node_id == HOLDER.node_id)
        judged: Judged = await CheckpointJudge(self._store, lambda: policy, SystemClock()).judge(view, checkpoint, ready.commit)
        return {one.replica: one.batches for one in judged.contributions}
