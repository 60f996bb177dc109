"""Goal: a replica ends up with the newest desired state, also where that came while the replica was being provisioned under an older one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataservice.addresses import AddressRule
from dcnr.errors import Refused, Unavailable
from dcnr.ids import NodeId
from dcnr.intervals import IntervalSet
from dcnr.limits import MIB
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Source
from pnode.budget import AUDIT, Budget, Limits, Reservation
from pnode.duties import Duties
from pnode.headcheck import HeadCheck
from pnode.home import Home
from pnode.orders import HostingOptions
from pnode.provision import Job
from pnode.snapshots import StartingState
from pnode.telling import Telling
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import create_document, verify_chain
from vnode.costs import ReplicaCost

MAINTAINER, HOLDER = NodeKey.generate(), NodeKey.generate()
POLICY = verify_chain([create_document(MAINTAINER, name="n", now_wall=1_700_000_000.0, orchestrator_ids=[HOLDER.node_id])])
ME, MODEL, JOB, REPLICA = NodeId("0" * 40), "m", "j", "a.1"
WITHIN_S = 60.0
WORK = "e" * 64


class Supply:
    """Stands for what is fetched: a state that comes when the test lets it come, or fails first with what the test says."""

    def __init__(self, root: Path) -> None:
        request = model_pb2.JobRequest(network_id=POLICY.network_id, model=MODEL, job_id=JOB, num_batches=8)
        self._job = Job(request, model_pb2.ModelGraph(), b"graph", {}, root / "data")
        self._state = StartingState(root / "state", "d" * 64, "", IntervalSet.empty(), "local")
        self.asked, self.come = asyncio.Event(), asyncio.Event()
        self.fails: Iterator[Exception] = iter(())
        self.places: list[tuple[str, list[str]]] = []
        self.memory_bytes, self.sharing_bytes, self.num_jobs = 1, 1, 0

    def placed(self, model: str, job_id: str, replicas: Iterable[str]) -> None:
        self.places.append((model, sorted(replicas)))

    async def job(self, desired: model_pb2.DesiredState, *, reads_data: bool = True) -> Job:
        self.num_jobs += 1
        return self._job

    def cost(self, job: Job, vnode: str) -> ReplicaCost:
        return ReplicaCost(1, self.memory_bytes, self.sharing_bytes, 1, 1.0)

    async def state(self, *arguments: object, **named: object) -> tuple[StartingState, list[str]]:
        self.asked.set()
        await self.come.wait()
        for error in self.fails:
            raise error
        return self._state, []

    async def work(self, job: Job) -> str:
        return WORK


class Rig:
    """Duties that host one replica, and what their worker is told."""

    def __init__(self, root: Path, group: asyncio.TaskGroup) -> None:
        home, nobody = Home(root / "home"), SimpleNamespace(known=list)
        home.open()
        self.supply, self.reads = Supply(root), asyncio.Event()
        self.reads.set()
        self.told: list[local_pb2.ToWorker] = []
        self.said: list[tuple[str, str, str]] = []
        self.resting = ""
        self.budget = Budget(Limits(1, 1024 * MIB, MIB, 0))
        self.duties = Duties(
            node_id=ME, policy=lambda: POLICY, home=home, provisioner=self._any(self.supply), budget=self.budget,
            heads=HeadCheck(policy=lambda: POLICY, orchestrators=self._any(nobody), rule=AddressRule),
            options=HostingOptions(threads=1, spool_bytes=0, free_disk_bytes=lambda: MIB), send=self._send, hosted_changed=lambda: None,
            say=lambda *event: self.said.append(event), clock=self._any(None), group=group,
            resting=lambda: self.resting,
        )  # fmt: skip

    @staticmethod
    def _any(found: object) -> Any:
        return found

    async def _send(self, message: local_pb2.ToWorker) -> bool:
        self.told.append(message)
        await self.reads.wait()
        return True

    async def head(self, model: str = MODEL) -> None:
        content = model_pb2.Head(network_id=POLICY.network_id, model=model, epoch=1, holder=HOLDER.node_id, sequence=1)
        await self.duties.head_received(seal(identity_pb2.DOMAIN_HEAD, content, HOLDER), Source.OWN_GET)

    async def desire(
        self, sequence: int, *, halted: bool = False, placed: bool = True, replica: str = REPLICA, siblings: int = 0, model: str = MODEL,
        job: str = JOB,
    ) -> None:  # fmt: skip
        vnode = replica.partition(".")[0]
        others = [model_pb2.Neighbour(vnode=vnode, replica=f"{vnode}.{number}") for number in range(1, 1 + siblings)]
        assignment = model_pb2.DesiredAssignment(vnode=vnode, replica=replica, role=model_pb2.ROLE_PRIMARY, siblings=others)
        state = model_pb2.DesiredState(
            network_id=POLICY.network_id, model=model, job_id=job, epoch=1, holder=HOLDER.node_id, sequence=sequence, pnode_id=ME,
            halted=halted, assignments=[assignment] if placed else [],
        )  # fmt: skip
        await self.duties.desired_received(seal(identity_pb2.DOMAIN_DESIRED_STATE, state, HOLDER))

    async def overtaken(self, *, was_halted: bool) -> None:
        """A second state is desired while the replica is provisioned under the first one; until nothing is provisioned any more."""
        await self.head()
        await self.desire(1, halted=was_halted)
        await self.supply.asked.wait()
        await self.desire(2, halted=not was_halted)
        self.supply.come.set()
        await until(self.is_provisioned)

    def orders(self) -> list[local_pb2.HostReplica]:
        return [message.host for message in self.told if message.WhichOneof("kind") == "host"]

    def is_provisioned(self) -> bool:
        return all(item.task is None for item in self.duties.hosted)


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + WITHIN_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("was_halted", [True, False])
def test_what_was_desired_while_a_replica_was_provisioned_reaches_the_worker(tmp_path: Path, was_halted: bool) -> None:
    """A job that goes on, or pauses, during a download of minutes."""

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            await rig.overtaken(was_halted=was_halted)
            await until(lambda: bool(rig.orders()) and rig.orders()[-1].halted != was_halted)
            assert rig.orders()[0].state_path, "it is hosted first"
            assert rig.orders()[0].work_digest == WORK, "for its snapshots"
            assert {order.assignment.replica for order in rig.orders()} == {REPLICA}

    asyncio.run(story())


@pytest.mark.parametrize("code", ["no_state", "disk_trouble", "unknown_caller"])
def test_a_provisioning_tried_again_begins_with_what_is_desired_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr("pnode.placing.RETRY_FIRST_S", 0.001)

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.supply.fails = iter([Unavailable("not now", code=code)])
            await rig.overtaken(was_halted=True)
            assert [(bool(order.state_path), order.halted) for order in rig.orders()] == [(True, False)]

    asyncio.run(story())


def test_what_is_said_of_a_replica_names_the_job_of_its_own_model(tmp_path: Path) -> None:
    """A machine works for several models, and its log is read by job."""

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.supply.come.set()
            for model in ("m", "n"):
                await rig.head(model)
                await rig.desire(1, model=model, job=f"{model}-1", replica=f"{model}.1")
            assert [rig.duties.job_of(replica) for replica in ("m.1", "n.1")] == ["m-1", "n-1"]
            await rig.desire(2, model="n", job="n-1", placed=False)
            assert rig.duties.job_of("n.1") == "", "better none than that of another"

    asyncio.run(story())


def test_what_is_refused_of_a_model_names_the_model(tmp_path: Path) -> None:
    """Goal: an owner who reads that this PNode works for two models already reads which third one is meant."""

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            for model in ("one", "two"):
                await rig.head(model)
                await rig.desire(1, model=model)
            await rig.head("three")
            await rig.desire(1, model="three", placed=False)
            refused = [(kind, subject) for kind, subject, reason in rig.said if "2 models" in reason]
            assert refused == [("head_refused", "three"), ("desired_state_refused", "three")]
            rig.duties.stop()

    asyncio.run(story())


def test_neither_a_refused_nor_a_released_replica_is_updated(tmp_path: Path) -> None:
    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.supply.fails = iter([Refused("too large", code="too_little_disk")])
            await rig.overtaken(was_halted=True)
            assert rig.orders() == []
            rig.supply.come.clear()
            rig.supply.asked.clear()
            await rig.desire(3, halted=False, placed=False)
            await rig.desire(4, halted=True)
            await rig.supply.asked.wait()
            await rig.desire(5, halted=False, placed=False)
            rig.supply.come.set()
        assert rig.orders() == [], "the group has ended, and with it every task"
        assert {frozenset(replicas) for model, replicas in rig.supply.places if model == MODEL} == {
            frozenset(),
            frozenset({REPLICA}),
        }
        assert rig.supply.places[-1] == (MODEL, []), "what a released replica had named is not kept for ever"
        assert [message.WhichOneof("kind") for message in rig.told if message.HasField("release")] == ["release", "release"]

    asyncio.run(story())


def test_the_newest_desired_state_has_the_last_word_where_the_worker_takes_orders_slowly(tmp_path: Path) -> None:
    """A worker that has much to do does not read its pipe: what was desired before is still being carried out when the next comes."""

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.supply.come.set()
            await rig.head()
            await rig.desire(1, halted=False)
            await until(rig.is_provisioned)
            rig.reads.clear()
            older = group.create_task(rig.desire(2, halted=False, placed=False))
            await until(lambda: rig.told[-1].HasField("release"))
            newer = group.create_task(rig.desire(3, halted=False))
            await asyncio.wait({newer}, timeout=0.01)
            rig.reads.set()
            await asyncio.wait({older, newer})
            await until(rig.is_provisioned)
            assert [item.assignment.replica for item in rig.duties.hosted] == [REPLICA]

    asyncio.run(story())


def report(replica: str, state: orchestrator_pb2.AssignmentState.ValueType) -> orchestrator_pb2.ReplicaReport:
    return orchestrator_pb2.ReplicaReport(replica=replica, state=state)


@pytest.mark.parametrize("end", ["released", "worker down", "named no more"])
def test_what_leaves_is_in_memory_until_it_has_ended_and_its_successor_waits(tmp_path: Path, end: str) -> None:
    """There is room for one replica: both at once would be twice what the volunteer lends, for as long as handing over takes."""
    active, releasing, released = (
        orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, orchestrator_pb2.ASSIGNMENT_STATE_RELEASING, orchestrator_pb2.ASSIGNMENT_STATE_RELEASED,
    )  # fmt: skip

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.supply.memory_bytes = rig.budget.usable_memory_bytes
            rig.supply.come.set()
            await rig.head()
            await rig.desire(1)
            await until(rig.is_provisioned)
            rig.duties.worker_reported(report(REPLICA, active))
            await rig.desire(2, replica="b.1")
            await until(lambda: "memory is being freed, of a.1" in rig.duties.hosted[0].reason)
            rig.duties.worker_reported(report(REPLICA, releasing))
            rig.duties.worker_knows({REPLICA})
            await asyncio.sleep(0)
            assert rig.budget.free_memory_bytes == 0
            assert [order.assignment.replica for order in rig.orders()] == [REPLICA]
            if end == "released":
                rig.duties.worker_reported(report(REPLICA, released))
            elif end == "named no more":
                rig.duties.worker_knows(set())
            else:
                rig.duties.worker_down("it ended")
                await rig.duties.worker_up()
            await until(rig.is_provisioned)
            assert [order.assignment.replica for order in rig.orders()] == [REPLICA, "b.1"]
            assert set(rig.budget.reserved) == {"b.1"}

    asyncio.run(story())


def test_a_replica_waits_for_an_audit_under_way_and_has_its_memory_before_the_next(tmp_path: Path) -> None:
    """Refused at once it would count for minutes as one that this machine cannot host, though an audit is over in seconds."""

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.supply.memory_bytes = rig.budget.usable_memory_bytes
            rig.supply.come.set()
            rig.budget.admit(AUDIT, Reservation(MIB, 0), free_disk_bytes=MIB)
            await rig.head()
            await rig.desire(1)
            await until(lambda: "memory is being freed, of an audit" in rig.duties.hosted[0].reason)
            assert rig.duties.hosted[0].state == orchestrator_pb2.ASSIGNMENT_STATE_PROVISIONING
            assert rig.duties.awaits_room
            rig.budget.release(AUDIT)
            rig.duties.room_freed()
            await until(rig.is_provisioned)
            assert [order.assignment.replica for order in rig.orders()] == [REPLICA]
            assert not rig.duties.awaits_room

    asyncio.run(story())


def test_one_that_the_worker_never_heard_of_leaves_its_room_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            await rig.head()
            await rig.desire(1)
            await rig.supply.asked.wait()
            await rig.desire(2, placed=False)
            assert rig.budget.reserved == {}

    asyncio.run(story())


def test_a_replica_that_comes_back_keeps_its_room_when_its_former_life_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.supply.come.set()
            await rig.head()
            await rig.desire(1)
            await until(rig.is_provisioned)
            await rig.desire(2, placed=False)
            assert set(rig.budget.reserved) == {REPLICA}
            await rig.desire(3)
            await until(rig.is_provisioned)
            rig.duties.worker_reported(report(REPLICA, orchestrator_pb2.ASSIGNMENT_STATE_RELEASED))
            assert set(rig.budget.reserved) == {REPLICA}

    asyncio.run(story())


def test_a_paused_machine_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of gigabytes, tried again every few seconds, for work that its owner does not want now."""
    monkeypatch.setattr("pnode.placing.RETRY_FIRST_S", 0.001)

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.resting = "paused by its owner until it is resumed"
            rig.supply.come.set()
            await rig.head()
            await rig.desire(1)
            await until(lambda: rig.duties.hosted[0].reason == rig.resting)
            assert not rig.supply.asked.is_set()
            assert rig.supply.num_jobs == 0
            rig.resting = ""
            await until(rig.is_provisioned)
            assert rig.supply.asked.is_set()
            assert [order.assignment.replica for order in rig.orders()] == [REPLICA]

    asyncio.run(story())


