"""What this orchestrator has read of one model: the head, and the plan, manifest, request and graph under it, each verified; never half of a change.

A view is immutable; `ViewLoader.load` makes the next one from a newer head, reading only what changed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dataservice import keys
from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput, NotFound, Refused, Unavailable
from dcnr.graph import graph_from_bytes, stages_of_graph
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.ports import Clock, ObjectStore
from dcnr.specs import Registry
from dcnr.stages import Stage
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.builds import lacks, needs_of
from orchestrator.chain import Chain, ChainReader
from orchestrator.costs import StageCost, stage_costs
from orchestrator.delivery import DesiredReader
from orchestrator.documents import get_exact, open_manifest, open_plan
from orchestrator.jobs import intervals
from orchestrator.publishing import Published
from trust.envelope import parse_envelope
from trust.network import NetworkPolicy

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
LACKING: Final = "component_lacking"
"""Code of what this orchestrator cannot read because it has not been given a component; another one may have."""
MAX_CACHED: Final = 64
"""Documents kept by digest."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job's verified request with its graph."""

    request: model_pb2.JobRequest
    request_digest: str
    graph: model_pb2.ModelGraph
    graph_bytes: bytes
    stages: tuple[Stage, ...]
    costs: tuple[StageCost, ...]
    needs: frozenset[str] = frozenset()
    """What a PNode must be able to build for any part of it."""

    @property
    def num_batches(self) -> int:
        """N."""
        return int(self.request.num_batches)


