"""Goal: what one stranger sends or claims costs the orchestrator a bounded amount, gives the stranger nothing, and stops nobody else."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from orchestrator_parts import capability, network

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr import limits
from dcnr.errors import DcnrError, Refused, Unavailable
from dcnr.ids import digest_of
from dcnr.rpc.connection import Connection
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import common_pb2, data_pb2, identity_pb2, membership_pb2, orchestrator_pb2
from dcnr.v1.data_pb2_grpc import DataServiceStub, add_DataServiceServicer_to_server
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub, add_OrchestratorServiceServicer_to_server
from dcnr.varints import varint
from orchestrator import proxies, rpc, service
from orchestrator.access import STRANGERS_ASK
from orchestrator.attach import EVENT_RATE, AttachService, tell_transitions
from orchestrator.beat_bounds import MAX_BEAT_BYTES
from orchestrator.datarpc import DataServicer
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.proxies import Lane
from orchestrator.rpc import OrchestratorServicer
from orchestrator.runtime import Shared
from orchestrator.view import ViewLoader
from orchestrator.watchers import EARLY_S, PER_CALLER, PER_SUBNET, STRANGERS_S, Picture
from trust.evidence import MAX_RECORD_BYTES
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy
from trust.records import make_advert
from vnode.registry import default_registry

CLOCK = SystemClock()
MODEL = "toy"
WAIT_S = 60.0


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = CLOCK.monotonic() + WAIT_S
    while not condition():
        assert CLOCK.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.02)


@dataclass
class Rig:
    """The orchestrator's services over real gRPC, above a store in memory."""

    policy: NetworkPolicy
    shared: Shared
    store: MemoryStore
    key: NodeKey
    runtimes: dict[str, Any]
    address: str = ""
    open: list[Connection] = field(default_factory=list)
    data: DataServicer = field(init=False)

    async def dial(self, caller: NodeKey) -> Connection:
        dialer = Dialer(caller, self.policy.network_id, clock=CLOCK, rng=secrets.token_bytes, own_connections=True)
        connection = await dialer.connect(self.key.node_id, [self.address])
        self.open.append(connection)
        return connection

    async def attach(self, caller: NodeKey, connection: Connection) -> Any:
        """A control stream that has been welcomed, and whose coming is written down."""
        advert = make_advert(
            caller, network_id=self.policy.network_id, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=1, now_wall=CLOCK.wall(),
            lifetime_s=60, control_addresses=[], capability=capability(),
        )  # fmt: skip
        stub: Any = OrchestratorServiceStub(connection.channel)
        call = stub.Attach(metadata=connection.metadata)
        await call.write(orchestrator_pb2.PNodeMessage(hello=orchestrator_pb2.Hello(advert=advert)))
        assert (await call.read()).HasField("welcome")
        await until(lambda: bool(self.shared.history.about({caller.node_id}, 1)), "its coming is written down")
        return call

    def record(self, caller: NodeKey) -> Any:
        return self.shared.inventory.nodes()[caller.node_id]


def own_advert(policy: NetworkPolicy, key: NodeKey) -> identity_pb2.Envelope:
    """The orchestrator's own."""
    return make_advert(
        key, network_id=policy.network_id, kind=membership_pb2.NODE_KIND_ORCHESTRATOR, incarnation=1, sequence=1, now_wall=CLOCK.wall(),
        lifetime_s=300, control_addresses=["127.0.0.1:1"],
    )  # fmt: skip


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    key = NodeKey.generate()
    policy = network(NodeKey.generate(), [key], CLOCK)
    store = MemoryStore(CLOCK, random.Random(1))
    shared = Shared(key, InForce(policy), store, CLOCK, default_registry(), Inventory(), History(None, key.node_id, CLOCK))
    found = Rig(policy, shared, store, key, {})
    models: Any = SimpleNamespace(
        shared=shared,
        loader=ViewLoader(store, lambda: policy, shared.registry, CLOCK),
        runtimes=found.runtimes,
        software="test",
        started_at=0.0,
    )

    async def unreachable(node_id: str, addresses: list[str]) -> bool:
        return False

    attach = AttachService(shared, models.runtimes, head_url=lambda model: ("", 0), reach=unreachable)
    found.data = DataServicer(shared, models.runtimes, presigner=None, proxy_uploads=True, known=lambda node: True)
    directory: Any = SimpleNamespace(own_advert=own_advert(policy, key), orchestrators=list)
    asking: Any = None
    metering: Any = None
    server = RpcServer(key, policy.network_id, clock=CLOCK, rng=secrets.token_bytes)
    server.add(
        lambda target: add_OrchestratorServiceServicer_to_server(
            OrchestratorServicer(models, attach, directory, asking, metering), target
        )
    )
    server.add(lambda target: add_DataServiceServicer_to_server(found.data, target))
    found.address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        yield found
    finally:
        for connection in found.open:
            await connection.close()
        await server.stop(0.1)


