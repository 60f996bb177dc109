"""Goal: a store that is away, careless or holds damaged bytes costs no work: training goes on, the reason is told, and nothing wrong is ever used."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from nursery import forked, nursed
from test_store_probe import Careless
from trouble_rig import Command, asked, graph_text, run, told, until, write_data

from dataservice import keys
from dataservice.s3 import S3Store
from dcnr.audit_lineage import audit_lineage
from dcnr.errors import NotFound, Unavailable
from dcnr.graph import graph_from_toml
from dcnr.sdk.blocking import Client, connect
from dcnr.sdk.client import connect_async
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.testing import LocalNetwork, LocalPNode, Process
from dcnr.v1 import model_pb2, orchestrator_pb2
from trust.identity import NodeKey

PNODE = ("-m", "dcnr.cli.pnode")
LONG_S = 120.0
MODEL = "tiny"


@pytest.fixture(scope="module")
def network() -> Iterator[LocalNetwork]:
    """Its PNodes lend so little that a job of few batches lasts for as long as something is done to the store."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-t-"))
    pnodes = tuple(LocalPNode(name, 1.0, 512, ("--cpu-percent", "15")) for name in ("p1", "p2"))
    with LocalNetwork(directory / "n", num_orchestrators=1, pnodes=nursed(pnodes), starting=forked) as running:
        yield running
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def client(network: LocalNetwork) -> Iterator[Client]:
    with connect(network.bootstrap, network=network.network_file, key=NodeKey.load(network.maintainer_key)) as opened:
        until(lambda: sum(node.attached and node.capability.gflops > 0 for node in opened.nodes()) == 2)
        yield opened


@pytest.fixture(scope="module")
def staged(client: Client, network: LocalNetwork) -> str:
    return stage(client, network, "tiny", seed=0)


def stage(client: Client, network: LocalNetwork, name: str, *, seed: int) -> str:
    """Another data set."""
    path = write_data(network.directory / f"{name}.npz", seed)
    client.stage(Source(str(path), name, "CC0", "a teacher"))
    return name


def submit(client: Client, network: LocalNetwork, *, passes: int, dataset: str = "tiny") -> str:
    """A job of the one model with a checkpoint every second."""
    graph = graph_from_toml(graph_text(passes=passes, dataset=dataset))
    options = JobOptions(idempotency_key=f"{dataset}-{passes}", checkpoint_s=1.0, unit_batches=20)
    return client.submit(graph, [NodeKey.load(network.maintainer_key)], options).job_id


def learned(client: Client, job_id: str) -> int:
    """Batches that the replicas have learned, as they report."""
    return sum(int(item.report.num_learned) for item in client.job(job_id, MODEL).vnodes)


def completed(client: Client, network: LocalNetwork, job_id: str) -> None:
    """The job ends well, with exact lineages."""
    until(lambda: client.job(job_id, MODEL).state not in OPEN, LONG_S, say=lambda: _state(client, job_id))
    job = client.job(job_id, MODEL)
    assert job.state == model_pb2.JOB_STATE_COMPLETED, job.outcome

    async def audits() -> list[tuple[int, bool]]:
        async with await connect_async(
            network.bootstrap, network=network.network_file, key=NodeKey.load(network.maintainer_key)
        ) as other:
            return [(item.num_batches, item.exact) for item in await audit_lineage(other, MODEL)]

    assert asyncio.run(audits()) == [(job.num_batches, True)] * 2


OPEN = (model_pb2.JOB_STATE_QUEUED, model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_SETTLING)


def _state(client: Client, job_id: str) -> str:
    lines = client.explain(orchestrator_pb2.ExplainRequest(model=MODEL))
    job = client.job(job_id, MODEL)
    learned_by = [(item.vnode, int(item.report.num_learned)) for item in job.vnodes]
    return f"{job.state} {job.outcome} {learned_by}\n" + "\n".join(f"{line.subject} {line.verdict} {line.reason}" for line in lines)


