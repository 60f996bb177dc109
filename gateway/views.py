"""What the gateway knows of the network: answers of orchestrators, asked for once however many clients ask, and never older than `FRESH_S`.

Only calls of the contract through `dcnr.client.Orchestrators` are made. What is signed is verified before it is shown.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from dcnr import limits, tracing
from dcnr.client import Orchestrators
from dcnr.errors import Corrupt, NotFound
from dcnr.ledger_check import Account, JobLedger, accounts_of
from dcnr.ports import Clock
from dcnr.receipts import ReadEnvelope, Receipt, gather_receipt, no_contribution, receipt_bytes
from dcnr.stored import StoredDocuments
from dcnr.v1 import data_pb2, identity_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.data_pb2_grpc import DataServiceStub
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from gateway.ledgers import MAX_CHAIN, Chains, ReadSigned
from trust.envelope import open_single, parse
from trust.network import NetworkPolicy

T = TypeVar("T")
FRESH_S: Final = 0.5
"""An answer this young is given again."""
NOW_S: Final = -1.0
"""Whoever asks at the same time shares the answer, nobody later."""
FOR_EVER_S: Final = 1e18
"""What is named by its digest does not change."""
MAX_KEPT: Final = 256
LEDGER_S: Final = 10.0
KEPT_RECEIPTS: Final = 4


class Fresh:
    """Answers by key: one question at a time for each, its answer shared by all who wait and kept while it is fresh. Errors are shared, not kept."""

    def __init__(self, clock: Clock, max_kept: int = MAX_KEPT) -> None:
        self._clock, self._max = clock, max_kept
        self._kept: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._asking: dict[Any, asyncio.Task[Any]] = {}

    async def get(self, key: Any, ask: Callable[[], Awaitable[T]], max_age_s: float = FRESH_S) -> T:
        """The answer to ``key``, at most that old. Raises what ``ask`` raises. A caller that goes away ends nobody else's question."""
        found = self._kept.get(key)
        if found is not None and self._clock.monotonic() - found[0] <= max_age_s:
            return cast(T, found[1])
        task = self._asking.get(key)
        if task is None:
            task = asyncio.ensure_future(self._ask(key, ask, max_age_s))
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done))
        return cast(T, await asyncio.shield(task))

    async def _ask(self, key: Any, ask: Callable[[], Awaitable[T]], max_age_s: float) -> T:
        asked_at = self._clock.monotonic()
        answer = await ask()
        if max_age_s >= 0:
            self._kept[key] = (asked_at, answer)
            self._kept.move_to_end(key)
        while len(self._kept) > self._max:
            self._kept.popitem(last=False)
        return answer

    def _asked(self, key: Any, done: asyncio.Task[Any]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # taken note of, also where whoever asked is gone


class Views:
    """Questions to orchestrators. All raise NotFound, Unavailable and what else the contract says."""

    def __init__(self, orchestrators: Orchestrators, policy: Callable[[], NetworkPolicy], clock: Clock) -> None:
        self.orchestrators, self._policy, self.clock = orchestrators, policy, clock
        self._fresh, self._receipts, self._chains = Fresh(clock), Fresh(clock, KEPT_RECEIPTS), Chains()

    @property
    def policy(self) -> NetworkPolicy:
        """The network document as it is now."""
        return self._policy()

    async def status(self) -> orchestrator_pb2.GetStatusResponse:
        """An orchestrator about itself."""
        return cast(orchestrator_pb2.GetStatusResponse, await self._call("GetStatus", orchestrator_pb2.GetStatusRequest()))

    async def nodes(self) -> list[orchestrator_pb2.NodeView]:
        """All nodes, by id."""
        answer = await self._call("ListNodes", orchestrator_pb2.ListNodesRequest())
        return list(answer.nodes)

    async def jobs(self, model: str = "") -> list[orchestrator_pb2.JobView]:
        """Jobs, newest first, without their VNodes."""
        answer = await self._call("ListJobs", orchestrator_pb2.ListJobsRequest(model=model))
        return list(answer.jobs)

    async def job(self, job_id: str, model: str = "") -> orchestrator_pb2.JobView:
        """Where a job stands, VNode by VNode."""
        answer = await self._call("GetJob", orchestrator_pb2.GetJobRequest(model=model, job_id=job_id))
        return cast(orchestrator_pb2.JobView, answer.job)

    async def model(self, model: str = "") -> orchestrator_pb2.GetModelResponse:
        """Head, plan, manifest and graph."""
        answer = await self._call("GetModel", orchestrator_pb2.GetModelRequest(model=model))
        return cast(orchestrator_pb2.GetModelResponse, answer)

    async def explain(self, request: orchestrator_pb2.ExplainRequest) -> list[orchestrator_pb2.Explanation]:
        """Why."""
        answer = await self._call("Explain", request)
        return list(answer.lines)

    def generate(self, request: orchestrator_pb2.GenerateRequest) -> AsyncGenerator[orchestrator_pb2.GenerateResponse, None]:
        """A text as it comes; its caller bounds it by the deadline in the request."""
        timeout_s = request.deadline_s + limits.CALL_TIMEOUT_S
        request.traceparent = tracing.current()
        return self.orchestrators.stream(OrchestratorServiceStub, "Generate", request, timeout_s=timeout_s)

    async def submit(self, envelope: identity_pb2.Envelope) -> orchestrator_pb2.SubmitJobResponse:
        """Submits a signed request; the same one from many callers at once is passed on once. Raises Refused, InvalidInput, Stale, Unavailable."""
        request = orchestrator_pb2.SubmitJobRequest(request=envelope)
        return cast(orchestrator_pb2.SubmitJobResponse, await self._call("SubmitJob", request, NOW_S))

    async def cancel(self, envelope: identity_pb2.Envelope) -> orchestrator_pb2.CancelJobResponse:
        """Calls a job off. Raises Refused, InvalidInput, Unavailable."""
        request = orchestrator_pb2.CancelJobRequest(cancel=envelope)
        return cast(orchestrator_pb2.CancelJobResponse, await self._call("CancelJob", request, NOW_S))

    async def pause(self, envelope: identity_pb2.Envelope) -> orchestrator_pb2.PauseJobResponse:
        """Calls a job to a halt, or lets it go on. Raises Refused, NotFound, Stale, InvalidInput, Unavailable."""
        request = orchestrator_pb2.PauseJobRequest(pause=envelope)
        return cast(orchestrator_pb2.PauseJobResponse, await self._call("PauseJob", request, NOW_S))

    async def forward(self, request: orchestrator_pb2.ForwardRequest) -> orchestrator_pb2.ForwardResponse:
        """The model's answer. Raises InvalidInput, NotFound, Unavailable (``no_server``, ``busy``, ...), TimedOut."""
        timeout_s = request.deadline_s + limits.CALL_TIMEOUT_S
        request.traceparent = tracing.current()
        found = await self.orchestrators.call(OrchestratorServiceStub, "Forward", request, timeout_s=timeout_s)
        return cast(orchestrator_pb2.ForwardResponse, found)

    async def head(self, model: str = "") -> model_pb2.Head:
        """The head of a model, its signature verified."""
        return self._opened(model_pb2.Head, (await self.model(model)).head, identity_pb2.DOMAIN_HEAD)

    async def plan(self, model: str = "") -> tuple[str, model_pb2.Plan]:
        """The plan under the head with its digest, its signature verified."""
        answer = await self.model(model)
        head = self._opened(model_pb2.Head, answer.head, identity_pb2.DOMAIN_HEAD)
        if not answer.HasField("plan"):
            raise NotFound("the model has no plan yet", code="no_such_model", remedy="wait until a job is placed")
        return head.plan_digest, self._opened(
            model_pb2.Plan, answer.plan, identity_pb2.DOMAIN_PLAN, limits.MAX_PLAN_BYTES, may_sign=self.policy.has_listed
        )

    async def manifest(self, model: str = "", digest: str = "") -> tuple[str, model_pb2.Manifest]:
        """A manifest with its digest, its signatures verified: that one, or the newest."""
        if digest and model:
            return digest, (await self._kept_manifest(model, digest))[1]
        answer = await self.model(model)
        name = self._opened(model_pb2.Head, answer.head, identity_pb2.DOMAIN_HEAD).model
        if not answer.manifest_digest:
            raise NotFound(f"{name} has no manifest yet", code="no_manifest")
        if answer.HasField("manifest"):
            return answer.manifest_digest, self.policy.open_manifest(answer.manifest, name)
        return await self.manifest(name, answer.manifest_digest)

    async def ledger(self, model: str = "") -> tuple[str, list[JobLedger], list[Account]]:
        """The chain of manifests folded anew: digest of the newest one, the jobs with audits, and who is credited with what; at most `LEDGER_S` old.

        Raises Refused (``ledger_too_long``) where the chain is longer than a gateway reads.
        """
        return await self._fresh.get(("ledger", model), lambda: self._fold(model), LEDGER_S)

    async def _fold(self, model: str) -> tuple[str, list[JobLedger], list[Account]]:
        digest, newest = await self.manifest(model)
        digest, ledgers = await self._chains.ledgers(newest.model, digest, self._signed_manifest(newest.model, digest))
        return digest, ledgers, await asyncio.to_thread(lambda: accounts_of(ledgers, now_s=self.clock.wall()))

    async def receipt(self, pnode_id: str, model: str = "") -> bytes:
        """What a PNode is credited with in the newest job, as a file that proves it; at most `LEDGER_S` old.

        Raises NotFound (``no_contribution``), what `dcnr.receipts.gather_receipt` raises, and what `ledger` raises.
        """
        return await self._receipts.get((model, pnode_id), lambda: self._receipt(pnode_id, model), LEDGER_S)

    async def _receipt(self, pnode_id: str, model: str) -> bytes:
        digest, _, accounts = await self.ledger(model)
        name = (await self.head(model)).model

        async def request(job_id: str) -> identity_pb2.Envelope:
            return await self._read_request(name, job_id)

        if accounts and pnode_id not in {one.pnode_id for one in accounts}:
            raise no_contribution(pnode_id)

        async def gathered(manifest: ReadEnvelope) -> Receipt:
            return await gather_receipt(manifest, request, self.policy, name, pnode_id, digest, most=MAX_CHAIN)

        receipt = await self._chains.receipt(self._signed_manifest(name, digest), gathered)
        return await asyncio.to_thread(receipt_bytes, receipt)

    def _signed_manifest(self, model: str, newest: str) -> ReadSigned:
        """Reads manifests of a chain; the newest one may be here already."""

        async def read(digest: str) -> tuple[identity_pb2.Envelope, model_pb2.Manifest]:
            return await (self._kept_manifest if digest == newest else self._read_manifest)(model, digest)

        return read

    async def _kept_manifest(self, model: str, digest: str) -> tuple[identity_pb2.Envelope, model_pb2.Manifest]:
        """As it was signed, and opened."""
        return await self._fresh.get(("manifest", model, digest), lambda: self._read_manifest(model, digest), FOR_EVER_S)

    async def _read_request(self, model: str, job_id: str) -> identity_pb2.Envelope:
        with tempfile.TemporaryDirectory(prefix="dcnr-gateway-") as directory:
            return await StoredDocuments(self._read, self.policy, model, Path(directory)).request_envelope(job_id)

    async def _read_manifest(self, model: str, digest: str) -> tuple[identity_pb2.Envelope, model_pb2.Manifest]:
        with tempfile.TemporaryDirectory(prefix="dcnr-gateway-") as directory:
            envelope = await StoredDocuments(self._read, self.policy, model, Path(directory)).manifest_envelope(digest)
        return envelope, self.policy.open_manifest(envelope, model)

    async def _read(self, ref: data_pb2.ObjectRef, path: Path, max_bytes: int) -> None:
        parts: list[bytes] = []
        size = 0
        request = data_pb2.ReadRequest(object=ref)
        async for message in self.orchestrators.stream(DataServiceStub, "Read", request, timeout_s=limits.BULK_TIMEOUT_S):
            size += len(message.chunk)
            if size > max_bytes:
                raise Corrupt(f"the object has more than {max_bytes} bytes", code="too_large")
            parts.append(message.chunk)
        await asyncio.to_thread(path.write_bytes, b"".join(parts))

    def _opened(
        self, kind: type[T], envelope: identity_pb2.Envelope, domain: identity_pb2.Domain.ValueType, max_bytes: int = limits.MAX_ENVELOPE_BYTES,
        *, may_sign: Callable[[str], bool] | None = None,
    ) -> T:  # fmt: skip
        payload, signer = open_single(envelope, domain, max_bytes=max_bytes)
        if not (may_sign or self.policy.is_orchestrator)(signer.node_id):
            raise Corrupt("signed by a node that is no orchestrator of this network", code="wrong_signer")
        return cast(T, parse(cast(Any, kind), payload, max_bytes))

    async def _call(self, method: str, request: Any, max_age_s: float = FRESH_S) -> Any:
        key = (method, request.SerializeToString(deterministic=True))
        return await self._fresh.get(key, lambda: self.orchestrators.call(OrchestratorServiceStub, method, request), max_age_s)
