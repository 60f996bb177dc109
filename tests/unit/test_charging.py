"""Goal: what a job used is said once, rightly, and at some time, however the store reads and in whatever order a process learns of what has ended."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.errors import NotFound
from dcnr.system import SystemClock
from dcnr.v1 import common_pb2, identity_pb2, ledger_pb2, model_pb2
from orchestrator import charging
from orchestrator.charging import Charging
from orchestrator.history import History
from orchestrator.jobs import JobRecord
from orchestrator.usage import HistoryBooks
from orchestrator.view import ModelView
from trust.envelope import seal
from trust.identity import NodeKey
from trust.usage import open_usage

MODEL, NETWORK, JOB_KIND = "toy", "n" * 40, ledger_pb2.UsageKind.Name(ledger_pb2.USAGE_KIND_JOB)
KEY, CLOCK = NodeKey.generate(), SystemClock()


@dataclass
class Runtime:
    """The holder of a model, as far as charging looks at it; manifests can be read where they are ``there``."""

    model: str = MODEL
    is_holder: bool = True
    head: model_pb2.Head = field(default_factory=model_pb2.Head)
    records: dict[str, JobRecord] = field(default_factory=dict)
    there: dict[str, model_pb2.Manifest] = field(default_factory=dict)

    @property
    def view(self) -> ModelView:
        return ModelView(MODEL, self.head, b"")

    @property
    def jobs(self) -> Runtime:
        return self

    @property
    def loader(self) -> Runtime:
        return self

    async def manifest(self, model: str, digest: str) -> tuple[model_pb2.Manifest, bytes]:
        del model
        if digest not in self.there:
            raise NotFound(f"no manifest {digest}")
        return self.there[digest], b""


@dataclass
class Shared:
    """Parts of an orchestrator; every look comes a minute after the one before."""

    history: History
    store: MemoryStore = field(default_factory=lambda: MemoryStore(CLOCK, random.Random(1)))
    key: NodeKey = KEY
    now: float = 0.0

    @property
    def clock(self) -> Shared:
        return self

    @property
    def policy(self) -> Any:
        return type("Policy", (), {"network_id": NETWORK})

    def monotonic(self) -> float:
        self.now += 60.0
        return self.now

    def wall(self) -> float:
        return self.now


class Desk:
    """One life of an orchestrator that charges."""

    def __init__(self, runtime: Runtime, shared: Shared) -> None:
        self.runtime, self.shared = runtime, shared
        services: Any = shared
        models: Any = {MODEL: runtime}
        self.charging = Charging(services, models, HistoryBooks(shared.history, NETWORK))

    async def ended(self, job_id: str, manifest: str, *, is_there: bool) -> None:
        """A job has ended with this manifest, and the head has forgotten it since."""
        request = seal(identity_pb2.DOMAIN_JOB_REQUEST, model_pb2.JobRequest(job_id=job_id, model=MODEL), KEY)
        await self.shared.store.put(keys.job_request(MODEL, job_id), request.SerializeToString())
        outcome = model_pb2.Outcome(job_id=job_id, state=model_pb2.JOB_STATE_COMPLETED, manifest_digest=manifest)
        self.runtime.records[job_id] = JobRecord(job_id, 0.0, None, "", end=outcome)
        if is_there:
            self.runtime.there[manifest] = of_seven_batches(job_id)

    async def said(self) -> list[tuple[str, int]]:
        """What the history has: job and batches."""
        rows = await self.shared.history.usage(MODEL, 0, 1000, (JOB_KIND, ""))
        found = [open_usage(identity_pb2.Envelope.FromString(data), NETWORK) for _, data in rows]
        return [(one.subject, one.vnode_batches) for one in found]


def of_seven_batches(job_id: str) -> model_pb2.Manifest:
    lineage = common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=0, end=7)])
    checkpoint = model_pb2.Checkpoint(vnode="v", job_id=job_id, lineage=lineage)
    return model_pb2.Manifest(entries=[model_pb2.ManifestEntry(vnode="v", working=[checkpoint])])


@pytest.fixture
def tell(tmp_path: Any) -> Callable[[Any], None]:
    """Runs a story with a desk over a history file."""

    def run(story: Any) -> None:
        async def opened() -> None:
            history = History(tmp_path / "history.db", KEY.node_id, CLOCK)
            await history.open()
            await story(Desk(Runtime(), Shared(history)))
            await history.close()

        asyncio.run(opened())

    return run


def test_a_manifest_that_is_not_found_is_looked_for_again_and_nothing_wrong_is_said(tell: Callable[[Any], None]) -> None:
    async def story(desk: Desk) -> None:
        await desk.ended("one", "m1", is_there=False)
        await desk.charging.look()
        assert await desk.said() == [], "no batches would be wrong, and books take each job once"
        desk.runtime.there["m1"] = of_seven_batches("one")
        await desk.charging.look()
        assert await desk.said() == [("one", 7)]

    tell(story)


def test_a_job_is_charged_once_where_a_new_process_learns_late_that_it_has_ended(tell: Callable[[Any], None]) -> None:
    """After a restart the head is known before all jobs are read."""

    async def story(desk: Desk) -> None:
        await desk.ended("one", "m1", is_there=True)
        await desk.charging.look()
        records = desk.runtime.records
        desk.runtime.records = {}
        again = Desk(desk.runtime, desk.shared)
        await again.charging.begin()
        await again.charging.look()
        desk.runtime.records = records
        await again.charging.look()
        assert await again.said() == [("one", 7)]

    tell(story)


def test_whatever_cannot_be_read_keeps_nothing_waiting_that_can_be_read_again(tell: Callable[[Any], None]) -> None:
    """More jobs than one look takes have lost their manifests for good; one was only out of reach."""

    async def story(desk: Desk) -> None:
        for number in range(charging.MAX_PER_LOOK):
            await desk.ended(f"lost-{number}", f"lost-{number}", is_there=False)
        await desk.ended("one", "m1", is_there=False)
        for _ in range(2):
            await desk.charging.look()
        desk.runtime.there["m1"] = of_seven_batches("one")
        for _ in range(2):
            await desk.charging.look()
        assert await desk.said() == [("one", 7)]

    tell(story)
