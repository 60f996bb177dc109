"""Goal: of a replica that has ended nothing stays in its worker that grows: no state, and no more reports than of the last few; its commits are numbered on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import psutil
import pytest
from worker_rig import MODEL, NETWORK_ID, DaemonEnd, Job, make_job, order, worker

from dcnr.ids import Digest, NodeId, digest_of
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.crew import MAX_LEFT, Acting, Crew, Outlets
from pnode.hub import LinkHub
from pnode.making import Making
from pnode.merge_calls import MergeCalls
from pnode.pace import Pace
from pnode.uplink import Uplink
from trust.identity import NodeKey
from vnode.registry import default_registry
from vnode.state import StateInfo
from vnode.torch_compute import TorchCompute

STATES = orchestrator_pb2.AssignmentState
NUM_REPLICAS = MAX_LEFT + 4


class Gate:
    """Threads that come here wait while it is shut."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._opened.set()
        self.is_reached = False

    def shut(self) -> None:
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    def pass_through(self) -> None:
        self.is_reached = True
        assert self._opened.wait(60.0)


class Gated(TorchCompute):
    """States are captured only while the gate is open."""

    gate: Gate

    def snapshot(self, info: StateInfo) -> bytes:
        self.gate.pass_through()
        return super().snapshot(info)


class Rig:
    """A crew in this process, with the computes that it made, as long as somebody holds them."""

    def __init__(self, group: asyncio.TaskGroup, executor: ThreadPoolExecutor, *, fails: bool) -> None:
        clock, key, nobody = SystemClock(), NodeKey.generate(), NodeId("6" * 40)
        self.computes: list[ref[TorchCompute]] = []
        self._fails, self.num_news, self.preparing, self.capturing = fails, 0, Gate(), Gate()
        peers: Any = SimpleNamespace(open=None, renew=None)
        nothing: Any = None
        self.crew = Crew(
            Acting(NETWORK_ID, nobody, 1), key=key, delegation=identity_pb2.Envelope, hub=LinkHub(clock, nobody, peers, lambda *_: None),
            registry=default_registry(), clock=clock, executor=executor, pace=Pace(clock, time.process_time),
            calls=MergeCalls(nothing, Uplink(clock)), device="cpu", group=group, making=Making(compute=self.compute),
            outlets=Outlets(snapshot=lambda _: None, shards=self.shards, news=self.news, told=lambda *_: None),
        )  # fmt: skip

    def compute(self, *given: Any, **named: Any) -> TorchCompute:
        self.preparing.pass_through()
        made = Gated(*given, **named)
        made.gate = self.capturing
        self.computes.append(ref(made))
        if self._fails:
            made.learn = self.broken
        return made

    def news(self) -> None:
        self.num_news += 1

    def shards(self, dataset: str, digests: Sequence[str]) -> None:
        for digest in digests:
            self.crew.shard_ready(digest, "")

    def broken(self, *given: Any) -> Any:
        raise RuntimeError("a bug")

    @property
    def states(self) -> dict[str, STATES.ValueType]:
        return {report.replica: report.state for report in self.crew.reports()}

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(60.0):
            while not what():  # noqa: ASYNC110  conditions of parts that have no event for it
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("fails", "audited"), [(False, False), (True, False), (False, True)], ids=["released", "failed", "audited"]
)
def test_nobody_holds_what_a_replica_that_has_ended_computed_with(tmp_path: Path, fails: bool, audited: bool) -> None:
    job = make_job(tmp_path)
    here: Any = {vnode: SimpleNamespace(pnode_id="6" * 40) for vnode in ("s1", "s2")}

    async def scenario() -> None:
        with ThreadPoolExecutor(2) as executor:
            async with asyncio.TaskGroup() as group:
                rig = Rig(group, executor, fails=fails)
                crew = rig.crew
                for vnode in ("s1", "s2"):
                    evidence = {"audited": audited, "evidence_bytes": 64 << 20, "evidence_dir": str(tmp_path / f"evidence-{vnode}")}
                    crew.host(order(job, vnode, here, **evidence))
                if fails:
                    await rig.until(lambda: rig.states["s1.1"] == STATES.ASSIGNMENT_STATE_FAILED)
                else:
                    await rig.until(lambda: all(report.num_learned > 5 for report in crew.reports()))
                    crew.release("s1.1", hand_over=True)
                    await rig.until(lambda: rig.states["s1.1"] == STATES.ASSIGNMENT_STATE_RELEASED)
                await rig.until(lambda: len(rig.computes) == 2 and sum(made() is None for made in rig.computes) == 1)
                [report] = [one for one in crew.reports() if one.replica == "s1.1"]
                assert (report.vnode, report.num_learned > 5, "RuntimeError" in report.reason) == ("s1", not fails, fails)
                assert crew.state_file(MODEL, "s1", Digest(digest_of(job.states["s1"].read_bytes()))) == job.states["s1"]
                for replica in ("s1.1", "s2.1"):
                    crew.release(replica, hand_over=False)
                await rig.until(lambda: not any(made() for made in rig.computes))

    asyncio.run(scenario())


HERE: Any = {vnode: SimpleNamespace(pnode_id="6" * 40) for vnode in ("s1", "s2")}


