"""The orchestrator's process over real gRPC and the real store: a PNode attaches, a job is submitted, placed, recorded through grants, and completed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import urllib3
from orchestrator_parts import BATCHES, MODELS_WAIT_S, Worker, small_graph, stage
from schemas_rig import check_output
from service_rig import CLOCK, PNode, dial, network_over, serving

from dataservice import keys
from dataservice.embedded import EmbeddedStore
from dataservice.s3 import S3Store, StoreAddress
from dcnr.cli import dcnr as maintainer_command
from dcnr.cli import errors
from dcnr.errors import InvalidInput, NotFound, Refused, Unavailable
from dcnr.ids import digest_of
from dcnr.rpc.connection import Connection
from dcnr.rpc.errors import error_from_rpc
from dcnr.sdk.client import connect_async
from dcnr.v1 import data_pb2, identity_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.data_pb2_grpc import DataServiceStub
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from orchestrator import service
from orchestrator.admission import admit
from orchestrator.view import ViewLoader
from trust.envelope import open_single
from trust.identity import NodeKey
from trust.network import NetworkPolicy
from vnode.registry import default_registry

JOB = "job-1"


async def until(condition: Callable[[], bool], what: str, within_s: float = 30.0) -> None:
    deadline = CLOCK.monotonic() + within_s
    while not condition():
        assert CLOCK.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.05)


def get(url: str) -> bytes:
    with urllib3.PoolManager(retries=False) as pool:
        answer = pool.request("GET", url)
        assert answer.status == 200
        return answer.data


async def job_in(connection: Connection, state: model_pb2.JobState.ValueType) -> orchestrator_pb2.JobView:
    """The job, as soon as a watch shows it in that state."""
    stub: Any = OrchestratorServiceStub(connection.channel)
    request = orchestrator_pb2.WatchJobRequest(job_id=JOB, interval_s=0.2)
    async for message in stub.WatchJob(request, metadata=connection.metadata, timeout=30):
        view: orchestrator_pb2.JobView = message.job
        if view.state == state:
            return view
    raise AssertionError("the job ended in another state")


@contextlib.asynccontextmanager
async def attached(
    pnodes: list[PNode], maintainer: NodeKey, policy: NetworkPolicy, key: NodeKey, address: str
) -> AsyncIterator[tuple[Connection, list[Connection], list[asyncio.Task[None]]]]:
    """A maintainer's connection, and of each PNode its own and the task that keeps its control stream."""
    owner = await dial(maintainer, policy, key, address)
    links = [await dial(pnode.worker.daemon, policy, key, address) for pnode in pnodes]
    streams = [asyncio.create_task(pnode.attach(link)) for pnode, link in zip(pnodes, links, strict=True)]
    try:
        yield owner, links, streams
    finally:
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        for link in (owner, *links):
            await link.close()


