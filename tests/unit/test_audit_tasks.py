"""Goal: a daemon audits for the holder of the confirmed head alone, one task at a time and within its limits, answers whoever asks again, and cleans up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.limits import MIB
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.audit_tasks import AuditTasks
from pnode.authority import Term
from pnode.budget import AUDIT, Budget, Limits
from pnode.home import Home
from pnode.orders import HostingOptions
from trust.envelope import seal
from trust.identity import NodeKey

NETWORK = "5" * 40
HOLDER, OTHER, NODE = (NodeKey.generate() for _ in range(3))
BUNDLE = b"evidence" * 100
NOW = 1_700_000_000.0
REPORT = identity_pb2.Envelope(payload=b"report")


class Rig:
    """A daemon's surroundings: a store that has the bundle, a worker that is heard, and orchestrators that hear."""

    def __init__(self, root: Path, group: asyncio.TaskGroup, *, memory_mib: int = 512) -> None:
        self.root, self.group = root, group
        self.to_worker: list[local_pb2.WorkerAudit] = []
        self.said: list[tuple[str, identity_pb2.Envelope]] = []
        self.told: list[tuple[str, str, str]] = []
        self.stored: dict[str, bytes] = {}
        self.store_away = 0
        self.busy = ""
        self.free_mib: list[int] = []
        self.budget = Budget(Limits(1.0, memory_mib * MIB, 100 * MIB, 0))
        self.home = Home(root)
        self.news = asyncio.Event()
        self.tasks = AuditTasks(
            node_id=NODE.node_id, policy=lambda: cast(Any, self), home=self.home, objects=self, provisioner=self, budget=self.budget,  # type: ignore[arg-type]
            options=HostingOptions(1, 0, lambda: 10**12, cpu_share=0.5), term=self.term, busy=lambda: self.busy, freed=self.freed, send=self.send, say=self.say,
            tell=lambda *event: self.told.append(event), now_wall=lambda: NOW, group=group,
        )  # fmt: skip

    # what the network document and the head say
    network_id = NETWORK

    def is_orchestrator(self, node_id: str) -> bool:
        return node_id in (HOLDER.node_id, OTHER.node_id)

    def term(self, model: str) -> Term | None:
        return Term(4, HOLDER.node_id) if model == "m" else None

    # the job
    async def job(self, wanted: model_pb2.DesiredState) -> Any:
        request = model_pb2.JobRequest(model=wanted.model, num_batches=40)
        return SimpleNamespace(request=request, graph_bytes=b"graph", dataset_manifest=self.root / "manifest")

    def cost(self, job: Any, vnode: str) -> Any:
        return SimpleNamespace(memory_bytes=64 * MIB, state_bytes=MIB)

    # the store
    async def read_file(self, ref: Any, destination: Path, *, max_bytes: int) -> None:
        assert (ref.model, ref.owner, ref.digest) == ("m", "a", digest_of(BUNDLE))
        destination.write_bytes(BUNDLE)

    async def write_bytes(self, ref: Any, data: bytes, *, directory: Path) -> None:
        if self.store_away:
            self.store_away -= 1
            raise Unavailable("the store is away", code="store_away")
        self.stored[ref.digest] = data

    # worker and orchestrators
    async def send(self, message: local_pb2.ToWorker) -> bool:
        self.to_worker.append(message.audit)
        self.news.set()
        return True

    def say(self, node_id: str, message: orchestrator_pb2.PNodeMessage) -> bool:
        self.said.append((node_id, message.audit_report))
        self.news.set()
        return True

    def freed(self) -> None:
        self.free_mib.append(self.budget.free_memory_bytes // MIB)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def settled(self) -> None:
        """Nothing is under way, and nothing is left of it."""
        if (work := self.tasks._work) is not None:
            async with asyncio.timeout(60):
                await asyncio.wait({work})
        assert not self.budget.reserved
        assert not list(self.home.audits.glob("*"))


def envelope(key: NodeKey = HOLDER, **changes: Any) -> identity_pb2.Envelope:
    facts = {
        "network_id": NETWORK, "model": "m", "job_id": "j", "vnode": "a", "task_id": "7" * 32, "pnode_id": NODE.node_id,
        "bundle_digest": digest_of(BUNDLE), "bundle_bytes": len(BUNDLE), "request_digest": "1" * 64, "check": model_pb2.CHECK_KIND_REPLAY,
        "seed": b"s" * 32, "epoch": 4, "until_unix_ms": int((NOW + 600) * 1000), **changes,
    }  # fmt: skip
    return seal(identity_pb2.DOMAIN_AUDIT_TASK, model_pb2.AuditTask(**facts), key)


def play(root: Path, scenario: Callable[[Rig], Awaitable[None]], **changes: int) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(root, group, **changes)
            await scenario(rig)
            rig.tasks.stop()

    asyncio.run(run())


def test_a_task_is_prepared_checked_answered_and_forgotten(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.store_away = 1
        await rig.tasks.asked(HOLDER.node_id, envelope())
        await rig.until(lambda: bool(rig.to_worker))
        order = rig.to_worker[0]
        assert (Path(order.bundle_path).read_bytes(), order.graph, order.num_batches, order.cpu_share) == (
            BUNDLE,
            b"graph",
            40,
            0.5,
        )
        assert order.refusal == ""
        assert AUDIT in rig.budget.reserved
        await rig.tasks.asked(HOLDER.node_id, envelope())
        assert len(rig.to_worker) == 1, "asked again while it is under way"
        await rig.tasks.audited(local_pb2.WorkerAudited(task_id="7" * 32, report=REPORT, record=b"record"))
        await rig.until(lambda: bool(rig.said))
        assert rig.said == [(HOLDER.node_id, REPORT)]
        assert rig.stored == {digest_of(b"record"): b"record"}, "tried again until the store takes it, before anybody hears of it"
        await rig.settled()
        assert rig.free_mib == [rig.budget.usable_memory_bytes // MIB], "whoever waits for memory is told when it is free"
        await rig.tasks.asked(OTHER.node_id, envelope())
        assert rig.said[1:] == [(OTHER.node_id, REPORT)], "whoever asks again is answered, and nothing is computed"
        assert len(rig.to_worker) == 1

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "task",
    [
        envelope(OTHER),
        envelope(NODE),
        envelope(epoch=3),
        envelope(epoch=5),
        envelope(model="unknown"),
        envelope(network_id="6" * 40),
        envelope(pnode_id=OTHER.node_id),
        envelope(task_id="../../x"),
        envelope(bundle_digest="x"),
        envelope(request_digest=""),
        envelope(bundle_bytes=0),
        envelope(bundle_bytes=1 << 60),
        seal(identity_pb2.DOMAIN_CHALLENGE, b"", HOLDER),
        identity_pb2.Envelope(),
    ],
)
def test_only_the_holder_of_the_confirmed_head_has_anything_audited(tmp_path: Path, task: identity_pb2.Envelope) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.tasks.asked(HOLDER.node_id, task)
        assert (rig.to_worker, rig.said, rig.budget.reserved) == ([], [], {})
        assert [kind for kind, _, _ in rig.told] == ["audit_task_refused"]

    play(tmp_path, scenario)


def test_what_this_machine_does_not_take_is_refused_at_once_in_the_workers_name(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.busy = "paused"
        await rig.tasks.asked(HOLDER.node_id, envelope())
        assert [order.refusal for order in rig.to_worker] == ["paused"]
        await rig.tasks.audited(local_pb2.WorkerAudited(task_id="7" * 32, report=REPORT))
        assert rig.said == [(HOLDER.node_id, REPORT)]
        rig.busy = ""
        await rig.tasks.asked(HOLDER.node_id, envelope(task_id="8" * 32))
        await rig.until(lambda: len(rig.to_worker) == 2)
        await rig.tasks.asked(HOLDER.node_id, envelope(task_id="9" * 32))
        assert rig.to_worker[-1].refusal == "another audit is under way"
        rig.tasks.worker_down("killed")
        await rig.until(lambda: rig.to_worker[-1].task.task_id == "8" * 32)
        await rig.settled()

    play(tmp_path, scenario)


def test_a_task_beyond_the_volunteers_memory_is_refused_with_the_numbers(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.tasks.asked(HOLDER.node_id, envelope())
        await rig.until(lambda: bool(rig.to_worker))
        assert "MiB of memory" in rig.to_worker[0].refusal
        await rig.settled()

    play(tmp_path, scenario, memory_mib=300)


def test_a_task_that_is_over_in_time_is_not_answered(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.tasks.asked(HOLDER.node_id, envelope(until_unix_ms=int(NOW * 1000)))
        await rig.settled()
        assert rig.told[-1][0] == "audit_late"
        assert rig.said == []

    play(tmp_path, scenario)