def run(story: Callable[[Rig], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120), rig() as found:
            await story(found)

    asyncio.run(whole())


async def ended(call: Any) -> grpc.StatusCode:
    """How a stream ended, after everything that was said before is read."""
    while (await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        pass
    code: grpc.StatusCode = await call.code()
    return code


def beat(sequence: int, **fields: Any) -> orchestrator_pb2.PNodeMessage:
    return orchestrator_pb2.PNodeMessage(beat=orchestrator_pb2.Beat(sequence=sequence, worker_alive=True, **fields))


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


def test_saying_that_one_hosts_a_vnode_gives_no_right_to_write_it() -> None:
    async def story(found: Rig) -> None:
        stranger = NodeKey.generate()
        connection = await found.dial(stranger)
        call = await found.attach(stranger, connection)
        await call.write(beat(1, replicas=[orchestrator_pb2.ReplicaReport(replica="first.1", vnode="first")]))
        await until(lambda: bool(found.record(stranger).beat.replicas), "the claim is heard")
        digest = digest_of(b"junk")
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=MODEL, owner="first", digest=digest)
        item = data_pb2.GrantItem(object=ref, access=data_pb2.ACCESS_WRITE, size_bytes=4, sha256=digest)
        stub: Any = DataServiceStub(connection.channel)
        with pytest.raises(Refused) as refused:
            await connection.call(stub.Grant, data_pb2.GrantRequest(items=[item]))
        assert refused.value.code == "not_hosted"

    run(story)


def evidence_of(number: int, model: str = MODEL, vnode: str = "a", size_bytes: int = limits.MAX_OBJECT_BYTES) -> data_pb2.GrantItem:
    digest = digest_of(b"junk %d" % number)
    ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_EVIDENCE, model=model, owner=vnode, digest=digest)
    return data_pb2.GrantItem(object=ref, access=data_pb2.ACCESS_WRITE, size_bytes=size_bytes, sha256=digest)


async def refusal(connection: Connection, *items: data_pb2.GrantItem) -> str:
    """The code with which these wishes are refused; empty where they are granted."""
    stub: Any = DataServiceStub(connection.channel)
    try:
        await connection.call(stub.Grant, data_pb2.GrantRequest(items=items))
    except DcnrError as refused:
        return refused.code
    return ""


def test_who_was_asked_for_nothing_writes_no_evidence() -> None:
    async def story(found: Rig) -> None:
        connection = await found.dial(NodeKey.generate())
        assert await refusal(connection, evidence_of(1)) == "no_audits"
        assert (
            await refusal(connection, *(evidence_of(number, f"no-such-{number}", "nobody") for number in range(256))) == "no_audits"
        )
        stub: Any = DataServiceStub(connection.channel)
        item = evidence_of(1, size_bytes=len(b"junk 1"))
        with pytest.raises(Refused):
            await connection.call(stub.Write, iter([data_pb2.WriteRequest(item=item, chunk=b"junk 1")]))
        assert not list(found.store.keys())

    run(story)


class Signer:
    """A store that takes uploads under a URL."""

    def presign_put(self, key: str, size_bytes: int, sha256: str, expires_s: int) -> Any:
        return SimpleNamespace(url=f"https://store/{key}", headers=())


def auditing_model(accused: NodeKey) -> Any:
    """A runtime that does not hold the head of a model in which an interval of VNode a is open."""
    opened = SimpleNamespace(vnode="a", pnode_id=accused.node_id)
    chain = SimpleNamespace(ledger=SimpleNamespace(lines={"a": ()}), open_intervals=lambda: (opened,))
    job = SimpleNamespace(costs=(SimpleNamespace(vnode="a", state_bytes=limits.MIB),))
    view = SimpleNamespace(chain=chain, plan=SimpleNamespace(assignments=()), job=job, hosted_by=lambda node_id: ())
    return SimpleNamespace(view=view, auditing=SimpleNamespace(asks=lambda node_id, vnode: None))


def test_evidence_that_is_awaited_is_granted_in_its_size_and_for_so_many_bytes_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NetworkPolicy, "audits_drawn", property(lambda policy: True))

    async def story(found: Rig) -> None:
        accused, auditor = NodeKey.generate(), NodeKey.generate()
        found.data._presigner, found.data._proxy_uploads = Signer(), False  # type: ignore[assignment]
        found.runtimes[MODEL] = auditing_model(accused)
        ours, theirs = await found.dial(accused), await found.dial(auditor)
        bundle = limits.EVIDENCE_BYTES
        assert await refusal(ours, evidence_of(1)) == "bad_size", "more than a bundle of that stage can be"
        assert await refusal(ours, evidence_of(1, size_bytes=bundle)) == ""
        assert await refusal(theirs, evidence_of(2, size_bytes=bundle)) == "bad_size", "an auditor brings a record"
        assert await refusal(theirs, evidence_of(2, vnode="nobody")) == "no_such_vnode"
        assert await refusal(theirs, evidence_of(2, model="no-such")) == "unknown_model"
        record = MAX_RECORD_BYTES
        assert await refusal(theirs, evidence_of(2, size_bytes=record)) == ""
        flood = [evidence_of(number, size_bytes=record) for number in range(3, 99)]
        assert await refusal(theirs, *flood) == "rate_limited"
        assert await refusal(theirs, evidence_of(2, size_bytes=record)) == "", "what was granted may be tried again"
        flood = [evidence_of(number, size_bytes=bundle) for number in range(100, 116)]
        assert await refusal(ours, *flood) == "rate_limited"
        assert await refusal(await found.dial(NodeKey.generate()), evidence_of(200, size_bytes=record)) == ""

    run(story)


