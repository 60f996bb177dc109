"""The client without async: the same calls, run on a loop in a thread of its own, so that scripts and notebooks need no event loop.

All clients of a process share that loop. gRPC tells a loop what comes of a call even after the call was given up, and where the loop is closed by then it
is the next one's reader that fails, with whatever else it had to tell.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from dataservice.dataset_manifest import DatasetManifest
from dcnr.errors import InvalidInput
from dcnr.export import Export
from dcnr.ids import Digest
from dcnr.sdk.asking import Answer, Ask, Inputs
from dcnr.sdk.client import AsyncClient, connect_async
from dcnr.sdk.progress import Shown
from dcnr.sdk.releasing import Released
from dcnr.sdk.signing import Draft
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.sdk.weights import FirstWeights
from dcnr.sdk.writing import Write
from dcnr.texts import Part
from dcnr.v1 import data_pb2, model_pb2, orchestrator_pb2
from trust.identity import NodeKey
from trust.network import NetworkPolicy

if TYPE_CHECKING:
    from vnode.reference import Exit

T = TypeVar("T")


@cache
def _running(_process: int) -> asyncio.AbstractEventLoop:
    """The loop of a process, in a daemon thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="dcnr sdk", daemon=True).start()
    return loop


class _Loop:
    """The loop as one client uses it."""

    def __init__(self) -> None:
        self._loop, self.is_closed = _running(os.getpid()), False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``; an interrupt cancels it. Raises InvalidInput (``client_closed``)."""
        if self.is_closed:
            work.close()
            raise InvalidInput("this client is closed", code="client_closed", remedy="connect anew: dcnr.connect(...)")
        return self.end(work)

    def end(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, also where the client is closed: what has begun ends."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def connect(
    bootstrap: Sequence[str] = (), *, network: Path | None = None, network_id: str | None = None, key: NodeKey | None = None,
    components: Sequence[str] = (),
) -> Client:  # fmt: skip
    """A client of a network; see `dcnr.sdk.client.connect_async`. Use it in a ``with`` statement."""
    loop = _Loop()
    return Client(loop.run(connect_async(bootstrap, network=network, network_id=network_id, key=key, components=components)), loop)


class Client:
    """Every method is that of `AsyncClient` and raises what it raises; InvalidInput (``client_closed``) once it is closed."""

    def __init__(self, client: AsyncClient, loop: _Loop) -> None:
        self._client, self._loop = client, loop

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes connections; nothing where they are closed."""
        if not self._loop.is_closed:
            self._loop.is_closed = True
            self._loop.end(self._client.close())

    @property
    def policy(self) -> NetworkPolicy:
        """The verified network document."""
        return self._client.policy

    @property
    def pinned(self) -> bool:
        """Whether the network's id was known before."""
        return self._client.pinned

    def status(self) -> orchestrator_pb2.GetStatusResponse:
        """An orchestrator about itself."""
        return self._loop.run(self._client.status())

    def nodes(self) -> list[orchestrator_pb2.NodeView]:
        """All nodes."""
        return self._loop.run(self._client.nodes())

    def list_datasets(self, name: str = "") -> list[data_pb2.DatasetInfo]:
        """Staged data sets."""
        return self._loop.run(self._client.list_datasets(name))

    def stage(self, source: Source, *, progress: Shown = False) -> DatasetManifest:
        """Uploads a data set."""
        return self._loop.run(self._client.stage(source, progress=progress))

    def plan(self, graph: model_pb2.ModelGraph) -> orchestrator_pb2.PreviewPlanResponse:
        """What the planner would do."""
        return self._loop.run(self._client.plan(graph))

    def jobs(self, model: str = "") -> list[orchestrator_pb2.JobView]:
        """Jobs, newest first."""
        return self._loop.run(self._client.jobs(model))

    def job(self, job_id: str, model: str = "") -> orchestrator_pb2.JobView:
        """Where a job stands."""
        return self._loop.run(self._client.job(job_id, model))

    def watch(
        self, job_id: str, *, model: str = "", interval_s: float = 1.0, progress: Shown = False
    ) -> Iterator[orchestrator_pb2.WatchJobResponse]:
        """Views of a job until it has ended."""
        return self._each(self._client.watch(job_id, model=model, interval_s=interval_s, progress=progress))

    def _each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        async def step() -> T:
            return await anext(items)

        try:
            while True:
                try:
                    yield self._loop.run(step())
                except StopAsyncIteration:
                    return
        finally:
            self._loop.end(items.aclose())

    def wait(self, job_id: str, *, model: str = "", progress: Shown = False) -> orchestrator_pb2.JobView:
        """The job once it has ended."""
        return self._loop.run(self._client.wait(job_id, model=model, progress=progress))

    def forward(self, inputs: Inputs, asked: Ask | None = None) -> Answer:
        """The model's answer to arrays with the batch dimension first."""
        return self._loop.run(self._client.forward(inputs, asked))

    def generate(self, prompt: str | bytes, wanted: Write | None = None, *, progress: Shown = False) -> Iterator[Part]:
        """What the model writes after the prompt, as it comes."""
        return self._each(self._client.generate(prompt, wanted, progress=progress))

    def explain(self, request: orchestrator_pb2.ExplainRequest) -> list[orchestrator_pb2.Explanation]:
        """Why."""
        return self._loop.run(self._client.explain(request))

    def prepare(
        self,
        graph: model_pb2.ModelGraph,
        options: JobOptions,
        *,
        weights: FirstWeights | None = None,
        progress: Shown = False,
    ) -> Draft:
        """The job to be signed."""
        return self._loop.run(self._client.prepare(graph, options, weights=weights, progress=progress))

    def submit(
        self, graph: model_pb2.ModelGraph, keys: Sequence[NodeKey], options: JobOptions, *, weights: FirstWeights | None = None,
        progress: Shown = False,
    ) -> orchestrator_pb2.SubmitJobResponse:  # fmt: skip
        """Prepares, signs and submits."""
        return self._loop.run(self._client.submit(graph, keys, options, weights=weights, progress=progress))

    def submit_draft(self, draft: Draft) -> orchestrator_pb2.SubmitJobResponse:
        """Submits a draft that has its signatures."""
        return self._loop.run(self._client.submit_draft(draft))

    def cancel(
        self, job_id: str, keys: Sequence[NodeKey], *, model: str = "", reason: str = ""
    ) -> orchestrator_pb2.CancelJobResponse:
        """Calls a job off."""
        return self._loop.run(self._client.cancel(job_id, keys, model=model, reason=reason))

    def pause(
        self, job_id: str, keys: Sequence[NodeKey], *, model: str = "", reason: str = ""
    ) -> orchestrator_pb2.PauseJobResponse:
        """Calls a job to a halt."""
        return self._loop.run(self._client.pause(job_id, keys, model=model, reason=reason))

    def resume(
        self, job_id: str, keys: Sequence[NodeKey], *, model: str = "", reason: str = ""
    ) -> orchestrator_pb2.PauseJobResponse:
        """Lets a paused job go on."""
        return self._loop.run(self._client.resume(job_id, keys, model=model, reason=reason))

    def release(self, model: str, keys: Sequence[NodeKey], *, manifest: str, reason: str = "") -> Released:
        """Says which manifest answers and is exported; empty: what training brings."""
        return self._loop.run(self._client.release(model, keys, manifest=manifest, reason=reason))

    def released(self, model: str) -> Released:
        """Which manifest maintainers released last."""
        return self._loop.run(self._client.released(model))

    def manifest(self, model: str, digest: str = "") -> tuple[Digest, model_pb2.Manifest]:
        """A verified manifest."""
        return self._loop.run(self._client.manifest(model, digest))

    def export(self, model: str, directory: Path, *, manifest: str = "", progress: Shown = False) -> tuple[Digest, Export]:
        """Writes the model as files."""
        return self._loop.run(self._client.export(model, directory, manifest=manifest, progress=progress))

    def evaluate(
        self, model: str, *, use: str = "test", manifest: str = "", progress: Shown = False
    ) -> tuple[Digest, tuple[Exit, ...]]:
        """Every exit over a split, computed on this machine."""
        return self._loop.run(self._client.evaluate(model, use=use, manifest=manifest, progress=progress))
