"""Goal: whatever is late, lost or asked twice between two contributors and a primary, and however units move, no batch is counted twice, and none is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from simulation.arithmetic import Maths, initial_state, lineage_of
from vnode import events as ev
from vnode import merge_events as mev
from vnode.core import ReplicaCore
from vnode.replica_config import ReplicaConfig
from vnode.vocabulary import Peer, Role, Verdict

NUM_BATCHES = 12
PRIMARY, ONE, OTHER = (ReplicaId(f"a.{number}") for number in range(3))
NONE = IntervalSet.empty()


@dataclass
class Replica:
    """A core with its maths; what it is to do lies in ``busy`` until somebody lets it go on."""

    name: ReplicaId
    core: ReplicaCore
    maths: Maths
    incarnation: int = 1
    busy: ev.Instruction | None = None
    ask: mev.AskMerge | None = None
    delta: tuple[int, IntervalSet, bytes] | None = None
    anchor: bytes = b""
    deltas: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, tuple[Verdict, bytes] | None] = field(default_factory=dict)


class World:
    """Three replicas of a source without successors; calls happen when the test says so."""

    def __init__(self, merge_every: int, unit_batches: int) -> None:
        self.now_s = 0.0
        self.merge_every, self.unit_batches = merge_every, unit_batches
        self.weights = {PRIMARY: 1.0, ONE: 1.0, OTHER: 1.0}
        self.requests = 0
        self.incarnations = 1
        self.replicas = {name: self.made(name, Maths(initial_state("a"))) for name in self.weights}
        self.tell()

    def made(self, name: ReplicaId, maths: Maths) -> Replica:
        config = ReplicaConfig(
            vnode=VNodeId("a"), replica=name, incarnation=self.incarnations, num_inputs=1, input_edges=frozenset({0}),
            num_batches=NUM_BATCHES, spool_batches=8, window_batches=3, lead_batches=NUM_BATCHES, checkpoint_steps=4,
            role=Role.PRIMARY if name == PRIMARY else Role.CONTRIBUTOR, merge_every=self.merge_every, unit_batches=self.unit_batches,
        )  # fmt: skip
        return Replica(name, ReplicaCore(config, maths.state.lineage, self.now_s), maths, self.incarnations)

    def tell(self) -> None:
        """Everyone hears the newest plan."""
        shares = tuple(Share(name, weight) for name, weight in self.weights.items())
        for name, replica in self.replicas.items():
            role = Role.PRIMARY if name == PRIMARY else Role.CONTRIBUTOR if self.weights[name] else Role.STANDBY
            self.feed(replica, ev.PlanChanged(self.now_s, {}, frozenset(), NUM_BATCHES, shares, role, PRIMARY))

    def feed(self, replica: Replica, event: ev.Event) -> None:
        for instruction in replica.core.handle(event):
            match instruction:
                case ev.ReadInput():
                    self.feed(replica, ev.FrameArrived(self.now_s, instruction.edge, instruction.lane, instruction.batch, "data"))
                case (
                    ev.Learn()
                    | ev.Forward()
                    | ev.TakeSnapshot()
                    | mev.MakeDelta()
                    | mev.Rebase()
                    | mev.MergeDeltas()
                    | mev.CaptureAnchor()
                ):
                    assert replica.busy is None
                    replica.busy = instruction
                case mev.AskMerge():
                    replica.ask = instruction
                case mev.AnswerMerge():
                    assert lineage_of(replica.anchor) == replica.maths.state.lineage
                    assert replica.answers[instruction.request] is None
                    replica.answers[instruction.request] = (instruction.verdict, replica.anchor)
                case _:
                    pass
        replica.core.check()
        assert replica.maths.state.is_sum, f"{replica.name}: {replica.maths.state.learned}"

    def go_on(self, replica: Replica) -> None:
        """What is under way there is done."""
        busy, replica.busy = replica.busy, None
        maths, now_s = replica.maths, self.now_s
        match busy:
            case ev.Learn():
                maths.learn(busy.batch)
                self.feed(replica, ev.Learned(now_s, busy.batch, 1.0, 0.1))
            case ev.TakeSnapshot():
                assert busy.lineage == maths.state.lineage
                self.feed(replica, ev.SnapshotTaken(now_s, busy.lineage, "digest"))
            case mev.MakeDelta():
                replica.delta = (busy.sequence, busy.batches, maths.delta())
                self.feed(replica, mev.DeltaMade(now_s, busy.sequence, busy.batches))
            case mev.Rebase():
                maths.rebase(busy.anchor, keep_open=busy.keep_open, keep_after=busy.keep_after)
                assert busy.lineage == maths.state.lineage
                self.feed(replica, mev.Rebased(now_s))
            case mev.MergeDeltas():
                maths.merge(replica.deltas[request] for request in busy.requests)
                assert busy.lineage == maths.state.lineage
                replica.anchor = maths.anchor(busy.lineage)
                self.feed(replica, mev.MergesDone(now_s))
            case mev.CaptureAnchor():
                replica.anchor = maths.anchor(busy.lineage)
                self.feed(replica, mev.AnchorCaptured(now_s))
            case _:
                assert busy is None

    def bring(self, replica: Replica) -> int | None:
        """What it asks reaches the primary: the request's number."""
        if replica.ask is None:
            return None
        primary, source = self.replicas[PRIMARY], Peer(replica.name, replica.incarnation)
        self.requests += 1
        primary.answers[self.requests] = None
        if replica.ask.sequence is None:
            self.feed(primary, mev.MergeAsked(self.now_s, self.requests, source, None, NONE, None))
            return self.requests
        assert replica.delta is not None
        sequence, batches, data = replica.delta
        assert sequence == replica.ask.sequence
        primary.deltas[self.requests] = data
        self.feed(primary, mev.MergeAsked(self.now_s, self.requests, source, sequence, batches, "delta"))
        return self.requests

    def answer(self, replica: Replica, request: int) -> bool:
        """The primary's answer reaches it, if there is one."""
        primary = self.replicas[PRIMARY]
        found = primary.answers.get(request)
        if found is None or replica.ask is None:
            return False
        verdict, anchor = found
        ask, replica.ask = replica.ask, None
        peer = Peer(PRIMARY, primary.incarnation)
        self.feed(replica, mev.AnchorArrived(self.now_s, ask.ask, peer, verdict, lineage_of(anchor), anchor))
        return True

    def lose(self, replica: Replica) -> None:
        """The call breaks."""
        if replica.ask is not None:
            ask, replica.ask = replica.ask, None
            self.feed(replica, mev.MergeUnanswered(self.now_s, ask.ask, "lost"))

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for replica in self.replicas.values():
            self.feed(replica, ev.HeadSeen(self.now_s))


