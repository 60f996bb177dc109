"""A tiny staged job on disk, and a daemon's end of a real worker process: what the tests of the worker drive."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from nursery import Nursed, forking, nursery

from dataservice.dataset_manifest import DatasetManifest, FieldSpec, ShardRef
from dcnr.graph import Graph, graph_digest, graph_to_bytes, stages_of_graph
from dcnr.ids import digest_of
from dcnr.specs import TensorSpec
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.pipe import LocalPipe
from trust.delegation import make_delegation
from trust.identity import NodeKey
from vnode.registry import default_registry

NETWORK_ID = "5" * 40
MODEL = "tiny"
JOB = "job-1"
WORK = "e" * 64
START_S = 120.0
"""A worker imports torch before it says anything; several do so side by side."""
END_S = 120.0
STDERR = 2


@dataclass(frozen=True)
class Job:
    """Everything that a daemon would have laid on disk."""

    root: Path
    graph: model_pb2.ModelGraph
    manifest_path: Path
    shard_dir: Path
    states: dict[str, Path]
    shards: dict[str, Path]
    num_batches: int
    batch_size: int


def make_graph(
    num_stages: int, width: int, batch_size: int, passes: int, *, evaluate_every: int = 0, codec: str = "auto", of_images: bool = False
) -> Any:  # fmt: skip
    graph = Graph(
        MODEL,
        input=TensorSpec("float32", shape_of(width, of_images=of_images)),
        target=TensorSpec("int64", ()),
        num_classes=4,
        train={"passes": passes, "batch_size": batch_size, "seed": 7, "codec": codec, "evaluate_every": evaluate_every},
        data={use: f"dataset:dots#{use}" for use in ("train", "validation", "test")},
    )
    before = "input"
    for number in range(1, num_stages + 1):
        graph.vnode(
            f"s{number}", *(("conv_block", {"out_channels": 4}) if of_images else ("linear_block", {})), inputs=[before],
            objective={"name": "local_ce", "config": {}}, optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
        )  # fmt: skip
        before = f"s{number}"
    return graph.build()


def shape_of(width: int, *, of_images: bool) -> tuple[int, ...]:
    """Of a sample with so many values."""
    return (1, 4, width // 4) if of_images else (width,)


def make_job(
    root: Path, *, num_stages: int = 2, width: int = 16, batch_size: int = 8, samples: int = 160, passes: int = 2,
    evaluate_every: int = 0, codec: str = "auto", merge_every: int = 0, of_images: bool = False,
) -> Job:  # fmt: skip
    """Stages a separable data set and checkpoint 0 of every VNode."""
    from vnode.torch_stage import initial_state

    graph = make_graph(num_stages, width, batch_size, passes, evaluate_every=evaluate_every, codec=codec, of_images=of_images)
    graph.train.merge_every = merge_every
    rng = np.random.Generator(np.random.Philox(key=3))
    shard_dir = root / "cache"
    shard_dir.mkdir(parents=True)
    centres = rng.standard_normal((4, width)).astype(np.float32) * 2
    shards: dict[str, Path] = {}
    refs: dict[tuple[str, str], tuple[ShardRef, ...]] = {}
    counts = {"train": samples, "validation": 20, "test": 20}
    for split, count in counts.items():
        target = rng.integers(0, 4, count).astype("<i8")
        values = (centres[target] + rng.standard_normal((count, width))).astype("<f4")
        for name, array in (("input", values), ("target", target)):
            cut = [array[: count // 2], array[count // 2 :]]
            placed = []
            for number, part in enumerate(cut):
                data = np.ascontiguousarray(part).tobytes()
                digest = digest_of(data)
                (shard_dir / digest).write_bytes(data)
                shards[digest] = shard_dir / digest
                placed.append(ShardRef(digest, number * (count // 2), len(part)))
            refs[name, split] = tuple(placed)
    shape = shape_of(width, of_images=of_images)
    fields = {"input": FieldSpec("float32", shape, "float32"), "target": FieldSpec("int64", (), "int64", num_classes=4)}
    manifest = DatasetManifest("dots", 1, fields, counts, refs, "none", "made here")
    manifest_path = root / "dataset.json"
    manifest_path.write_bytes(manifest.to_bytes())
    num_batches = passes * (samples // batch_size)
    states = {}
    for stage in stages_of_graph(graph, default_registry()):
        data = initial_state(stage, default_registry(), seed=7, model=MODEL, graph=graph_digest(graph), num_batches=num_batches)
        states[stage.id] = root / f"{stage.id}.state"
        states[stage.id].write_bytes(data)
    return Job(root, graph, manifest_path, shard_dir, states, shards, num_batches, batch_size)


@dataclass
class DaemonEnd:
    """The daemon's side of one worker: keeps what the worker says, answers for shards."""

    pipe: LocalPipe[local_pb2.FromWorker]
    key: NodeKey
    process: asyncio.subprocess.Process | Nursed
    incarnation: int
    hello: local_pb2.WorkerHello = field(default_factory=local_pb2.WorkerHello)
    delegation: identity_pb2.Envelope = field(default_factory=identity_pb2.Envelope)
    reports: dict[str, orchestrator_pb2.ReplicaReport] = field(default_factory=dict)
    seats: dict[str, orchestrator_pb2.SeatReport] = field(default_factory=dict)
    snapshots: list[local_pb2.SnapshotReady] = field(default_factory=list)
    lost: list[local_pb2.NeighbourLost] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    gathered: list[local_pb2.EvidenceGathered] = field(default_factory=list)
    drained: bool = False
    rss_bytes: int = 0
    num_learned: int = 0
    listens_at: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pnode_id(self) -> str:
        return str(self.key.node_id)

    async def begin(self) -> None:
        async with asyncio.timeout(START_S):
            first = await self.pipe.receive()
        assert first is not None
        self.hello = first.hello
        await self.delegate([f"127.0.0.1:{self.hello.data_port}"])

    async def delegate(self, addresses: Sequence[str]) -> None:
        """Signs for the worker that it is reached there."""
        self.delegation = make_delegation(self.key, NETWORK_ID, self.hello.public_key, self.incarnation, addresses, time.time())
        await self.pipe.send(local_pb2.ToWorker(delegation=self.delegation))

    async def listen(self) -> None:
        while (message := await self.pipe.receive()) is not None:
            match message.WhichOneof("kind"):
                case "report":
                    self.reports = {report.replica: report for report in message.report.replicas}
                    self.seats = {report.vnode: report for report in message.report.seats}
                    self.rss_bytes, self.num_learned = message.report.rss_bytes, message.report.num_learned
                    self.listens_at = list(message.report.listens_at)
                case "snapshot":
                    self.snapshots.append(message.snapshot)
                case "lost":
                    self.lost.append(message.lost)
                case "shards":
                    for digest in message.shards.digests:
                        await self.pipe.send(local_pb2.ToWorker(shard_ready=local_pb2.ShardReady(digest=digest)))
                case "event":
                    self.events.append(message.event)
                case "gathered":
                    self.gathered.append(message.gathered)
                case "drained":
                    self.drained = True
            self.news.set()

    async def host(self, job: Job, vnode: str, neighbours: dict[str, DaemonEnd], **changes: Any) -> None:
        """Hosts replica ``<vnode>.1``; ``neighbours`` says which daemon has which VNode."""
        await self.pipe.send(local_pb2.ToWorker(host=order(job, vnode, neighbours, **changes)))

    async def introduce(self, vnode: str, other: DaemonEnd) -> None:
        """Tells this worker where a VNode's replica is served."""
        news = local_pb2.NeighbourAddress(replica=f"{vnode}.1", pnode_id=other.pnode_id, delegation=other.delegation)
        await self.pipe.send(local_pb2.ToWorker(neighbour=news))

    async def until(self, what: Callable[[], bool], within_s: float = 40.0) -> None:
        """Waits for a condition over what the worker said."""
        try:
            async with asyncio.timeout(within_s):
                while not what():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            raise AssertionError(f"not within {within_s} s: {self.reports} {self.events[-5:]} {self.lost[-3:]}") from None


