"""`dcnr.v1.OrchestratorService`: a thin shell over the runtimes; every answer says who gives it and how old it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from dataservice import keys
from dcnr import limits
from dcnr.errors import InvalidInput, NotFound, Unavailable
from dcnr.graph import graph_from_bytes, stages_of_graph
from dcnr.ids import check_name, check_node_id
from dcnr.rpc.guard import caller_of as call_of
from dcnr.rpc.guard import peer_of
from dcnr.tracing import of_job
from dcnr.v1 import identity_pb2, membership_pb2, model_pb2, orchestrator_pb2, orchestrator_pb2_grpc
from orchestrator.access import HEADS_ASKED, Caller, CallLimits, caller_of
from orchestrator.admission import admit, record_cancel
from orchestrator.asking import MAX_IN_FLIGHT, STRANGERS_AT_ONCE, Asking
from orchestrator.attach import AttachService
from orchestrator.builds import able, needs_of
from orchestrator.changes import TERMINAL
from orchestrator.costs import stage_costs
from orchestrator.documents import open_head
from orchestrator.explain import explain_model, explain_node
from orchestrator.generating import Generating
from orchestrator.jobs import state_of
from orchestrator.jobview import FRAMING_BYTES, job_view, listed, node_views
from orchestrator.metering import Metering, check_on_behalf
from orchestrator.offers import PlanRequest
from orchestrator.pauses import record_pause
from orchestrator.planner import make_plan, seconds_per_batch
from orchestrator.releases import Said, record_release, recorded
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.view import ModelView, ViewLoader
from orchestrator.watchers import EARLY_S, Watchers, interval_of
from trust.envelope import seal
from trust.records import VerifiedAdvert, VerifiedLocation, open_advert

MAX_JOBS: Final = 256
MAX_WATCHED_NODES: Final = 1024
MAX_EVENTS: Final = 256
NONCE_BYTES: Final = 32
PREVIEW_AT_ONCE: Final = 2
STATUS_EVENTS: Final = 64


class Directory(Protocol):
    """Who is here: `membership.node.Membership`."""

    dht_lookups: int

    def orchestrators(self) -> list[VerifiedAdvert]: ...
    async def resolve(self, node_id: str) -> VerifiedAdvert | None: ...
    async def locate(self, model: str, replica: str, pnode_id: str) -> VerifiedLocation | None: ...
    @property
    def own_advert(self) -> identity_pb2.Envelope: ...


class Models(Protocol):
    """The runtimes of this orchestrator."""

    shared: Shared
    loader: ViewLoader
    runtimes: dict[str, ModelRuntime]
    software: str
    started_at: float

    def runtime(self, model: str) -> ModelRuntime: ...
    def check_room(self, model: str) -> None: ...

    async def look(self) -> None: ...


class OrchestratorServicer(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """See the module."""

    def __init__(self, models: Models, attach: AttachService, directory: Directory, asking: Asking, metering: Metering) -> None:
        self._models, self._attach, self._directory, self._asking, self._metering = models, attach, directory, asking, metering
        self._writing = Generating(asking, models.shared.clock, models.shared.random_bytes)
        gateways = models.shared.gateways
        self._ask_limits, self._read_limits, self._statement_limits = (CallLimits(gateways) for _ in range(3))
        self._head_limits = CallLimits(gateways, HEADS_ASKED)
        self._watchers, self._shared = Watchers(), models.shared
        self._previews = asyncio.Semaphore(PREVIEW_AT_ONCE)

    def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[orchestrator_pb2.OrchestratorMessage]:
        """The PNode's control stream."""
        peer = peer_of(context)
        return self._attach.attach(peer.node_id, peer.address, request_iterator)

    async def SubmitJob(self, request: orchestrator_pb2.SubmitJobRequest, context: Any) -> orchestrator_pb2.SubmitJobResponse:
        """Yes only when the request is in the store."""
        self._limited(context, self._statement_limits)
        shared, began_s = self._shared, self._shared.clock.monotonic()
        stored, existed = await admit(
            request.request,
            policy=shared.policy,
            store=shared.store,
            loader=self._models.loader,
            wall_unix_ms=int(shared.clock.wall() * 1000),
            check_room=self._models.check_room,
        )
        runtime = self._models.runtime(stored.model)
        runtime.refresh_jobs.fire()
        if not existed:
            shared.tracer.past("accept", of_job(stored.job_id), shared.clock.monotonic() - began_s, model=stored.model)
            shared.history.say(
                "job_accepted", stored.job_id, "its request is in the store", model=stored.model, batches=stored.num_batches
            )
        state = state_of(stored.job_id, runtime.head, runtime.jobs.records.get(stored.job_id)) or model_pb2.JOB_STATE_QUEUED
        return orchestrator_pb2.SubmitJobResponse(job_id=stored.job_id, existed=existed, state=state)

    async def GetJob(self, request: orchestrator_pb2.GetJobRequest, context: Any) -> orchestrator_pb2.GetJobResponse:
        """One job."""
        self._reader(context)
        runtime = await self._runtime_of(request.model, request.job_id)
        return orchestrator_pb2.GetJobResponse(job=job_view(runtime, request.job_id, with_vnodes=True))

    async def WatchJob(
        self, request: orchestrator_pb2.WatchJobRequest, context: Any
    ) -> AsyncIterator[orchestrator_pb2.WatchJobResponse]:
        """Views and events until the job has ended; all that watch it at one interval are shown the same."""
        caller, shared, after = self._reader(context), self._shared, int(request.after_event)
        runtime = await self._runtime_of(request.model, request.job_id)
        interval_s, job = interval_of(caller, request.interval_s), (runtime.model, request.job_id)
        is_bounded = not self._read_limits.exempts(caller)

        def build() -> orchestrator_pb2.WatchJobResponse:
            view = job_view(runtime, request.job_id, with_vnodes=True)
            return orchestrator_pb2.WatchJobResponse(job=view, nodes=self._nodes()[:MAX_WATCHED_NODES])

        with self._watchers.place(caller, call_of(context).subnet, job, is_bounded=is_bounded):
            while True:
                picture = self._watchers.picture(job, interval_s, shared.clock.monotonic(), build)
                message = picture.message(after, lambda heard: shared.history.since(heard, MAX_EVENTS))
                after = message.events[-1].sequence if message.events else after
                yield message
                if message.job.state in TERMINAL:
                    return
                await asyncio.sleep(max(EARLY_S, picture.built_s + interval_s - shared.clock.monotonic()))

    async def CancelJob(self, request: orchestrator_pb2.CancelJobRequest, context: Any) -> orchestrator_pb2.CancelJobResponse:
        """Recorded; the outcome is what the job's end says."""
        self._limited(context, self._statement_limits)
        cancel, _ = await record_cancel(request.cancel, policy=self._shared.policy, store=self._shared.store)
        runtime = self._models.runtime(cancel.model)
        runtime.refresh_jobs.fire()
        self._shared.history.say("cancel_recorded", cancel.job_id, cancel.reason or "called off")
        state = state_of(cancel.job_id, runtime.head, runtime.jobs.records.get(cancel.job_id))
        return orchestrator_pb2.CancelJobResponse(recorded=True, state=state)

    async def PauseJob(self, request: orchestrator_pb2.PauseJobRequest, context: Any) -> orchestrator_pb2.PauseJobResponse:
        """Recorded; the holder acts on it."""
        self._limited(context, self._statement_limits)
        pause, is_new = await record_pause(request.pause, policy=self._shared.policy, store=self._shared.store)
        runtime = self._models.runtime(pause.model)
        runtime.refresh_jobs.fire()
        if is_new:
            kind = "pause_recorded" if pause.paused else "resume_recorded"
            self._shared.history.say(kind, pause.job_id, pause.reason or "signed by its maintainers", number=pause.number)
        state = state_of(pause.job_id, runtime.head, runtime.jobs.records.get(pause.job_id)) or model_pb2.JOB_STATE_QUEUED
        return orchestrator_pb2.PauseJobResponse(recorded=True, state=state, paused=pause.paused)

    async def ReleaseModel(
        self, request: orchestrator_pb2.ReleaseModelRequest, context: Any
    ) -> orchestrator_pb2.ReleaseModelResponse:
        """Recorded; every orchestrator obeys it."""
        self._limited(context, self._statement_limits)
        shared, models = self._shared, self._models
        said, is_new = await record_release(
            request.release, policy=shared.policy, store=shared.store, loader=models.loader, newest=self._newest_manifest
        )
        if said is not None:
            models.runtime(said.release.model).releases.heard(said)
        if said is not None and is_new:
            reason = said.release.reason or "signed by its maintainers"
            shared.history.say("release_recorded", said.release.model, reason, number=said.release.number)
        return recorded(said)

    async def ListJobs(self, request: orchestrator_pb2.ListJobsRequest, context: Any) -> orchestrator_pb2.ListJobsResponse:
        """Newest first, without VNodes."""
        self._reader(context)
        rows = [
            (record.requested_at, runtime, record.job_id)
            for name, runtime in self._models.runtimes.items()
            if request.model in ("", name)
            for record in runtime.jobs.records.values()
        ]
        rows.sort(key=lambda row: (-row[0], row[2]))
        return orchestrator_pb2.ListJobsResponse(
            jobs=[job_view(runtime, name, with_vnodes=False) for _, runtime, name in rows[:MAX_JOBS]]
        )

    async def ListNodes(self, request: orchestrator_pb2.ListNodesRequest, context: Any) -> orchestrator_pb2.ListNodesResponse:
        """All nodes known, with reasons."""
        self._reader(context)
        kinds = (request.kind,) if request.kind else (membership_pb2.NODE_KIND_PNODE, membership_pb2.NODE_KIND_ORCHESTRATOR)
        return listed(row for row in self._nodes() if row.kind in kinds)

    async def Resolve(self, request: orchestrator_pb2.ResolveRequest, context: Any) -> orchestrator_pb2.ResolveResponse:
        """The newest advert of a node; or location of a replica, and advert of its PNode, where the plan has it."""
        self._reader(context)
        answer, node_id = orchestrator_pb2.ResolveResponse(), request.node_id
        if not node_id and request.model and request.replica:
            view = self._only(request.model).view
            node_id = view.host_of(request.replica) if view is not None else ""
            place = await self._directory.locate(request.model, request.replica, node_id) if node_id else None
            if place is not None:
                answer.location.CopyFrom(place.envelope)
        elif not node_id:
            raise InvalidInput("name a node, or a model and a replica", code="nothing_asked")
        advert = await self._directory.resolve(check_node_id(node_id)) if node_id else None
        if advert is not None:
            answer.advert.CopyFrom(advert.envelope)
        return answer

    async def Explain(self, request: orchestrator_pb2.ExplainRequest, context: Any) -> orchestrator_pb2.ExplainResponse:
        """Why."""
        self._reader(context)
        if request.node_id:
            node_id = check_node_id(request.node_id)
            async with self._previews:  # it looks at the places of all models, as a preview does
                lines = await explain_node(self._shared, self._models.runtimes.values(), node_id)
            return orchestrator_pb2.ExplainResponse(lines=lines)
        batch = int(request.batch) if request.with_batch else None
        return orchestrator_pb2.ExplainResponse(lines=explain_model(self._only(request.model), request.vnode, batch))

    async def ConfirmHead(self, request: orchestrator_pb2.ConfirmHeadRequest, context: Any) -> orchestrator_pb2.ConfirmHeadResponse:
        """A statement over an own GET that was made after the question."""
        self._limited(context, self._head_limits)
        if len(request.nonce) != NONCE_BYTES:
            raise InvalidInput(f"the nonce has {NONCE_BYTES} bytes", code="bad_nonce")
        model = check_name(request.model)
        stored = await self._shared.store.get(keys.head(model), max_bytes=limits.MAX_HEAD_BYTES)
        open_head(stored.data, self._shared.policy, model)
        statement = model_pb2.HeadStatement(nonce=request.nonce, head=identity_pb2.Envelope.FromString(stored.data), model=model)
        return orchestrator_pb2.ConfirmHeadResponse(statement=seal(identity_pb2.DOMAIN_HEAD_STATEMENT, statement, self._shared.key))

    async def GetModel(self, request: orchestrator_pb2.GetModelRequest, context: Any) -> orchestrator_pb2.GetModelResponse:
        """Head, plan, manifest and graph as last read; a manifest that does not fit beside the others only by its digest."""
        self._reader(context)
        runtime = self._only(request.model)
        view = runtime.view
        if view is None:
            raise Unavailable("the model's head has not been read yet", code="head_unread")
        graph = b""
        if view.job is not None:
            graph = view.job.graph_bytes
        elif view.manifest is not None and view.manifest.graph_digest:
            graph = await self._models.loader.graph_bytes(view.manifest.graph_digest)
        return model_answer(view, graph, await runtime.releases.current())

    async def PreviewPlan(self, request: orchestrator_pb2.PreviewPlanRequest, context: Any) -> orchestrator_pb2.PreviewPlanResponse:
        """What the planner would do now; nothing follows from it."""
        self._reader(context)
        shared = self._shared
        async with self._previews:
            graph = graph_from_bytes(request.graph)
            stages = await asyncio.to_thread(stages_of_graph, graph, shared.registry)
            asked = PlanRequest(
                network_id=shared.policy.network_id, model=graph.name, job_id="preview", graph_digest="", epoch=0, holder=shared.key.node_id,
                stages=stage_costs(stages, shared.registry, int(graph.train.batch_size)),
                nodes=able(shared.inventory.offers(shared.clock.monotonic()), needs_of(graph)), previous=None, previous_digest="",
                lead_batches=limits.LEAD_BATCHES, unit_batches=1, since_last_plan_s=0.0, allow_moves=False, reason="a preview",
                expected=shared.records.paces(),
            )  # fmt: skip
            plan = await asyncio.to_thread(make_plan, asked, shared.plan_policy)
        slowest_s = seconds_per_batch(plan)
        return orchestrator_pb2.PreviewPlanResponse(
            plan=plan, seconds_per_batch=slowest_s, estimate_s=slowest_s * request.num_batches
        )

    async def Forward(self, request: orchestrator_pb2.ForwardRequest, context: Any) -> orchestrator_pb2.ForwardResponse:
        """The model's answer, from here or, where too few PNodes are attached here, from the head's holder."""
        caller = self._admitted(context)
        runtime, (places, _) = self._only(request.model), self._room(caller, context)
        on_behalf = check_on_behalf(request.on_behalf)
        with self._shared.tracer.span("Forward", request.traceparent, model=runtime.model):
            answer = await self._asking.forward(runtime, request, may_pass_on=not caller.orchestrator, places=places)
        self._metering.answered(caller, on_behalf, answer)
        return answer

    async def Generate(
        self, request: orchestrator_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[orchestrator_pb2.GenerateResponse]:
        """Text, part by part."""
        caller, on_behalf = self._admitted(context), check_on_behalf(request.on_behalf)
        runtime, (places, subnet) = self._only(request.model), self._room(caller, context)
        with self._shared.tracer.span("Generate", request.traceparent, model=runtime.model):
            async with contextlib.aclosing(self._writing.generate(runtime, request, places=places, subnet=subnet)) as parts:
                async for part in parts:
                    self._metering.wrote(caller, on_behalf, part)
                    yield part

    def _admitted(self, context: Any) -> Caller:
        """Who asks the model. Raises Unavailable (``rate_limited``)."""
        return self._limited(context, self._ask_limits)

    def _room(self, caller: Caller, context: Any) -> tuple[int, str | None]:
        """The places for that one's questions, and its subnet, where it leaves places to others."""
        return (MAX_IN_FLIGHT, None) if self._ask_limits.exempts(caller) else (STRANGERS_AT_ONCE, call_of(context).subnet)

    def _reader(self, context: Any) -> Caller:
        """Who reads what is known here. Raises Unavailable (``rate_limited``)."""
        return self._limited(context, self._read_limits)

    def _limited(self, context: Any, limit: CallLimits) -> Caller:
        peer, shared = peer_of(context), self._shared
        caller = caller_of(shared.policy, peer.node_id, peer.pnode_id, lambda node_id: node_id in shared.inventory.nodes())
        limit.check(caller, call_of(context).subnet, shared.clock.monotonic())
        return caller

    async def GetStatus(self, request: orchestrator_pb2.GetStatusRequest, context: Any) -> orchestrator_pb2.GetStatusResponse:
        """About this orchestrator."""
        del request
        self._reader(context)
        shared, runtimes = self._shared, list(self._models.runtimes.values())
        heads = [runtime.head for runtime in runtimes if runtime.head is not None]
        newest = max(heads, key=lambda head: head.written_unix_ms, default=None)
        troubles = [text for runtime in runtimes if (text := _trouble(runtime))]
        return orchestrator_pb2.GetStatusResponse(
            node_id=shared.key.node_id,
            network_id=shared.policy.network_id,
            software=self._models.software,
            uptime_s=shared.clock.monotonic() - self._models.started_at,
            holder=any(runtime.is_holder for runtime in runtimes),
            holder_id=newest.holder if newest is not None else "",
            epoch=newest.epoch if newest is not None else 0,
            store_ok=all(runtime.loop.core.store_ok for runtime in runtimes),
            store_reason="; ".join(troubles)[:500],
            attached=shared.inventory.num_attached(),
            dht_lookups=self._directory.dht_lookups,
            events=shared.history.since(0, STATUS_EVENTS),
            serving=self._asking.figures.view(),
            proxied=shared.proxied.view(),
        )

    def _nodes(self) -> list[orchestrator_pb2.NodeView]:
        shared = self._shared
        own = open_advert(self._directory.own_advert, network_id=shared.policy.network_id, now_wall=shared.clock.wall())
        return node_views(shared, self._models.runtimes.values(), [own, *self._directory.orchestrators()])

    def _newest_manifest(self, model: str) -> model_pb2.Manifest | None:
        runtime = self._models.runtimes.get(model)
        return runtime.view.manifest if runtime is not None and runtime.view is not None else None

    def _only(self, model: str) -> ModelRuntime:
        if model:
            runtime = self._models.runtimes.get(check_name(model))
        else:
            runtime = next(iter(self._models.runtimes.values()), None) if len(self._models.runtimes) == 1 else None
        if runtime is None:
            known = ", ".join(sorted(self._models.runtimes)) or "none"
            missing = f"no model {model!r} is known here" if model else "no model is named, and not just one is known here"
            raise NotFound(f"{missing} (known: {known})", code="no_such_model", remedy="name one of these; a job makes another one")
        return runtime

    async def _runtime_of(self, model: str, job_id: str) -> ModelRuntime:
        """The runtime that knows the job; one that was accepted elsewhere, or before this orchestrator began, is looked for in the store."""
        check_name(job_id)
        for fresh in (False, True):
            if fresh:
                await self._models.look()
            for name, runtime in list(self._models.runtimes.items()):
                if model not in ("", name):
                    continue
                if fresh:
                    await runtime.jobs.look()
                if job_id in runtime.jobs.records:
                    return runtime
        raise NotFound(f"there is no job {job_id}", code="job_not_found", remedy="dcnr job list shows all jobs")


def _trouble(runtime: ModelRuntime) -> str:
    if not runtime.loop.core.store_ok:
        return f"{runtime.model}: {runtime.loop.core.trouble or 'the store does not answer'}; nothing is decided until it is back"
    return runtime.trouble or runtime.jobs_trouble or runtime.lacking or runtime.decider.trouble


def model_answer(view: ModelView, graph: bytes, said: Said | None) -> orchestrator_pb2.GetModelResponse:
    """What is known of a model, within the bound of a message: each document has its own bound, only the manifest may be one too many."""
    release = said.envelope if said is not None else None
    answer = orchestrator_pb2.GetModelResponse(
        head=view.head_envelope, manifest_digest=view.head.manifest_digest, graph=graph, release=release
    )
    if view.plan is not None:
        answer.plan.ParseFromString(view.plan_bytes)
    if view.manifest is not None and answer.ByteSize() + len(view.manifest_bytes) + FRAMING_BYTES <= limits.MAX_MESSAGE_BYTES:
        answer.manifest.ParseFromString(view.manifest_bytes)
    return answer
