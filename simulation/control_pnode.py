"""A PNode of the control world: the real duties, authority, head check, budget and provisioner on a disk in memory; the worker is a model whose
lineages grow with time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from dataservice import keys
from dataservice.addresses import AddressRule
from dcnr import limits
from dcnr.errors import Corrupt, DcnrError, Unavailable
from dcnr.ids import NodeId, digest_of
from dcnr.v1 import data_pb2, identity_pb2, membership_pb2, orchestrator_pb2
from pnode.authority import Source
from pnode.budget import Budget, Limits
from pnode.duties import Duties
from pnode.headcheck import HeadCheck
from pnode.home import Home
from pnode.orders import HostingOptions
from pnode.provision import Provisioner
from pnode.told_heads import ToldHeads
from simulation.control_confirming import KnownOrchestrators
from simulation.control_disk import Disk, SimPath
from simulation.control_identity import MODEL, STORE_ADDRESS
from simulation.control_loop import ProcessLoop
from simulation.control_store import StoreClient
from simulation.control_worker import Snapshot, WorkerModel
from simulation.kernel import Process
from simulation.network import Stream
from trust.delegation import make_delegation
from trust.records import make_advert

if TYPE_CHECKING:
    from simulation.control_orchestrator import ControlEnd
    from simulation.control_world import ControlWorld

ATTACHED: Final = 2
TICK_S: Final = 0.5
NEWS_S: Final = 0.05
"""News of one moment go out together."""
MIB: Final = 1024 * 1024


class StreamEnd:
    """This PNode's end of a control stream."""

    def __init__(self, pnode: PNodeShell, orchestrator: NodeId) -> None:
        self._pnode, self.orchestrator = pnode, orchestrator
        self._loop = pnode.loop
        self.stream: Stream | None = None
        self.attached = False
        self.over = False
        self.heard_s = self._loop.time()
        self.interval_s = limits.HEARTBEAT_S
        self.due_s = 0.0
        self.sequence = 0
        self.sent_s: dict[int, float] = {}

    def on_message(self, data: bytes) -> None:
        """From the orchestrator."""
        self._loop.deliver(self._pnode.arrived, self, data)

    def on_broken(self) -> None:
        """The stream is over."""
        self.over = True

    def renew(self, holder: NodeId) -> None:
        """It is opened anew, and one to who signed what it told."""
        self._pnode.goes_on |= {self.orchestrator, holder}
        if self.stream is not None and not self.over:
            self.over = True
            self.stream.close(0)