@contextlib.asynccontextmanager
async def rigging() -> AsyncIterator[Rig]:
    """A crew whose tasks end with the block."""
    with ThreadPoolExecutor(2) as executor:
        async with asyncio.TaskGroup() as group:
            yield Rig(group, executor, fails=False)


def test_a_replica_that_is_let_go_of_while_it_is_prepared_has_ended_when_that_is_over(tmp_path: Path) -> None:
    """Until then it takes the memory that the daemon would give to the next one."""
    job = make_job(tmp_path)

    async def scenario() -> None:
        async with rigging() as rig:
            rig.preparing.shut()
            try:
                rig.crew.host(order(job, "s1", HERE))
                await rig.until(lambda: rig.preparing.is_reached)
                before = rig.num_news
                rig.crew.release("s1.1", hand_over=True)
                await rig.until(lambda: rig.num_news > before)
                assert rig.states["s1.1"] == STATES.ASSIGNMENT_STATE_RELEASING
            finally:
                rig.preparing.open()
            await rig.until(lambda: rig.states["s1.1"] == STATES.ASSIGNMENT_STATE_RELEASED)
            await rig.until(lambda: len(rig.computes) == 1 and rig.computes[0]() is None)

    asyncio.run(scenario())


def test_an_order_that_comes_with_the_release_of_a_replica_begins_another_life(tmp_path: Path) -> None:
    """A worker that has much to do reads both in one go: the second was taken for news of what was going, and went with it."""
    job = make_job(tmp_path)

    async def scenario() -> None:
        async with rigging() as rig:
            rig.crew.host(order(job, "s1", HERE))
            await rig.until(lambda: rig.states["s1.1"] == STATES.ASSIGNMENT_STATE_ACTIVE)
            rig.crew.release("s1.1", hand_over=True)
            rig.crew.host(order(job, "s1", HERE))
            assert rig.states["s1.1"] == STATES.ASSIGNMENT_STATE_PROVISIONING
            await rig.until(lambda: rig.states["s1.1"] == STATES.ASSIGNMENT_STATE_ACTIVE)
            assert len(rig.computes) == 2
            rig.crew.release("s1.1", hand_over=False)

    asyncio.run(scenario())


def test_a_machine_that_leaves_waits_for_what_was_let_go_of_before(tmp_path: Path) -> None:
    """A plan takes a replica away, and its owner ends the PNode a moment later: what it learned last is still on its way to the disk."""
    job = make_job(tmp_path)

    async def scenario() -> None:
        async with rigging() as rig:
            rig.capturing.shut()
            try:
                rig.crew.host(order(job, "s1", HERE))
                await rig.until(lambda: any(report.num_learned > 5 for report in rig.crew.reports()))
                rig.crew.release("s1.1", hand_over=True)
                await rig.until(lambda: rig.capturing.is_reached)
                leaving = asyncio.create_task(rig.crew.drain(local_pb2.WorkerDrain(within_s=60.0)))
                await asyncio.wait({leaving}, timeout=0.05)
                assert not leaving.done()
            finally:
                rig.capturing.open()
            await leaving
            assert rig.states["s1.1"] == STATES.ASSIGNMENT_STATE_RELEASED

    asyncio.run(scenario())


def own_bytes(end: DaemonEnd) -> int:
    """Memory of the process itself, without the data set's files that it has mapped."""
    memory = psutil.Process(end.process.pid).memory_info()
    return int(memory.rss - memory.shared)


def test_a_worker_that_has_let_go_of_many_replicas_is_no_larger_than_after_the_first(tmp_path: Path) -> None:
    job = make_job(tmp_path, width=1024, samples=32)
    state_bytes = job.states["s1"].stat().st_size

    async def hosted(end: DaemonEnd, number: int) -> int:
        """One more; the number of the last commit of its life."""
        replica = f"s1.{number}"
        message = order(job, "s1", {"s1": end, "s2": end}, work_dir=str(tmp_path / f"work-{replica}"))
        message.assignment.replica = replica
        end.snapshots.clear()
        await end.pipe.send(local_pb2.ToWorker(host=message))
        await end.until(lambda: any(one.checkpoint.step == job.num_batches for one in end.snapshots))
        commit = model_pb2.Commit.FromString(end.snapshots[-1].commit.payload)
        assert commit.replica == replica
        await end.pipe.send(local_pb2.ToWorker(release=local_pb2.ReleaseReplica(replica=replica)))
        await end.until(lambda: end.reports[replica].state == STATES.ASSIGNMENT_STATE_RELEASED)
        return int(commit.sequence)

    async def scenario(job: Job) -> None:
        async with worker(tmp_path) as end:
            first = await hosted(end, 1)
            before = own_bytes(end)
            for number in range(2, 2 + NUM_REPLICAS):
                await hosted(end, number)
            assert len(end.reports) <= MAX_LEFT + 1
            assert "s1.1" not in end.reports
            assert end.num_learned == (1 + NUM_REPLICAS) * job.num_batches
            assert own_bytes(end) - before < NUM_REPLICAS * state_bytes // 2
            assert await hosted(end, 1) > first, "two commits of one number would look like an equivocation"

    asyncio.run(scenario(job))