def order(job: Job, vnode: str, neighbours: dict[str, DaemonEnd], **changes: Any) -> local_pb2.HostReplica:
    names = [spec.id for spec in job.graph.vnodes]
    at = names.index(vnode)

    def around(places: Sequence[int]) -> list[model_pb2.Neighbour]:
        return [
            model_pb2.Neighbour(
                replica=f"{names[place]}.1",
                vnode=names[place],
                pnode_id=neighbours[names[place]].pnode_id,
                role=model_pb2.ROLE_PRIMARY,
            )
            for place in places
            if 0 <= place < len(names)
        ]

    state = job.states[vnode]
    message = local_pb2.HostReplica(
        assignment=model_pb2.DesiredAssignment(
            replica=f"{vnode}.1", vnode=vnode, role=model_pb2.ROLE_PRIMARY, predecessors=around([at - 1]), successors=around([at + 1])
        ),
        model=MODEL, job_id=JOB, work_digest=WORK, state_path=str(state), state_digest=digest_of(state.read_bytes()),
        graph=graph_to_bytes(job.graph), num_batches=job.num_batches, lead_batches=64, dataset_manifest_path=str(job.manifest_path),
        shard_dir=str(job.shard_dir), checkpoint_s=60, checkpoint_steps=1000, spool_bytes=64 << 20,
        work_dir=str(job.root / f"work-{vnode}"), threads=1, plan_number=1, horizon_s=600, epoch=1, unit_batches=8,
    )  # fmt: skip
    message.tempo.CopyFrom(changes.pop("tempo", message.tempo))
    if not message.tempo.batches_per_s:
        message.ClearField("tempo")
    for name, value in changes.items():
        setattr(message, name, value)
    return message


@asynccontextmanager
async def worker(
    job_root: Path, *, incarnation: int = 1, key: NodeKey | None = None, program: Sequence[str] = (), arguments: Sequence[str] = ()
) -> AsyncIterator[DaemonEnd]:
    """A real worker process with a daemon's end; ended at the end. ``program``: what Python runs instead; ``arguments``: what a forked one is told besides."""
    ours, theirs = socket.socketpair()
    process = await (_run(program, theirs) if program else forking(nursery("workers"))(theirs, arguments, os.environ, STDERR))
    theirs.close()
    end = DaemonEnd(await LocalPipe.over(ours, local_pb2.FromWorker), key or NodeKey.generate(), process, incarnation)
    listening = None
    try:
        await end.begin()
        listening = asyncio.ensure_future(end.listen())
        yield end
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)  # a test may have stopped it
        await end.pipe.close()
        if listening is not None:
            listening.cancel()
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise AssertionError("the worker did not end with its pipe") from None


async def _run(program: Sequence[str], pipe: socket.socket) -> asyncio.subprocess.Process:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return await asyncio.create_subprocess_exec(
        sys.executable, *program, "--fd", str(pipe.fileno()), pass_fds=[pipe.fileno()], env=environment
    )


@asynccontextmanager
async def workers(root: Path, count: int, arguments: Sequence[str] = ()) -> AsyncIterator[list[DaemonEnd]]:
    """So many, started side by side."""
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            starting = [group.create_task(stack.enter_async_context(worker(root, arguments=arguments))) for _ in range(count)]
        yield [task.result() for task in starting]