class PNodeShell:
    """One PNode through all its lives."""

    def __init__(self, world: ControlWorld, index: int) -> None:
        self.world, self.index = world, index
        self.key = world.keyring.key(f"pnode-{index}")
        self.worker_key = world.keyring.key(f"worker-{index}")
        self.host = f"pnode-{index}"
        self.rng = world.kernel.rng(self.host)
        self.disk = Disk(self)
        self.shelf: list[Snapshot] = []
        self.named: dict[str, Snapshot] = {}
        self.gflops = self.rng.choice([1.0, 2.0, 4.0, 8.0])
        self.factor = self.rng.uniform(0.7, 1.4)
        self.cheats = index >= world.knobs.num_pnodes - world.knobs.cheating_pnodes
        self.lives = 0
        self.incarnation = 0
        listed = [key.node_id for key in world.community.orchestrators]
        self._listed = listed[index % len(listed) :] + listed[: index % len(listed)]
        self.start()

    @property
    def node_id(self) -> NodeId:
        """Who it is."""
        return self.key.node_id

    def orchestrators(self) -> list[NodeId]:
        """Listed orchestrators in an order of its own."""
        return self._listed

    # -- lives -----------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new life on whatever the disk holds."""
        world = self.world
        self.lives += 1
        self.process = Process(world.kernel, self.host)
        self.loop = ProcessLoop(world.kernel, self.process, world.failed, world.clocks.rate(self.host))
        self.clock = world.clocks.begin(self.host, 500.0 * self.lives + self.index)
        self.store = self.loop.store = StoreClient(world, self.process)
        self.ends: dict[NodeId, StreamEnd] = {}
        self.again_s: dict[NodeId, float] = {}
        self.told: dict[NodeId, ToldHeads] = {}
        self.goes_on = set[NodeId]()
        self.draining = False
        self._has_news = False
        self._said: tuple[tuple[object, ...], orchestrator_pb2.PNodeMessage] | None = None
        self.home = Home(SimPath(self.disk, "home"))  # type: ignore[arg-type]
        self.worker = self.make_worker()
        self.loop.spawn(self._run())

    def make_worker(self) -> WorkerModel:
        """The worker of a new life."""
        return WorkerModel(self)

    def crash(self, *, keep_disk: bool) -> None:
        """The machine dies."""
        self.process.kill()
        self.loop.bury()
        self.world.network.lose(self.process, silently=self.rng.random() < 0.5)
        if not keep_disk:
            self.disk.clear()
            self.shelf.clear()
            self.named.clear()
        self.world.checkers.died(self, kept_disk=keep_disk)

    def next_incarnation(self) -> int:
        """As the home directory counts them."""
        last = int(self.disk.get("home/incarnation", b"0"))
        self.incarnation = max(last + 1, int(self.clock.wall()))
        self.disk["home/incarnation"] = str(self.incarnation).encode()
        return self.incarnation

    async def _run(self) -> None:
        community = self.world.community
        allowed = Limits(4.0, 256 * MIB + self.world.knobs.vnodes_per_node * 64 * MIB, 64 * 1024 * MIB, 0)
        self.budget = Budget(allowed)
        self.allowed = allowed
        self._inbox: asyncio.Queue[tuple[NodeId, bytes, orchestrator_pb2.OrchestratorMessage]] = asyncio.Queue(256)
        async with asyncio.TaskGroup() as group:
            known: Any = KnownOrchestrators(self)
            shelf: Any = self.worker
            fetch: Any = self._fetch
            rule = AddressRule(stores=(f"http://{STORE_ADDRESS}",))
            self.heads = HeadCheck(policy=lambda: community.policy, orchestrators=known, rule=lambda: rule)
            self.duties = Duties(
                node_id=self.node_id, policy=lambda: community.policy, home=self.home,
                provisioner=Provisioner(policy=lambda: community.policy, registry=community.registry, fetch=fetch, shelf=shelf),
                budget=self.budget, heads=self.heads,
                options=HostingOptions(threads=1, spool_bytes=limits.SPOOL_BYTES, free_disk_bytes=lambda: 1 << 40),
                send=self.worker.receive, hosted_changed=self.tell, say=self._say, clock=self.clock, group=group,
            )  # fmt: skip
            self.duties.load()
            group.create_task(self._read_inbox())
            group.create_task(self.worker.bring())
            self.loop.later(self.rng.random(), self._tick)
            await self.worker.start()

    def make_delegation(self, incarnation: int | None = None) -> identity_pb2.Envelope:
        """Binds the worker's key to this PNode: to its life of that number, the present one without it."""
        number = self.incarnation if incarnation is None else incarnation
        return make_delegation(
            self.key, self.world.community.policy.network_id, self.worker_key.public_der, number, ["127.0.0.1:2"], self.clock.wall()
        )

    def tell(self) -> None:
        """There is news: beat at once on every stream."""
        if not self._has_news and self.process.alive:
            self._has_news = True
            self.loop.later(NEWS_S, self._beat_news)

    def _beat_news(self) -> None:
        self._has_news = False
        for end in list(self.ends.values()):
            self._maybe_beat(end, news=True)

    def _say(self, kind: str, subject: str, reason: str) -> None:
        self.world.checkers.said(self.node_id, kind, subject, reason, {})

    async def _fetch(self, ref: data_pb2.ObjectRef, max_bytes: int) -> SimPath:
        """An object by grant, verified by its digest, on this disk."""
        key = {
            data_pb2.OBJECT_KIND_JOB_REQUEST: lambda: keys.job_request(MODEL, ref.owner),
            data_pb2.OBJECT_KIND_GRAPH: lambda: keys.graph(ref.digest),
            data_pb2.OBJECT_KIND_MANIFEST: lambda: keys.manifest(MODEL, ref.digest),
            data_pb2.OBJECT_KIND_STATE: lambda: keys.state(MODEL, ref.owner, ref.digest),
        }.get(ref.kind, lambda: "")()
        path = SimPath(self.disk, f"home/cache/{ref.digest}")
        if path.path in self.disk or not key:
            if path.path not in self.disk:
                self.disk[path.path] = b""
            return path
        data = (await self.store.get(key, max_bytes=max_bytes)).data
        if digest_of(data) != ref.digest:
            raise Corrupt(f"{key} does not have its digest", code="wrong_digest")
        self.disk[path.path] = data
        return path

    # -- control streams -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._review()
        now = self.loop.time()
        for end in list(self.ends.values()):
            if now >= end.due_s:
                self._maybe_beat(end, news=False)
        self.loop.later(TICK_S, self._tick)

    def _review(self) -> None:
        now, holder = self.loop.time(), self.duties.holder()
        for node_id, end in list(self.ends.items()):
            silent = now - end.heard_s > limits.SILENT_BEATS * end.interval_s
            if silent and not end.over and end.stream is not None:
                end.stream.close(0)
            if end.over or silent:
                del self.ends[node_id]
                self.again_s[node_id] = now + self.rng.uniform(0.25, 2.0)
        self.goes_on.difference_update(self.ends)
        if len(self.ends) >= ATTACHED and (holder is None or holder in self.ends) and not self.goes_on:
            return
        wanted = sorted({*self.goes_on, *([holder] if holder is not None else [])}.difference(self.ends))
        others = [node_id for node_id in self.orchestrators() if node_id not in self.ends and node_id not in wanted]
        room = ATTACHED - len(self.ends) - len(wanted)
        ready = [node_id for node_id in others if now >= self.again_s.get(node_id, 0.0)]
        wanted.extend(self.rng.sample(ready, max(0, min(room, len(ready)))))
        for node_id in wanted:
            if now >= self.again_s.get(node_id, 0.0):
                self._open(node_id)

    def _open(self, node_id: NodeId) -> None:
        shell = self.world.orchestrator(node_id)
        end = StreamEnd(self, node_id)
        other: ControlEnd = shell.accept()
        stream = self.world.network.connect((self.process, shell.process), (end, other))
        if stream is None:
            self.again_s[node_id] = self.loop.time() + self.rng.uniform(0.5, 4.0)
            return
        end.stream = other.stream = stream
        end.sent_s = other.sent_s
        self.ends[node_id] = end
        now = self.clock.wall()
        advert = make_advert(
            self.key, network_id=self.world.community.policy.network_id, kind=membership_pb2.NODE_KIND_PNODE,
            incarnation=max(1, self.incarnation), sequence=self.lives, control_addresses=["127.0.0.1:3"], now_wall=now,
            capability=self.capability(),
        )  # fmt: skip
        desired = self.duties.term()[2]
        hello = orchestrator_pb2.Hello(
            advert=advert, heads=self.duties.heads_seen(), desired_sequence=desired.sequence if desired is not None else 0
        )
        stream.send(0, self.world.on_the_wire(orchestrator_pb2.PNodeMessage(hello=hello)))

    def capability(self) -> membership_pb2.Capability:
        """What is lent now."""
        return membership_pb2.Capability(
            cores=4.0, memory_bytes=self.budget.usable_memory_bytes, disk_bytes=self.allowed.disk_bytes, gflops=self.gflops,
            accepts_work=not self.draining,
        )  # fmt: skip

    def _maybe_beat(self, end: StreamEnd, *, news: bool) -> None:
        now = self.loop.time()
        if not end.attached or end.over or end.stream is None or (now < end.due_s and not news):
            return
        end.sequence += 1
        end.due_s = now + end.interval_s * self.rng.uniform(0.8, 1.0)
        end.sent_s[end.sequence] = self.world.kernel.now_s
        end.stream.send(0, self._beat(end.sequence))

    def _beat(self, sequence: int) -> bytes:
        """What it says of itself now. One that hosts nothing says the same for hours, and is nearly every one of thousands: that is put together once."""
        _, _, desired = self.duties.term()
        reports, evidence = self._reports(), self.evidence()
        facts = (
            desired.sequence if desired is not None else 0, desired.plan_digest if desired is not None else "", self.budget.usable_memory_bytes,
            max(0, self.budget.free_memory_bytes), self.draining, self.worker.alive, self.incarnation,
        )  # fmt: skip
        if self._said is None or facts != self._said[0] or reports or evidence:
            beat = orchestrator_pb2.Beat(
                desired_sequence=facts[0], plan_digest=facts[1], replicas=reports, capability=self.capability(), free_memory_bytes=facts[3],
                draining=self.draining, worker_alive=self.worker.alive, worker_reason="" if self.worker.alive else "it died",
                incarnation=self.incarnation, evidence=evidence,
            )  # fmt: skip
            message = orchestrator_pb2.PNodeMessage(beat=beat)
            self._said = None if reports or evidence else (facts, message)
        else:
            message = self._said[1]
        message.beat.sequence = sequence
        return message.SerializeToString()

    def evidence(self) -> list[orchestrator_pb2.LinkEvidence]:
        """Neighbours that it cannot reach: honest PNodes of this world have none."""
        return []

    def _reports(self) -> list[orchestrator_pb2.ReplicaReport]:
        reports = []
        for item in self.duties.hosted:
            report = self.worker.report(item.assignment.replica) or orchestrator_pb2.ReplicaReport()
            if not report.replica or item.task is not None or item.state == orchestrator_pb2.ASSIGNMENT_STATE_FAILED:
                report.replica, report.vnode = item.assignment.replica, item.assignment.vnode
                report.state, report.reason, report.incarnation = item.state, item.reason, self.incarnation
            reports.append(report)
        return reports

    def arrived(self, end: StreamEnd, data: bytes) -> None:
        """A message of an orchestrator: kept for the one reader, or lost where it does not keep up; answers to beats are read at once."""
        end.heard_s = self.loop.time()
        message = orchestrator_pb2.OrchestratorMessage.FromString(data)
        if message.WhichOneof("kind") == "beat_ack":
            end.interval_s = message.beat_ack.beat_interval_s
            return
        try:
            self._inbox.put_nowait((end.orchestrator, data, message))
        except asyncio.QueueFull:
            return

    async def _read_inbox(self) -> None:
        while True:
            node_id, data, message = await self._inbox.get()
            before = self.world.checkers.before_message(self, data)
            await self._from_orchestrator(node_id, message)
            self.world.checkers.after_message(self, before)

    async def _from_orchestrator(self, node_id: NodeId, message: orchestrator_pb2.OrchestratorMessage) -> None:
        end = self.ends.get(node_id)
        match message.WhichOneof("kind"):
            case "welcome" if end is not None:
                end.attached, end.interval_s = True, message.welcome.beat_interval_s
                self.tell()
            case "desired":
                await self.duties.desired_received(message.desired)
            case "head":
                try:
                    if message.head.head_url and message.head.HasField("head"):
                        self.duties.head_granted(message.head)
                except DcnrError as error:
                    self._say("head_grant_refused", node_id, error.message)
                told = await self.duties.head_received(message.head.head, Source.ORCHESTRATOR)
                if end is not None and told is not None and self.told.setdefault(node_id, ToldHeads()).told(told, self.loop.time()):
                    end.renew(told.holder)
            case "durable":
                for checkpoint in message.durable.checkpoints:
                    self.worker.heard(checkpoint)

    async def record(self, request: data_pb2.RecordCheckpointRequest, prefer: NodeId | None) -> data_pb2.RecordCheckpointResponse:
        """RecordCheckpoint at the holder, else at any orchestrator. Raises Unavailable."""
        order = sorted(self.orchestrators(), key=lambda node_id: node_id != prefer)
        data = self.world.on_the_wire(request)
        for node_id in order[:3]:
            try:
                answer = await self.world.ask_orchestrator(self.process, node_id, "record_checkpoint", data, limits.CALL_TIMEOUT_S)
                return data_pb2.RecordCheckpointResponse.FromString(answer)
            except DcnrError:
                continue
        raise Unavailable("no orchestrator answered", code="no_orchestrator")
