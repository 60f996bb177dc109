"""The worker around one real ReplicaCore: carries out its instructions over simulated streams, with arithmetic for maths.

Messages are serialised `dcnr.v1` bytes. The state changes only in a Learn; a crash loses state and spool; a pause stops everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import owned
from dcnr.v1 import vnode_pb2
from simulation import arithmetic
from simulation.arithmetic import Maths, State
from simulation.kernel import Process
from simulation.merge_calls import BetweenSteps, Merges
from simulation.network import Stream
from simulation.wire import MODES, from_wire, lane_from_wire, lane_to_wire, to_wire
from vnode import events as ev
from vnode import merge_events as mev
from vnode.core import ReplicaCore
from vnode.due import NetworkTime, WakeAt
from vnode.events import Event, Instruction, PlanChanged
from vnode.replica_config import ReplicaConfig
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Peer, Role

if TYPE_CHECKING:
    from simulation.world import Simulation


@dataclass(eq=False)
class Edge:
    """The receiving end of a stream: this shell opened it to ask a predecessor."""

    shell: ReplicaShell
    number: int
    asked: ReplicaId
    stream: Stream | None = None
    is_up: bool = False

    def on_message(self, data: bytes) -> None:
        self.shell.on_edge_message(self, vnode_pb2.LinkMessage.FromString(data))

    def on_broken(self) -> None:
        self.shell.edge_broken(self)


@dataclass(eq=False)
class Link:
    """The sending end of a stream that a successor opened."""

    shell: ReplicaShell
    number: int
    stream: Stream | None = None
    is_up: bool = False

    def on_message(self, data: bytes) -> None:
        self.shell.on_link_message(self, vnode_pb2.LinkMessage.FromString(data))

    def on_broken(self) -> None:
        if self.is_up:
            self.is_up = False
            self.shell.links.pop(self.number, None)
            self.shell.feed(ev.LinkDown(self.shell.now_s, self.number))


class ReplicaShell:
    """One incarnation of one replica."""

    def __init__(
        self, world: Simulation, vnode: str, replica: ReplicaId, incarnation: int, host: str, state: State, role: Role
    ) -> None:
        self.world, self.vnode, self.replica, self.incarnation = world, vnode, replica, incarnation
        self.process = Process(world.kernel, host)
        self.maths = Maths(state)
        self.merges = Merges(self)
        self.rng = world.kernel.rng(f"shell/{replica}/{incarnation}")
        self.ahead_s = world.network_s(0.0) + world.kernel.rng(f"clock/{replica}/{incarnation}").uniform(-0.05, 0.05)
        """Network time, as far as this machine knows it, minus the time of its events."""
        self.step_s = world.step_s[vnode] * self.rng.uniform(*world.knobs.replica_speed)
        self.spool: dict[tuple[Lane, int], bytes] = {}
        self.edges: dict[tuple[int, ReplicaId], Edge] = {}
        self.links: dict[int, Link] = {}
        self._link_count = 0
        self.owned = IntervalSet.empty()
        """By the newest plan that came here."""
        self._computing = False
        self.config = self._config(role)
        self.core = ReplicaCore(self.config, state.lineage, world.kernel.now_s)

    def _config(self, role: Role) -> ReplicaConfig:
        world, knobs = self.world, self.world.knobs
        return ReplicaConfig(
            vnode=VNodeId(self.vnode),
            replica=self.replica,
            incarnation=self.incarnation,
            num_inputs=len(world.topology.inputs[self.vnode]),
            input_edges=world.topology.input_edges(self.vnode),
            num_batches=knobs.num_batches,
            spool_batches=world.spool_batches[self.vnode],
            window_batches=knobs.window_batches,
            lead_batches=knobs.lead_batches,
            checkpoint_s=knobs.checkpoint_s,
            checkpoint_steps=knobs.checkpoint_steps,
            eval_batches={"validation": knobs.validation_batches, "test": knobs.test_batches},
            evaluate_every=knobs.evaluate_every,
            horizon_s=knobs.horizon_s,
            is_new_primary=role is Role.PRIMARY,
            role=role,
            unit_batches=knobs.unit_batches,
            merge_every=knobs.merge_every,
            behind=world.topology.behind(self.vnode),
            audited=knobs.audited,
        )

    @property
    def state(self) -> State:
        """What it has learned, by what was done to it."""
        return self.maths.state

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.world.kernel.now_s

    def start(self) -> None:
        """Begins to tick; the plan comes from the authority."""
        self.feed(NetworkTime(self.now_s, self.ahead_s))
        self._tick()

    def stop(self) -> None:
        """Released: closes everything politely and ends."""
        for edge in list(self.edges.values()):
            if edge.stream is not None:
                edge.stream.close(0)
        for link in list(self.links.values()):
            if link.stream is not None:
                link.stream.close(1)
        self.process.kill()

    def _tick(self) -> None:
        self.feed(ev.Tick(self.now_s))
        self.process.after(0.5, self._tick)

    def feed(self, event: Event) -> None:
        """One event into the core, its instructions out."""
        self.world.checkers.before(self, event)
        instructions = self.core.handle(event)
        self.core.check()
        for instruction in instructions:
            self._perform(instruction)
        self.world.checkers.after(self, event, instructions)

    # ---- instructions ---------------------------------------------------------------------------------------------------------

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case ev.ReadInput():
                self._read(instruction)
            case ev.Learn():
                self._compute(self.step_s, lambda: self._learn(instruction))
            case ev.Forward():
                self.world.checkers.forwarding(self, instruction)
                self._compute(self.step_s / 3, lambda: self._forward(instruction))
            case ev.TakeSnapshot():
                self._compute(self.step_s / 2, lambda: self._snapshot(instruction))
            case mev.MakeDelta() | mev.Rebase() | mev.MergeOwn() | mev.MergeDeltas() | mev.CaptureAnchor():
                self._compute(self.step_s / 2, lambda: self._between_steps(instruction))
            case mev.AskMerge():
                self.merges.ask(instruction)
            case mev.AnswerMerge() | mev.DeferMerge():
                self.merges.answer(instruction)
            case mev.Lead():
                self.maths.lead()
                self.world.checkers.leads(self, instruction)
            case ev.SendFrame():
                self._send_frame(instruction)
            case ev.DropFrames():
                for batch in instruction.batches:
                    self.world.require((instruction.lane, batch) in self.spool, "spool", f"{self.replica}: dropped {batch} twice")
                    del self.spool[instruction.lane, batch]
            case WakeAt():
                self.process.after(instruction.at_s - self.now_s, lambda: self.feed(ev.Tick(self.now_s)))
            case ev.Stop():
                self.world.fail("stopped", f"{self.replica}: {instruction.reason}")
            case _:
                self._state(instruction)

    def _state(self, instruction: ev.SendNeed | ev.SendWindow | ev.SendAck | ev.SendDurable) -> None:
        edge = self.edges.get((instruction.edge, instruction.source))
        if edge is None or not edge.is_up or edge.stream is None:
            return
        message = vnode_pb2.LinkMessage(edge=instruction.edge)
        match instruction:
            case ev.SendNeed():
                message.need.sequence = instruction.sequence
                message.need.lane.CopyFrom(lane_to_wire(instruction.lane))
                message.need.wanted.CopyFrom(to_wire(instruction.wanted))
                message.need.forward_only.CopyFrom(to_wire(instruction.forward_only))
                message.need.evicted.CopyFrom(to_wire(instruction.evicted))
            case ev.SendWindow():
                message.window.sequence, message.window.end = instruction.sequence, instruction.end
                message.window.lane.CopyFrom(lane_to_wire(instruction.lane))
            case ev.SendAck():
                message.ack.sequence, message.ack.num_learned = instruction.sequence, instruction.num_learned
                message.ack.floor, message.ack.floor_vnode = instruction.floor, instruction.floor_vnode
            case ev.SendDurable():
                message.durable.batches.CopyFrom(to_wire(instruction.batches))
        edge.stream.send(0, message.SerializeToString())

    def _read(self, instruction: ev.ReadInput) -> None:
        now_fails = self.rng.random() < self.world.knobs.read_failure_probability

        def answer() -> None:
            if now_fails:
                self.feed(ev.InputFailed(self.now_s, instruction.edge, instruction.lane, instruction.batch))
            else:
                tensor = arithmetic.data(instruction.lane, instruction.batch)
                self.feed(ev.FrameArrived(self.now_s, instruction.edge, instruction.lane, instruction.batch, tensor))

        self.process.after(self.rng.uniform(0.001, 0.02), answer)

    def _compute(self, seconds: float, action: Callable[[], None]) -> None:
        self.world.require(not self._computing, "one_computation", f"{self.replica}: two computations at once")
        self._computing = True

        def done() -> None:
            self._computing = False
            action()

        self.process.after(seconds * self.rng.uniform(0.7, 1.3), done)

    def _fails(self, lane: Lane, batch: int) -> bool:
        if self.rng.random() < self.world.knobs.compute_failure_probability:
            self.feed(ev.ComputeFailed(self.now_s, lane, batch, "bad luck", fatal=False))
            return True
        return False

    def _check_inputs(self, lane: Lane, batch: int, inputs: tuple[object, ...]) -> tuple[bytes, ...]:
        tensors = tuple(tensor for tensor in inputs if isinstance(tensor, bytes))
        whole = len(tensors) == self.config.num_inputs and all(arithmetic.is_of(tensor, lane, batch) for tensor in tensors)
        self.world.require(whole, "join", f"{self.replica}: batch {batch} joined from {inputs!r}")
        return tensors

    def _learn(self, learn: ev.Learn) -> None:
        if self._fails(TRAIN_LANE, learn.batch):
            return
        self._check_inputs(TRAIN_LANE, learn.batch, learn.inputs)
        self.world.checkers.learning(self, learn)
        self.maths.learn(learn.batch)
        if learn.keep:
            self.spool[TRAIN_LANE, learn.batch] = arithmetic.frame(TRAIN_LANE, learn.batch, self.vnode)
        self.feed(ev.Learned(self.now_s, learn.batch, 1.0, self.step_s))

    def _forward(self, forward: ev.Forward) -> None:
        lane, batch = forward.lane, forward.batch
        if self._fails(lane, batch):
            return
        inputs = self._check_inputs(lane, batch, forward.inputs)
        loss = 0.0
        output = arithmetic.frame(lane, batch, self.vnode)
        if forward.mode is Mode.EVAL:
            output, loss = arithmetic.evaluate(self.state, lane, batch, inputs)
        if forward.keep:
            self.spool[lane, batch] = output
        self.feed(ev.Forwarded(self.now_s, lane, batch, self.step_s, loss, 1, 2))

    def _snapshot(self, snapshot: ev.TakeSnapshot) -> None:
        if self._fails(TRAIN_LANE, 0):
            return
        self.world.checkers.snapshot(self, snapshot)
        self.feed(ev.SnapshotTaken(self.now_s, self.state.lineage, self.state.digest))
        self.world.authority.upload(self, self.state)

    def _between_steps(self, work: BetweenSteps) -> None:
        if not self._fails(TRAIN_LANE, 0):
            done = self.merges.carry_out(work)
            self.world.checkers.changed(self, work)
            self.feed(done)

    # ---- frames ---------------------------------------------------------------------------------------------------------------

    def _send_frame(self, send: ev.SendFrame) -> None:
        tensor = self.spool.get((send.lane, send.batch))
        link = self.links.get(send.link)
        if link is None or not link.is_up or link.stream is None:
            return
        is_lost = self.rng.random() < self.world.knobs.spool_loss_probability
        if tensor is None or is_lost:
            may_lack = tensor is not None or self.world.knobs.spool_loss_probability > 0
            self.world.require(may_lack, "spool", f"{self.replica}: batch {send.batch} is not in the spool")
            self.spool.pop((send.lane, send.batch), None)
            self.process.after(0.001, lambda: self.feed(ev.FrameMissing(self.now_s, send.lane, send.batch)))
            return
        message = vnode_pb2.LinkMessage(edge=send.link)
        message.frame.lane.CopyFrom(lane_to_wire(send.lane))
        message.frame.batch, message.frame.mode, message.frame.chunk = send.batch, MODES[send.mode], tensor
        sent = ev.FrameSent
        link.stream.send(
            1,
            message.SerializeToString(),
            self.rng.uniform(0.002, 0.02),
            lambda: self.feed(sent(self.now_s, send.link, send.lane, send.batch)),
        )

    # ---- edges and links ------------------------------------------------------------------------------------------------------

    def new_plan(self, plan: PlanChanged) -> None:
        """The newest plan: asks its replicas from now on."""
        self.owned = owned(self.replica, plan.siblings, self.config.num_batches, self.config.unit_batches)
        self.feed(plan)
        wanted = {(number, share.replica) for number, shares in plan.predecessors.items() for share in shares}
        for key in sorted(set(self.edges) - wanted):
            edge = self.edges.pop(key)
            if edge.stream is not None:
                edge.stream.close(0)
                if edge.is_up:
                    self.feed(ev.EdgeDown(self.now_s, *key))
        for number, asked in sorted(wanted - set(self.edges)):
            self.edges[number, asked] = Edge(self, number, asked)
            self._open(self.edges[number, asked])

    def _is_wanted(self, edge: Edge) -> bool:
        return self.edges.get((edge.number, edge.asked)) is edge

    def _open(self, edge: Edge) -> None:
        if not self._is_wanted(edge):
            return
        asked = self.world.living(edge.asked)
        link = asked.new_link() if asked is not None else None
        stream = self.world.network.connect((self.process, asked.process), (edge, link)) if asked and link else None
        if stream is None or link is None:
            self.process.after(self.rng.uniform(0.3, 1.5), lambda: self._open(edge))
            return
        edge.stream = link.stream = stream
        message = vnode_pb2.LinkMessage(edge=edge.number)
        message.open.source_replica, message.open.target_replica = edge.asked, self.replica
        message.open.target_incarnation = self.incarnation
        stream.send(0, message.SerializeToString())

    def new_link(self) -> Link:
        """A place for a stream that a successor opens; it lives once the first message came."""
        self._link_count += 1
        return Link(self, self._link_count)

    def edge_broken(self, edge: Edge) -> None:
        """The stream failed: tell the core, try again."""
        edge.stream = None
        if self._is_wanted(edge):
            if edge.is_up:
                edge.is_up = False
                self.feed(ev.EdgeDown(self.now_s, edge.number, edge.asked))
            self.process.after(self.rng.uniform(0.1, 1.0), lambda: self._open(edge))

    def on_edge_message(self, edge: Edge, message: vnode_pb2.LinkMessage) -> None:
        """From a predecessor."""
        if not self._is_wanted(edge):
            return
        if message.HasField("opened"):
            if not edge.is_up:
                edge.is_up = True
                self.feed(ev.EdgeUp(self.now_s, edge.number, Peer(edge.asked, message.opened.source_incarnation)))
            return
        frame = message.frame
        lane = lane_from_wire(frame.lane)
        if self.rng.random() < self.world.knobs.corrupt_probability:
            self.world.num_corrupt += 1
            return
        if self.world.checkers.takes(self, lane, frame.batch, frame.mode):
            self.feed(ev.FrameArrived(self.now_s, edge.number, lane, frame.batch, bytes(frame.chunk)))

    def on_link_message(self, link: Link, message: vnode_pb2.LinkMessage) -> None:
        """From a successor."""
        number, now_s = link.number, self.now_s
        match message.WhichOneof("kind"):
            case "open":
                if not link.is_up and link.stream is not None:
                    link.is_up = True
                    self.links[number] = link
                    answer = vnode_pb2.LinkMessage(edge=message.edge)
                    answer.opened.source_incarnation = self.incarnation
                    link.stream.send(1, answer.SerializeToString())
                    target = Peer(ReplicaId(message.open.target_replica), message.open.target_incarnation)
                    self.feed(ev.LinkUp(now_s, number, target))
            case "need":
                need, lane = message.need, lane_from_wire(message.need.lane)
                parts = map(from_wire, (need.wanted, need.forward_only, need.evicted))
                self.feed(ev.NeedHeard(now_s, number, need.sequence, lane, *parts))
            case "window":
                lane = lane_from_wire(message.window.lane)
                self.feed(ev.WindowHeard(now_s, number, message.window.sequence, lane, message.window.end))
            case "ack":
                ack = message.ack
                self.feed(ev.AckHeard(now_s, number, ack.sequence, ack.num_learned, ack.floor, VNodeId(ack.floor_vnode)))
            case "durable":
                self.feed(ev.DurableHeard(now_s, number, from_wire(message.durable.batches)))
