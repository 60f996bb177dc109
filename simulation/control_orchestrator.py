"""An orchestrator of the control world: the real runtime (head, view, jobs, decider, judge) and inventory behind a simulated control stream.

What is left out of the real service: sockets, grants' signatures, the SQLite history, and releases, which nobody makes here. A restart keeps the key and
nothing else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import DcnrError, InvariantBroken
from dcnr.ids import NodeId
from dcnr.v1 import common_pb2, data_pb2, identity_pb2, model_pb2, orchestrator_pb2
from orchestrator.attach import IDLE_HEAD_NEWS_S, AttachService, _Stream, tell_transitions
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.pauses import record_pause
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.view import ModelView
from simulation.control_desk import KnowingDesk
from simulation.control_identity import BUCKET, MODEL, STORE_ADDRESS
from simulation.control_loop import ProcessLoop
from simulation.control_store import StoreClient
from simulation.kernel import Process
from simulation.network import Stream
from trust.draw import Secret
from trust.envelope import seal
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.records import open_advert

if TYPE_CHECKING:
    from simulation.control_pnode import PNodeShell
    from simulation.control_world import ControlWorld

TICK_S: Final = 0.25
REVIEW_S: Final = 1.0
HEAD_URL: Final = f"http://{STORE_ADDRESS}/{BUCKET}/{keys.head(MODEL)}?signature=1"
PROBE_S: Final = 1.0
"""How long an own probe of a PNode takes at most."""


class SimHistory(History):
    """Keeps the orchestrator's events for the checkers, writes nothing."""

    def __init__(self, world: ControlWorld, reporter: str, shared_clock: object) -> None:
        super().__init__(None, reporter, shared_clock)  # type: ignore[arg-type]
        self._world = world

    def say(self, kind: str, subject: str, reason: str, **facts: object) -> common_pb2.Event:
        """Records and hands on."""
        self._world.checkers.said(self._reporter, kind, subject, reason, facts)
        if kind == "node_state_changed":
            self._world.checkers.judged(self._world.orchestrator(NodeId(self._reporter)), subject, reason)
        return common_pb2.Event(kind=kind, subject=subject, reason=reason, reporter=self._reporter)

    def heard(self, reporter: str, event: common_pb2.Event) -> None:
        """Events of PNodes are not kept."""

    def placed(
        self, model: str, plan: str, replica: str, pnode: str, outcome: str, predicted_step_s: float, measured_step_s: float
    ) -> None:
        """Placements are not kept."""


@dataclass(slots=True, eq=False)
class ControlEnd:
    """The orchestrator's end of one PNode's stream."""

    shell: OrchestratorShell
    loop: ProcessLoop
    stream: Stream | None = None
    told: _Stream | None = None
    sent_s: dict[int, float] = field(default_factory=dict)
    """When the PNode sent its beats, for the checkers."""
    reads: bool = False
    """A desired state for it is being read."""
    quiet: tuple[object, float] | None = None
    """A PNode without work here that was told these facts of the head hears nothing more before that time."""

    def on_message(self, data: bytes) -> None:
        """From the PNode."""
        self.loop.deliver(self.shell.message, self, data)

    def on_broken(self) -> None:
        """The stream is over."""
        self.loop.call_soon(self.shell.broken, self, "the connection broke")

    def send(self, message: orchestrator_pb2.OrchestratorMessage) -> None:
        """To the PNode."""
        if self.stream is not None:
            self.stream.send(1, self.shell.world.on_the_wire(message))


async def _nothing_said() -> None:
    """Maintainers released nothing."""