def test_a_job_over_the_wire(embedded_store: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        maintainer, key = NodeKey.generate(), NodeKey.generate()
        policy = network_over(embedded_store, maintainer, key)
        store = S3Store(embedded_store)
        try:
            async with asyncio.timeout(90), serving(embedded_store, tmp_path / "o", key, policy) as address:
                await wire(address, key, policy, maintainer, store, monkeypatch)
        finally:
            store.close()

    asyncio.run(story())


async def wire(
    address: str, key: NodeKey, policy: NetworkPolicy, maintainer: NodeKey, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [Worker(policy, store, CLOCK) for _ in range(2)]
    pnodes = [PNode(worker, policy) for worker in workers]
    async with attached(pnodes, maintainer, policy, key, address) as (owner, links, streams):
        stub: Any = OrchestratorServiceStub(owner.channel)
        envelope = await stage(store, policy, maintainer, "toy", CLOCK, JOB)
        answer = await owner.call(stub.SubmitJob, orchestrator_pb2.SubmitJobRequest(request=envelope), timeout_s=10)
        assert not answer.existed
        answer = await owner.call(stub.SubmitJob, orchestrator_pb2.SubmitJobRequest(request=envelope), timeout_s=10)
        assert answer.existed
        await until(lambda: all(worker.reports for worker in workers), "both PNodes host a replica", MODELS_WAIT_S)
        monkeypatch.setattr(service, "JUDGE_S", 600.0)  # from here on nobody is judged by the clock
        await check_confirmed_head(owner, policy, key, pnodes[0])
        for worker in workers:
            worker.learn_all()
        for worker, link, another in zip(workers, links, reversed(links), strict=True):
            await record(worker, link, owner, another)
        view = await job_in(owner, model_pb2.JOB_STATE_COMPLETED)
        assert len(view.outcome.exits) == 2
        assert any(message.HasField("durable") for message in pnodes[0].heard)
        await check_access(owner, links[0], workers[0])
        await check_queries(stub, owner, workers)
        await check_books(address, key, policy, maintainer, workers)
        await links[1].close()
        streams[1].cancel()
        broken_at = CLOCK.monotonic()
        while any(node.attached for node in await nodes_of(owner) if node.node_id == workers[1].node_id):
            assert CLOCK.monotonic() - broken_at < 5.0, "a broken stream is noticed at once, not by silence"
            await asyncio.sleep(0.05)
        while workers[1].node_id not in [
            node.node_id for node in await nodes_of(owner) if node.state == orchestrator_pb2.NODE_STATE_SUSPECT
        ]:
            assert CLOCK.monotonic() - broken_at < 5.0, "and judged at once"
            await asyncio.sleep(0.05)


def test_reports_of_batches_that_no_job_has_move_nothing_but_their_replica(tmp_path: Path) -> None:
    """Goal: a source that claims batches beyond N ends no training; it is told why, stays attached, and another PNode gets its VNode."""

    async def story() -> None:
        maintainer, key = NodeKey.generate(), NodeKey.generate()
        own = EmbeddedStore(tmp_path / "store", port=0)  # another network than the other test's
        store_address = own.start().address()
        policy = network_over(store_address, maintainer, key)
        store = S3Store(store_address)
        try:
            async with asyncio.timeout(90), serving(store_address, tmp_path / "o", key, policy) as address:
                await inflated(address, key, policy, maintainer, store)
        finally:
            store.close()
            own.kill()

    asyncio.run(story())


def test_a_job_that_another_orchestrator_accepted_is_known_at_once(
    embedded_store: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody is told that there is no such job because this orchestrator has not looked for models since, or has only just begun."""
    monkeypatch.setattr(service, "DISCOVER_S", 600.0)

    async def story() -> None:
        maintainer, key = NodeKey.generate(), NodeKey.generate()
        policy = network_over(embedded_store, maintainer, key)
        store = S3Store(embedded_store)
        loader = ViewLoader(store, lambda: policy, default_registry(), CLOCK)
        try:
            async with asyncio.timeout(90), serving(embedded_store, tmp_path / "o", key, policy) as address:
                owner = await dial(maintainer, policy, key, address)
                ask = OrchestratorServiceStub(owner.channel).GetJob
                with pytest.raises(NotFound):
                    await owner.call(ask, orchestrator_pb2.GetJobRequest(job_id="elsewhere"))
                await store.put(f"{keys.model_index_prefix()}no name of a model", b"")  # hides no other
                envelope = await stage(store, policy, maintainer, "elsewhere", CLOCK, "elsewhere")
                await admit(envelope, policy=policy, store=store, loader=loader, wall_unix_ms=int(CLOCK.wall() * 1000))
                answer = await owner.call(ask, orchestrator_pb2.GetJobRequest(job_id="elsewhere"))
                assert (answer.job.job_id, answer.job.model) == ("elsewhere", "elsewhere")
                await owner.close()
        finally:
            await store.delete(f"{keys.model_index_prefix()}no name of a model")
            store.close()

    asyncio.run(story())


def test_a_job_of_a_model_too_many_leaves_nothing_in_the_store(
    embedded_store: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: who starts anew knows the first few models of the index by their names: one that nobody serves must not push out one that is served."""
    monkeypatch.setattr(service, "MAX_MODELS", 1)

    async def story() -> None:
        maintainer, key = NodeKey.generate(), NodeKey.generate()
        policy = network_over(embedded_store, maintainer, key)
        store = S3Store(embedded_store)
        try:
            for row in await store.list(keys.model_index_prefix(), max_keys=100):
                await store.delete(row.key)  # of tests before this one
            async with asyncio.timeout(90), serving(embedded_store, tmp_path / "o", key, policy) as address:
                owner = await dial(maintainer, policy, key, address)
                submit = OrchestratorServiceStub(owner.channel).SubmitJob
                served, late = [await stage(store, policy, maintainer, name, CLOCK, name) for name in ("served", "early-name")]
                await owner.call(submit, orchestrator_pb2.SubmitJobRequest(request=served), timeout_s=10)
                with pytest.raises(Unavailable) as refused:
                    await owner.call(submit, orchestrator_pb2.SubmitJobRequest(request=late), timeout_s=10)
                assert refused.value.code == "too_many_models"
                await owner.call(submit, orchestrator_pb2.SubmitJobRequest(request=served), timeout_s=10)
                await owner.close()
            prefix = keys.model_index_prefix()
            assert [row.key for row in await store.list(prefix, max_keys=100)] == [f"{prefix}served"]
            assert not await store.list(keys.jobs_prefix("early-name"), max_keys=100)
        finally:
            store.close()

    asyncio.run(story())


async def inflated(address: str, key: NodeKey, policy: NetworkPolicy, maintainer: NodeKey, store: S3Store) -> None:
    workers = [Worker(policy, store, CLOCK) for _ in range(3)]
    async with attached([PNode(worker, policy) for worker in workers], maintainer, policy, key, address) as (owner, _, _):
        stub: Any = OrchestratorServiceStub(owner.channel)
        envelope = await stage(store, policy, maintainer, "toy", CLOCK, JOB)
        await owner.call(stub.SubmitJob, orchestrator_pb2.SubmitJobRequest(request=envelope), timeout_s=10)
        await until(lambda: sum(bool(worker.reports) for worker in workers) == 2, "two PNodes host a replica", MODELS_WAIT_S)
        [liar] = [worker for worker in workers if any(report.vnode == "first" for report in worker.reports.values())]
        [replica] = liar.reports
        liar.learn_all()
        liar.reports[replica].lineage.intervals[0].end = 10**6
        events, states = [], set[int]()
        async for message in stub.WatchJob(
            orchestrator_pb2.WatchJobRequest(job_id=JOB, interval_s=0.2), metadata=owner.metadata, timeout=40
        ):
            events += message.events
            states.add(message.job.state)
            if any(event.kind == "replica_relocated" for event in events):
                break
        [refused] = [event for event in events if event.kind == "report_refused"]
        assert (refused.subject, refused.facts["pnode"]) == (replica, liar.node_id)
        assert refused.facts["code"] == "batches_out_of_range"
        [relocated] = [event for event in events if event.kind == "replica_relocated"]
        assert relocated.facts["from_replica"] == replica
        assert relocated.facts["pnode"] != liar.node_id
        assert model_pb2.JOB_STATE_SETTLING not in states
        assert {node.node_id for node in await nodes_of(owner) if node.attached} >= {worker.node_id for worker in workers}


async def check_confirmed_head(owner: Connection, policy: NetworkPolicy, key: NodeKey, pnode: PNode) -> None:
    """The head by grant and by statement are the same object."""
    await until(lambda: bool(pnode.head_url), "a grant for the head came")
    nonce = secrets.token_bytes(32)
    stub: Any = OrchestratorServiceStub(owner.channel)
    answer = await owner.call(stub.ConfirmHead, orchestrator_pb2.ConfirmHeadRequest(model="toy", nonce=nonce), timeout_s=10)
    payload, signer = open_single(answer.statement, identity_pb2.DOMAIN_HEAD_STATEMENT)
    statement = model_pb2.HeadStatement.FromString(payload)
    assert (signer.node_id, statement.nonce) == (key.node_id, nonce)
    read = identity_pb2.Envelope.FromString(await asyncio.to_thread(get, pnode.head_url))
    assert model_pb2.Head.FromString(read.payload).epoch == model_pb2.Head.FromString(statement.head.payload).epoch


async def check_books(address: str, key: NodeKey, policy: NetworkPolicy, maintainer: NodeKey, workers: list[Worker]) -> None:
    """What ``dcnr ledger`` reads: a signed statement of what the job used, as it would have been quoted, and a score of each host."""
    async with await connect_async([f"{key.node_id}@{address}"], network_id=policy.network_id) as client:
        async with asyncio.timeout(30):
            while not (found := await client.usage("toy")):  # noqa: ASYNC110 - another process would ask again as well
                await asyncio.sleep(0.05)
        [(used, _)] = found
        assert (used.subject, used.orchestrator, list(used.users)) == (JOB, key.node_id, [maintainer.node_id])
        quoted = await client.quote(small_graph("toy"), BATCHES)
        assert used.vnode_batches == quoted.vnode_batches == 2 * BATCHES
        scores = await client.scores()
        assert {one.pnode_id for one in scores.scores} == {worker.node_id for worker in workers}
    where = ("--bootstrap", f"{key.node_id}@{address}", "--network-id", policy.network_id)
    told = [json.loads(line) for line in (await typed("ledger", "export", "toy", *where)).splitlines()]
    assert {"usage", "score"} <= {one["record"] for one in told}
    rows = json.loads(await typed("ledger", "scores", "toy", "--json", *where))
    assert {row["pnode"] for row in rows} == {worker.node_id for worker in workers}
    assert f"scores as {key.node_id[:8]} has them" in await typed("ledger", "scores", "toy", "--works", *where)
    [row] = json.loads(await typed("ledger", "usage", "toy", "--json", *where))
    assert (row["kind"], row["users"], row["vnode_batches"]) == ("job", [maintainer.node_id], 2 * BATCHES)
    assert maintainer.node_id[:8] in await typed("ledger", "usage", "toy", *where)
    cost = json.loads(await typed("ledger", "quote", "toy", "--samples", "5", "--redundancy", "2", "--json", *where))
    assert (cost["vnode_samples"], cost["num_vnodes"], cost["orchestrator"]) == (20, 2, key.node_id)
    assert "10 samples through 1 VNodes" in await typed("ledger", "quote", "toy", "--samples", "10", "--exit", "first", *where)


async def typed(*arguments: str) -> str:
    """Standard output of a command of ``dcnr``."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        ended = await asyncio.to_thread(errors.exit_code, maintainer_command.app, "dcnr", list(arguments))
    assert ended == 0, out.getvalue()
    check_output(" ".join(["dcnr", *arguments]), out.getvalue())
    return out.getvalue()


async def record(worker: Worker, link: Connection, owner: Connection, another: Connection) -> None:
    """Records the checkpoint of the worker's only replica until a manifest names it: over the link of its PNode, not over another's."""
    [replica] = worker.reports
    model = await owner.call(OrchestratorServiceStub(owner.channel).GetModel, orchestrator_pb2.GetModelRequest(), timeout_s=10)
    manifest = model_pb2.Manifest.FromString(model.manifest.payload)
    entry = next(item for item in manifest.entries if item.vnode == worker.reports[replica].vnode)
    checkpoint, commit = await worker.checkpoint("toy", JOB, replica, entry.working[0])
    request = data_pb2.RecordCheckpointRequest(
        network_id=worker.policy.network_id, model="toy", job_id=JOB, checkpoint=checkpoint, commit=commit
    )
    with pytest.raises(Refused) as refused:
        await another.call(DataServiceStub(another.channel).RecordCheckpoint, request, timeout_s=10)
    assert refused.value.code == "not_allowed"
    stub: Any = DataServiceStub(link.channel)
    while True:
        answer = await link.call(stub.RecordCheckpoint, request, timeout_s=10)
        assert answer.status in (data_pb2.RECORD_STATUS_PENDING, data_pb2.RECORD_STATUS_NAMED), answer.reason
        if answer.status == data_pb2.RECORD_STATUS_NAMED:
            return
        await asyncio.sleep(0.1)


async def check_access(owner: Connection, link: Connection, worker: Worker) -> None:
    """A PNode writes states of what it hosts, through a grant or through the stream; nothing else, and no other bytes."""
    stub: Any = DataServiceStub(link.channel)
    data = b"a new state"
    vnode = next(iter(worker.reports.values())).vnode

    def item(kind: data_pb2.ObjectKind.ValueType, owner_name: str) -> data_pb2.GrantItem:
        ref = data_pb2.ObjectRef(kind=kind, model="toy", owner=owner_name, digest=digest_of(data))
        return data_pb2.GrantItem(object=ref, access=data_pb2.ACCESS_WRITE, size_bytes=len(data), sha256=digest_of(data))

    mine = item(data_pb2.OBJECT_KIND_STATE, vnode)
    answer = await link.call(stub.Grant, data_pb2.GrantRequest(items=[mine]), timeout_s=10)
    assert answer.grants[0].url
    with pytest.raises(Refused):
        await link.call(stub.Grant, data_pb2.GrantRequest(items=[item(data_pb2.OBJECT_KIND_STATE, "elsewhere")]), timeout_s=10)
    with pytest.raises(Refused):
        await link.call(stub.Grant, data_pb2.GrantRequest(items=[item(data_pb2.OBJECT_KIND_SHARD, "toy")]), timeout_s=10)
    wrong = data_pb2.GrantItem()
    wrong.CopyFrom(mine)
    wrong.sha256 = "0" * 64
    with pytest.raises(InvalidInput):
        await link.call(stub.Grant, data_pb2.GrantRequest(items=[wrong]), timeout_s=10)

    async def parts(sent: bytes = data) -> Any:
        yield data_pb2.WriteRequest(item=mine)
        yield data_pb2.WriteRequest(chunk=sent)

    for sent, code in ((data[::-1], "wrong_digest"), (data[:-1], "wrong_size"), (data + b"!", "wrong_size")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Write(parts(sent), metadata=link.metadata, timeout=10)
        assert error_from_rpc(caught.value).code == code
        answer = await link.call(stub.Grant, data_pb2.GrantRequest(items=[mine]), timeout_s=10)
        assert not answer.grants[0].exists, "bytes that are not what was announced have no name"

    async def proxied() -> orchestrator_pb2.ProxyFigures:
        asked: Any = OrchestratorServiceStub(link.channel)
        status = await link.call(asked.GetStatus, orchestrator_pb2.GetStatusRequest(), timeout_s=10)
        return status.proxied  # type: ignore[no-any-return]

    size_bytes, before = len(data), await proxied()
    assert not (await stub.Write(parts(), metadata=link.metadata, timeout=10)).existed
    answer = await link.call(stub.Grant, data_pb2.GrantRequest(items=[mine]), timeout_s=10)
    assert answer.grants[0].exists
    read = stub.Read(data_pb2.ReadRequest(object=mine.object), metadata=link.metadata, timeout=10)
    assert b"".join([message.chunk async for message in read]) == data
    now = await proxied()
    assert (now.num_written - before.num_written, now.written_bytes - before.written_bytes) == (1, size_bytes)
    assert (now.num_read - before.num_read, now.read_bytes - before.read_bytes) == (1, size_bytes)


async def nodes_of(owner: Connection) -> list[orchestrator_pb2.NodeView]:
    stub: Any = OrchestratorServiceStub(owner.channel)
    return list((await owner.call(stub.ListNodes, orchestrator_pb2.ListNodesRequest(), timeout_s=10)).nodes)


async def check_queries(stub: Any, owner: Connection, workers: list[Worker]) -> None:
    nodes = await nodes_of(owner)
    assert {worker.node_id for worker in workers} <= {node.node_id for node in nodes if node.attached}
    assert any(node.holder for node in nodes)
    jobs = (await owner.call(stub.ListJobs, orchestrator_pb2.ListJobsRequest(), timeout_s=10)).jobs
    assert [job.job_id for job in jobs] == [JOB]
    lines = (await owner.call(stub.Explain, orchestrator_pb2.ExplainRequest(vnode="first"), timeout_s=10)).lines
    assert any(line.verdict == "placed" for line in lines)
    lines = (await owner.call(stub.Explain, orchestrator_pb2.ExplainRequest(batch=3, with_batch=True), timeout_s=10)).lines
    assert {line.verdict for line in lines} == {"durable"}
    status = await owner.call(stub.GetStatus, orchestrator_pb2.GetStatusRequest(), timeout_s=10)
    assert status.holder
    assert status.store_ok
    assert status.attached == 2
