"""Goal: what one stranger sends or claims costs the orchestrator a bounded amount, gives the stranger nothing, and stops nobody else."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from attack_rig import CLOCK, MODEL, Rig, beat, ended, run, until

from dcnr import limits
from dcnr.errors import DcnrError, Unavailable
from dcnr.rpc.connection import Connection
from dcnr.v1 import common_pb2, data_pb2, identity_pb2, membership_pb2, orchestrator_pb2
from dcnr.v1.data_pb2_grpc import DataServiceStub
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from dcnr.varints import varint
from orchestrator import generating, rpc, service
from orchestrator.access import STRANGERS_ASK, CallLimits
from orchestrator.asking import MAX_IN_FLIGHT, STRANGERS_AT_ONCE
from orchestrator.attach import EVENT_RATE, tell_transitions
from orchestrator.beat_bounds import MAX_BEAT_BYTES
from orchestrator.generating import Generating
from orchestrator.metering import Metering
from orchestrator.rpc import OrchestratorServicer
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.usage import HistoryBooks
from orchestrator.watchers import EARLY_S, OTHERS_S, PER_CALLER, PER_SUBNET, Picture
from trust.identity import NodeKey
from trust.rates import Rate


def test_a_beat_of_megabytes_is_not_kept_and_ends_its_own_stream_only() -> None:
    async def story(found: Rig) -> None:
        stranger, honest = NodeKey.generate(), NodeKey.generate()
        theirs, ours = [await found.attach(key, await found.dial(key)) for key in (stranger, honest)]
        padding = orchestrator_pb2.ReplicaReport(replica="first.1", reason="x" * (MAX_BEAT_BYTES + 1))
        await theirs.write(beat(1, replicas=[padding]))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ended(theirs)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not found.record(stranger).beat.replicas
        await ours.write(beat(1))
        await until(lambda: found.record(honest).beat_at is not None, "the honest beat is heard")

    run(story)


def test_what_strangers_say_at_length_keeps_nobody_from_seeing_the_nodes() -> None:
    """A megabyte each, as the reason why there is no worker, as the name of a device, and in fields that the contract does not have."""
    text = "x" * (MAX_BEAT_BYTES - 2000)
    device = membership_pb2.Capability(accepts_work=True, device_name=text)
    unknown = membership_pb2.Capability(accepts_work=True).SerializeToString() + b"\x82\x7d" + varint(len(text)) + text.encode()
    beats = [
        orchestrator_pb2.Beat(sequence=1, worker_reason=text),
        orchestrator_pb2.Beat(sequence=1, capability=device),
        orchestrator_pb2.Beat(sequence=1, capability=membership_pb2.Capability.FromString(unknown)),
    ]

    async def story(found: Rig) -> None:
        strangers = [NodeKey.generate() for _ in range(3 * limits.MAX_MESSAGE_BYTES // MAX_BEAT_BYTES + 3)]
        for number, key in enumerate(strangers):
            call = await found.attach(key, await found.dial(key))
            await call.write(orchestrator_pb2.PNodeMessage(beat=beats[number % len(beats)]))
            assert (await call.read()).HasField("beat_ack")
        tell_transitions(found.shared, CLOCK.monotonic())
        connection = await found.dial(NodeKey.generate())
        stub: Any = OrchestratorServiceStub(connection.channel)
        told = await stub.ListNodes(orchestrator_pb2.ListNodesRequest(), metadata=connection.metadata)
        assert {key.node_id for key in strangers} <= {node.node_id for node in told.nodes}
        assert any("xxx" in node.reason for node in told.nodes), "what there is room for is shown"
        assert told.ByteSize() < 1000 * len(told.nodes)

    run(story)


def test_a_flood_of_events_is_written_down_at_its_rate_only() -> None:
    async def story(found: Rig) -> None:
        stranger = NodeKey.generate()
        call = await found.attach(stranger, await found.dial(stranger))
        before, began_s = found.shared.history.sequence, CLOCK.monotonic()
        facts = {f"fact{number}": "x" * 10_000 for number in range(4)}
        for number in range(40):
            events = [common_pb2.Event(sequence=number * 16 + one + 1, kind="k", facts=facts) for one in range(16)]
            await call.write(beat(number, events=events))
            await call.read()
        await until(lambda: found.record(stranger).beat.sequence == 39, "all beats are heard")
        written = found.shared.history.sequence - before
        assert written <= EVENT_RATE.burst + EVENT_RATE.per_s * (CLOCK.monotonic() - began_s)
        newest = found.shared.history.since(0, 256)
        assert sum(event.ByteSize() for event in newest) < limits.MAX_MESSAGE_BYTES // 2, "watchers' answers must fit a message"

    run(story)


def test_a_pnode_has_one_control_stream_the_newest() -> None:
    async def story(found: Rig) -> None:
        stranger = NodeKey.generate()
        connection = await found.dial(stranger)
        calls = [await found.attach(stranger, connection) for _ in range(10)]
        await until(lambda: found.record(stranger).streams == 1, "the older streams are closed")
        for call in calls[:-1]:
            assert await ended(call) is grpc.StatusCode.OK
        await calls[-1].write(beat(7))
        await until(lambda: found.record(stranger).beat.sequence == 7, "the newest stream is heard")

    run(story)


def test_a_crowd_of_watchers_is_shown_one_picture_per_interval_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    built, shown = list[float](), list[Picture]()
    message = Picture.message

    def view(runtime: Any, job_id: str, *, with_vnodes: bool) -> orchestrator_pb2.JobView:
        built.append(CLOCK.monotonic())
        return orchestrator_pb2.JobView(job_id=job_id)

    def counted(picture: Picture, *given: Any) -> Any:
        shown.append(picture)
        return message(picture, *given)

    monkeypatch.setattr(rpc, "job_view", view)
    monkeypatch.setattr(OrchestratorServicer, "_nodes", lambda services: [])
    monkeypatch.setattr(Picture, "message", counted)

    async def story(found: Rig) -> None:
        found.runtimes[MODEL] = SimpleNamespace(model=MODEL, jobs=SimpleNamespace(records={"job": None}))
        calls: list[Any] = []

        async def watch(connection: Connection) -> Any:
            stub: Any = OrchestratorServiceStub(connection.channel)
            request = orchestrator_pb2.WatchJobRequest(job_id="job", interval_s=0.01)
            calls.append(stub.WatchJob(request, metadata=connection.metadata))
            return await calls[-1].read()

        crowd = [await found.dial(NodeKey.generate()) for _ in range(PER_SUBNET // PER_CALLER)]
        for connection in crowd:
            for _ in range(PER_CALLER):
                assert (await watch(connection)).job.job_id == "job"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await watch(await found.dial(NodeKey.generate()))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        built.clear()
        shown.clear()
        for call in calls[:-1]:
            await call.read()
            await call.read()
        assert len(shown) >= PER_SUBNET * (len(built) - 1)
        assert all(after - before >= OTHERS_S - 2 * EARLY_S for before, after in pairwise(built))
        for call in calls:
            call.cancel()

    run(story)


@pytest.mark.parametrize("attaches", [False, True])
def test_who_is_no_maintainer_reads_at_a_rate_for_its_subnet(attaches: bool) -> None:
    """Any key attaches: that one is known here is no reason to read without end."""

    async def story(found: Rig) -> None:
        key = NodeKey.generate()
        connection = await found.dial(key)
        found.data._known = lambda node_id: attaches
        if attaches:
            await found.attach(key, connection)

        async def flood(method: Any, request: Any) -> None:
            for _ in range(10 * int(STRANGERS_ASK.burst)):
                await connection.call(method, request)

        for flooding in (
            flood(OrchestratorServiceStub(connection.channel).ListJobs, orchestrator_pb2.ListJobsRequest()),
            flood(DataServiceStub(connection.channel).ListDatasets, data_pb2.ListDatasetsRequest()),
        ):
            with pytest.raises(Unavailable) as refused:
                await flooding
            assert refused.value.code == "rate_limited"

    run(story)


def test_who_is_not_listed_brings_statements_and_asks_for_the_head_at_a_rate_for_its_subnet() -> None:
    """Any key opens a session, and signatures and reads of the store cost an orchestrator more than whoever asks for them."""
    unsigned = identity_pb2.Envelope(domain=identity_pb2.DOMAIN_JOB_REQUEST, payload=b"x")
    calls = (
        ("SubmitJob", orchestrator_pb2.SubmitJobRequest(request=unsigned), "_statement_limits", "unsigned_job"),
        ("CancelJob", orchestrator_pb2.CancelJobRequest(cancel=unsigned), "_statement_limits", "unsigned_job"),
        ("PauseJob", orchestrator_pb2.PauseJobRequest(pause=unsigned), "_statement_limits", "unsigned_job"),
        ("Resolve", orchestrator_pb2.ResolveRequest(), "_read_limits", "nothing_asked"),
        ("ConfirmHead", orchestrator_pb2.ConfirmHeadRequest(), "_head_limits", "bad_nonce"),
    )

    async def story(found: Rig) -> None:
        strangers, listed = [await found.dial(NodeKey.generate()) for _ in range(2)], await found.dial(found.key)

        async def answer(connection: Connection, name: str, request: Any) -> str:
            with pytest.raises(DcnrError) as refused:
                await connection.call(getattr(OrchestratorServiceStub(connection.channel), name), request)
            return str(refused.value.code)

        for name, request, limit, otherwise in calls:
            setattr(found.services, limit, CallLimits(rate=Rate(per_s=0.001, burst=2.0)))
            told = [await answer(one, name, request) for one in (*strangers, *strangers)]
            assert told == [otherwise, otherwise, "rate_limited", "rate_limited"], name
            assert await answer(listed, name, request) == otherwise

    run(story)


def test_texts_of_strangers_without_end_keep_nobody_who_is_listed_from_a_place() -> None:
    logits = orchestrator_pb2.NamedTensor(dtype="float32", shape=(1, 1, 256), data=bytes(1024))
    passed: dict[bytes, int] = {}

    async def forward(runtime: Any, request: Any, *, places: int, **how: Any) -> orchestrator_pb2.ForwardResponse:
        prompt = request.inputs[0].data
        passed.setdefault(prompt, places)
        if len(prompt) > len(b"theirs"):
            await asyncio.Event().wait()  # the text goes on as long as it may
        return orchestrator_pb2.ForwardResponse(output=logits, manifest_digest="m")

    async def story(found: Rig) -> None:
        found.runtimes[MODEL] = SimpleNamespace(model=MODEL)
        pipeline: Any = SimpleNamespace(context=lambda *asked: 16, session=lambda *asked: None, forward=forward)
        found.services._writing = Generating(pipeline, CLOCK, bytes)
        found.services._metering = Metering(found.shared, HistoryBooks(found.shared.history, found.policy.network_id))
        strangers, listed = [await found.dial(NodeKey.generate()) for _ in range(2)], await found.dial(found.key)
        calls: list[Any] = []

        async def begins(connection: Connection, prompt: bytes) -> None:
            request = orchestrator_pb2.GenerateRequest(prompt=prompt, max_tokens=4096, deadline_s=limits.MAX_TEXT_S)
            stub: Any = OrchestratorServiceStub(connection.channel)
            calls.append(stub.Generate(request, metadata=connection.metadata))
            assert (await calls[-1].read()).num_tokens == 1

        for number in range(generating.PER_SUBNET):
            await begins(strangers[number % 2], b"theirs")
        for connection in strangers:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await begins(connection, b"theirs")
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await begins(listed, b"listed")
        assert (passed[b"theirs"], passed[b"listed"]) == (STRANGERS_AT_ONCE, MAX_IN_FLIGHT)
        for call in calls:
            call.cancel()

    run(story)


def test_questions_for_jobs_that_nobody_knows_list_the_store_once_in_a_while() -> None:
    async def story(found: Rig) -> None:
        listed: list[str] = []
        there = found.store.list

        async def counted(prefix: str, **how: Any) -> Any:
            listed.append(prefix)
            return await there(prefix, **how)

        store: Any = found.store
        store.list = counted
        found.runtimes[MODEL] = ModelRuntime(MODEL, found.shared)
        stranger = await found.dial(NodeKey.generate())
        ask = OrchestratorServiceStub(stranger.channel).GetJob
        requests = (orchestrator_pb2.GetJobRequest(job_id=f"job-{number}") for number in range(50))
        answers = await asyncio.gather(*(stranger.call(ask, one) for one in requests), return_exceptions=True)
        assert {one.code for one in answers if isinstance(one, DcnrError)} == {"job_not_found"}
        assert (len(answers), 0 < len(listed) <= 2) == (50, True)

    run(story)


def test_a_model_whose_runtime_breaks_ends_neither_the_process_nor_the_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        runs = 0

        def __init__(self, model: str, shared: Shared) -> None:
            self.model = model

        async def run(self) -> None:
            Broken.runs += 1
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fail())

        async def _fail(self) -> None:
            raise ValueError("a document with values that nobody thought of")

    monkeypatch.setattr(service, "ModelRuntime", Broken)
    monkeypatch.setattr(service, "RESTART_S", 0.01)

    async def story(found: Rig) -> None:
        async with asyncio.TaskGroup() as group:
            table = service.ModelTable(found.shared, group)
            table.runtime("toy")
            await until(lambda: Broken.runs >= 3, "the runtime is replaced and runs again")
            table.close()
        told = found.shared.history.since(0, 16)[-1]
        assert (told.kind, told.reason) == ("runtime_failed", "ValueError"), "its own text may hold anything"

    run(story)
