"""Goal: what one stranger writes, or reads slowly, takes a bounded part of the store and of an orchestrator, and keeps nobody else from either."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from attack_rig import MODEL, WAIT_S, Rig, beat, run, until

from dataservice import keys
from dcnr import limits
from dcnr.errors import DcnrError, Refused
from dcnr.ids import digest_of
from dcnr.rpc.connection import Connection
from dcnr.v1 import data_pb2, orchestrator_pb2
from dcnr.v1.data_pb2_grpc import DataServiceStub
from orchestrator import proxies
from orchestrator.proxies import Lane
from trust.evidence import MAX_RECORD_BYTES
from trust.identity import NodeKey
from trust.network import NetworkPolicy


def test_saying_that_one_hosts_a_vnode_gives_no_right_to_write_it() -> None:
    async def story(found: Rig) -> None:
        stranger = NodeKey.generate()
        connection = await found.dial(stranger)
        call = await found.attach(stranger, connection)
        await call.write(beat(1, replicas=[orchestrator_pb2.ReplicaReport(replica="first.1", vnode="first")]))
        await until(lambda: bool(found.record(stranger).beat.replicas), "the claim is heard")
        found.runtimes[MODEL] = auditing_model(stranger)
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
    chain = SimpleNamespace(ledger=SimpleNamespace(lines={"a": ()}), to_judge=lambda: (opened,))
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
