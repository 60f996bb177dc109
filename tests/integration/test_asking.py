"""Goal: questions go through real workers and come back right: another way when a worker dies, a shallower exit when a stage is gone, compared on request."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import infer_rig
import numpy as np
import pytest
import worker_rig
from infer_rig import BATCH, Served, allow, expected, samples, served
from orchestrator_parts import capability, network
from worker_rig import MODEL, DaemonEnd, workers

from dataservice.memory import MemoryStore
from dcnr.errors import DcnrError, InvalidInput, NotFound, Unavailable
from dcnr.graph import graph_digest, stages_of_graph
from dcnr.rpc.dialer import Dialer
from dcnr.system import SystemClock
from dcnr.v1 import local_pb2, model_pb2, orchestrator_pb2
from orchestrator.asking import Asking
from orchestrator.candidates import Workers
from orchestrator.history import History
from orchestrator.infer_streams import InferStreams
from orchestrator.inventory import Inventory
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.versions import Versions
from orchestrator.view import JobFacts, ModelView
from trust.identity import NodeKey
from vnode.registry import default_registry
from vnode.torch_stage import initial_state
from vnode.vocabulary import Mode

CLOCK = SystemClock()
MANIFEST = "m" * 64
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
                    manifest_digest=MANIFEST,
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
    shared = Shared(key, policy, MemoryStore(CLOCK, random.Random(1)), CLOCK, default_registry(), Inventory(), history)
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


def test_the_network_answers_as_one_process_and_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(tmp_path)
    asked = samples()

    async def scenario() -> None:
        async with town(one, monkeypatch) as here:
            nobody = await refusal(lambda: here.ask(asked))
            assert isinstance(nobody, (NotFound, Unavailable))
            assert nobody.code in ("not_trained", "no_server")
            async with workers(tmp_path, 2) as (first, second):
                await here.seat(first, "a", "c")
                await here.seat(second, "b")
                found = await here.ask(asked)
                np.testing.assert_array_equal(values(found), expected(one, asked))
                assert (found.exit, found.deepest, found.degraded, found.manifest_digest) == ("c", "c", False, MANIFEST)
                assert [(stage.vnode, stage.pnode_id, stage.step) for stage in found.stages] == [
                    ("a", first.pnode_id, 7), ("b", second.pnode_id, 7), ("c", first.pnode_id, 7)
                ]  # fmt: skip
                shallow = await here.ask(asked[:3], exit="a")
                np.testing.assert_array_equal(values(shallow), readout(one, "a", [asked[:3]]))
                assert not shallow.degraded
                for wrong, code in (
                    (lambda: here.ask(asked[:, 1:].copy()), "bad_shape"),
                    (lambda: here.ask(samples(BATCH + 1)), "bad_shape"),
                    (lambda: here.ask(asked.astype(np.float64)), "bad_dtype"),
                    (lambda: here.ask(asked * np.float32("nan")), "bad_input"),
                    (lambda: here.ask(asked, exit="nowhere"), "no_such_exit"),
                    (lambda: here.ask(asked, deadline_s=1e6), "bad_deadline"),
                ):
                    error = await refusal(wrong)
                    assert (type(error), error.code) == (InvalidInput, code)
                alone = await refusal(lambda: here.ask(asked, redundancy=2))
                assert alone.code == "too_few_ways"
                unserved = orchestrator_pb2.WEIGHTS_NAMED
                assert (
                    await refusal(lambda: here.ask(asked, weights=unserved, manifest_digest="x" * 64))
                ).code == "version_not_served"
                figures = here.asking.figures.view()
                assert (figures.num_answered, figures.in_flight, figures.failed["bad_shape"]) == (2, 0, 2)
                assert 0 < figures.p50_s <= figures.p95_s

    asyncio.run(scenario())


def test_a_worker_killed_with_the_question_costs_a_delay_and_a_lost_tail_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = served(tmp_path)
    asked = samples()

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 3) as (first, second, third):
            await here.seat(first, "a")
            await here.seat(second, "b", "c")
            await here.seat(third, "b", "c")
            await here.ask(asked)
            for end in (second, third):
                end.process.send_signal(signal.SIGSTOP)
            asking = [asyncio.create_task(here.ask(asked)) for _ in range(6)]  # half of them go through the one that dies
            await until(lambda: here.asking.figures.num_in_flight == len(asking))
            second.process.kill()
            third.process.send_signal(signal.SIGCONT)
            for found in await asyncio.gather(*asking):
                np.testing.assert_array_equal(values(found), expected(one, asked))
                assert {stage.pnode_id for stage in found.stages} == {first.pnode_id, third.pnode_id}
            assert here.asking.figures.num_ways > 1 + len(asking)
            here.gone(second)
            third.process.kill()
            here.gone(third)
            shallow = await here.ask(asked)
            np.testing.assert_array_equal(values(shallow), readout(one, "a", [asked]))
            assert (shallow.exit, shallow.degraded, shallow.deepest) == ("a", True, "c")
            assert "b" in shallow.degraded_reason
            assert (await refusal(lambda: here.ask(asked, full_depth=True))).code == "depth_unavailable"

    asyncio.run(scenario())


def test_a_silent_worker_is_gone_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(tmp_path)
    asked = samples()

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 2) as (first, second):
            await here.seat(first, *FULL)
            await here.seat(second, *FULL)
            agreed = await here.ask(asked, redundancy=2)
            assert agreed.num_agreeing == 2
            first.process.send_signal(signal.SIGSTOP)
            for _ in range(4):  # some of them begin at the silent one
                found = await here.ask(asked)
                np.testing.assert_array_equal(values(found), expected(one, asked))
                assert {stage.pnode_id for stage in found.stages} == {second.pnode_id}
            first.process.send_signal(signal.SIGCONT)

    asyncio.run(scenario())


def test_wrong_weights_are_found_by_comparing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(tmp_path)
    stage = next(item for item in stages_of_graph(one.graph, default_registry()) if item.id == "c")
    wrong = tmp_path / "wrong.state"
    wrong.write_bytes(initial_state(stage, default_registry(), seed=8, model=MODEL, graph=graph_digest(one.graph), num_batches=20))
    asked = samples()

    async def scenario() -> None:
        async with town(one, monkeypatch, checked=1.0) as here, workers(tmp_path, 2) as (honest, liar):
            await here.seat(honest, *FULL)
            await here.seat(liar, "a", "b")
            order = one.seat("c")
            order.state_path = str(wrong)
            await liar.pipe.send(local_pb2.ToWorker(seat=order))
            await liar.until(lambda: "c" in liar.seats and liar.seats["c"].ready)
            here.hosted[liar.pnode_id] = (liar, FULL)
            here.beat()
            assert (await refusal(lambda: here.ask(asked, redundancy=2))).code == "answers_differ"
            told = here.shared.history.since(0, 100)[-1]
            assert told.kind == "answers_differ"
            assert {told.facts["way_1"], told.facts["way_2"]} == {honest.pnode_id, liar.pnode_id}
            await here.ask(asked)  # a sample is asked again of others after the caller has its answer
            await until(lambda: here.asking.figures.num_differing == 2)

    asyncio.run(scenario())