def test_what_was_being_fetched_as_the_machine_began_to_leave_is_hosted_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has handed over what it knew of: a replica that came after that would learn what nobody takes over."""
    monkeypatch.setattr("pnode.placing.RETRY_FIRST_S", 0.001)

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            await rig.head()
            await rig.desire(1)
            await rig.supply.asked.wait()
            rig.resting = "this machine hands its work over and stops"
            rig.supply.come.set()
            await until(lambda: rig.is_provisioned() or rig.duties.hosted[0].reason == rig.resting)
            assert rig.orders() == []
            rig.resting = ""
            await until(rig.is_provisioned)
            assert [order.assignment.replica for order in rig.orders()] == [REPLICA]

    asyncio.run(story())


def test_a_replica_that_gets_siblings_takes_the_memory_that_merges_need(tmp_path: Path) -> None:
    """Five copies of its weights: counted as free they would be lent a second time, to the next replica or to seats."""

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.supply.memory_bytes, rig.supply.sharing_bytes = 10 * MIB, 5 * MIB
            rig.supply.come.set()
            await rig.head()
            await rig.desire(1)
            await until(rig.is_provisioned)
            assert rig.budget.reserved[REPLICA].memory_bytes == 10 * MIB
            await rig.desire(2, siblings=2)
            assert rig.budget.reserved[REPLICA].memory_bytes == 15 * MIB
            assert len(rig.orders()[-1].assignment.siblings) == 2

    asyncio.run(story())


def test_a_primary_without_room_for_merges_works_alone_until_there_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            rig = Rig(tmp_path, group)
            rig.supply.memory_bytes, rig.supply.sharing_bytes = rig.budget.usable_memory_bytes - 5 * MIB, 5 * MIB
            rig.supply.come.set()
            await rig.head()
            await rig.desire(1)
            await until(rig.is_provisioned)
            rig.budget.admit(AUDIT, Reservation(3 * MIB, 0), free_disk_bytes=MIB)
            for sequence in (2, 3):
                await rig.desire(sequence, siblings=2)
                assert list(rig.orders()[-1].assignment.siblings) == []
            assert rig.budget.free_memory_bytes == 2 * MIB
            assert not rig.duties.may_grow
            [why] = [reason for kind, subject, reason in rig.said if (kind, subject) == ("provisioning_waits", REPLICA)]
            assert "works without its siblings" in why
            rig.budget.release(AUDIT)
            assert rig.duties.may_grow
            await rig.duties.reconcile()
            assert len(rig.orders()[-1].assignment.siblings) == 2
            assert rig.budget.free_memory_bytes == 0
            assert not rig.duties.may_grow

    asyncio.run(story())


def test_while_a_replica_waits_for_memory_nothing_else_is_begun() -> None:
    waits = SimpleNamespace(awaits_room=True)
    lent = SimpleNamespace(
        capability=lambda: SimpleNamespace(accepts_work=True), now=SimpleNamespace(worker=SimpleNamespace(alive=True)), duties=waits
    )
    around = cast(Telling, lent)
    assert "waits for memory" in Telling.takes_no_work(around)
    waits.awaits_room = False
    assert not Telling.takes_no_work(around)
