"""The volunteer's daemon: holds the node key, finds the network, takes desired states, and supervises the worker. No torch; always answers.

Everything that decides lives in the modules this one wires together; here are the order of start and stop and the paths between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence

import structlog

from dataservice.addresses import AddressRule
from dataservice.objects import ObjectClient
from dcnr import limits
from dcnr.client import Orchestrators
from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.ports import Clock, Random
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.settings import PNodeSettings
from dcnr.v1 import common_pb2, local_pb2, membership_pb2, orchestrator_pb2
from membership.node import Membership
from pnode.authority import Source
from pnode.budget import Budget
from pnode.cache import ObjectCache, Shards
from pnode.control import ControlStreams
from pnode.duties import Duties, HostingOptions
from pnode.headcheck import HeadCheck
from pnode.home import Home
from pnode.lent import advertised_host, capability_of, limits_of, spool_bytes_of, threads_of
from pnode.local import LocalDoor
from pnode.neighbours import Neighbours
from pnode.probe import Machine
from pnode.provision import Provisioner
from pnode.report import SOFTWARE, Journal, WorkerFacts, state_of, why
from pnode.snapshots import Shelf
from pnode.standing import Standing
from pnode.supervisor import Supervisor, Worker, WorkerOptions
from pnode.uploads import Uploads
from trust.identity import NodeKey
from trust.network import NetworkPolicy
from vnode.registry import default_registry

NEWS_S = 0.05
"""News within this time goes out in one beat."""
REFRESH_S = 1.0
_log = structlog.get_logger("pnode")


class Daemon:
    """One run of a PNode. `run` returns when it was stopped."""

    def __init__(
        self, settings: PNodeSettings, home: Home, *, key: NodeKey, policy: NetworkPolicy, machine: Machine, clock: Clock, rng: Random,
        environment: Mapping[str, str], bootstrap: Sequence[str], on_ready: Callable[[Daemon], None] = lambda daemon: None,
    ) -> None:  # fmt: skip
        self._settings, self._home, self._key, self._policy = settings, home, key, policy
        self._machine, self._clock, self._rng, self._environment = machine, clock, rng, environment
        self._bootstrap, self._on_ready = bootstrap, on_ready
        self._started = clock.monotonic()
        self._stop, self._draining = asyncio.Event(), False
        self._hand_over = True
        self._facts = WorkerFacts()
        self._news = asyncio.Event()
        self.journal = Journal(clock, key.node_id, self._log_event)
        self._allowed = limits_of(settings, machine)
        self._host = advertised_host(settings, bootstrap, single_host=policy.single_host)
        self._build()

    # -- life ------------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Starts everything, serves until `request_stop`, hands over, and leaves no process behind."""
        for remark in self._shelf.load():
            self.journal.say("snapshot_damaged", self._key.node_id, remark)
        self._server.add(self._register_membership)
        control_port = await self._server.start(self._settings.listen_host, self._settings.control_port)
        self._control_address = f"{self._host}:{control_port}"
        try:
            async with asyncio.TaskGroup() as group:
                self._wire(group)
                self._duties.load()
                await self._membership.start(
                    self._control_address, dht_host=self._settings.listen_host, dht_port=self._settings.dht_port
                )
                await self._door.open(self._home.socket)
                tasks = [
                    group.create_task(work)
                    for work in (self._supervisor.run(), self._streams.run(), self._uploads.run(), self._tell(), self._watch())
                ]
                self._on_ready(self)
                await self._stop.wait()
                await self._leave()
                self._duties.stop()
                self._neighbours.stop()
                for task in tasks[1:]:
                    task.cancel()
                self._shards.stop()
        finally:
            await self._close()

    def request_stop(self, *, hand_over: bool) -> float:
        """Begins to stop; seconds within which it is done. A second call skips what is left of handing over."""
        if self._draining or not hand_over:
            self._hand_over = False
            self._drained.set()
        self._draining = True
        self._stop.set()
        return limits.DRAIN_TIMEOUT_S

    async def _leave(self) -> None:
        """Says that it leaves, takes last snapshots, brings them into the store; bounded by the drain time."""
        self._membership.update_self(capability=self._capability())
        self._streams.nudge()
        if self._hand_over and self._facts.alive and self._duties.hosted:
            await self._send(local_pb2.ToWorker(drain=local_pb2.WorkerDrain(within_s=limits.DRAIN_TIMEOUT_S / 2)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.DRAIN_TIMEOUT_S / 2):
                    await self._drained.wait()
            if self._hand_over:
                await self._uploads.flush(limits.DRAIN_TIMEOUT_S / 2, lambda: self._hand_over)
        await self._supervisor.stop(within_s=2.0)

    async def _close(self) -> None:
        await self._door.close()
        await self._membership.stop()
        await self._orchestrators.close()
        await self._server.stop(0.5)
        self._home.socket.unlink(missing_ok=True)

    # -- parts -----------------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        settings, home = self._settings, self._home
        random_bytes = secrets.token_bytes
        self._server = RpcServer(self._key, self._policy.network_id, clock=self._clock, rng=random_bytes)
        self._dialer = Dialer(self._key, self._policy.network_id, clock=self._clock, rng=random_bytes)
        self._orchestrators = Orchestrators(self._dialer, self._known_orchestrators)
        self._objects = ObjectClient(self._orchestrators, self._rule)
        self._cache = ObjectCache(self._objects, home.cache, max(1, self._allowed.disk_bytes // 2))
        self._shelf = Shelf(home.snapshots)
        self._budget = Budget(self._allowed)
        self._registry = default_registry()
        self._membership = Membership(
            key=self._key, policy=self._policy, kind=membership_pb2.NODE_KIND_PNODE, dialer=self._dialer, clock=self._clock, rng=self._rng,
            cache_path=home.contacts, bootstrap=self._bootstrap, incarnation=home.next_incarnation(self._clock.wall()),
        )  # fmt: skip
        self._membership.update_self(capability=self._capability(), software=SOFTWARE)
        self._standing = Standing(
            key=self._key,
            network_id=self._policy.network_id,
            membership=self._membership,
            host=self._host,
            send=self._send,
            clock=self._clock,
        )
        self._streams = ControlStreams(
            self._dialer, self._known_orchestrators, hello=self._hello, beat=self._beat, on_message=self._from_orchestrator,
            holder=lambda: self._duties.holder(), clock=self._clock, rng=self._rng,
        )  # fmt: skip
        self._supervisor = Supervisor(
            WorkerOptions(
                listen_host=settings.listen_host, data_port=settings.data_port, threads=threads_of(self._allowed), device=settings.limits.device,
                log_path=home.log / "worker.log", environment=self._environment,
            ),
            next_incarnation=lambda: home.next_incarnation(self._clock.wall()),
            on_up=self._worker_up, on_message=self._from_worker, on_down=self._worker_down,
        )  # fmt: skip
        self._door = LocalDoor(status=self.status, why=self.why, stop=lambda hand_over: self.request_stop(hand_over=hand_over))
        self._drained = asyncio.Event()
        self._control_address = ""

    def _wire(self, group: asyncio.TaskGroup) -> None:
        """The parts that own tasks of the run's group."""
        self._group = group
        self._duties = Duties(
            node_id=self._key.node_id, policy=lambda: self._policy, home=self._home,
            provisioner=Provisioner(policy=lambda: self._policy, registry=self._registry, fetch=self._cache.file, shelf=self._shelf),
            budget=self._budget, heads=HeadCheck(policy=lambda: self._policy, orchestrators=self._orchestrators, rule=self._rule),
            options=HostingOptions(
                threads=threads_of(self._allowed), cpu_share=self._allowed.cores / threads_of(self._allowed), spool_bytes=spool_bytes_of(self._allowed),
                free_disk_bytes=lambda: shutil.disk_usage(self._home.root).free, checkpoint_s=self._checkpoint_s(),
            ),
            send=self._send, hosted_changed=self._changed, say=self.journal.say, clock=self._clock, group=group,
        )  # fmt: skip
        self._uploads = Uploads(
            network_id=self._policy.network_id, shelf=self._shelf, objects=self._objects, orchestrators=self._orchestrators,
            holder=self._duties.holder, durable=self._durable, anew=self._snapshot_anew, say=self.journal.say, directory=self._home.cache,
        )  # fmt: skip
        self._neighbours = Neighbours(
            membership=self._membership, orchestrators=self._orchestrators, network_id=self._policy.network_id, wanted=self._duties.neighbours,
            send=self._send, clock=self._clock, say=self.journal.say, group=group,
        )  # fmt: skip
        self._shards = Shards(self._cache, send=self._send, journal=self.journal, group=group)

    def _register_membership(self, server: object) -> None:
        from dcnr.v1.membership_pb2_grpc import add_MembershipServiceServicer_to_server

        add_MembershipServiceServicer_to_server(self._membership.servicer, server)  # type: ignore[arg-type]

    # -- orchestrators ---------------------------------------------------------------------------------------------------------

    def _known_orchestrators(self) -> list[tuple[NodeId, Sequence[str]]]:
        listed = self._policy.orchestrator_ids
        return [(a.node_id, tuple(a.advert.control_addresses)) for a in self._membership.orchestrators() if a.node_id in listed]

    async def _from_orchestrator(self, node_id: NodeId, message: orchestrator_pb2.OrchestratorMessage) -> None:
        match message.WhichOneof("kind"):
            case "desired":
                await self._duties.desired_received(message.desired)
                await self._neighbours.refresh()
            case "head":
                try:
                    if message.head.head_url and message.head.HasField("head"):
                        self._duties.head_granted(message.head)
                except DcnrError as error:
                    self.journal.say("head_grant_refused", node_id, error.message)
                await self._duties.head_received(message.head.head, Source.ORCHESTRATOR)
            case "durable":
                for checkpoint in message.durable.checkpoints:
                    await self._durable(checkpoint.replica, checkpoint.lineage, checkpoint.digest)
            case "welcome":
                self._reachable = "direct" if message.welcome.reachable else "not"
                self.journal.say("attached", node_id, f"as {self._state_name(message.welcome.state)}")

    def _hello(self) -> orchestrator_pb2.Hello:
        _, _, desired = self._duties.term()
        return orchestrator_pb2.Hello(
            advert=self._membership.own_advert, heads=self._duties.heads_seen(), protocol=common_pb2.ProtocolRange(min=1, max=1),
            desired_sequence=desired.sequence if desired is not None else 0,
        )  # fmt: skip

    def _beat(self, sequence: int) -> orchestrator_pb2.Beat:
        _, _, desired = self._duties.term()
        return orchestrator_pb2.Beat(
            sequence=sequence, desired_sequence=desired.sequence if desired is not None else 0,
            plan_digest=desired.plan_digest if desired is not None else "", replicas=self._reports(), evidence=self._neighbours.evidence(),
            capability=self._capability(), free_memory_bytes=max(0, self._budget.free_memory_bytes), draining=self._draining,
            worker_alive=self._facts.alive, worker_reason=self._facts.reason, incarnation=self._facts.incarnation,
            events=self.journal.since(0)[-16:], advert=self._membership.own_advert,
        )  # fmt: skip

    # -- worker ----------------------------------------------------------------------------------------------------------------

    async def _worker_up(self, worker: Worker) -> None:
        self._shelf.sweep(self._home.work)
        self._facts = WorkerFacts(pid=worker.pid, incarnation=worker.incarnation, device=worker.hello.device, reason="")
        await self._standing.begin(worker)
        self._membership.update_self(capability=self._capability())
        self._neighbours.worker_up()
        self.journal.say("worker_started", self._key.node_id, f"incarnation {worker.incarnation} on {worker.hello.device or 'cpu'}")
        await self._duties.worker_up()
        await self._neighbours.refresh()

    async def _worker_down(self, reason: str) -> None:
        self._facts = WorkerFacts(reason=reason or "the worker ended")
        self._standing.end()
        self._duties.worker_down(self._facts.reason)
        self.journal.say("worker_ended", self._key.node_id, self._facts.reason)
        if self._draining:
            self._drained.set()
        self._changed()

    async def _from_worker(self, worker: Worker, message: local_pb2.FromWorker) -> None:
        match message.WhichOneof("kind"):
            case "report":
                self._worker_reported(message.report)
            case "snapshot":
                self._uploads.added(message.snapshot)
            case "lost":
                self._neighbours.lost(message.lost)
                self._changed()
            case "shards":
                self._shards.wanted(message.shards)
            case "event":
                self.journal.add(message.event)
            case "drained":
                self._drained.set()

    def _worker_reported(self, report: local_pb2.WorkerReport) -> None:
        before = {name: (item.state, item.durable.ByteSize()) for name, item in self._facts.replicas.items()}
        self._facts.replicas = {item.replica: item for item in report.replicas}
        self._facts.rss_bytes = int(report.rss_bytes)
        self._neighbours.reached({item.pnode_id for item in report.evidence})
        for item in report.replicas:
            self._duties.worker_reported(item)
        after = {name: (item.state, item.durable.ByteSize()) for name, item in self._facts.replicas.items()}
        num_batches = [int(item.num_learned) for item in report.replicas]
        if before != after or (num_batches != self._last_learned and any(item.exits for item in report.replicas)):
            self._changed()
        self._last_learned = num_batches

    _last_learned: list[int] = []  # noqa: RUF012  replaced, never changed

    async def _send(self, message: local_pb2.ToWorker) -> bool:
        worker = self._supervisor.worker
        if worker is None:
            return False
        try:
            await worker.pipe.send(message)
        except DcnrError:
            return False
        return True

    async def _durable(self, replica: str, lineage: common_pb2.IntervalSet, digest: str) -> None:
        await self._send(local_pb2.ToWorker(durable=local_pb2.WorkerDurable(replica=replica, lineage=lineage, digest=digest)))

    async def _snapshot_anew(self, replica: str, reason: str) -> None:
        await self._send(local_pb2.ToWorker(snapshot=local_pb2.Snapshot(replica=replica, reason=reason)))

    # -- objects ---------------------------------------------------------------------------------------------------------------

    def _rule(self) -> AddressRule:
        document = self._policy.document
        return AddressRule(
            stores=(f"{document.store_scheme or 'https'}://{document.store_address}",), data_hosts=tuple(document.data_hosts)
        )

    # -- telling ---------------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._news.set()

    async def _tell(self) -> None:
        """Sends news at once, but not more often than every `NEWS_S`."""
        while True:
            await self._news.wait()
            await asyncio.sleep(NEWS_S)
            self._news.clear()
            self._streams.nudge()

    async def _watch(self) -> None:
        """Keeps neighbours and locations fresh, renews the delegation at half its life."""
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._neighbours.refresh()
            await self._standing.keep(self._duties.hosted)

    def _reports(self) -> list[orchestrator_pb2.ReplicaReport]:
        reports = []
        for item in self._duties.hosted:
            known = self._facts.replicas.get(item.assignment.replica)
            report = orchestrator_pb2.ReplicaReport()
            if known is not None:
                report.CopyFrom(known)
            if known is None or item.task is not None or item.state == orchestrator_pb2.ASSIGNMENT_STATE_FAILED:
                report.replica, report.vnode = item.assignment.replica, item.assignment.vnode
                report.state, report.reason, report.incarnation = item.state, item.reason, self._facts.incarnation
            reports.append(report)
        return reports

    def why(self) -> list[local_pb2.WhyLine]:
        """Reasons for the present state."""
        return why(
            draining=self._draining, attached=len(self._streams.attached), known_orchestrators=len(self._known_orchestrators()),
            membership_trouble=self._membership.trouble, worker=self._facts, hosted=self._reports(), upload_trouble=self._uploads.trouble,
            capability=self._capability(),
        )  # fmt: skip

    def status(self) -> local_pb2.StatusResponse:
        """One screen that tells all."""
        lines = self.why()
        _, term, _ = self._duties.term()
        worker = self._supervisor.worker
        import os

        return local_pb2.StatusResponse(
            node_id=self._key.node_id, network_id=self._policy.network_id, network_name=self._policy.document.name, software=SOFTWARE,
            uptime_s=self._clock.monotonic() - self._started, state=state_of(lines), reason=lines[0].reason, next_action=lines[0].change,
            orchestrators=self._streams.contacts(), num_known=len(self._membership.members()), reachable=self._reachable,
            capability=self._capability(), replicas=self._reports(), memory_bytes=self._facts.rss_bytes, disk_bytes=self._home.disk_bytes(),
            epoch=term.epoch if term else 0, holder=term.holder if term else "", control_address=self._control_address,
            dht_address=self._membership.dht_address, incarnation=self._facts.incarnation, locality=self._policy.document.locality,
            pid=os.getpid(), worker_pid=worker.pid if worker else 0, dht_lookups=self._membership.dht_lookups,
            events=self.journal.since(0, 64),
        )  # fmt: skip

    _reachable = "unknown"

    # -- facts -----------------------------------------------------------------------------------------------------------------

    def _capability(self) -> membership_pb2.Capability:
        return capability_of(self._allowed, self._budget, self._machine, device=self._facts.device, accepts_work=not self._draining)

    def _checkpoint_s(self) -> float:
        return 0.0 if self._settings.checkpoint_s == limits.CHECKPOINT_S else self._settings.checkpoint_s

    def _state_name(self, state: int) -> str:
        return orchestrator_pb2.NodeState.Name(state).removeprefix("NODE_STATE_").lower()  # type: ignore[arg-type]

    def _log_event(self, event: common_pb2.Event) -> None:
        _log.info(event.kind, subject=event.subject, reason=event.reason)