@dataclass(frozen=True, slots=True)
class ModelView:
    """See the module. ``job`` is the active one, else the plan's, as far as it could be read."""

    model: str
    head: model_pb2.Head
    head_bytes: bytes
    plan: model_pb2.Plan | None = None
    plan_bytes: bytes = b""
    manifest: model_pb2.Manifest | None = None
    manifest_bytes: bytes = b""
    job: JobFacts | None = None
    loaded_at: float = 0.0
    beginning: model_pb2.Manifest | None = None
    """What the job began with, as far as it could be read."""
    hosted: Mapping[str, tuple[model_pb2.Assignment, ...]] = field(default_factory=dict)
    """The plan's assignments by PNode."""
    chain: Chain | None = None
    """What the manifests of the job say of intervals; None where audits are not in force for it."""
    _durable: dict[str, tuple[model_pb2.Manifest, Mapping[str, IntervalSet]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """By job: what `durable` has found, and in which manifest."""
    moving: tuple[model_pb2.Assignment, ...] = ()
    """Those of the plan that hand over."""

    def hosted_by(self, pnode_id: str) -> tuple[model_pb2.Assignment, ...]:
        """What the plan puts on a PNode."""
        return self.hosted.get(pnode_id, ())

    def host_of(self, replica: str) -> str:
        """The id of the PNode on which the plan puts a replica; empty for none."""
        return next((pnode_id for pnode_id, items in self.hosted.items() if any(one.replica == replica for one in items)), "")

    def has_placed(self, checkpoint: model_pb2.Checkpoint) -> bool:
        """Whether it is of this job, and of a replica that the plan has on its PNode."""
        is_of_job = self.job is not None and checkpoint.job_id == self.job.request.job_id
        made_by = (checkpoint.vnode, checkpoint.replica)
        return is_of_job and any((one.vnode, one.replica) == made_by for one in self.hosted_by(checkpoint.pnode_id))

    @property
    def lacks_job(self) -> bool:
        """Whether the active job could not be read when the view was made: it is looked for again with every head."""
        return bool(self.head.active.job_id) and self.job is None

    @property
    def feeds(self) -> Mapping[str, tuple[str, ...]]:
        """By VNode of the job: those whose output it reads."""
        return {cost.vnode: cost.predecessors for cost in self.job.costs} if self.job is not None else {}

    @property
    def head_envelope(self) -> identity_pb2.Envelope:
        """As it was read."""
        return identity_pb2.Envelope.FromString(self.head_bytes)

    def working(self, vnode: str) -> model_pb2.Checkpoint | None:
        """The newest working checkpoint of a VNode under the head."""
        if self.manifest is None:
            return None
        entry = next((item for item in self.manifest.entries if item.vnode == vnode), None)
        return entry.working[0] if entry is not None and entry.working else None

    def cleared(self, vnode: str) -> model_pb2.Checkpoint | None:
        """The newest cleared checkpoint of a VNode under the head, where audits are in force."""
        if self.manifest is None or self.chain is None:
            return None
        entry = next((item for item in self.manifest.entries if item.vnode == vnode), None)
        return entry.cleared if entry is not None and entry.cleared.digest else None

    def durable(self, job_id: str) -> Mapping[str, IntervalSet]:
        """By VNode: the lineage in ``job_id`` of the newest working checkpoint; empty for one of another job."""
        if self.manifest is None:
            return {}
        known = self._durable.get(job_id)
        if known is None or known[0] is not self.manifest:
            found = {
                entry.vnode: intervals(entry.working[0].lineage) if entry.working[0].job_id == job_id else IntervalSet.empty()
                for entry in self.manifest.entries
                if entry.working
            }
            known = self._durable[job_id] = (self.manifest, found)
        return known[1]


class ViewLoader:
    """Reads and verifies the documents under a head."""

    def __init__(self, store: ObjectStore, policy: Callable[[], NetworkPolicy], registry: Registry, clock: Clock) -> None:
        self._store, self._policy, self._registry, self._clock = store, policy, registry, clock
        self._plans: OrderedDict[str, tuple[model_pb2.Plan, bytes]] = OrderedDict()
        self._manifests: OrderedDict[str, tuple[model_pb2.Manifest, bytes]] = OrderedDict()
        self._jobs: OrderedDict[tuple[str, str, str], JobFacts] = OrderedDict()
        """By model, job and digest of the request; without a digest: the request that was read last."""
        self._graphs: OrderedDict[str, bytes] = OrderedDict()
        self._desired = DesiredReader(store, policy, clock)
        self._chains = ChainReader()

    async def load(self, model: str, head: model_pb2.Head, head_bytes: bytes) -> ModelView:
        """The view under ``head``. Raises Unavailable (try again), NotFound or Corrupt (an object under the head is missing or wrong)."""
        plan, plan_bytes = await self.plan(model, head.plan_digest) if head.plan_digest else (None, b"")
        manifest, manifest_bytes = await self.manifest(model, head.manifest_digest) if head.manifest_digest else (None, b"")
        job_id = head.active.job_id or (plan.job_id if plan is not None else "")
        job = await self._job_or_none(model, job_id, head.active.request_digest) if job_id else None
        hosted = _by_pnode(plan) if plan is not None else {}
        beginning = await self._beginning(model, job.request.initial_manifest_digest) if job is not None else None
        chain = await self._chain(model, head.manifest_digest, job) if job is not None and beginning is not None else None
        now = self._clock.monotonic()
        moving = tuple(item for items in hosted.values() for item in items if item.hands_over_to)
        return ModelView(
            model, head, head_bytes, plan, plan_bytes, manifest, manifest_bytes, job, now, beginning, hosted, chain, moving=moving
        )

    async def plan(self, model: str, digest: str) -> tuple[model_pb2.Plan, bytes]:
        """A plan by its digest."""
        if digest not in self._plans:
            data = await get_exact(self._store, keys.plan(model, digest), digest, max_bytes=limits.MAX_PLAN_BYTES)
            _remember(self._plans, digest, (open_plan(data, self._policy(), model), data))
        return self._plans[digest]

    async def manifest(self, model: str, digest: str) -> tuple[model_pb2.Manifest, bytes]:
        """A manifest by its digest."""
        if digest not in self._manifests:
            data = await get_exact(self._store, keys.manifest(model, digest), digest, max_bytes=limits.MAX_MANIFEST_BYTES)
            _remember(self._manifests, digest, (open_manifest(data, self._policy(), model), data))
        return self._manifests[digest]

    async def job(self, model: str, job_id: str, request_digest: str = "") -> JobFacts:
        """A job's request and graph, of that request where its digest is known: a store that went back may hold another one under the same name. Raises
        NotFound, Corrupt, Refused, InvalidInput (it can never run), Unavailable (try again).
        """
        known = self._jobs.get((model, job_id, request_digest))
        if known is None:
            stored = await self._store.get(keys.job_request(model, job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
            known = await self.job_from_bytes(stored.data)
            if request_digest not in ("", known.request_digest):
                raise NotFound(f"another request lies under the name of job {job_id}", code="request_replaced")
        for digest in (known.request_digest, ""):
            _remember(self._jobs, (model, job_id, digest), known)
        return known

    async def job_from_bytes(self, data: bytes) -> JobFacts:
        """The facts of a stored or submitted request."""
        request = self._policy().read_job_request(parse_envelope(data))
        graph_bytes, graph, stages = await self.graph(request.graph_digest)
        costs = stage_costs(stages, self._registry, int(graph.train.batch_size))
        return JobFacts(request, digest_of(data), graph, graph_bytes, stages, costs, needs_of(graph))

    async def graph(self, digest: str) -> tuple[bytes, model_pb2.ModelGraph, tuple[Stage, ...]]:
        """A stored graph as bytes, as a message and as its stages. Raises NotFound, Corrupt, InvalidInput, Unavailable.

        Unavailable (``component_lacking``) where it names a component that this orchestrator has not been given: another one may, so no job ends of it.
        """
        data = await get_exact(self._store, keys.graph(digest), digest, max_bytes=limits.MAX_GRAPH_BYTES)
        graph = graph_from_bytes(data)
        try:
            return data, graph, await asyncio.to_thread(stages_of_graph, graph, self._registry)
        except InvalidInput as error:
            if error.code != "unknown_component":
                raise
            raise Unavailable(
                f"this orchestrator {lacks(self._registry.names, needs_of(graph))}", code=LACKING, remedy=error.remedy
            ) from error

    async def graph_bytes(self, digest: str) -> bytes:
        """A stored graph for whoever is shown it: read once, so that a store that is away later hides it from nobody. Raises NotFound, Corrupt, Unavailable."""
        if digest not in self._graphs:
            data = await get_exact(self._store, keys.graph(digest), digest, max_bytes=limits.MAX_GRAPH_BYTES)
            _remember(self._graphs, digest, data)
        return self._graphs[digest]

    async def desired(self, view: ModelView, pnode_id: str) -> identity_pb2.Envelope | None:
        """The desired state of a PNode under the view's plan; None if the plan has none for it. Raises Unavailable, Corrupt."""
        return await self._desired.of(view, pnode_id)

    def wrote(self, made: Published) -> None:
        """What was stored from here is not read back."""
        data = made.stored.data
        _remember(self._plans, str(made.stored.digest), (open_plan(data, self._policy(), made.model), data))
        self._desired.wrote(made)

    async def _beginning(self, model: str, digest: str) -> model_pb2.Manifest | None:
        """What a job began with, as far as it can be read. Where audits are in force there is no view without it: the job would be taken for one without,
        its next manifest would say so, and everything would count from then on.
        """
        try:
            return (await self.manifest(model, digest))[0]
        except (Corrupt, Refused, InvalidInput, NotFound):
            if digest and self._policy().audits_drawn:
                raise
            return None

    async def _chain(self, model: str, newest: str, job: JobFacts) -> Chain | None:
        if not self._policy().audits_drawn or not newest:
            return None

        async def read(digest: str) -> model_pb2.Manifest:
            return (await self.manifest(model, digest))[0]

        return await self._chains.chain(newest, job.request.initial_manifest_digest, read)

    async def _job_or_none(self, model: str, job_id: str, request_digest: str) -> JobFacts | None:
        try:
            return await self.job(model, job_id, request_digest)
        except (Corrupt, Refused, InvalidInput, NotFound):
            return None  # the job's own record says why it cannot run
        except Unavailable as error:
            if error.code != LACKING:
                raise
            return None  # likewise, and those that can read it decide


def same_documents(old: model_pb2.Head, new: model_pb2.Head) -> bool:
    """Whether a view under one head is one under the other too."""
    return (old.plan_digest, old.plan_sequence, old.manifest_digest, old.active.job_id, old.active.request_digest) == (
        new.plan_digest,
        new.plan_sequence,
        new.manifest_digest,
        new.active.job_id,
        new.active.request_digest,
    )


def _by_pnode(plan: model_pb2.Plan) -> dict[str, tuple[model_pb2.Assignment, ...]]:
    found: dict[str, list[model_pb2.Assignment]] = {}
    for item in plan.assignments:
        found.setdefault(item.pnode_id, []).append(item)
    return {pnode_id: tuple(items) for pnode_id, items in found.items()}


def _remember(table: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    table[key] = value
    while len(table) > MAX_CACHED:
        table.popitem(last=False)
