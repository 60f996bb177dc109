"""An orchestrator that asks workers, known to it by beats that the test makes."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import infer_rig
import numpy as np
import pytest
import worker_rig
from infer_rig import Served, allow
from orchestrator_parts import capability, network
from worker_rig import MODEL, DaemonEnd

from dataservice.memory import MemoryStore
from dcnr.errors import DcnrError
from dcnr.graph import graph_digest, stages_of_graph
from dcnr.rpc.dialer import Dialer
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.asking import Asking
from orchestrator.candidates import Workers
from orchestrator.history import History
from orchestrator.infer_streams import InferStreams
from orchestrator.inventory import Inventory
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.versions import Versions
from orchestrator.view import JobFacts, ModelView
from trust.identity import NodeKey
from trust.in_force import InForce
from vnode.registry import default_registry
from vnode.vocabulary import Mode

CLOCK = SystemClock()
MANIFEST = "e" * 64
JOB = "job-1"
FULL = ("a", "b", "c")


class OneManifest:
    """A loader of the one manifest whose states the test serves."""

    def __init__(self, one: Served) -> None:
        self.digest = graph_digest(one.graph)
        request = model_pb2.JobRequest(job_id=JOB, graph_digest=self.digest)
        self.facts = JobFacts(request, "r" * 64, one.graph, b"", stages_of_graph(one.graph, default_registry()), ())
        self.entries = [
            model_pb2.ManifestEntry(
                vnode=vnode, working=[model_pb2.Checkpoint(vnode=vnode, digest=one.digest(vnode), job_id=JOB, step=7)]
            )
            for vnode in one.states
        ]

    async def manifest(self, model: str, digest: str) -> tuple[model_pb2.Manifest, bytes]:
        return model_pb2.Manifest(number=1, job_id=JOB, entries=self.entries, audits="none", graph_digest=self.digest), b""

    async def job(self, model: str, job_id: str) -> JobFacts:
        return self.facts


class Alone:
    """There is no other orchestrator."""

    async def ask(
        self, node_id: str, request: orchestrator_pb2.ForwardRequest, timeout_s: float
    ) -> orchestrator_pb2.ForwardResponse:
        raise AssertionError(f"{node_id} was asked")

    async def close(self) -> None:
        pass


class Town:
    """An orchestrator that asks, and the workers it knows by their beats."""

    def __init__(self, one: Served, key: NodeKey, shared: Shared, asking: Asking, runtime: ModelRuntime) -> None:
        self.one, self.key, self.shared, self.asking, self.runtime = one, key, shared, asking, runtime
        self.hosted: dict[str, tuple[DaemonEnd, tuple[str, ...]]] = {}
        self.queued: dict[str, int] = {}
        """By PNode whose seats report that so many questions wait."""

    async def seat(self, end: DaemonEnd, *vnodes: str) -> None:
        """These are served there, and reported."""
        await allow(self.key, end)
        await infer_rig.seat(end, self.one, *vnodes)
        self.hosted[end.pnode_id] = (end, vnodes)
        self.shared.inventory.attached(end.pnode_id, CLOCK.monotonic())
        self.beat()

    def beat(self) -> None:
        """Everybody who is here reports."""
        for pnode_id, (end, vnodes) in self.hosted.items():
            seats = [
                orchestrator_pb2.SeatReport(
                    model=MODEL, vnode=vnode, state_digest=self.one.digest(vnode), ready=True, delegation=end.delegation,
                    manifest_digest=MANIFEST, queued=self.queued.get(pnode_id, 0),
                )
                for vnode in vnodes
            ]  # fmt: skip
            beat = orchestrator_pb2.Beat(worker_alive=True, capability=capability(), seats=seats)
            self.shared.inventory.beat(pnode_id, CLOCK.monotonic(), beat, 1000.0)
        self.shared.inventory.tick(CLOCK.monotonic())

    def gone(self, end: DaemonEnd) -> None:
        """Its stream ended."""
        del self.hosted[end.pnode_id]
        self.shared.inventory.detached(end.pnode_id, CLOCK.monotonic(), "killed")

    async def ask(self, asked: Any, **wishes: Any) -> orchestrator_pb2.ForwardResponse:
        request = orchestrator_pb2.ForwardRequest(
            model=MODEL, inputs=[orchestrator_pb2.NamedTensor(dtype=asked.dtype.name, shape=asked.shape, data=asked.tobytes())], **wishes
        )  # fmt: skip
        return await self.asking.forward(self.runtime, request, may_pass_on=True)


def values(response: orchestrator_pb2.ForwardResponse) -> Any:
    return np.frombuffer(response.output.data, response.output.dtype).reshape(tuple(response.output.shape))


@asynccontextmanager
async def town(one: Served, monkeypatch: pytest.MonkeyPatch, *, checked: float = 0.0) -> AsyncIterator[Town]:
    key = NodeKey.generate()
    policy = network(NodeKey.generate(), [key], CLOCK)
    monkeypatch.setattr(worker_rig, "NETWORK_ID", policy.network_id)
    history = History(None, key.node_id, CLOCK)
    shared = Shared(key, InForce(policy), MemoryStore(CLOCK, random.Random(1)), CLOCK, default_registry(), Inventory(), history)
    runtime, loader = ModelRuntime(MODEL, shared), OneManifest(one)
    stub: Any = loader
    runtime.serving.versions = Versions(MODEL, stub)
    head = model_pb2.Head(manifest_digest=MANIFEST)
    await runtime.serving.versions.read([MANIFEST], ModelView(MODEL, head, b"", job=loader.facts), 0.0)
    dialer = Dialer(key, policy.network_id, clock=CLOCK, rng=secrets.token_bytes)
    streams = InferStreams(dialer.connect, CLOCK)

    known = Workers(policy.network_id, CLOCK.wall, lambda _: None)
    asking = Asking(shared, streams=streams, workers=known, rng=random.Random(5), holders=Alone(), checked=checked)
    running = asyncio.create_task(asking.run())
    try:
        yield Town(one, key, shared, asking, runtime)
    finally:
        await asking.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = CLOCK.monotonic() + within_s
    while not condition():
        assert CLOCK.monotonic() < deadline
        await asyncio.sleep(0.001)


async def refusal(asking: Callable[[], Any]) -> DcnrError:
    with pytest.raises(DcnrError) as caught:
        await asking()
    return caught.value


def readout(one: Served, vnode: str, inputs: Sequence[Any]) -> Any:
    compute = one.compute(vnode)
    return compute.readout(compute.forward(0, list(inputs), Mode.INFER).output).numpy()
