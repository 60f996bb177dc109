"""The asynchronous client of one network: every call goes to any orchestrator that works, and what comes back signed is verified here.

Nothing is decided in this module: it asks, uploads, signs with the maintainer's own keys, and reads. Use as an async context manager.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, cast

from dataservice.addresses import AddressRule
from dataservice.dataset_manifest import MAX_MANIFEST_BYTES, DatasetManifest, parse_manifest
from dataservice.objects import ObjectClient
from dcnr import limits
from dcnr.client import Orchestrators
from dcnr.errors import InvalidInput, NotFound, Stale, Unavailable
from dcnr.export import Export
from dcnr.graph import dataset_refs, graph_digest, graph_from_bytes, graph_to_bytes
from dcnr.ids import Digest, check_digest, job_id_of
from dcnr.rpc.dialer import Dialer
from dcnr.sdk import pausing, releasing, submission, taking, writing
from dcnr.sdk.asking import Answer, Ask, Inputs, answer_of, patiently, request_of
from dcnr.sdk.contact import Contact, find
from dcnr.sdk.progress import Shown, batches_of, shown
from dcnr.sdk.releasing import Released, released_of
from dcnr.sdk.signing import Draft, check_maintainers
from dcnr.sdk.staging import Source, stage_source
from dcnr.sdk.submission import JobOptions, Planned
from dcnr.sdk.usage import Usage, read_usage
from dcnr.sdk.watching import ENDED, views_of
from dcnr.sdk.weights import FirstWeights
from dcnr.sdk.writing import Write
from dcnr.specs import Registry
from dcnr.system import SystemClock
from dcnr.texts import Part, parts_of
from dcnr.v1 import data_pb2, identity_pb2, ledger_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.data_pb2_grpc import DataServiceStub
from dcnr.v1.ledger_pb2_grpc import LedgerServiceStub
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from trust.envelope import parse_envelope, seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy
from trust.network_file import load_policy
from trust.usage import open_quote
from vnode.registry import registry_with

if TYPE_CHECKING:
    from vnode.reference import Exit


async def connect_async(
    bootstrap: Sequence[str] = (),
    *,
    network: Path | None = None,
    network_id: str | None = None,
    key: NodeKey | None = None,
    components: Sequence[str] = (),
) -> AsyncClient:
    """A client of the network in the file ``network``, or behind one of ``bootstrap`` (``[id@]host:port``; one alone may stand for a list).

    ``network_id`` pins the network where there is no file; ``key`` names the caller (a new one is made if absent); ``components`` are files and modules
    of components and objectives from outside the tree that graphs may name. Raises InvalidInput, Unavailable, Refused (``wrong_network``).
    """
    registry = registry_with(components)
    clock = SystemClock()
    caller = key or NodeKey.generate()
    policy = load_policy(network, clock.wall(), network_id=network_id) if network is not None else None
    dialer = Dialer(caller, policy.network_id if policy else network_id or "", clock=clock, rng=secrets.token_bytes)
    entries = (bootstrap,) if isinstance(bootstrap, str) else bootstrap
    contact = await find(dialer, policy=policy, bootstrap=entries, network_id=network_id, now_wall=clock.wall())
    dialer = Dialer(caller, contact.policy.network_id, clock=clock, rng=secrets.token_bytes)
    return AsyncClient(contact, dialer, registry, clock)


class AsyncClient:
    """Made by `connect_async`. ``policy`` is the verified constitution of the network, ``pinned`` whether its id was known before."""

    def __init__(self, contact: Contact, dialer: Dialer, registry: Registry, clock: SystemClock) -> None:
        self.policy: NetworkPolicy = contact.policy
        self.pinned = contact.pinned
        self.orchestrators = Orchestrators(dialer, lambda: contact.orchestrators)
        document = contact.policy.document
        stores = (f"{document.store_scheme or 'https'}://{document.store_address}",) if document.store_address else ()
        self._rule = AddressRule(stores=stores, data_hosts=tuple(document.data_hosts))
        self.objects = ObjectClient(self.orchestrators, lambda: self._rule)
        self.registry = registry
        self._clock = clock
        self._scratch = tempfile.TemporaryDirectory(prefix="dcnr-")

    @property
    def scratch(self) -> Path:
        """A directory for temporary files that goes with the client."""
        return Path(self._scratch.name)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes connections and removes temporary files."""
        await self.orchestrators.close()
        self._scratch.cleanup()

    # -- reading ---------------------------------------------------------------------------------------------------------------

    async def status(self) -> orchestrator_pb2.GetStatusResponse:
        """An orchestrator about itself."""
        answer = await self.orchestrators.call(OrchestratorServiceStub, "GetStatus", orchestrator_pb2.GetStatusRequest())
        return cast(orchestrator_pb2.GetStatusResponse, answer)

    async def nodes(self) -> list[orchestrator_pb2.NodeView]:
        """All nodes, as one orchestrator sees them."""
        answer = await self.orchestrators.call(OrchestratorServiceStub, "ListNodes", orchestrator_pb2.ListNodesRequest())
        return list(answer.nodes)

    async def scores(self, pnode_id: str = "") -> ledger_pb2.ListScoresResponse:
        """What one orchestrator's history says of PNodes."""
        answer = await self.orchestrators.call(LedgerServiceStub, "ListScores", ledger_pb2.ListScoresRequest(pnode_id=pnode_id))
        return cast(ledger_pb2.ListScoresResponse, answer)

    async def usage(self, model: str = "") -> list[Usage]:
        """Who used what by one orchestrator's history, oldest first, signatures verified; of questions one's own. Raises Corrupt, Unavailable."""
        return await read_usage(self.orchestrators, self.policy.network_id, model)

    async def quote(self, graph: model_pb2.ModelGraph, num_batches: int = 0) -> ledger_pb2.CostQuote:
        """What training that graph would cost, as an orchestrator signs it; 0 batches: as many as its data give. Raises InvalidInput, Corrupt."""
        request = ledger_pb2.QuoteCostRequest(
            graph=graph_to_bytes(graph), num_batches=num_batches or (await self._planned(graph)).num_batches
        )
        answer = await self.orchestrators.call(LedgerServiceStub, "QuoteCost", request)
        return open_quote(answer.quote, self.policy.network_id)

    async def list_datasets(self, name: str = "") -> list[data_pb2.DatasetInfo]:
        """Staged data sets, or the one of that name."""
        answer = await self.orchestrators.call(DataServiceStub, "ListDatasets", data_pb2.ListDatasetsRequest(name=name))
        return list(answer.datasets)

    async def jobs(self, model: str = "") -> list[orchestrator_pb2.JobView]:
        """Jobs, newest first, without their VNodes."""
        answer = await self.orchestrators.call(OrchestratorServiceStub, "ListJobs", orchestrator_pb2.ListJobsRequest(model=model))
        return list(answer.jobs)

    async def job(self, job_id: str, model: str = "") -> orchestrator_pb2.JobView:
        """Where a job stands. Raises NotFound."""
        request = orchestrator_pb2.GetJobRequest(model=model, job_id=job_id)
        answer = await self.orchestrators.call(OrchestratorServiceStub, "GetJob", request)
        return cast(orchestrator_pb2.JobView, answer.job)

    async def watch(
        self, job_id: str, *, model: str = "", interval_s: float = 1.0, progress: Shown = False
    ) -> AsyncGenerator[orchestrator_pb2.WatchJobResponse, None]:
        """Views of a job with the events in between, until it has ended; goes on at another orchestrator when one is lost (`views_of`)."""
        with shown(progress) as tell:
            async with aclosing(
                views_of(self.orchestrators, job_id, model=model, interval_s=interval_s, clock=self._clock)
            ) as views:
                async for view in views:
                    tell("batches", *batches_of(view.job))
                    yield view

    async def wait(self, job_id: str, *, model: str = "", progress: Shown = False) -> orchestrator_pb2.JobView:
        """The job once it has ended."""
        async with aclosing(self.watch(job_id, model=model, progress=progress)) as views:
            async for view in views:
                if view.job.state in ENDED:
                    return view.job
        raise Unavailable("the stream of views ended early", code="no_view")

    async def explain(self, request: orchestrator_pb2.ExplainRequest) -> list[orchestrator_pb2.Explanation]:
        """Why a VNode is where it is, a node in its state, or a batch missing."""
        answer = await self.orchestrators.call(OrchestratorServiceStub, "Explain", request)
        return list(answer.lines)

    async def plan(self, graph: model_pb2.ModelGraph) -> orchestrator_pb2.PreviewPlanResponse:
        """Where the graph would run now and how long it would take, without any effect. Raises InvalidInput, NotFound (``no_dataset``)."""
        return await self._preview(graph, (await self._planned(graph)).num_batches)

    async def forward(self, inputs: Inputs, asked: Ask | None = None) -> Answer:
        """The model's answer to arrays with the batch dimension first; which weights, which exit and how long is in ``asked``.

        Raises InvalidInput (``bad_shape``, ``bad_dtype``, ``no_such_exit``, ...), NotFound (``no_such_model``, ``not_trained``), Unavailable (``no_server``,
        ``depth_unavailable``, ``busy``, ``answers_differ``, ...), TimedOut (``deadline_exceeded``).
        """

        async def ask(one: Ask) -> Answer:
            request, timeout_s = request_of(inputs, one), one.deadline_s + limits.CALL_TIMEOUT_S
            return answer_of(await self.orchestrators.call(OrchestratorServiceStub, "Forward", request, timeout_s=timeout_s))

        return await patiently(ask, asked or Ask())

    async def generate(
        self, prompt: str | bytes, wanted: Write | None = None, *, progress: Shown = False
    ) -> AsyncGenerator[Part, None]:
        """What the model writes after the prompt, as it comes.

        Raises InvalidInput (``not_text``, ``bad_generation``), RemoteFault (``text_broken``), and what `forward` raises; an orchestrator that dies in the
        middle ends the text with Unavailable.
        """
        request = writing.request_of(prompt, wanted or Write())
        timeout_s = request.deadline_s + limits.CALL_TIMEOUT_S
        answers = self.orchestrators.stream(OrchestratorServiceStub, "Generate", request, timeout_s=timeout_s)
        with shown(progress) as tell:
            async with aclosing(parts_of(answers)) as parts:
                async for part in parts:
                    tell("tokens", part.said.num_tokens, part.said.num_tokens if part.finish_reason else request.max_tokens)
                    yield part

    # -- asking for work -------------------------------------------------------------------------------------------------------

    async def prepare(
        self,
        graph: model_pb2.ModelGraph,
        options: JobOptions,
        *,
        weights: FirstWeights | None = None,
        progress: Shown = False,
    ) -> Draft:
        """Checks everything, uploads graph and checkpoint 0, and returns the job to be signed by `Draft.sign`.

        ``weights``, by VNode and parameter, replace what the seed gives in checkpoint 0.
        """
        plan = await self._planned(graph)
        seconds = 0.0 if options.unit_batches else (await self._preview(graph, plan.num_batches)).seconds_per_batch
        request = submission.request_of(
            graph, plan, options, network_id=self.policy.network_id, seconds_per_batch=seconds, now_wall=self._clock.wall()
        )
        with shown(progress) as tell:
            return await submission.prepare(
                graph, plan, request, self.registry, self.objects, scratch=self.scratch, progress=tell, weights=weights
            )

    async def submit(
        self, graph: model_pb2.ModelGraph, keys: Sequence[NodeKey], options: JobOptions, *, weights: FirstWeights | None = None,
        progress: Shown = False,
    ) -> orchestrator_pb2.SubmitJobResponse:  # fmt: skip
        """Prepares, signs with ``keys`` (k of n maintainers) and submits; a job that exists under the same idempotency key is answered as it is.

        Raises Refused (``too_few_signatures``, ``not_a_maintainer``), InvalidInput (``idempotency_key_taken``).
        """
        check_maintainers(self.policy, keys)
        if (known := await self._existing(graph, options)) is not None:
            return known
        draft = (await self.prepare(graph, options, weights=weights, progress=progress)).sign(self.policy, *keys)
        try:
            return await self.submit_draft(draft)
        except Stale as error:
            if not submission.differs_by_estimate(error, options) or (known := await self._existing(graph, options)) is None:
                raise
            return known

    async def submit_draft(self, draft: Draft) -> orchestrator_pb2.SubmitJobResponse:
        """Stores manifest 0 and submits a draft that has its signatures. Raises Refused (``too_few_signatures``)."""
        signed = draft.require(self.policy)
        await submission.store_manifest(draft, self.policy, self.objects, scratch=self.scratch)
        request = orchestrator_pb2.SubmitJobRequest(request=signed)
        answer = await self.orchestrators.call(OrchestratorServiceStub, "SubmitJob", request)
        return cast(orchestrator_pb2.SubmitJobResponse, answer)

    async def cancel(
        self, job_id: str, keys: Sequence[NodeKey], *, model: str = "", reason: str = ""
    ) -> orchestrator_pb2.CancelJobResponse:
        """Records that a job is called off, signed by ``keys``; the outcome is what the job's end says."""
        view = await self.job(job_id, model)
        cancel = model_pb2.JobCancel(
            network_id=self.policy.network_id, job_id=job_id, model=view.model, reason=reason, created_unix_ms=int(self._clock.wall() * 1000)
        )  # fmt: skip
        envelope = seal(identity_pb2.DOMAIN_JOB_CANCEL, cancel, *keys)
        self.policy.open_cancel(envelope)  # too few signatures are noticed here, with the remedy
        answer = await self.orchestrators.call(
            OrchestratorServiceStub, "CancelJob", orchestrator_pb2.CancelJobRequest(cancel=envelope)
        )
        return cast(orchestrator_pb2.CancelJobResponse, answer)

    async def pause(
        self, job_id: str, keys: Sequence[NodeKey], *, model: str = "", reason: str = "", paused: bool = True
    ) -> orchestrator_pb2.PauseJobResponse:
        """Records that a job pauses, signed by ``keys``: nobody learns until `resume`, no deadline of it runs, and what it has learned still answers.

        Pausing what is paused changes nothing. Raises Refused, NotFound, Stale (``job_ended``).
        """
        view = await self.job(job_id, model)
        return await pausing.say(
            self.orchestrators, self.policy, view, keys, paused=paused, reason=reason, now_wall=self._clock.wall()
        )

    async def resume(
        self, job_id: str, keys: Sequence[NodeKey], *, model: str = "", reason: str = ""
    ) -> orchestrator_pb2.PauseJobResponse:
        """Records that a paused job goes on, signed by ``keys``. Raises as `pause`."""
        return await self.pause(job_id, keys, model=model, reason=reason, paused=False)

    async def release(self, model: str, keys: Sequence[NodeKey], *, manifest: str, reason: str = "") -> Released:
        """Records that the manifest of that digest answers and is exported, signed by ``keys``; empty: what training brings does again. What is in force.

        Releasing what is in force changes nothing. Raises Refused, NotFound (``no_manifest``, ``states_gone``, ...), Stale.
        """
        before = await self.released(model)
        return await releasing.say(
            self.orchestrators, self.policy, before, keys, manifest=manifest, reason=reason, now_wall=self._clock.wall()
        )

    # -- taking the model home -------------------------------------------------------------------------------------------------

    async def model(self, model: str = "") -> orchestrator_pb2.GetModelResponse:
        """Head, plan, manifest and graph of a model, as one orchestrator last read them. A very large manifest is left out: see `manifest`."""
        answer = await self.orchestrators.call(
            OrchestratorServiceStub, "GetModel", orchestrator_pb2.GetModelRequest(model=model), timeout_s=limits.CALL_TIMEOUT_S
        )
        return cast(orchestrator_pb2.GetModelResponse, answer)

    async def released(self, model: str) -> Released:
        """Which manifest maintainers released last, as one orchestrator knows it, their signatures verified."""
        answer = await self.model(model)
        return released_of(self.policy, model, answer.release if answer.HasField("release") else None)

    async def manifest(self, model: str, digest: str = "") -> tuple[Digest, model_pb2.Manifest]:
        """A verified manifest of the model: that one, or the newest under its head."""
        wanted = digest or (await self.model(model)).manifest_digest
        if not wanted:
            raise NotFound(f"{model} has no manifest yet", code="no_manifest")
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_MANIFEST, model=model, digest=check_digest(wanted))
        data = await self.objects.read_bytes(ref, max_bytes=limits.MAX_MANIFEST_BYTES, directory=self.scratch)
        return Digest(wanted), self.policy.open_manifest(parse_envelope(data, limits.MAX_MANIFEST_BYTES), model)

    async def graph(self, digest: str) -> model_pb2.ModelGraph:
        """A stored graph."""
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_GRAPH, digest=check_digest(digest))
        return graph_from_bytes(await self.objects.read_bytes(ref, max_bytes=limits.MAX_GRAPH_BYTES, directory=self.scratch))

    async def state(self, model: str, checkpoint: model_pb2.Checkpoint) -> bytes:
        """The bytes of a checkpoint, which have its digest."""
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=model, owner=checkpoint.vnode, digest=checkpoint.digest)
        return await self.objects.read_bytes(ref, max_bytes=limits.MAX_OBJECT_BYTES, directory=self.scratch)

    async def export(self, model: str, directory: Path, *, manifest: str = "", progress: Shown = False) -> tuple[Digest, Export]:
        """Writes the released weights of a manifest as files: if none is named, of the one in force, or the newest. Its digest and what was written."""
        with shown(progress) as tell:
            return await taking.export(self, model, directory, manifest=manifest, progress=tell)

    async def dataset(self, name: str, digest: str = "") -> DatasetManifest:
        """The verified manifest of a staged data set: that one, or the newest. Raises NotFound (``no_dataset``), Corrupt."""
        wanted = digest or next((info.digest for info in await self.list_datasets(name) if info.name == name), "")
        if not wanted:
            remedy = f"dcnr data stage FILE --name {name} --licence LICENCE; dcnr data list shows what is staged"
            raise NotFound(f"no data set {name!r} is staged", code="no_dataset", remedy=remedy)
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_DATASET_MANIFEST, owner=name, digest=check_digest(wanted))
        return parse_manifest(await self.objects.read_bytes(ref, max_bytes=MAX_MANIFEST_BYTES, directory=self.scratch))

    async def stage(self, source: Source, *, progress: Shown = False) -> DatasetManifest:
        """Uploads a data set, which jobs read from then on; the same source gives the same objects, so doing it twice is harmless.

        Raises Stale (``dataset_not_newest``) where exactly this was staged before another content of that name, and what `stage_source` raises.
        """
        with shown(progress) as tell:
            manifest = await stage_source(source, self.objects, self._rule, scratch=self.scratch, progress=tell)
        newest = await self.dataset(manifest.name)
        if newest.digest != manifest.digest:
            raise Stale(
                f"version {manifest.version} of {manifest.name} was staged just so before, and version {newest.version} "
                f"({newest.digest[:12]}) since: that is what jobs read",
                code="dataset_not_newest", remedy=f"stage it as a later one: --version {max(newest.version, manifest.version) + 1}",
            )  # fmt: skip
        return manifest

    async def evaluate(
        self, model: str, *, use: str = "test", manifest: str = "", progress: Shown = False
    ) -> tuple[Digest, tuple[Exit, ...]]:
        """Every exit of the weights that `export` would write over the split named for ``use``, computed on this machine; the manifest's digest too."""
        with shown(progress) as tell:
            return await taking.judge(self, model, use=use, manifest=manifest, progress=tell)

    # -- inside ----------------------------------------------------------------------------------------------------------------

    async def _planned(self, graph: model_pb2.ModelGraph) -> Planned:
        return submission.planned(graph, self.registry, await self.dataset(dataset_refs(graph)["train"].name))

    async def _preview(self, graph: model_pb2.ModelGraph, num_batches: int) -> orchestrator_pb2.PreviewPlanResponse:
        request = orchestrator_pb2.PreviewPlanRequest(graph=graph_to_bytes(graph), num_batches=num_batches)
        answer = await self.orchestrators.call(OrchestratorServiceStub, "PreviewPlan", request)
        return cast(orchestrator_pb2.PreviewPlanResponse, answer)

    async def _existing(self, graph: model_pb2.ModelGraph, options: JobOptions) -> orchestrator_pb2.SubmitJobResponse | None:
        job_id = job_id_of(graph.name, options.idempotency_key)
        try:
            view = await self.job(job_id, graph.name)
        except NotFound:
            return None
        if view.graph_digest and view.graph_digest != graph_digest(graph):
            raise InvalidInput(
                "another graph was submitted under this idempotency key", code="idempotency_key_taken", remedy="use another key"
            )
        return orchestrator_pb2.SubmitJobResponse(job_id=job_id, existed=True, state=view.state)