class OrchestratorShell:
    """One orchestrator through all its lives."""

    def __init__(self, world: ControlWorld, index: int) -> None:
        self.world, self.index = world, index
        self.key: NodeKey = world.community.orchestrators[index]
        self.host = f"orchestrator-{index}"
        self.lives = 0
        self._rng = world.kernel.rng(f"{self.host}/probes")
        self.start()

    @property
    def node_id(self) -> NodeId:
        """Who it is."""
        return self.key.node_id

    @property
    def is_alive(self) -> bool:
        """Whether the process exists."""
        return self.process.alive

    @property
    def is_holder(self) -> bool:
        """Whether it may decide now."""
        return self.process.alive and self.runtime.is_holder

    def start(self) -> None:
        """A new life with nothing but the key."""
        world = self.world
        self.lives += 1
        self.process = Process(world.kernel, self.host)
        self.loop = ProcessLoop(world.kernel, self.process, world.failed, world.clocks.rate(self.host))
        self.clock = world.clocks.begin(self.host, 1000.0 * self.lives)
        self.store = StoreClient(world, self.process)
        self.shared = Shared(
            key=self.key, network=InForce(world.community.policy), store=self.store, clock=self.clock, registry=world.community.registry,
            inventory=Inventory(), history=SimHistory(world, self.node_id, self.clock), plan_policy=world.knobs.plan_policy,
            draw_secret=Secret(hashlib.sha256(f"{world.seed} {self.host}".encode()).digest()),
        )  # fmt: skip
        self.runtime = ModelRuntime(MODEL, self.shared)
        self.runtime.releases.is_read, self.runtime.releases.refresh = True, _nothing_said  # type: ignore[method-assign]  # nor is it looked for
        desk = KnowingDesk(world, self.shared)
        self.runtime.auditing.run = desk.run  # type: ignore[method-assign]  # what it asks of PNodes has tests of its own
        self.runtime.decider.naming.verdicts, self.runtime.drawing.standing = desk.verdicts, desk.standing
        self.attach = AttachService(
            self.shared, {MODEL: self.runtime}, head_url=lambda _model: (HEAD_URL, 0), reach=lambda _id, _addresses: None
        )
        self.ends: dict[ControlEnd, None] = {}
        self.unreached_s: dict[str, float] = {}
        """When a probe of a PNode last failed indeed."""
        self._placed_by: tuple[str, frozenset[str]] = ("", frozenset())
        self._facts: tuple[object, ...] = ()
        self._ack = orchestrator_pb2.OrchestratorMessage()
        self.run()

    def run(self) -> None:
        """Starts its tasks."""
        self.loop.spawn(self.runtime.run())
        self.loop.spawn(self._tick())
        self.loop.spawn(self._tell())

    def crash(self) -> None:
        """Ends this life."""
        self.process.kill()
        self.loop.bury()
        self.world.network.lose(self.process, silently=False)

    # -- control streams -------------------------------------------------------------------------------------------------------

    def accept(self) -> ControlEnd:
        """The end of a stream that a PNode opens."""
        return ControlEnd(self, self.loop)

    def message(self, end: ControlEnd, data: bytes) -> None:
        """A PNode says something."""
        message = orchestrator_pb2.PNodeMessage.FromString(data)
        try:
            match message.WhichOneof("kind"):
                case "hello" if end.told is None:
                    self._hello(end, message.hello)
                    self.world.checkers.attached(data)
                case "beat" if end.told is not None:
                    self._beat(end, end.told, message.beat)
        except DcnrError as error:
            if isinstance(error, InvariantBroken):
                raise
            self.broken(end, error.message)
            if end.stream is not None:
                end.stream.close(1)

    def _hello(self, end: ControlEnd, hello: orchestrator_pb2.Hello) -> None:
        policy, now = self.world.community.policy, self.clock.monotonic()
        verified = open_advert(hello.advert, network_id=policy.network_id, now_wall=self.clock.wall())
        end.told = _Stream(verified.node_id, "")
        end.send(
            orchestrator_pb2.OrchestratorMessage(
                welcome=orchestrator_pb2.Welcome(
                    orchestrator_id=self.node_id, beat_interval_s=self._interval_s(), state=orchestrator_pb2.NODE_STATE_JOINING
                )
            )
        )
        self.shared.inventory.advertised(verified.advert, now, verified.owner)
        self.shared.inventory.attached(verified.node_id, now)
        pnode = self.world.pnode(verified.node_id)
        if pnode is not None and self.can_reach(pnode):
            self.shared.inventory.probed(verified.node_id, now, reachable=True)
        self.ends[end] = None
        self.shared.nodes_changed.fire()
        for envelope in hello.heads:
            self.runtime.shown(envelope)
        self._tell_one(end)

    def _beat(self, end: ControlEnd, told: _Stream, beat: orchestrator_pb2.Beat) -> None:
        now, sent_s = self.clock.monotonic(), end.sent_s.pop(int(beat.sequence), None)
        if sent_s is not None and self.process.resumed_s < sent_s:
            self.world.checkers.beat(self, sent_s)
        beat = self.shared.heard(told.pnode_id, beat)
        for accused in self.shared.inventory.beat(told.pnode_id, now, beat, self._interval_s()):
            self._look_soon(accused)
        self.attach._note_exits(told, beat)
        judgement = self.shared.inventory.judgement(told.pnode_id)
        if beat.replicas:
            end.quiet = None
        ack = self._ack.beat_ack
        ack.sequence, ack.beat_interval_s = beat.sequence, self._interval_s()
        ack.state, ack.reason = judgement.state, judgement.reason
        end.send(self._ack)

    def _look_soon(self, node_id: str) -> None:
        self.loop.later(PROBE_S * self._rng.random(), self._probe, node_id)

    def _probe(self, node_id: str) -> None:
        """Our own look at a PNode that another accuses, of which a beat is missing or whose stream has ended."""
        pnode = self.world.pnode(node_id)
        reachable = pnode is not None and self.can_reach(pnode)
        if not reachable:
            self.unreached_s[node_id] = self.world.kernel.now_s
        if self.shared.inventory.probed(node_id, self.clock.monotonic(), reachable=reachable):
            self.shared.nodes_changed.fire()

    def can_reach(self, pnode: PNodeShell) -> bool:
        """Whether a call of ours would be answered now."""
        network = self.world.network
        ways = ((self.host, pnode.host), (pnode.host, self.host))
        return pnode.process.alive and not pnode.process.paused and not any(network.is_blocked(*way) for way in ways)

    def broken(self, end: ControlEnd, reason: str) -> None:
        """A stream ended."""
        if end in self.ends:
            del self.ends[end]
            assert end.told is not None
            self.shared.inventory.detached(end.told.pnode_id, self.clock.monotonic(), reason)
            self.shared.nodes_changed.fire()

    def _interval_s(self) -> float:
        return self.world.knobs.beat_s

    async def _tick(self) -> None:
        seen = -1
        while True:
            seen = await self.shared.nodes_changed.wait(seen, TICK_S)
            if tell_transitions(self.shared, self.clock.monotonic()):
                self.shared.nodes_changed.fire()
            for node_id in self.shared.inventory.take_missed():
                self._look_soon(node_id)

    async def _tell(self) -> None:
        """News for every stream, as the real streams compose them."""
        seen = -1
        while True:
            seen = await self.shared.news.wait(seen, REVIEW_S)
            now, head, view = self.clock.monotonic(), self.runtime.head, self.runtime.view
            facts: tuple[object, ...] = ()
            if head is not None:
                facts = head.epoch, head.holder, head.plan_digest, head.active.job_id, head.active.state, view is None
            if facts != self._facts:
                self._facts = facts
            for end in list(self.ends):
                if end.quiet is None or end.quiet[0] is not self._facts or now >= end.quiet[1]:
                    self._tell_one(end)

    def _tell_one(self, end: ControlEnd) -> None:
        """What can be said at once; what must be read first follows in its own time and holds nobody up."""
        assert end.told is not None
        end.quiet = None
        for message in self.attach._head_news(end.told, MODEL, self.runtime):
            end.send(message)
        view = self.runtime.view
        if view is None or view.plan is None:
            return
        record = self.shared.inventory.nodes().get(end.told.pnode_id)
        hosts = record is not None and record.beat.replicas
        if hosts or end.told.pnode_id in self._placed(view.plan, view.head.plan_digest):
            if not end.reads:
                end.reads = True
                self.loop.spawn(self._tell_desired(end, end.told, view))
        elif (
            MODEL not in end.told.desired
            and (heard := end.told.heads.get(MODEL)) is not None
            and heard[0][2] == view.head.plan_digest
        ):
            end.quiet = (self._facts, heard[1] + IDLE_HEAD_NEWS_S)
        for message in self.attach._durable_news(end.told, view):
            end.send(message)

    async def _tell_desired(self, end: ControlEnd, told: _Stream, view: ModelView) -> None:
        try:
            envelope = await self.runtime.loader.desired(view, told.pnode_id)
        except DcnrError:
            return
        finally:
            end.reads = False
        if envelope is not None and told.desired.get(MODEL) != envelope.payload:
            told.desired[MODEL] = envelope.payload
            end.send(orchestrator_pb2.OrchestratorMessage(desired=envelope))

    def _placed(self, plan: model_pb2.Plan, digest: str) -> frozenset[str]:
        """PNodes of a plan."""
        if self._placed_by[0] != digest:
            self._placed_by = digest, frozenset(item.pnode_id for item in plan.assignments)
        return self._placed_by[1]

    # -- calls -----------------------------------------------------------------------------------------------------------------

    async def record_checkpoint(self, data: bytes) -> bytes:
        """RecordCheckpoint."""
        answer = await self.runtime.record(data_pb2.RecordCheckpointRequest.FromString(data))
        return answer.SerializeToString()

    async def pause_job(self, data: bytes) -> bytes:
        """PauseJob: recorded, whoever decides."""
        request = orchestrator_pb2.PauseJobRequest.FromString(data)
        policy = self.world.community.policy
        pause, _ = await record_pause(request.pause, policy=policy, store=self.store)
        self.world.checkers.recorded(data, policy.open_pause(request.pause))
        self.runtime.refresh_jobs.fire()
        return orchestrator_pb2.PauseJobResponse(recorded=True, paused=pause.paused).SerializeToString()

    async def confirm_head(self, data: bytes) -> bytes:
        """ConfirmHead: an own read made after the question."""
        request = orchestrator_pb2.ConfirmHeadRequest.FromString(data)
        stored = await self.store.get(keys.head(MODEL), max_bytes=limits.MAX_HEAD_BYTES)
        return self._statement(request.nonce, stored.data)

    def _statement(self, nonce: bytes, head: bytes) -> bytes:
        statement = model_pb2.HeadStatement(nonce=nonce, head=identity_pb2.Envelope.FromString(head), model=MODEL)
        envelope = seal(identity_pb2.DOMAIN_HEAD_STATEMENT, statement, self.key)
        return orchestrator_pb2.ConfirmHeadResponse(statement=envelope).SerializeToString()
