"""Gathers and verifies everything a replica needs before the worker hears of it: request, graph, data set manifest, state.

Nothing here trusts an assignment: the request must be signed by k of n maintainers, the graph is the one it names, and every VNode's configuration comes
from that graph. Documents are cached by digest, so a restart with every orchestrator dead still finds them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dataservice.dataset_manifest import MAX_MANIFEST_BYTES as MAX_DATASET_MANIFEST_BYTES
from dcnr import limits
from dcnr.asked_work import work_digest
from dcnr.errors import Corrupt, DcnrError, NotFound, Refused, Unavailable
from dcnr.graph import dataset_refs, graph_from_bytes, stages_of_graph
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.specs import Registry
from dcnr.stages import Stage
from dcnr.v1 import data_pb2, model_pb2
from pnode.home import read_whole
from pnode.snapshots import Shelf, StartingState
from pnode.trail import Fetch, Trail, read_manifest
from trust.envelope import parse_envelope
from trust.network import NetworkPolicy
from vnode.costs import ReplicaCost, replica_cost

Donated = Callable[[str, data_pb2.ObjectRef, int], Awaitable[Path]]
"""A local file with the state of that reference and size, given by the named PNode, verified by digest. Raises DcnrError."""
MAX_DONORS = 4
MAX_JOBS = 2
"""Kept in memory: the one that is trained, and the one whose states are served."""


async def nobody_gives(pnode_id: str, ref: data_pb2.ObjectRef, size_bytes: int) -> Path:
    """Where there are no donors."""
    raise Unavailable("no donor is known", code="no_donor")


@dataclass(frozen=True, slots=True)
class Job:
    """A verified job with its graph."""

    request: model_pb2.JobRequest
    graph: model_pb2.ModelGraph
    graph_bytes: bytes
    stages: dict[str, Stage]
    dataset_manifest: Path


class Provisioner:
    """Fetches and verifies. One per daemon."""

    def __init__(
        self,
        *,
        policy: Callable[[], NetworkPolicy],
        registry: Registry,
        fetch: Fetch,
        shelf: Shelf,
        donated: Donated = nobody_gives,
    ) -> None:
        self._policy, self._registry, self._fetch, self._shelf, self._donated = policy, registry, fetch, shelf, donated
        self._jobs: dict[str, Job] = {}
        self._works: dict[str, str] = {}
        self._given_up: set[str] = set()

    async def job(self, desired: model_pb2.DesiredState, *, reads_data: bool = True) -> Job:
        """The job of a desired state, its data set manifest on the disk, for whoever ``reads_data``: the cache may have let go of it since it was first
        brought. Raises Refused (``unsigned_job``, ``component_not_allowed``), InvalidInput, Corrupt, Unavailable.
        """
        known = self._jobs.get(desired.request_digest)
        if known is not None:
            _check_request(known.request, desired)
            if reads_data:
                await self._dataset_manifest(known.request, known.graph)
            return known
        ref = data_pb2.ObjectRef(
            kind=data_pb2.OBJECT_KIND_JOB_REQUEST, model=desired.model, owner=desired.job_id, digest=desired.request_digest
        )
        envelope = parse_envelope(read_whole(await self._fetch(ref, limits.MAX_ENVELOPE_BYTES)))
        request = self._policy().read_job_request(envelope)
        _check_request(request, desired)
        graph_ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_GRAPH, digest=request.graph_digest)
        graph_bytes = read_whole(await self._fetch(graph_ref, limits.MAX_GRAPH_BYTES))
        graph = graph_from_bytes(graph_bytes)
        self._check_policy(graph)
        stages = {stage.id: stage for stage in stages_of_graph(graph, self._registry)}
        job = Job(request, graph, graph_bytes, stages, await self._dataset_manifest(request, graph))
        newest = list(self._jobs.items())[1 - MAX_JOBS :]
        self._jobs = {**dict(newest), desired.request_digest: job}
        return job

    async def _dataset_manifest(self, request: model_pb2.JobRequest, graph: model_pb2.ModelGraph) -> Path:
        ref = data_pb2.ObjectRef(
            kind=data_pb2.OBJECT_KIND_DATASET_MANIFEST, owner=dataset_refs(graph)["train"].name, digest=request.dataset_digest
        )
        return await self._fetch(ref, MAX_DATASET_MANIFEST_BYTES)

    def cost(self, job: Job, vnode: str) -> ReplicaCost:
        """What hosting a VNode of that job takes. Raises Refused for a VNode that the graph does not have."""
        stage = job.stages.get(vnode)
        if stage is None:
            raise Refused(f"the signed graph has no VNode with weights named {vnode!r}", code="unsigned_job")
        cost = replica_cost(stage, self._registry, int(job.graph.train.batch_size))
        bound = int(self._policy().document.max_vnode_state_bytes) or limits.MAX_OBJECT_BYTES
        if cost.state_bytes > bound:
            raise Refused(f"{vnode} has {cost.state_bytes} bytes of state, the network allows {bound}", code="vnode_too_large")
        return cost

    def placed(self, model: str, job_id: str, replicas: Iterable[str]) -> None:
        """The plan of that model has these replicas here: what others left is kept for a while only (`Shelf.places`)."""
        self._shelf.places(model, job_id, replicas)

    def give_up(self, digest: str) -> bool:
        """The worker could not restore that state: it is not offered again. False if it had been given up before."""
        fresh = digest not in self._given_up
        self._given_up.add(digest)
        return fresh

    async def state(
        self, job: Job, vnode: str, manifest_digest: str, donors: Sequence[str] = (), *, replica: str = ""
    ) -> tuple[StartingState, list[str]]:
        """The newest state to be had for ``vnode``, with remarks on what was damaged or out of reach. Of another job under the same name, whose request a store
        has lost since, nothing counts that has learned something else.

        Candidates are this machine's own snapshots and the working checkpoints of the manifest, largest lineage first; where none of them is usable,
        those of ever older manifests, and at last the state that the job began with. What is not here is taken from one of ``donors`` (PNodes that host
        the VNode) or from who made it, else from the store. Raises Unavailable if none can be read now.
        """
        remarks: list[str] = []
        tried: set[str] = set()
        found_here = await self._shelf.candidates(job.request.model, job.request.job_id, vnode)
        work = await self.work(job) if any(one.work_digest for one in found_here) else ""
        local = [one for one in found_here if not (work and one.work_digest) or one.work_digest == work]
        trail = Trail(self._fetch, self._policy(), job.request, vnode, remarks)
        async for named in trail.walk(manifest_digest):
            known = {candidate.digest for candidate in local} | tried
            fresh = [*local, *(candidate for candidate in named if candidate.digest not in known)]
            local, tried = [], known | {candidate.digest for candidate in fresh}
            found = await self._usable(job, vnode, [one for one in fresh if trail.counts(one, replica)], donors, remarks)
            if found is not None:
                return found, remarks
        raise Unavailable(
            f"no state of {vnode} can be read: {'; '.join(remarks) or 'no checkpoint is known'}", code="no_state",
            remedy="wait for the store or an orchestrator",
        )  # fmt: skip

    async def work(self, job: Job) -> str:
        """Digest of what that job is to learn; empty while what it begins with cannot be read: then whatever was learned under its name counts, which its
        holder judges.
        """
        key = digest_of(job.request.SerializeToString(deterministic=True))
        if key not in self._works:
            try:
                first = await read_manifest(self._fetch, self._policy(), job.request.model, job.request.initial_manifest_digest)
            except DcnrError:
                return ""
            self._works = {**dict(list(self._works.items())[1 - MAX_JOBS :]), key: work_digest(job.request, first)}
        return self._works[key]

    async def named(self, model: str, checkpoint: model_pb2.Checkpoint) -> Path:
        """A local file with a checkpoint that a manifest names: a snapshot of this machine's own, else from who made it, else from the store.

        Raises Corrupt, NotFound, Unavailable.
        """
        vnode, digest = checkpoint.vnode, checkpoint.digest
        for own in await self._shelf.candidates(model, checkpoint.job_id, vnode):
            if own.digest == digest:
                return own.path
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=model, owner=vnode, digest=digest)
        wanted = StartingState(
            Path(), digest, "", IntervalSet.empty(), "store", size_bytes=int(checkpoint.size_bytes), maker=checkpoint.pnode_id
        )
        return (await self._brought(wanted, ref, (), [])).path

    async def _usable(
        self, job: Job, vnode: str, candidates: Sequence[StartingState], donors: Sequence[str], remarks: list[str]
    ) -> StartingState | None:
        """The first candidate whose bytes are whole, with its file."""
        for candidate in sorted(candidates, key=lambda one: (-len(one.lineage), one.origin != "local")):
            if candidate.digest in self._given_up:
                remarks.append(f"checkpoint {candidate.digest[:12]} could not be restored before")
                continue
            if candidate.origin == "local":
                return candidate
            ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=job.request.model, owner=vnode, digest=candidate.digest)
            try:
                return await self._brought(candidate, ref, donors, remarks)
            except (Corrupt, NotFound) as error:
                remarks.append(
                    f"checkpoint {candidate.digest[:12]} with {len(candidate.lineage)} batches is unusable: {error.message}"
                )
        return None

    async def _brought(
        self, candidate: StartingState, ref: data_pb2.ObjectRef, donors: Sequence[str], remarks: list[str]
    ) -> StartingState:
        """A named state with its file, and where that came from."""
        asked = (
            dict.fromkeys([*donors, candidate.maker] if candidate.maker else donors)
            if candidate.size_bytes and not candidate.is_of_earlier_job
            else {}
        )
        for pnode_id in list(asked)[:MAX_DONORS]:
            try:
                path = await self._donated(pnode_id, ref, candidate.size_bytes)
            except Corrupt as error:
                remarks.append(f"{pnode_id[:8]} gave something else than {ref.digest[:12]}: {error.message}")
            except DcnrError:
                continue  # the store has it too
            else:
                return replace(candidate, path=path, origin=f"donor {pnode_id[:8]}")
        return replace(candidate, path=await self._fetch(ref, candidate.size_bytes or limits.MAX_OBJECT_BYTES))

    def _check_policy(self, graph: model_pb2.ModelGraph) -> None:
        allowed = set(self._policy().document.components)
        for vnode in graph.vnodes:
            if allowed and vnode.component.name not in allowed:
                raise Refused(
                    f"{vnode.id} uses component {vnode.component.name!r}, which the network does not allow",
                    code="component_not_allowed",
                )


def _check_request(request: model_pb2.JobRequest, desired: model_pb2.DesiredState) -> None:
    if request.model != desired.model or request.job_id != desired.job_id:
        raise Refused("the request is for another job than the desired state says", code="unsigned_job")