WHO = st.sampled_from([PRIMARY, ONE, OTHER])
CONTRIBUTORS = st.sampled_from([ONE, OTHER])
STEPS = st.one_of(
    st.tuples(st.just("work"), st.tuples(WHO, st.integers(1, 6))),
    st.tuples(st.just("work"), st.tuples(WHO, st.integers(1, 6))),
    st.tuples(st.just("call"), CONTRIBUTORS),
    st.tuples(st.just("call"), CONTRIBUTORS),
    st.tuples(st.just("bring"), CONTRIBUTORS),
    st.tuples(st.just("answer"), CONTRIBUTORS),
    st.tuples(st.just("lose"), CONTRIBUTORS),
    st.tuples(st.just("time"), st.sampled_from([2.0, 11.0])),
    st.tuples(st.just("weight"), st.tuples(CONTRIBUTORS, st.sampled_from([0.0, 0.5, 1.0, 4.0]))),
    st.tuples(st.just("restart primary"), st.integers(0, 8)),
    st.tuples(st.just("restart"), CONTRIBUTORS),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=5, max_size=40), st.sampled_from([1, 2, 5]), st.sampled_from([1, 2, 4]))
def test_nothing_is_counted_twice_and_nothing_is_lost(steps: list[tuple[str, Any]], merge_every: int, unit_batches: int) -> None:
    world = World(merge_every, unit_batches)
    brought: dict[ReplicaId, int] = {}
    saved = [world.replicas[PRIMARY].maths.state]
    for kind, what in steps:
        world.now_s += 0.01
        match kind:
            case "work":
                for _ in range(what[1]):
                    world.go_on(world.replicas[what[0]])
                    saved.append(world.replicas[PRIMARY].maths.state)
            case "call":  # as it is where nothing goes wrong
                request = world.bring(world.replicas[what])
                for _ in range(3):
                    world.go_on(world.replicas[PRIMARY])
                    saved.append(world.replicas[PRIMARY].maths.state)
                if request is not None and not world.answer(world.replicas[what], request):
                    world.lose(world.replicas[what])
                for _ in range(2):
                    world.go_on(world.replicas[what])
                brought.pop(what, None)
            case "bring":
                request = world.bring(world.replicas[what])
                if request is not None:
                    brought[what] = request
            case "answer":
                if what in brought and world.answer(world.replicas[what], brought[what]):
                    del brought[what]
            case "lose":
                world.lose(world.replicas[what])
                brought.pop(what, None)
            case "time":
                world.pass_time(what)
            case "weight":
                world.weights[what[0]] = what[1]
                world.tell()
            case "restart primary":  # with a state that it had some steps ago
                world.incarnations += 1
                state = saved[max(0, len(saved) - 1 - what)]
                world.replicas[PRIMARY] = world.made(PRIMARY, Maths(state))
                saved, brought = [state], {}
                world.tell()
            case "restart":
                world.incarnations += 1
                brought.pop(what, None)
                world.replicas[what] = world.made(what, Maths(initial_state("a")))
                world.tell()
    for name in (ONE, OTHER):
        world.lose(world.replicas[name])
    for _ in range(60):
        if world.replicas[PRIMARY].maths.state.lineage.is_exactly(0, NUM_BATCHES):
            break
        world.pass_time(1.0)
        for name in (ONE, OTHER):
            request = world.bring(world.replicas[name])
            for _ in range(8):
                world.go_on(world.replicas[PRIMARY])
            if request is not None and not world.answer(world.replicas[name], request):
                world.lose(world.replicas[name])
            for _ in range(4):
                world.go_on(world.replicas[name])
    state = world.replicas[PRIMARY].maths.state
    assert state.lineage.is_exactly(0, NUM_BATCHES)
    assert sorted(state.learned) == list(range(NUM_BATCHES))
