"""Orchestrators' runtimes and workers' checkpoints over one store in memory: what tests of whole jobs drive."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

from orchestrator_parts import VNODES, Worker, network, stage

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.ports import ObjectStore
from dcnr.system import SystemClock
from dcnr.v1 import data_pb2, model_pb2
from orchestrator.admission import admit
from orchestrator.attach import tell_transitions
from orchestrator.documents import open_desired, open_end
from orchestrator.head_events import HeadTimes
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.jobs import state_of
from orchestrator.runtime import ModelRuntime, Shared
from trust.draw import Secret
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy
from vnode.registry import default_registry

MODEL, JOB = "toy", "job-1"
TIMES = HeadTimes(ttl_s=0.8, renew_s=0.2, poll_s=0.2, request_timeout_s=0.4)
CLOCK = SystemClock()
MAINTAINER = NodeKey.generate()


async def until(condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    deadline = CLOCK.monotonic() + within_s
    while not condition():
        assert CLOCK.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.02)


class Orchestrator:
    """A runtime with its own inventory, as a process has."""

    def __init__(self, key: NodeKey, policy: NetworkPolicy, store: ObjectStore, workers: list[Worker]) -> None:
        history = History(None, key.node_id, CLOCK)
        secret = Secret(bytes(32)) if policy.audits_drawn else None
        self.shared = Shared(
            key, InForce(policy), store, CLOCK, default_registry(), Inventory(), history, times=TIMES, draw_secret=secret
        )
        self.runtime = ModelRuntime(MODEL, self.shared)
        self.workers = workers
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.tasks = [asyncio.create_task(self.runtime.run()), asyncio.create_task(self._beats())]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _beats(self) -> None:
        """What the streams do: workers beat, and get the desired states of the plan under the head."""
        attached: set[str] = set()
        while True:
            now = CLOCK.monotonic()
            for node_id in attached - {worker.node_id for worker in self.workers}:
                self.shared.inventory.detached(node_id, now, "killed")
                attached.discard(node_id)
            for worker in self.workers:
                if worker.node_id not in attached:
                    attached.add(worker.node_id)
                    self.shared.inventory.attached(worker.node_id, now)
                self.shared.inventory.beat(worker.node_id, now, worker.beat(), 0.3)
                view = self.runtime.view
                if view is not None and view.plan is not None:
                    envelope = await self.runtime.loader.desired(view, worker.node_id)
                    if envelope is not None:
                        worker.host(open_desired(envelope.SerializeToString(), self.shared.policy, MODEL))
                if view is not None and view.job is not None:
                    for report in worker.reports.values():
                        self.runtime.exits.heard(view.job.request_digest, report.exits)
            if tell_transitions(self.shared, now):
                self.shared.nodes_changed.fire()
            await asyncio.sleep(0.05)

    def state(self, job: str = JOB) -> int:
        return state_of(job, self.runtime.head, self.runtime.jobs.records.get(job))

    @property
    def plan(self) -> model_pb2.Plan | None:
        return self.runtime.view.plan if self.runtime.view is not None else None


class World:
    def __init__(self, orchestrators: int, workers: int, *, audits: str = "none") -> None:
        self.store = MemoryStore(CLOCK, random.Random(1))
        keys_of = [NodeKey.generate() for _ in range(orchestrators)]
        self.policy = network(MAINTAINER, keys_of, CLOCK, audits=audits)
        self.workers = [Worker(self.policy, self.store, CLOCK) for _ in range(workers)]
        self.orchestrators = [Orchestrator(key, self.policy, self.store, self.workers) for key in keys_of]

    async def submit(self, job: str = JOB, *, batches_per_s: float = 0.0) -> None:
        envelope = await stage(self.store, self.policy, MAINTAINER, MODEL, CLOCK, job, batches_per_s=batches_per_s)
        loader = self.orchestrators[0].runtime.loader
        _, existed = await admit(envelope, policy=self.policy, store=self.store, loader=loader, wall_unix_ms=0)
        assert not existed

    def holder(self) -> Orchestrator:
        [found] = [item for item in self.orchestrators if item.runtime.is_holder]
        return found

    async def running(self) -> Orchestrator:
        await until(lambda: any(item.runtime.is_holder for item in self.orchestrators), "somebody holds the head")
        holder = self.holder()
        await until(lambda: holder.state() == model_pb2.JOB_STATE_RUNNING, "the job runs")
        return holder

    async def record_all(self, holder: Orchestrator) -> None:
        for number in range(len(VNODES)):
            await self.record(holder, await self.request(holder, number))

    async def request(self, holder: Orchestrator, number: int) -> data_pb2.RecordCheckpointRequest:
        """The checkpoint of one assignment with every batch of the job; its state is in the store."""
        view = holder.runtime.view
        assert view is not None
        plan = view.plan
        assert plan is not None
        item = plan.assignments[number]
        worker = next(one for one in self.workers if one.node_id == item.pnode_id)
        parent = view.working(item.vnode)
        assert parent is not None
        checkpoint, commit = await worker.checkpoint(MODEL, JOB, item.replica, parent)
        return data_pb2.RecordCheckpointRequest(
            network_id=self.policy.network_id, model=MODEL, job_id=JOB, checkpoint=checkpoint, commit=commit
        )

    async def record(self, holder: Orchestrator, request: data_pb2.RecordCheckpointRequest) -> None:
        """Recorded until a manifest names it; on a busy machine a holder may have let its term pass, and has to take it up again."""
        await until(lambda: holder.runtime.is_holder, "it holds the head")
        answer = await holder.runtime.record(request)
        assert answer.status == data_pb2.RECORD_STATUS_PENDING, answer.reason
        status = answer.status
        deadline = CLOCK.monotonic() + 40
        while status != data_pb2.RECORD_STATUS_NAMED and CLOCK.monotonic() < deadline:
            await asyncio.sleep(0.05)
            status = (await holder.runtime.record(request)).status
        assert status == data_pb2.RECORD_STATUS_NAMED

    def end(self, job: str = JOB) -> model_pb2.Outcome | None:
        data = self.store.peek(keys.job_end(MODEL, job))
        return open_end(data, self.policy, MODEL, job)[0] if data is not None else None


@contextlib.asynccontextmanager
async def world(orchestrators: int = 1, workers: int = 2, *, audits: str = "none") -> AsyncIterator[World]:
    made = World(orchestrators, workers, audits=audits)
    try:
        for item in made.orchestrators:
            item.start()
        yield made
    finally:
        for item in made.orchestrators:
            await item.stop()