def reasons(process: Process) -> dict[str, str]:
    """Codes and reasons of `pnode why`."""
    lines: list[dict[str, str]] = json.loads(asked("why", "--json", "--home", str(process.home)))["lines"]
    return {line["code"]: line["reason"] for line in lines}


def events(process: Process) -> dict[str, str]:
    """Kinds and newest reasons of what a PNode has told."""
    return {event["kind"]: event["reason"] for event in told_of(process).get("events", [])}


def told_of(process: Process) -> dict[str, Any]:
    """What a PNode says of itself."""
    screen: dict[str, Any] = json.loads(asked("status", "--json", "--home", str(process.home)))
    return screen


def server_of(network: LocalNetwork) -> psutil.Process:
    """The store's own process, below its supervisor."""
    pid = int((network.directory / "store" / "store.pid").read_text())
    return psutil.Process(pid).children()[0]


def test_training_goes_on_while_the_store_hangs_or_is_dead_and_catches_up(
    client: Client, network: LocalNetwork, staged: str
) -> None:
    job_id = submit(client, network, passes=16, dataset=staged)
    until(lambda: learned(client, job_id) > 0, say=lambda: _state(client, job_id))
    server = server_of(network)
    server.suspend()
    try:
        before = learned(client, job_id)
        until(lambda: learned(client, job_id) > before + 100, say=lambda: f"{before} before: {_state(client, job_id)}")
        until(lambda: not client.status().store_ok)
        assert client.status().store_reason
    finally:
        server.resume()
    until(lambda: client.status().store_ok)
    network.store.kill()
    try:
        until(lambda: any("upload_waits" in reasons(pnode) for pnode in network.pnodes))
        assert client.job(job_id).state in OPEN
    finally:
        network.store.start()
    completed(client, network, job_id)
    until(lambda: not any("upload_waits" in reasons(pnode) for pnode in network.pnodes))


def test_a_damaged_newest_checkpoint_is_passed_over_for_an_older_one(client: Client, network: LocalNetwork, staged: str) -> None:
    job_id = submit(client, network, passes=12, dataset=staged)
    until(lambda: _twice_durable(client, job_id), LONG_S, say=lambda: _state(client, job_id))
    victim = client.job(job_id).vnodes[1]
    process = network.process_of(victim.assignment.pnode_id)
    assert process is not None
    worker = psutil.Process(told_of(process)["worker_pid"])
    psutil.Process(process.pid).suspend()  # nobody else restores, or uploads, before the damage is done
    worker.kill()  # or it hands its state to whoever takes its place while its daemon is thought dead
    entry = next(entry for entry in _entries(client) if entry.vnode == victim.vnode)
    newest = max(entry.working, key=lambda item: item.step).digest
    # What is uploaded and not named yet is damaged too: it may be named at any moment and push out the oldest.
    damage(network, keys.state_prefix(MODEL, victim.vnode), keep={item.digest for item in entry.working} - {newest})
    network.kill(process)
    other = next(pnode for pnode in network.pnodes if pnode.alive)
    try:
        steps = [int(item.step) for item in entry.working]
        until(lambda: "checkpoint_unusable" in events(other), say=lambda: f"{steps} {events(other)} {_state(client, job_id)}")
    finally:
        network.restart(process)
    completed(client, network, job_id)


def damage(network: LocalNetwork, prefix: str, *, keep: set[str]) -> None:
    """Other bytes of the same size under the names of all objects but those to ``keep``."""

    async def write() -> None:
        for row in await store.list(prefix):
            if not any(digest in row.key for digest in keep):
                await store.put(row.key, b"x" * row.size_bytes)

    store = S3Store(network.store.file.address())
    try:
        asyncio.run(write())
    finally:
        store.close()


def _entries(client: Client) -> list[model_pb2.ManifestEntry]:
    return list(client.manifest(MODEL)[1].entries)


