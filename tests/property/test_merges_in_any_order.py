"""Goal: whatever is late, lost or asked twice between two contributors and a primary, however units move and whoever is made the primary, no batch is counted
twice, and none is lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, find, given, settings
from hypothesis import strategies as st

from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from simulation.arithmetic import Maths, initial_state, lineage_of
from tests.property import planted_merges
from tests.simulation import planted
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
    is_anchored: bool = False
    is_delta_open: bool = False
    has_failed: bool = False
    """A call failed since the last answer: the next one waits."""
    has_stopped: bool = False
    is_met: bool = False
    """An anchor has come, and is taken over once what is under way is done."""
    num_fresh: int = 0
    """Learned since the last delta."""


class World:
    """Three replicas of a source without successors; calls happen when the test says so."""

    def __init__(self, merge_every: int, unit_batches: int, *, audited: bool) -> None:
        self.now_s = 0.0
        self.merge_every, self.unit_batches, self.audited = merge_every, unit_batches, audited
        self.weights = {PRIMARY: 1.0, ONE: 1.0, OTHER: 1.0}
        self.leader = PRIMARY
        self.requests = 0
        self.learned: Counter[int] = Counter()
        """How often each batch was learned, by whomever."""
        self.verdicts: Counter[Verdict] = Counter()
        self.incarnations = 1
        self.replicas = {name: self.made(name, Maths(initial_state("a"))) for name in self.weights}
        self.tell()

    def made(self, name: ReplicaId, maths: Maths) -> Replica:
        config = ReplicaConfig(
            vnode=VNodeId("a"), replica=name, incarnation=self.incarnations, num_inputs=1, input_edges=frozenset({0}),
            num_batches=NUM_BATCHES, spool_batches=8, window_batches=3, lead_batches=NUM_BATCHES, checkpoint_steps=4,
            role=Role.PRIMARY if name == self.leader else Role.CONTRIBUTOR, merge_every=self.merge_every, unit_batches=self.unit_batches,
            audited=self.audited,
        )  # fmt: skip
        return Replica(name, ReplicaCore(config, maths.state.lineage, self.now_s), maths, self.incarnations)

    def tell(self) -> None:
        """Everyone hears the newest plan."""
        shares = tuple(Share(name, weight) for name, weight in self.weights.items())
        for name in self.weights:
            role = Role.PRIMARY if name == self.leader else Role.CONTRIBUTOR if self.weights[name] else Role.STANDBY
            plan = ev.PlanChanged(self.now_s, {}, frozenset(), NUM_BATCHES, shares, role, self.leader)
            self.feed(self.replicas[name], plan)
            if self.replicas[name].has_stopped:  # another primary: it begins again
                self.incarnations += 1
                self.replicas[name] = self.made(name, Maths(initial_state("a")))
                self.feed(self.replicas[name], plan)

    def promote(self, name: ReplicaId) -> None:
        """It leads by the newest plan, with whatever it holds."""
        self.leader = name
        self.tell()

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
                    | mev.MergeOwn()
                    | mev.MergeDeltas()
                    | mev.CaptureAnchor()
                ):
                    assert replica.busy is None
                    replica.busy = instruction
                case mev.AskMerge():
                    replica.ask = instruction
                case mev.Lead():
                    replica.maths.lead()
                    assert instruction.lineage == replica.maths.state.lineage
                case ev.Stop():
                    replica.has_stopped = True
                    return
                case mev.AnswerMerge():
                    assert lineage_of(replica.anchor) == replica.maths.state.lineage
                    assert replica.answers[instruction.request] is None
                    replica.answers[instruction.request] = (instruction.verdict, replica.anchor)
                    self.verdicts[instruction.verdict] += 1
                case _:
                    pass
        replica.core.check()
        assert replica.maths.state.is_sum, f"{replica.name}: {replica.maths.state.learned}"
        assert replica.core.view().lineage == replica.maths.state.lineage, "a core believes what its state is"

    def go_on(self, replica: Replica) -> None:
        """What is under way there is done."""
        busy, replica.busy = replica.busy, None
        maths, now_s = replica.maths, self.now_s
        match busy:
            case ev.Learn():
                maths.learn(busy.batch)
                self.learned[busy.batch] += 1
                replica.num_fresh += 1
                self.feed(replica, ev.Learned(now_s, busy.batch, 1.0, 0.1))
            case ev.TakeSnapshot():
                assert busy.lineage == maths.state.lineage
                self.feed(replica, ev.SnapshotTaken(now_s, busy.lineage, "digest"))
            case mev.MakeDelta():
                replica.delta = (busy.sequence, busy.batches, maths.delta(busy.anchor))
                assert busy.lineage | busy.batches == maths.state.lineage
                replica.is_anchored, replica.has_failed, replica.is_met = True, False, False
                replica.is_delta_open, replica.num_fresh = True, 0
                self.feed(replica, mev.DeltaMade(now_s, busy.sequence, busy.batches))
            case mev.Rebase():
                if self.audited:
                    assert not busy.keep_open, "an interval begins with an anchor and nothing else"
                    assert not busy.keep_after
                maths.rebase(busy.anchor, keep_open=busy.keep_open, keep_after=busy.keep_after)
                assert busy.lineage == maths.state.lineage
                replica.is_anchored, replica.has_failed, replica.is_met = True, False, False
                replica.is_delta_open = False
                replica.num_fresh = len(maths.after)
                self.feed(replica, mev.Rebased(now_s))
            case mev.MergeOwn():
                maths.merge_own()
                assert busy.lineage == maths.state.lineage
                self.feed(replica, mev.OwnMerged(now_s))
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
        primary, source = self.replicas[self.leader], Peer(replica.name, replica.incarnation)
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
        primary = self.replicas[self.leader]
        found = primary.answers.get(request)
        if found is None or replica.ask is None:
            return False
        verdict, anchor = found
        ask, replica.ask = replica.ask, None
        peer = Peer(self.leader, primary.incarnation)
        if ask.sequence is None:
            replica.is_met = True
            self.feed(replica, mev.AnchorArrived(self.now_s, ask.ask, peer, lineage_of(anchor), anchor))
        else:
            replica.is_delta_open, replica.has_failed = False, False
            self.feed(replica, mev.DeltaAnswered(self.now_s, ask.ask, peer, verdict))
        return True

    def lose(self, replica: Replica) -> None:
        """The call breaks."""
        if replica.ask is not None:
            ask, replica.ask, replica.has_failed = replica.ask, None, True
            self.feed(replica, mev.MergeUnanswered(self.now_s, ask.ask, "lost"))

    def check(self) -> None:
        """A contributor that has an anchor never stands still while it lacks batches of its own, and puts off no delta."""
        for name, replica in self.replicas.items():
            if name == self.leader or not replica.is_anchored:
                continue
            view = replica.core.view()
            is_waiting = self.audited and replica.core.view().paused_why == "waiting for the primary's anchor"
            assert replica.busy is not None or is_waiting or not view.owned - view.lineage, (
                f"{name} stands still: {view.paused_why}"
            )
            is_asking = replica.ask is not None or replica.is_met or replica.is_delta_open or replica.has_failed
            if isinstance(replica.busy, ev.Learn) and not is_asking:
                assert replica.num_fresh < self.merge_every, (
                    f"{name} has learned {replica.num_fresh} batches and asks for no anchor"
                )

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for replica in self.replicas.values():
            self.feed(replica, ev.HeadSeen(self.now_s))


WHO = st.sampled_from([PRIMARY, ONE, OTHER])
CONTRIBUTORS = st.sampled_from([ONE, OTHER])
WAITS = (
    st.tuples(st.just("work"), st.tuples(WHO, st.integers(1, 6))),
    st.tuples(st.just("work"), st.tuples(WHO, st.integers(1, 6))),
    st.tuples(st.just("call"), CONTRIBUTORS),
    st.tuples(st.just("call"), CONTRIBUTORS),
    st.tuples(st.just("bring"), CONTRIBUTORS),
    st.tuples(st.just("answer"), CONTRIBUTORS),
    st.tuples(st.just("lose"), CONTRIBUTORS),
    st.tuples(st.just("time"), st.sampled_from([2.0, 11.0])),
)
"""What is late, lost or asked twice."""
CHANGES = (
    st.tuples(st.just("weight"), st.tuples(CONTRIBUTORS, st.sampled_from([0.0, 0.5, 1.0, 4.0]))),
    st.tuples(st.just("restart primary"), st.integers(0, 8)),
    st.tuples(st.just("restart"), CONTRIBUTORS),
    st.tuples(st.just("fall back"), CONTRIBUTORS),
    st.tuples(st.just("units move"), CONTRIBUTORS),
    st.tuples(st.just("promote"), CONTRIBUTORS),
    st.tuples(st.just("promote for a while"), st.tuples(CONTRIBUTORS, st.integers(0, 2))),
)
"""What moves units, loses states or makes another replica the primary."""
SHAPES = (st.sampled_from([1, 2, 5]), st.sampled_from([1, 2, 4]))
ANY = st.tuples(st.lists(st.one_of(*WAITS, *CHANGES), min_size=5, max_size=40), *SHAPES)
CALM = st.tuples(st.lists(st.one_of(*WAITS), min_size=5, max_size=40), *SHAPES)
Script = tuple[list[tuple[str, Any]], int, int]


class Play:
    """Plays a script in a world of its own."""

    def __init__(self, script: Script, *, audited: bool = False) -> None:
        steps, merge_every, unit_batches = script
        self.world = World(merge_every, unit_batches, audited=audited)
        self.brought: dict[ReplicaId, int] = {}
        self.saved = [self.primary.maths.state]
        for kind, what in steps:
            self.world.now_s += 0.01
            is_of_one = isinstance(what, str)
            self.step(kind, self.now(what) if is_of_one else (self.now(what[0]), what[1]) if isinstance(what, tuple) else what)
            self.world.check()

    @property
    def primary(self) -> Replica:
        return self.world.replicas[self.world.leader]

    def now(self, name: ReplicaId) -> ReplicaId:
        """Who has that part: a replica that is promoted has changed places with the primary before."""
        leader = self.world.leader
        return leader if name == PRIMARY else PRIMARY if name == leader else name

    def save(self) -> None:
        """What the primary holds may be restored; what is still open there is in no state."""
        if not self.primary.maths.open:
            self.saved.append(self.primary.maths.state)

    def step(self, kind: str, what: Any) -> None:
        world = self.world
        match kind:
            case "work":
                for _ in range(what[1]):
                    world.go_on(world.replicas[what[0]])
                    self.save()
            case "call":  # as it is where nothing goes wrong
                self.call(what, primary_steps=3, own_steps=2)
            case "bring":
                request = world.bring(world.replicas[what])
                if request is not None:
                    self.brought[what] = request
            case "answer":
                if what in self.brought and world.answer(world.replicas[what], self.brought[what]):
                    del self.brought[what]
            case "lose":
                world.lose(world.replicas[what])
                self.brought.pop(what, None)
            case "time":
                world.pass_time(what)
            case "weight":
                world.weights[what[0]] = what[1]
                world.tell()
            case "fall back":  # a primary that had answered begins again with less
                self.step("work", (world.leader, 4))
                self.call(what, primary_steps=3, own_steps=4)
                self.restart("restart primary", 5)
                self.step("work", (what, 3))
                self.call(what, primary_steps=3, own_steps=2)
            case "units move":  # two contributors learn the same batches, and bring them at once
                (other,) = {PRIMARY, ONE, OTHER} - {what, world.leader}
                self.step("work", (what, 6))
                self.step("weight", (what, 0.0))
                self.step("work", (other, 6))
                self.step("bring", what)
                self.step("bring", other)
                self.step("work", (world.leader, 3))
                self.step("weight", (what, 1.0))
            case "promote":
                world.promote(what)
                self.saved, self.brought = [self.saved[-1]], {}
                self.save()
            case "promote for a while":  # the plan after that has the former one again
                former = world.leader
                self.step("promote", what[0])
                self.step("work", what)
                self.step("promote", former)
            case _:
                self.restart(kind, what)

    def restart(self, kind: str, what: Any) -> None:
        world = self.world
        world.incarnations += 1
        if kind == "restart primary":  # with a state that it had some steps ago
            state = self.saved[max(0, len(self.saved) - 1 - what)]
            world.replicas[world.leader] = world.made(world.leader, Maths(state))
            self.saved, self.brought = [state], {}
        else:
            self.brought.pop(what, None)
            world.replicas[what] = world.made(what, Maths(initial_state("a")))
        world.tell()

    def call(self, name: ReplicaId, primary_steps: int, own_steps: int) -> None:
        world = self.world
        request = world.bring(world.replicas[name])
        for _ in range(primary_steps):
            world.go_on(self.primary)
            self.save()
        if request is not None and not world.answer(world.replicas[name], request):
            world.lose(world.replicas[name])
        for _ in range(own_steps):
            world.go_on(world.replicas[name])
        self.brought.pop(name, None)

    def finish(self, rounds: int) -> None:
        """From here on every call is answered; after so many rounds the primary holds everything."""
        others = [name for name in (PRIMARY, ONE, OTHER) if name != self.world.leader]
        for name in others:
            self.world.lose(self.world.replicas[name])
        for _ in range(rounds):
            if self.primary.maths.state.lineage.is_exactly(0, NUM_BATCHES):
                break
            self.world.pass_time(1.0)
            for name in others:
                self.call(name, primary_steps=8, own_steps=4)
        state = self.primary.maths.state
        assert state.lineage.is_exactly(0, NUM_BATCHES)
        assert sorted(state.learned) == list(range(NUM_BATCHES))


def whatever_happens(script: Script, *, audited: bool = False) -> None:
    """No batch is counted twice, and none is lost."""
    Play(script, audited=audited).finish(rounds=60)


def where_only_calls_fail(script: Script, *, audited: bool = False) -> None:
    """Each batch is learned once by one replica, no delta is refused, and a few rounds bring everything home."""
    play = Play(script, audited=audited)
    play.finish(rounds=12)
    again = {batch: count for batch, count in play.world.learned.items() if count > 1}
    assert not again, f"learned in vain: {again}"
    assert not play.world.verdicts[Verdict.REFUSED], "a delta that was merged is asked about again, and gets the same answer"


LED_FOR_A_MOMENT: Script = (
    [
        ("call", OTHER), ("work", (PRIMARY, 2)), ("call", OTHER), ("work", (OTHER, 1)), ("promote for a while", (OTHER, 1)), ("work", (OTHER, 3)),
        ("call", OTHER), ("call", OTHER),
    ], 1, 4,
)  # fmt: skip
"""A contributor merges its own delta so as to lead, and by the next plan does not lead."""


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@example(LED_FOR_A_MOMENT, False)
@given(ANY, st.booleans())
def test_nothing_is_counted_twice_and_nothing_is_lost(script: Script, audited: bool) -> None:
    whatever_happens(script, audited=audited)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(CALM, st.booleans())
def test_where_only_calls_fail_nothing_is_learned_in_vain(script: Script, audited: bool) -> None:
    where_only_calls_fail(script, audited=audited)


PLANTED = [
    planted.learns_what_others_own, planted.overlap_is_kept, planted.merged_delta_is_kept, planted.older_anchor_counts, planted.no_last_delta,
    planted.unanswered_is_merged, planted.merge_tested_when_queued, planted.repeated_delta_is_merged_again,
    planted.answered_with_an_older_anchor, planted_merges.deltas_only_at_the_end, planted_merges.learning_waits_for_the_answer,
    planted_merges.merged_is_forgotten, planted_merges.delta_without_an_anchor, planted_merges.two_deltas_at_a_time,
    planted_merges.refused_counts_as_learned,
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED, ids=[plant.__name__ for plant in PLANTED])
def test_without_one_of_its_rules_merging_turns_red(plant: planted.Plant) -> None:
    """Goal: rules 2, 7 and 8 of the data plane (PROTOCOL.md), each dropped alone, break one of the two properties."""

    def breaks(script: Script, prop: Any, audited: bool) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            try:
                prop(script, audited=audited)
            except (AssertionError, InvariantBroken):
                return True
        return False

    quick = settings(max_examples=300, database=None, derandomize=True, phases=[Phase.generate],
                     suppress_health_check=list(HealthCheck))  # fmt: skip
    kinds = (
        st.tuples(CALM, st.just(where_only_calls_fail), st.booleans()),
        st.tuples(ANY, st.just(whatever_happens), st.booleans()),
    )
    find(st.one_of(*kinds), lambda found: breaks(*found), settings=quick)
