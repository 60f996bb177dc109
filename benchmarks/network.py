"""The only module of the benchmarks that knows how a whole network is run: `LocalNetwork`, its client, its processes.

Everything runs in processes of its own below a short temporary directory that goes with the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from benchmarks.jobs import DATASET, Chain
from benchmarks.meter import Meter
from dcnr.errors import DcnrError, Unavailable
from dcnr.sdk.client import AsyncClient, connect_async
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.testing import ORCHESTRATOR, LocalNetwork, LocalPNode, Process
from dcnr.v1 import model_pb2, orchestrator_pb2
from trust.identity import NodeKey

ATTACH_S: Final = 60.0
VIEW_S: Final = 0.1
POLL_S: Final = 0.02
REPORTED_S: Final = 5.0

__all__ = ["BenchNetwork", "LocalPNode", "Process", "Run", "family", "running"]


@asynccontextmanager
async def running(
    pnodes: Sequence[LocalPNode], *, num_orchestrators: int = 3, host: str = "127.0.0.1",
    additions: Mapping[str, Mapping[str, str]] | None = None, orchestrator_module: str = ORCHESTRATOR,
) -> AsyncIterator[BenchNetwork]:  # fmt: skip
    """A network whose PNodes are all attached; every process is gone afterwards. ``host``: where orchestrators and store are reached; ``additions``: by name
    of a process, what its environment has besides.
    """
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    network = LocalNetwork(
        directory, num_orchestrators=num_orchestrators, pnodes=pnodes, name="bench", host=host, additions=additions,
        orchestrator_module=orchestrator_module,
    )  # fmt: skip
    try:
        await asyncio.to_thread(network.start)
        key = NodeKey.load(network.maintainer_key)
        async with await connect_async(network.bootstrap, network=network.network_file, key=key) as client:
            ours = BenchNetwork(network, client, key)
            await ours.attached([process.node_id for process in network.pnodes])
            yield ours
    finally:
        await asyncio.to_thread(network.stop, hand_over=False)
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(slots=True)
class BenchNetwork:
    """A running network and its maintainer's client."""

    network: LocalNetwork
    client: AsyncClient
    key: NodeKey

    async def attached(self, node_ids: Sequence[str], within_s: float = ATTACH_S) -> None:
        """Returns when all of them are attached and lend something."""
        wanted = set(node_ids)
        await self.until(lambda nodes: wanted <= {n.node_id for n in nodes if n.attached and n.capability.gflops > 0}, within_s)

    async def until(self, holds: Callable[[list[orchestrator_pb2.NodeView]], bool], within_s: float) -> None:
        """Waits for a condition over the nodes. Raises RuntimeError with what has ended, if anything."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    with contextlib.suppress(Unavailable):
                        if holds(await self.client.nodes()):
                            return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise RuntimeError(f"not within {within_s:.0f} s; {self.network.trouble()}") from None

    async def stage(self, chain: Chain) -> None:
        """Stages the chain's points under the name that its graph uses."""
        path = self.network.directory / "points.npz"
        await asyncio.to_thread(chain.write_points, path)
        await self.client.stage(Source(str(path), DATASET, "CC0-1.0", "synthetic"))
        path.unlink()

    async def submit(
        self, chain: Chain, *, checkpoint_s: float, checkpoint_steps: int = 10**6, batches_per_s: float = 0.0, key: str = ""
    ) -> Run:  # fmt: skip
        """Submits the chain; watch it with `Run.followed`. ``batches_per_s``: its tempo, 0 for none; ``key``: tells jobs of one chain apart."""
        graph = chain.graph()
        options = JobOptions(
            idempotency_key=f"{chain.name}{key}",
            checkpoint_s=checkpoint_s,
            checkpoint_steps=checkpoint_steps,
            batches_per_s=batches_per_s,
        )
        answer = await self.client.submit(graph, [self.key], options)
        vnodes = tuple(vnode.id for vnode in graph.vnodes)
        return Run(self, answer.job_id, chain.name, Meter(chain.num_batches, vnodes))

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far by kind of process."""
        kinds: dict[str, float] = {
            "worker": 0.0,
            "pnode": 0.0,
            "orchestrator": 0.0,
            "store": 0.0,
            "client": _cpu_s(psutil.Process()),
        }
        for process in self.network.pnodes:
            for item in family(process.pid):
                kinds["pnode" if item.pid == process.pid else "worker"] += _cpu_s(item)
        for process in self.network.orchestrators:
            kinds["orchestrator"] += sum(_cpu_s(item) for item in family(process.pid))
        kinds["store"] = sum(_cpu_s(item) for item in self.store_processes())
        return kinds

    def store_processes(self) -> list[psutil.Process]:
        """The object store with its supervisor."""
        pid = int((self.network.store.directory / "store.pid").read_text())
        return family(pid)

    def freeze(self, processes: Sequence[psutil.Process]) -> None:
        """SIGSTOP to all of them: alive, silent, as a machine that hangs."""
        for item in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                item.send_signal(signal.SIGSTOP)

    def thaw(self, processes: Sequence[psutil.Process]) -> None:
        """SIGCONT."""
        for item in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                item.send_signal(signal.SIGCONT)

    async def kill(self, process: Process) -> None:
        """SIGKILL; its children end by themselves."""
        await asyncio.to_thread(self.network.kill, process)

    def process_of(self, node_id: str) -> Process:
        """The process of a node. Raises KeyError."""
        process = self.network.process_of(node_id)
        if process is None:
            raise KeyError(node_id)
        return process


@dataclass(slots=True)
class Run:
    """One job under way, as its views tell it; times are those of the monotonic clock."""

    bench: BenchNetwork
    job_id: str
    model: str
    meter: Meter
    job: orchestrator_pb2.JobView = field(default_factory=orchestrator_pb2.JobView)
    nodes: list[orchestrator_pb2.NodeView] = field(default_factory=list)
    hears: list[Callable[[float, orchestrator_pb2.WatchJobResponse], None]] = field(default_factory=list)
    _seen: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[Run]:
        """Takes in views in the background."""
        following = asyncio.ensure_future(self._follow())
        try:
            yield self
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def until(self, holds: Callable[[], bool], within_s: float, what: str) -> float:
        """When a condition over the views first held. Raises RuntimeError."""
        try:
            async with asyncio.timeout(within_s):
                while not holds():
                    self._seen.clear()
                    await self._seen.wait()
        except TimeoutError:
            state = model_pb2.JobState.Name(self.job.state)
            learned = {vnode: self.meter.learned(vnode) for vnode in self.meter.vnodes}
            raise RuntimeError(f"no {what} within {within_s:.0f} s: {state} {learned}; {self.bench.network.trouble()}") from None
        return time.monotonic()

    async def training(self, within_s: float = 60.0) -> float:
        """Until every VNode learns."""
        return await self.until(lambda: self.meter.began_s is not None, within_s, "training of all VNodes")

    async def rate(self, from_s: float, to_s: float) -> float | None:
        """Batches per second through the chain in that time, once every VNode has reported after it; one that stands still is not waited for."""
        with contextlib.suppress(RuntimeError):
            await self.until(lambda: all(points[-1][0] >= to_s for points in self.meter.points.values()), REPORTED_S, "reports")
        return self.meter.rate(from_s, to_s)

    def place_of(self, vnode: str) -> str:
        """The PNode that the plan gives to a VNode."""
        return next((item.assignment.pnode_id for item in self.job.vnodes if item.vnode == vnode), "")

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(DcnrError):
                async for view in self.bench.client.watch(self.job_id, model=self.model, interval_s=VIEW_S):
                    now = time.monotonic()
                    self.job, self.nodes = view.job, list(view.nodes)
                    self.meter.seen(now, view.job.vnodes)
                    for hear in self.hears:
                        hear(now, view)
                    self._seen.set()
            await asyncio.sleep(VIEW_S)


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it that live."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
