"""The volunteer's daemon: holds the node key, finds the network, takes desired states, and supervises the worker. No torch; always answers.

Everything that decides lives in the modules this one wires together; here are the order of start and stop and the paths between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence

import structlog

from dataservice.addresses import AddressRule
from dataservice.objects import ObjectClient
from dcnr import limits
from dcnr.client import Orchestrators
from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.logs import name_node, vnode_in
from dcnr.ports import Clock, Random
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.settings import PNodeSettings
from dcnr.specs import Registry
from dcnr.v1 import common_pb2, identity_pb2, local_pb2, membership_pb2, orchestrator_pb2
from dcnr.v1.membership_pb2_grpc import add_MembershipServiceServicer_to_server
from membership.node import Membership
from membership.relays import RelayDialer
from pnode.audits import Asked, Audits
from pnode.authority import Source
from pnode.budget import Budget
from pnode.cache import ObjectCache, Shards
from pnode.control import ControlStreams, attached_first
from pnode.delegated import Delegated
from pnode.duties import Duties
from pnode.gifts import Gifts
from pnode.halts import Halts
from pnode.headcheck import HeadCheck
from pnode.hearing import Hearing
from pnode.home import Home
from pnode.lent import advertised_host, free_for, limits_of, listened_host, options_of, rule_of, threads_of
from pnode.line import Line
from pnode.local import LocalDoor, Owner
from pnode.neighbours import Neighbours
from pnode.passing import Passing
from pnode.pausing import Pausing
from pnode.probe import Machine
from pnode.provision import Provisioner
from pnode.reaching import Outside, Reaching
from pnode.reasons import SOFTWARE, Journal, WorkerFacts, state_name
from pnode.relaying import Relaying
from pnode.seat_duties import Around, SeatDuties
from pnode.snapshots import Shelf
from pnode.supervisor import WORKER, Start, Supervisor, Worker, WorkerOptions
from pnode.telling import Condition, Telling
from pnode.uploads import Uploads
from pnode.waking import Gaps
from trust.identity import NodeKey
from trust.in_force import Amended, InForce
from trust.network import NetworkPolicy

NEWS_S = 0.05
"""News within this time goes out in one beat."""
REFRESH_S = 1.0
DRAINED_GRACE_S = 0.5
"""The worker says that it has handed over, or that its time is up, a moment later."""
LAST_UPLOADS_S = 5.0
"""Of the time to leave, what is kept for uploads after the worker is done; they have all that it leaves."""
_log = structlog.get_logger("pnode")


class Daemon:
    """One run of a PNode. `run` returns when it was stopped."""

    def __init__(
        self, settings: PNodeSettings, home: Home, *, key: NodeKey, network: InForce, machine: Machine, clock: Clock, rng: Random,
        environment: Mapping[str, str], bootstrap: Sequence[str], registry: Registry, incarnation: int,
        on_ready: Callable[[Daemon], None] = lambda daemon: None, settings_shown: Sequence[local_pb2.Setting] = (),
        owner: identity_pb2.Envelope | None = None, worker: Start = WORKER,
    ) -> None:  # fmt: skip
        self._settings, self._home, self._key, self._network, self._start_worker = settings, home, key, network, worker
        self._present: Callable[[], NetworkPolicy] = lambda: network.policy
        self._rule: Callable[[], AddressRule] = lambda: rule_of(network.policy.document)
        self._machine, self._clock, self._rng, self._environment, self._owner = machine, clock, rng, environment, owner
        self._bootstrap, self._on_ready, self._settings_shown, self._registry = bootstrap, on_ready, settings_shown, registry
        self._incarnation = incarnation
        self._now = Condition(clock.monotonic(), settings.outbound_only)
        self._stop, self._news, self._drained = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._hand_over, self._gaps, self._pausing = True, Gaps(), Pausing(home.paused, clock)
        self._job_of: Callable[[str], str] = lambda _: ""
        self.journal = Journal(clock, key.node_id, self._log_event)
        self._allowed = limits_of(settings, machine)
        self._build()

    # -- life ------------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Starts everything, serves until `request_stop`, hands over, and leaves no process behind."""
        name_node(self._key.node_id)
        if (remarks := await self._shelf.loaded(self._stop)) is None:
            return
        for remark in remarks:
            self.journal.say("snapshot_damaged", self._key.node_id, remark)
        self._server.add(lambda server: add_MembershipServiceServicer_to_server(self._membership.servicer, server))
        control_port = await self._server.start(listened_host(self._settings), self._settings.control_port)
        self._now.control_address = self._reaching.control_address(control_port)
        try:
            async with asyncio.TaskGroup() as group:
                self._wire(group)
                self._duties.load()
                await self._membership.start(self._now.control_address, dht_host=self._settings.listen_host, dht_port=self._settings.dht_port)  # fmt: skip
                await self._door.open(self._home.socket)
                works = (
                    self._supervisor.run(), self._streams.run(), self._uploads.run(), self._tell(), self._watch(), self._halts.run(),
                    self._audits.run(), self._seats.run(), self._telling.diary(self._home.diary).run(), self._reaching.run(control_port),
                )  # fmt: skip
                tasks = [group.create_task(work) for work in works]
                self._on_ready(self)
                await self._stop.wait()
                await self._leave()
                await asyncio.wait(tasks[:1])  # what the worker said last is heard until then, and may begin something
                for stop in (self._duties.stop, self._audits.stop, self._seats.stop, self._neighbours.stop, self._shards.stop):
                    stop()
                for task in tasks[1:]:
                    task.cancel()
        finally:
            await self._close()

    def request_stop(self, *, hand_over: bool) -> float:
        """Begins to stop; seconds within which it is done. A second call skips what is left of handing over."""
        if self._now.draining or not hand_over:
            self._hand_over = False
            self._drained.set()
        self._now.draining = True
        self._stop.set()
        return limits.DRAIN_TIMEOUT_S

    def hang_up(self) -> None:
        """The terminal is gone: as the first `request_stop`. Shell and system both say so, and nobody there has lost patience."""
        if not self._now.draining:
            self.request_stop(hand_over=True)

    async def _leave(self) -> None:
        """Says that it leaves, hands everything over, brings what is left into the store; bounded by the drain time."""
        until_s = self._clock.monotonic() + limits.DRAIN_TIMEOUT_S
        if self._hand_over:
            await self._hand_all_over(limits.DRAIN_TIMEOUT_S - LAST_UPLOADS_S)
        if self._hand_over:
            await self._uploads.flush(max(LAST_UPLOADS_S, until_s - self._clock.monotonic()), lambda: self._hand_over)
        await self._supervisor.stop(within_s=2.0)

    async def _hand_all_over(self, within_s: float) -> None:
        """Tells everybody that this machine takes no work; replicas end when others have what they have, or when the time is up."""
        self._membership.update_self(capability=self._telling.capability())
        self._streams.nudge()
        drain = self._line.drain(within_s)
        if not self._now.worker.alive or not self._duties.hosted:
            return
        self._drained.clear()
        await self._send(local_pb2.ToWorker(drain=drain))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s + DRAINED_GRACE_S):
                await self._drained.wait()

    def _tell_capability(self, kind: str, reason: str) -> None:
        self.journal.say(kind, self._key.node_id, reason)
        self._membership.update_self(capability=self._telling.capability())
        self._streams.nudge()

    async def _close(self) -> None:
        await self._door.close()
        await self._membership.stop()
        await self._bulk.close()
        await self._orchestrators.close()
        await self._server.stop(0.5)
        with contextlib.suppress(OSError):  # the disk may be gone by now
            self._home.socket.unlink(missing_ok=True)

    # -- parts -----------------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        settings, home, allowed, random_bytes = self._settings, self._home, self._allowed, secrets.token_bytes
        self._server = RpcServer(self._key, self._present().network_id, clock=self._clock, rng=random_bytes)
        self._dialer = Dialer(self._key, self._present().network_id, clock=self._clock, rng=random_bytes)
        self._orchestrators = Orchestrators(self._dialer, self._known_orchestrators)
        bulk = Dialer(self._key, self._present().network_id, clock=self._clock, rng=random_bytes, own_connections=True)
        self._bulk = Orchestrators(bulk, lambda: attached_first(self._known_orchestrators(), self._streams.attached))
        self._line = Line(
            settings.limits, self._clock, hosted=lambda: self._duties.hosted, leaves=lambda: self._now.is_leaving,
            unnamed=lambda: self._uploads.unnamed(), tell=self._tell_capability,
        )  # fmt: skip
        self._objects = ObjectClient(self._bulk, self._rule, up=self._line.up, down=self._line.down, sent=self._line.sent)
        self._cache = ObjectCache(self._objects, home.cache, allowed.cache_bytes, free_bytes=free_for(home.root, allowed))
        self._shelf, self._budget = Shelf(home.snapshots), Budget(allowed)
        self._membership = Membership(
            key=self._key, network=self._network, kind=membership_pb2.NODE_KIND_PNODE, dialer=self._dialer, clock=self._clock, rng=self._rng,
            cache_path=home.contacts, bootstrap=self._bootstrap, incarnation=self._incarnation,
        )  # fmt: skip
        self._reaching = Reaching(Outside(
            lambda: advertised_host(settings, self._bootstrap, single_host=self._present().single_host), self._present().single_host, self._now,
            self._orchestrators, self._membership, lambda: self._delegated, lambda: self._relaying.refresh(), self.journal.say, self._clock, self._rng,
        ))  # fmt: skip
        self._membership.update_self(software=SOFTWARE, owner=self._owner, public_name=settings.name, **self._reaching.at_first)
        self._passing = Passing(
            settings.limits.relay_mbit, self._membership, self._present, self._now, self._clock, tell=self._tell_capability,
            may_now=lambda: self._telling.capability().accepts_work and self._reaching.is_reached,
        )  # fmt: skip
        self._relaying = Relaying(self._known_orchestrators, self._passing.others, self._send, listen=self._reaching.needs_relays)
        self._delegated = Delegated(
            key=self._key, network_id=self._present().network_id, membership=self._membership, host=lambda: self._reaching.data_host,
            near_host=lambda: self._reaching.near_host, send=self._send, clock=self._clock,
        )  # fmt: skip
        self._streams = ControlStreams(
            self._dialer, self._known_orchestrators, hello=lambda: self._telling.hello(), beat=lambda sequence: self._telling.beat(sequence),
            on_message=self._from_orchestrator, holders=lambda: self._duties.holders(), clock=self._clock, rng=self._rng,
        )  # fmt: skip
        self._supervisor = Supervisor(
            WorkerOptions(
                listen_host=listened_host(settings), data_port=settings.data_port, threads=threads_of(self._allowed), device=settings.limits.device,
                log_path=home.log / "worker.log", environment=self._environment, start=self._start_worker, tracing=settings.tracing,
                components=settings.components,
            ),
            next_incarnation=lambda: home.next_incarnation(self._clock.wall()),
            on_up=self._worker_up, on_message=lambda worker, message: self._hearing.heard(message), on_down=self._worker_down,
        )  # fmt: skip
        self._halts = Halts(self._pausing, self._supervisor, self._now, hand_over=self._hand_all_over, tell=self._tell_capability)
        self._door = LocalDoor(
            status=self.status, why=lambda: self._telling.why(), stop=lambda hand_over: self.request_stop(hand_over=hand_over),
            owner=Owner(self._halts.pause, self._halts.resume, self._settings_shown),
        )  # fmt: skip

    def _wire(self, group: asyncio.TaskGroup) -> None:
        """The parts that own tasks of the run's group."""
        self._group = group
        dialer = RelayDialer(self._dialer, self._bulk)
        gifts = Gifts(dialer, self._present().network_id, self._key.node_id, self._membership.find, self._cache)
        provisioner = Provisioner(
            policy=self._present, registry=self._registry, fetch=self._cache.file, shelf=self._shelf, donated=gifts.state,
        )  # fmt: skip
        options = options_of(self._settings, self._allowed, self._home, lambda: self._line.exchange_bytes_s)
        self._duties = Duties(
            node_id=self._key.node_id, policy=self._present, home=self._home, provisioner=provisioner, budget=self._budget,
            heads=HeadCheck(policy=self._present, orchestrators=self._orchestrators, rule=self._rule), options=options,
            send=self._send, hosted_changed=self._news.set, say=self.journal.say, clock=self._clock, group=group, resting=lambda: self._telling.resting(),
        )  # fmt: skip
        self._job_of = self._duties.job_of
        asked = Asked(
            self._key.node_id, self._present, self._home, self._objects, self._cache.file, self._duties, self._send, self._streams.say,
            self.journal.say, self._membership.network_time,
        )  # fmt: skip
        self._audits = Audits(asked, provisioner, self._budget, options, lambda: self._telling.takes_no_work(), group)
        self._uploads = Uploads(
            network_id=self._present().network_id, shelf=self._shelf, orchestrators=self._orchestrators, moved=lambda: self._line.up.num_bytes,
            objects=ObjectClient(self._bulk, self._rule, up=self._line.up, held=self._line.held, sent=self._line.sent),
            holder=self._duties.holder, durable=self._durable, anew=self._snapshot_anew, say=self.journal.say, directory=self._home.cache,
        )  # fmt: skip
        self._neighbours = Neighbours(
            membership=self._membership, orchestrators=self._orchestrators, network_id=self._present().network_id, wanted=self._duties.neighbours,
            send=self._send, clock=self._clock, say=self.journal.say, group=group,
        )  # fmt: skip
        around = Around(
            self._present, self._cache.file, provisioner, self._budget, options, self._duties, lambda: self._delegated.delegation,
            lambda: self._telling.takes_no_work(), self._send, self._news.set, self.journal.say, self._clock,
        )  # fmt: skip
        self._seats = SeatDuties(around, group)
        self._shards = Shards(self._cache, send=self._send, journal=self.journal, group=group, resting=lambda: self._telling.resting())  # fmt: skip
        self._telling = Telling(
            self._key.node_id, self._present, self._machine, self._clock, self._now, self._known_orchestrators, self._membership,
            self._budget, self._duties, self._neighbours, self._streams, self._uploads, self._pausing, self.journal, self._seats,
            self._line, self._settings.name, self._registry,
        )  # fmt: skip
        self._hearing = Hearing(
            self._now, self._duties, self._neighbours, self._uploads, self._shards, self._audits, self._seats, self.journal, self._drained,
            self._news.set, self._clock,
        )  # fmt: skip
        self._membership.update_self(capability=self._telling.capability())
        self._network.follow(self._amended)

    # -- orchestrators ---------------------------------------------------------------------------------------------------------

    def _known_orchestrators(self) -> list[tuple[NodeId, Sequence[str]]]:
        known, listed = self._membership.orchestrators(), self._present().orchestrator_ids
        return [(one.node_id, tuple(one.advert.control_addresses)) for one in known if one.node_id in listed]

    def _amended(self, amended: Amended) -> None:
        self.journal.say("network_amended", self._key.node_id, str(amended))
        if amended.before.orchestrator_ids != amended.now.orchestrator_ids:
            self._streams.renew()

    async def _from_orchestrator(self, node_id: NodeId, message: orchestrator_pb2.OrchestratorMessage) -> None:
        if not self._present().is_orchestrator(node_id):
            return
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
                self._streams.told(node_id, await self._duties.head_received(message.head.head, Source.ORCHESTRATOR))
            case "durable":
                await self._uploads.heard(message.durable)
                for checkpoint in message.durable.checkpoints:
                    for replica in self._duties.siblings_of(message.durable.model, checkpoint):
                        await self._durable(replica, checkpoint.lineage, checkpoint.digest)
            case "audit_task" | "challenge":
                await self._audits.asked(node_id, message)
            case "seats":
                self._seats.wished(node_id, message.seats)
            case "welcome":
                self._reaching.welcomed(node_id, message.welcome)
                self.journal.say("attached", node_id, f"as {state_name(message.welcome.state)}")

    # -- worker ----------------------------------------------------------------------------------------------------------------

    async def _worker_up(self, worker: Worker) -> None:
        await asyncio.to_thread(self._shelf.sweep, self._home.work)
        self._now.worker, hello = WorkerFacts.of(worker.pid, worker.incarnation, worker.hello), worker.hello
        self._budget.computes_on(accelerator_bytes=hello.memory_bytes, runtime_bytes=hello.runtime_bytes)
        await self._delegated.begin(worker)
        self._membership.update_self(capability=self._telling.capability())
        self._neighbours.worker_up()
        await self._relaying.worker_up()
        self.journal.say("worker_started", self._key.node_id, f"incarnation {worker.incarnation} on {hello.device or 'cpu'}")
        await self._seats.worker_up()
        await self._duties.worker_up()
        await self._neighbours.refresh()

    async def _worker_down(self, reason: str) -> None:
        self._now.worker = WorkerFacts(reason=reason or "the worker ended", last_words=self._supervisor.last_words)
        self._delegated.end()
        self._duties.worker_down(self._now.worker.reason)
        self._audits.worker_down(self._now.worker.reason)
        self._seats.worker_down()
        self._shards.worker_down()
        self.journal.say("worker_ended", self._key.node_id, self._now.worker.reason)
        self._drained.set()
        self._news.set()

    async def _send(self, message: local_pb2.ToWorker) -> bool:
        worker = self._supervisor.worker
        if worker is None or worker.pid != self._now.worker.pid:
            return False  # none, or one that must hear first for whom it acts: anything else would end it
        message.network_time_offset_s = self._membership.network_time() - self._clock.wall()
        with contextlib.suppress(DcnrError):
            await worker.pipe.send(message)
            return True
        return False

    async def _durable(self, replica: str, lineage: common_pb2.IntervalSet, digest: str) -> None:
        await self._send(local_pb2.ToWorker(durable=local_pb2.WorkerDurable(replica=replica, lineage=lineage, digest=digest)))

    async def _snapshot_anew(self, replica: str, reason: str) -> None:
        await self._send(local_pb2.ToWorker(snapshot=local_pb2.Snapshot(replica=replica, reason=reason)))

    # -- telling ---------------------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        """Sends news at once, but not more often than every `NEWS_S`."""
        while True:
            await self._news.wait()
            await asyncio.sleep(NEWS_S)
            self._news.clear()
            self._streams.nudge()

    async def _watch(self) -> None:
        """Keeps neighbours fresh; beside that, which may take long, measures the disk, keeps delegation and locations, and notices that this machine slept."""
        async with asyncio.TaskGroup() as beside:
            beside.create_task(self._woke_up())
            beside.create_task(self._delegated.run(lambda: self._duties.hosted))
            beside.create_task(self._telling.disk(self._home.disk_bytes))
            while True:
                await asyncio.sleep(REFRESH_S)
                self._passing.review()
                if self._line.review() or self._duties.may_grow:
                    self._group.create_task(self._duties.reconcile())
                await asyncio.gather(self._relaying.refresh(), self._neighbours.refresh())

    async def _woke_up(self) -> None:
        """Others may have taken a machine that slept for gone: it says that it is here, on new streams, and hears what it is still to do."""
        while True:
            await asyncio.sleep(REFRESH_S)
            if stood_s := self._gaps.look(self._clock.monotonic(), self._clock.wall()):
                self.journal.say("woke_up", self._key.node_id, f"this machine stood still for {stood_s:.0f} s")
                self._streams.renew()
                await self._delegated.woke_up()

    def status(self) -> local_pb2.StatusResponse:
        """One screen that tells all."""
        return self._telling.status()

    def _log_event(self, event: common_pb2.Event) -> None:
        where = vnode_in(event.kind, event.subject)
        job = self._job_of(where["replica"]) if "replica" in where else ""
        _log.info(event.kind, subject=event.subject, reason=event.reason, **where, **({"job": job} if job else {}))