async def _read(connection: Connection, ref: data_pb2.ObjectRef) -> int:
    stub: Any = DataServiceStub(connection.channel)
    call = stub.Read(data_pb2.ReadRequest(object=ref), metadata=connection.metadata, timeout=WAIT_S)
    return sum([len(message.chunk) async for message in call])


def test_who_takes_bytes_slowly_keeps_nobody_from_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "GRACE_S", 3.0)  # time enough on a busy machine for whoever reads
    monkeypatch.setattr(proxies, "SLOWEST_BYTES_S", 64 * limits.MIB)

    async def story(found: Rig) -> None:
        data = secrets.token_bytes(24 * limits.MIB)
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=MODEL, owner="first", digest=digest_of(data))
        await found.store.put(keys.state(MODEL, "first", ref.digest), data)
        stalled: list[Any] = []
        for _ in range(3):
            connection = await found.dial(NodeKey.generate())
            stub: Any = DataServiceStub(connection.channel)
            for _ in range(2):
                call = stub.Read(data_pb2.ReadRequest(object=ref), metadata=connection.metadata)
                stalled.append(call)
        assert len((await stalled[0].read()).chunk) == limits.MAX_CHUNK_BYTES  # it is served, and never reads on
        assert await _read(await found.dial(NodeKey.generate()), ref) == len(data)
        for call in stalled:
            call.cancel()

    run(story)


async def trickle(item: data_pb2.GrantItem, go_on: asyncio.Event) -> AsyncIterator[data_pb2.WriteRequest]:
    """A write that never comes to its end: a byte now and then."""
    yield data_pb2.WriteRequest(item=item)
    while not go_on.is_set():
        yield data_pb2.WriteRequest(chunk=b"x")
        await asyncio.sleep(0.2)


def test_writes_that_trickle_keep_nobody_from_reading_and_lose_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NetworkPolicy, "audits_drawn", property(lambda policy: True))
    monkeypatch.setattr(proxies, "GRACE_S", 3.0)

    async def story(found: Rig) -> None:
        accused, over, calls = NodeKey.generate(), asyncio.Event(), list[Any]()
        found.runtimes[MODEL] = auditing_model(accused)
        data = secrets.token_bytes(limits.MIB)
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=MODEL, owner="first", digest=digest_of(data))
        await found.store.put(keys.state(MODEL, "first", ref.digest), data)
        for key in (accused, accused, NodeKey.generate(), NodeKey.generate()):
            connection = await found.dial(key)
            stub: Any = DataServiceStub(connection.channel)
            size_bytes = 64 * limits.MIB if key is accused else MAX_RECORD_BYTES
            item = evidence_of(len(calls), size_bytes=size_bytes)
            calls.append(stub.Write(trickle(item, over), metadata=connection.metadata))
        taken = found.data._proxies._taken
        await until(lambda: taken[Lane.HOSTED] == 2 and taken[Lane.OTHER] == 1, "the slow ones have their places")
        assert await _read(await found.dial(NodeKey.generate()), ref) == len(data)
        assert taken[Lane.HOSTED] == 2
        await until(lambda: not any(taken[lane] for lane in (Lane.HOSTED, Lane.OTHER)), "they lose them though bytes come")
        over.set()
        for call in calls:
            call.cancel()

    run(story)


def test_nobody_takes_more_than_half_of_the_places_for_passing_bytes() -> None:
    async def story(found: Rig) -> None:
        data = secrets.token_bytes(24 * limits.MIB)
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=MODEL, owner="first", digest=digest_of(data))
        await found.store.put(keys.state(MODEL, "first", ref.digest), data)
        connection = await found.dial(NodeKey.generate())
        stub: Any = DataServiceStub(connection.channel)
        calls = [stub.Read(data_pb2.ReadRequest(object=ref), metadata=connection.metadata) for _ in range(2)]
        for call in calls:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _read(connection, ref)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await _read(await found.dial(NodeKey.generate()), ref) == len(data)
        for call in calls:
            call.cancel()

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
        assert all(after - before >= STRANGERS_S - 2 * EARLY_S for before, after in pairwise(built))
        for call in calls:
            call.cancel()

    run(story)


def test_strangers_read_at_a_rate_for_their_subnet() -> None:
    async def story(found: Rig) -> None:
        found.data._known = lambda node_id: False
        connection = await found.dial(NodeKey.generate())

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
        assert "nobody thought of" in found.shared.history.since(0, 16)[-1].reason

    run(story)
