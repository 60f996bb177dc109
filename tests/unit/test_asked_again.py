"""Goal: whatever a successor asks for again and says of it, its predecessor goes on learning, and computes nothing only to throw it away."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from vnode import events as ev
from vnode.core import ReplicaCore
from vnode.due import WakeAt
from vnode.events import Event, Instruction
from vnode.replica_config import ReplicaConfig
from vnode.vocabulary import TRAIN_LANE, Peer

NEXT, BEFORE = ReplicaId("next.0"), Peer(ReplicaId("before.0"), 1)
NONE, LEARNED, NUM_BATCHES = IntervalSet.empty(), IntervalSet.span(0, 100), 1000
Answer = Callable[[Instruction], list[Event]]


def config(**changes: Any) -> ReplicaConfig:
    values: dict[str, Any] = {
        "vnode": VNodeId("here"), "replica": ReplicaId("here.0"), "incarnation": 1, "num_inputs": 1, "input_edges": frozenset({0}),
        "num_batches": NUM_BATCHES, "spool_batches": 500, "window_batches": 8, "lead_batches": 500, "checkpoint_steps": 4096, "checkpoint_s": 1e9,
    }  # fmt: skip
    return ReplicaConfig(**(values | changes))


class Played:
    """A core whose every instruction is answered at once, as a shell with all the time in the world would; checked after every event."""

    def __init__(self, core: ReplicaCore, *, takes: bool = True) -> None:
        self.core, self.takes = core, takes
        self.learned: list[int] = []
        self.forwarded: Counter[int] = Counter()
        self.sent: list[int] = []
        self.turns: list[str] = []
        self._events: deque[Event] = deque()
        self._instructions: deque[Instruction] = deque()
        self.sequence = 0

    def tell(self, *events: Event) -> None:
        self._events += events

    def ask(self, wanted: IntervalSet, end: int = NUM_BATCHES, evicted: IntervalSet = NONE) -> None:
        self.sequence += 1
        self.tell(
            ev.NeedHeard(0.0, 1, self.sequence, TRAIN_LANE, wanted, NONE, evicted),
            ev.WindowHeard(0.0, 1, self.sequence, TRAIN_LANE, end),
        )

    def run(self, num_events: int) -> None:
        """Up to so many events; fewer, where nothing is left to answer."""
        for _ in range(num_events):
            if not self._events:
                return
            self._instructions += self.core.handle(self._events.popleft())
            self.core.check()
            while self._instructions:
                self._answer(self._instructions.popleft())

    def _answer(self, instruction: Instruction) -> None:
        match instruction:
            case ev.ReadInput():
                self.tell(ev.FrameArrived(0.0, instruction.edge, instruction.lane, instruction.batch, "input"))
            case ev.Learn():
                self.learned.append(instruction.batch)
                self.turns.append("learn")
                self.tell(ev.Learned(0.0, instruction.batch, 1.0, 0.1))
            case ev.Forward():
                self.forwarded[instruction.batch] += 1
                self.turns.append("again")
                self.tell(ev.Forwarded(0.0, instruction.lane, instruction.batch, 0.1))
            case ev.TakeSnapshot():
                self.tell(ev.SnapshotTaken(0.0, instruction.lineage, "digest"))
            case ev.SendFrame():
                self.sent.append(instruction.batch)
                if self.takes:
                    self.tell(ev.FrameSent(0.0, instruction.link, instruction.lane, instruction.batch))
            case ev.SendNeed() | ev.SendWindow() | ev.SendAck() | ev.SendDurable() | ev.DropFrames() | WakeAt():
                pass
            case _:
                raise AssertionError(f"nobody answers {instruction!r:.200}")


def played(lineage: IntervalSet = LEARNED, *, takes: bool = True, **changes: Any) -> Played:
    """A source with one successor of the plan, which has learned nothing above 100."""
    story = Played(ReplicaCore(config(**changes), lineage, 0.0), takes=takes)
    story.tell(
        ev.PlanChanged(0.0, {0: (Share(BEFORE.replica, 1.0),)}, frozenset({NEXT}), 1000),
        ev.LinkUp(0.0, 1, Peer(NEXT, 1)), ev.AckHeard(0.0, 1, 1, 100, 100, VNodeId("next")),
    )  # fmt: skip
    return story


def test_who_asks_for_what_it_says_is_durable_stops_nobody() -> None:
    """Three statements of one successor: batches are durable, it lacks them, and it has room."""
    story = played()
    story.tell(ev.DurableHeard(0.0, 1, LEARNED))
    story.ask(LEARNED)
    story.run(500)
    assert len(story.learned) > 100
    assert not story.forwarded, "nobody lacks any of it"


@pytest.mark.parametrize(
    "sets", [{"wanted": IntervalSet.span(0, 2**61)}, {"forward_only": IntervalSet.span(NUM_BATCHES - 1, 2**61)}]
)
def test_batches_that_the_job_does_not_have_are_asked_of_nobody_whoever_asks_for_them(sets: dict[str, IntervalSet]) -> None:
    core = ReplicaCore(config(), IntervalSet.span(0, NUM_BATCHES), 0.0)
    core.handle(ev.PlanChanged(0.0, {}, frozenset({NEXT}), 100))
    core.handle(ev.LinkUp(0.0, 1, Peer(NEXT, 1)))
    asked = {"wanted": NONE, "forward_only": NONE, "evicted": IntervalSet.span(0, 2**61)} | sets
    core.handle(ev.WindowHeard(0.0, 1, 1, TRAIN_LANE, 2**61))
    out = core.handle(ev.NeedHeard(0.0, 1, 1, TRAIN_LANE, **asked))
    core.check()
    read = [item.batch for item in out if isinstance(item, ev.ReadInput)]
    assert read
    assert max(read) < NUM_BATCHES


def test_what_another_successor_lacks_is_computed_whatever_the_first_says() -> None:
    """Goal: a word about oneself takes nothing from others."""
    other = ReplicaId("next.1")
    story = Played(ReplicaCore(config(), LEARNED, 0.0))
    story.tell(
        ev.PlanChanged(0.0, {0: (Share(BEFORE.replica, 1.0),)}, frozenset({NEXT, other}), 1000),
        ev.LinkUp(0.0, 1, Peer(NEXT, 1)), ev.AckHeard(0.0, 1, 1, 100, 100, VNodeId("next")), ev.DurableHeard(0.0, 1, LEARNED),
        ev.LinkUp(0.0, 2, Peer(other, 1)), ev.AckHeard(0.0, 2, 1, 0, 40, VNodeId("next")),
        ev.NeedHeard(0.0, 2, 1, TRAIN_LANE, IntervalSet.span(40, 50), NONE, NONE), ev.WindowHeard(0.0, 2, 1, TRAIN_LANE, 50),
    )  # fmt: skip
    story.ask(LEARNED)
    story.run(500)
    assert set(range(40, 50)) <= set(story.sent)
    assert set(story.forwarded) == set(range(40, 50))


@pytest.mark.parametrize("says_durable", [True, False])
def test_who_contradicts_itself_takes_no_place_in_the_spool_from_others(says_durable: bool) -> None:
    """Goal: beside a successor that asks for everything, takes nothing and says that it lacks nothing, another one is served to the end."""
    other, num, spool = ReplicaId("next.1"), 100, 16
    made = config(num_batches=num, spool_batches=spool, lead_batches=spool, input_edges=frozenset({0}))
    story = Played(ReplicaCore(made, NONE, 0.0))
    story.tell(
        ev.PlanChanged(0.0, {0: (Share(BEFORE.replica, 1.0),)}, frozenset({NEXT, other}), spool),
        ev.LinkUp(0.0, 1, Peer(NEXT, 1)), ev.AckHeard(0.0, 1, 1, num, num, VNodeId("next")),
        ev.NeedHeard(0.0, 1, 1, TRAIN_LANE, IntervalSet.span(0, num), NONE, NONE),
        ev.LinkUp(0.0, 2, Peer(other, 1)),
    )  # fmt: skip
    if says_durable:
        story.tell(ev.DurableHeard(0.0, 1, IntervalSet.span(0, num)))
    got, sequence = 0, 0
    for _ in range(40 * num):
        if len(story.sent) > got or not sequence:
            got, sequence = len(story.sent), sequence + 1
            has = IntervalSet.of(*((batch, batch + 1) for batch in story.sent))
            lacks = IntervalSet.span(0, num) - has
            floor = has.lowest_absent()
            story.tell(
                ev.AckHeard(0.0, 2, sequence, floor, floor, VNodeId("next")), ev.DurableHeard(0.0, 2, has),
                ev.NeedHeard(0.0, 2, sequence, TRAIN_LANE, lacks, NONE, NONE), ev.WindowHeard(0.0, 2, sequence, TRAIN_LANE, floor + 8),
            )  # fmt: skip
        story.run(4)
        if got == num:
            break
    assert (set(story.sent), set(story.learned)) == (set(range(num)), set(range(num)))


def test_who_takes_back_how_far_it_stands_is_served_from_then_on() -> None:
    """A successor that was restored asks for what it lacks, and says only then how far back it stands: nothing else need happen."""
    story = played(LEARNED, takes=False, spool_batches=16, input_edges=frozenset(), num_batches=100)
    story.ask(IntervalSet.span(0, 100), end=100)
    story.run(500)
    before = story.core._work[TRAIN_LANE].forward_only
    story.tell(ev.AckHeard(0.0, 1, 2, 0, 50, VNodeId("next")))
    story.run(500)
    assert story.core._work[TRAIN_LANE].forward_only != before
    assert story.core._work[TRAIN_LANE].forward_only.lowest() == 50


def test_what_is_asked_for_now_stays_in_the_spool_though_it_is_durable() -> None:
    """A need that came just before the word that takes back what was durable: what lies there need not be computed again."""
    story = played(NONE, num_batches=8)
    story.ask(IntervalSet.span(0, 8), end=0)
    story.run(500)
    assert len(story.learned) == 8
    story.tell(ev.DurableHeard(0.0, 1, IntervalSet.span(0, 8)))
    story.ask(IntervalSet.span(0, 8), end=8)
    story.run(500)
    assert (story.sent, story.forwarded) == (list(range(8)), {})


@pytest.mark.parametrize("changes", [{}, {"input_edges": frozenset()}], ids=["source", "stage"])
def test_while_there_is_something_to_learn_every_second_turn_is_for_that(changes: dict[str, Any]) -> None:
    """A successor that takes all it is sent and lacks it again at once: it gets what it asks for, and no more than half of the time."""
    story = played(**changes)
    for _ in range(60):
        story.ask(LEARNED, evicted=LEARNED)
        story.run(20)
        if changes:
            within = story.core._work[TRAIN_LANE].within
            story.tell(*(ev.FrameArrived(0.0, 0, TRAIN_LANE, batch, "input") for batch in within))
    assert "again again" not in " ".join(story.turns[10:])
    assert len(story.learned) > 50
    assert sum(story.forwarded.values()) > 50


def test_without_anything_to_learn_what_is_asked_for_has_every_turn_and_the_whole_window() -> None:
    story = played(IntervalSet.span(0, NUM_BATCHES))
    story.ask(LEARNED)
    story.run(2)
    story.run(600)
    assert story.sent == list(range(100))
    assert set(story.turns) == {"again"}
    assert len(story.core._work[TRAIN_LANE].forward_only) == 0


@pytest.mark.parametrize("lineage", [LEARNED, IntervalSet.span(0, NUM_BATCHES)], ids=["learning", "learned_all"])
def test_for_a_receiver_that_takes_nothing_no_batch_is_computed_twice(lineage: IntervalSet) -> None:
    """Goal: what does not fit beside what it asked for before is not computed, only to be thrown away and asked for again."""
    story = played(lineage, takes=False, spool_batches=16)
    story.tell(
        ev.AckHeard(0.0, 1, 2, 0, 0, VNodeId("next"))
    )  # a replica that was restored says what it lacks and how far back it stands
    story.ask(LEARNED)
    story.run(2000)
    assert len(story.sent) == 4, "so many may wait on one link"
    assert set(story.forwarded.values()) == {1}
    assert sum(story.forwarded.values()) <= 16
    story.tell(*(ev.FrameSent(0.0, 1, TRAIN_LANE, batch) for batch in story.sent))
    story.takes = True
    story.run(4000)
    assert story.sent[:100] == list(range(100))