def _twice_durable(client: Client, job_id: str) -> bool:
    """Whether the manifest names two checkpoints of this job for every VNode."""
    try:
        return all(sum(item.job_id == job_id and item.step > 0 for item in entry.working) >= 2 for entry in _entries(client))
    except (Unavailable, NotFound):  # the head is not read, or not written yet
        return False


def test_a_shard_with_other_bytes_than_its_digest_is_never_read(client: Client, network: LocalNetwork) -> None:
    name = stage(client, network, "swapped", seed=7)
    store = S3Store(network.store.file.address())
    rows = asyncio.run(store.list(f"{keys.dataset_prefix(name)}shards/"))
    right = {row.key: asyncio.run(store.get(row.key, max_bytes=1 << 24)).data for row in rows}
    for key, data in right.items():
        asyncio.run(store.put(key, bytes(len(data))))
    job_id = submit(client, network, passes=2, dataset=name)
    names = [key.rpartition("/")[2][:12] for key in right]
    until(
        lambda: any(name in events(pnode).get("shard_waits", "") for pnode in network.pnodes for name in names),
        say=lambda: f"{names} {[events(pnode) for pnode in network.pnodes]}",
    )
    until(lambda: "digest" in _state(client, job_id), say=lambda: _state(client, job_id))
    assert learned(client, job_id) == 0
    for key, data in right.items():
        asyncio.run(store.put(key, data))
    store.close()
    completed(client, network, job_id)


def test_a_full_disk_is_told_and_ends_no_process(client: Client, network: LocalNetwork, staged: str) -> None:
    """The kernel refuses the daemon and its worker every file above a few bytes, as it does on a full disk."""
    job_id = submit(client, network, passes=13, dataset=staged)
    until(lambda: all(item.report.num_learned for item in client.job(job_id).vnodes) and learned(client, job_id))
    process = network.process_of(client.job(job_id).vnodes[1].assignment.pnode_id)
    assert process is not None
    members = [psutil.Process(pid) for pid in (process.pid, told_of(process)["worker_pid"])]
    for member in members:
        member.rlimit(psutil.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
    until(lambda: "the disk refuses" in _state(client, job_id), say=lambda: f"{events(process)} {_state(client, job_id)}")
    assert "the disk refuses" in run(*PNODE, "status", "--home", str(process.home), code=0)
    assert all(member.is_running() for member in members), "no crash loop"
    for member in members:
        member.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    completed(client, network, job_id)
    assert all(member.is_running() for member in members)


def test_an_orchestrator_waits_for_a_store_that_is_not_there_yet(client: Client, network: LocalNetwork) -> None:
    process = network.orchestrators[0]
    network.kill(process)
    network.store.kill()
    network.restart(process)
    until(lambda: "store_away" in process.tail(40), say=lambda: process.tail(40))
    assert process.alive
    network.store.start()
    until(lambda: _store_ok(client), LONG_S)


def _store_ok(client: Client) -> bool:
    try:
        return client.status().store_ok
    except Unavailable:  # it does not serve yet
        return False


def test_a_store_without_conditional_writes_is_refused(network: LocalNetwork, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        (tmp_path / "store.json").touch(mode=0o600)
        (tmp_path / "store.json").write_text(json.dumps(asdict(replace(network.store.file, endpoint=url))))
        network.kill(network.orchestrators[0])
        flags = ("--store-url", url, "--store-file", str(tmp_path / "store.json"), "--network", str(network.network_file))
        home = (
            "--home",
            str(network.orchestrators[0].home),
            "--control-port",
            "0",
            "--dht-port",
            "0",
            "--listen-host",
            "127.0.0.1",
        )
        with Command("-m", "dcnr.cli.orchestrator", "start", *home, *flags) as refused:
            assert refused.end() == 5, refused.text
            told(refused.text, code="store_without_preconditions", what="the store ignores", remedy="embedded")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
