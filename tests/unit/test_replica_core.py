"""Goal: one decision of the replica core per test, as events in and instructions out."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

import pytest

from dcnr.errors import InvalidInput, InvariantBroken
from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from vnode import events as ev
from vnode.core import ReplicaCore
from vnode.events import Instruction
from vnode.intake import LATE_S
from vnode.replica_config import ReplicaConfig
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Peer

NEXT = ReplicaId("next.0")
BEFORE = Peer(ReplicaId("before.0"), 1)
EMPTY = IntervalSet.empty()
T = TypeVar("T")


def span(lo: int, hi: int) -> IntervalSet:
    return IntervalSet.span(lo, hi)


def config(**changes: Any) -> ReplicaConfig:
    values: dict[str, Any] = {
        "vnode": VNodeId("here"), "replica": ReplicaId("here.0"), "incarnation": 1, "num_inputs": 1, "input_edges": frozenset({0}),
        "num_batches": 10, "spool_batches": 8, "window_batches": 4, "lead_batches": 4, "eval_batches": {"validation": 2, "test": 2},
    }  # fmt: skip
    return ReplicaConfig(**(values | changes))


def of(kind: type[T], instructions: list[Instruction]) -> list[T]:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


def started(successors: frozenset[ReplicaId] = frozenset(), lineage: IntervalSet = EMPTY, **changes: Any) -> ReplicaCore:
    core = ReplicaCore(config(**changes), lineage, 0.0)
    core.handle(ev.PlanChanged(0.0, {0: (Share(BEFORE.replica, 1.0),)}, successors, 100))
    return core


def give(core: ReplicaCore, batch: int, now_s: float = 0.0, lane: Lane = TRAIN_LANE) -> list[Instruction]:
    return core.handle(ev.FrameArrived(now_s, 0, lane, batch, f"input {batch}"))


def learn(core: ReplicaCore, batch: int, now_s: float = 0.0) -> list[Instruction]:
    given = of(ev.Learn, give(core, batch, now_s))
    assert [item.batch for item in given] == [batch]
    return core.handle(ev.Learned(now_s, batch, 1.0, 0.1))


def ask(
    core: ReplicaCore, wanted: IntervalSet, end: int, sequence: int = 1, now_s: float = 0.0, **sets: IntervalSet
) -> list[Instruction]:
    need = ev.NeedHeard(now_s, 1, sequence, TRAIN_LANE, wanted, sets.get("forward_only", EMPTY), sets.get("evicted", EMPTY))
    return core.handle(need) + core.handle(ev.WindowHeard(now_s, 1, sequence, TRAIN_LANE, end))


def test_a_source_waits_at_floor_plus_lead_and_says_for_whom() -> None:
    core = started(frozenset({NEXT}))
    for batch in range(4):
        learn(core, batch)
    assert not of(ev.Learn, give(core, 4))
    assert core.view().held_back_by == "next"
    core.handle(ev.LinkUp(1.0, 1, Peer(NEXT, 1)))
    instructions = core.handle(ev.AckHeard(1.0, 1, 1, 2, 2, VNodeId("last")))
    assert [item.batch for item in of(ev.ReadInput, instructions)] == [5]
    assert [item.batch for item in of(ev.Learn, instructions)] == [4]


def test_a_floor_is_held_by_nobody_who_does_not_lie_behind_the_successor_that_says_so() -> None:
    """Goal: one successor cannot hold all sources in the name of somebody who has nothing to do with it."""
    behind = {VNodeId("next"): frozenset({VNodeId("next"), VNodeId("last")}), VNodeId("side"): frozenset({VNodeId("side")})}
    core = started(frozenset({NEXT}), behind=behind)
    core.handle(ev.LinkUp(0.0, 1, Peer(NEXT, 1)))
    for batch in range(4):
        learn(core, batch)
    give(core, 4)
    for sequence, innocent in enumerate(("here", "side", "before", "anybody", ""), 1):
        core.handle(ev.AckHeard(0.0, 1, sequence, 0, 0, VNodeId(innocent)))
        assert (core.view().floor, core.view().held_back_by) == (0, "next")
    core.handle(ev.AckHeard(0.0, 1, 9, 0, 0, VNodeId("last")))
    assert core.view().held_back_by == "last"


def test_a_new_incarnation_holds_the_floor_where_the_one_before_had_it() -> None:
    core = started(frozenset({NEXT}))
    core.handle(ev.LinkUp(0.0, 1, Peer(NEXT, 1)))
    core.handle(ev.AckHeard(0.0, 1, 1, 1, 1, VNodeId("next")))
    learn(core, 0)
    learn(core, 1)
    assert (core.view().floor, core.view().floor_vnode) == (1, "next")
    core.handle(ev.LinkUp(1.0, 2, Peer(NEXT, 2)))
    core.handle(ev.AckHeard(1.0, 1, 2, 10, 10, VNodeId("next")))
    assert (core.view().floor, core.view().floor_vnode) == (1, "next")
    core.handle(ev.PlanChanged(2.0, {}, frozenset(), 100))
    assert core.view().floor == 2


def test_a_frame_is_sent_once_until_the_resend_time_or_an_eviction() -> None:
    core = started(frozenset({NEXT}))
    core.handle(ev.LinkUp(0.0, 1, Peer(NEXT, 1)))
    learn(core, 0)
    assert of(ev.SendFrame, ask(core, span(0, 10), 4)) == [ev.SendFrame(1, TRAIN_LANE, 0, Mode.TRAIN)]
    core.handle(ev.FrameSent(0.1, 1, TRAIN_LANE, 0))
    assert not of(ev.SendFrame, ask(core, span(0, 10), 4, sequence=2, now_s=1.0))
    assert not of(ev.SendFrame, core.handle(ev.Tick(5.0)))
    assert of(ev.SendFrame, ask(core, span(0, 10), 4, sequence=3, now_s=2.2))
    core.handle(ev.FrameSent(2.3, 1, TRAIN_LANE, 0))
    assert of(ev.SendFrame, ask(core, span(0, 10), 4, sequence=4, now_s=2.4, evicted=span(0, 1)))
    assert core.view().counters.frames_resent == 1


def test_a_stale_need_and_an_old_incarnation_have_no_say() -> None:
    core = started(frozenset({NEXT}))
    core.handle(ev.LinkUp(0.0, 1, Peer(NEXT, 2)))
    learn(core, 0)
    ask(core, EMPTY, 4, sequence=5)
    assert not of(ev.SendFrame, ask(core, span(0, 10), 4, sequence=4))
    core.handle(ev.LinkUp(0.0, 2, Peer(NEXT, 1)))
    assert not of(ev.SendFrame, core.handle(ev.NeedHeard(0.0, 2, 9, TRAIN_LANE, span(0, 1), EMPTY, EMPTY)))


def test_what_was_learned_and_dropped_is_computed_again_once_for_all_askers() -> None:
    core = started(frozenset({NEXT}), lineage=span(0, 3))
    core.handle(ev.LinkUp(0.0, 1, Peer(NEXT, 1)))
    core.handle(ev.LinkUp(0.0, 2, Peer(ReplicaId("other.0"), 1)))
    read = ask(core, span(1, 10), 2)
    assert of(ev.ReadInput, read) == [ev.ReadInput(0, TRAIN_LANE, 1)]
    core.handle(ev.WindowHeard(0.0, 2, 1, TRAIN_LANE, 2))
    core.handle(ev.NeedHeard(0.0, 2, 1, TRAIN_LANE, EMPTY, span(1, 2), EMPTY))
    assert [item.mode for item in of(ev.Forward, give(core, 1))] == [Mode.FORWARD_ONLY]
    sent = of(ev.SendFrame, core.handle(ev.Forwarded(0.0, TRAIN_LANE, 1, 0.1)))
    assert sent == [ev.SendFrame(1, TRAIN_LANE, 1, Mode.TRAIN), ev.SendFrame(2, TRAIN_LANE, 1, Mode.FORWARD_ONLY)]
    assert core.view().lineage == span(0, 3)


def test_a_stage_asks_its_predecessor_by_mode_and_window() -> None:
    core = started(frozenset({NEXT}), input_edges=frozenset(), lineage=span(0, 2))
    stated = core.handle(ev.EdgeUp(0.0, 0, BEFORE))
    assert [(need.wanted, need.forward_only) for need in of(ev.SendNeed, stated)] == [(span(2, 10), EMPTY)]
    assert [window.end for window in of(ev.SendWindow, stated)] == [6]
    core.handle(ev.LinkUp(0.0, 1, Peer(NEXT, 1)))
    stated = ask(core, span(0, 10), 1)
    assert [(need.wanted, need.forward_only) for need in of(ev.SendNeed, stated)] == [(span(2, 10), span(0, 1))]
    assert [window.end for window in of(ev.SendWindow, stated)] == [5]


def test_a_full_window_gives_way_to_the_lowest_batch_and_says_what_it_dropped() -> None:
    core = started(num_inputs=2, input_edges=frozenset())
    for edge in (0, 1):
        core.handle(ev.EdgeUp(0.0, edge, BEFORE))
    stated = [item for batch in (1, 2, 3, 4, 0) for item in give(core, batch, now_s=1.0)]
    assert core.view().counters.evicted == 1
    assert of(ev.SendNeed, stated)[-1].wanted == span(4, 10)
    (need,) = of(ev.SendNeed, give(core, 9, now_s=1.1))
    assert (need.edge, need.evicted) == (0, span(9, 10))


def test_what_is_lacking_again_is_asked_for_at_once_also_right_after_a_need_without_it() -> None:
    core = started(input_edges=frozenset())
    core.handle(ev.EdgeUp(0.0, 0, BEFORE))
    core.handle(ev.Tick(1.0))
    (need,) = of(ev.SendNeed, give(core, 0, 2.5))
    assert need.wanted == span(1, 10), "it came as the Need was due"
    (need,) = of(ev.SendNeed, core.handle(ev.ComputeFailed(2.6, TRAIN_LANE, 0, "bad luck", fatal=False)))
    assert need.wanted == span(0, 10)


def test_who_starves_looks_past_what_a_silent_replica_owes_and_back_when_it_brings() -> None:
    """Two replicas feed this one; one is silent, and its batches fill the window."""
    silent, living = ReplicaId("before.0"), ReplicaId("before.1")
    shares = (Share(silent, 1.0), Share(living, 1.0))
    owed = split(shares, 40, 4)
    core = started(input_edges=frozenset(), num_batches=40, unit_batches=4)
    core.handle(ev.PlanChanged(0.0, {0: shares}, frozenset(), 100))
    for source in (silent, living):
        core.handle(ev.EdgeUp(0.0, 0, Peer(source, 1)))
    filled = owed[silent].first(4).highest() or 0
    for batch in owed[living].below(filled):
        learn(core, batch, 1.0)
    assert not of(ev.SendWindow, core.handle(ev.Tick(1.0 + 0.9 * LATE_S)))
    ends = {item.end for item in of(ev.SendWindow, core.handle(ev.Tick(1.0 + 1.1 * LATE_S)))}
    assert len(ends) == 1
    end = ends.pop()
    left = owed[living] - core.view().lineage
    assert len(left.below(end)) >= 4, "there is room for a window of what the other one has"
    first = owed[silent].lowest()
    assert first is not None
    back = of(ev.SendWindow, give(core, first, 2.0))
    assert {item.end < end for item in back} == {True}, "who brings again must not bring more than there is room for"


def test_a_completed_lineage_and_a_lost_checkpoint_are_captured_at_once() -> None:
    core = started(lineage=span(0, 9))
    assert [item.lineage for item in of(ev.TakeSnapshot, learn(core, 9))] == [span(0, 10)]
    core.handle(ev.SnapshotTaken(0.0, span(0, 10), "digest"))
    assert not of(ev.TakeSnapshot, core.handle(ev.Tick(1000.0)))
    assert of(ev.TakeSnapshot, core.handle(ev.CheckpointLost(1000.0, "condemned")))


def test_who_leaves_learns_nothing_more_captures_its_state_and_names_what_it_owes() -> None:
    core = started(frozenset({NEXT}))
    core.handle(ev.LinkUp(0.0, 1, Peer(NEXT, 1)))
    learn(core, 0)
    give(core, 1)
    assert not of(ev.TakeSnapshot, core.handle(ev.Leave(1.0)))  # a step is under way
    assert not core.view().learns_no_more
    assert [item.lineage for item in of(ev.TakeSnapshot, core.handle(ev.Learned(1.0, 1, 1.0, 0.1)))] == [span(0, 2)]
    core.handle(ev.SnapshotTaken(1.0, span(0, 2), "digest"))
    assert not of(ev.Learn, give(core, 2))
    assert core.view().learns_no_more
    assert [item.batch for item in of(ev.SendFrame, ask(core, span(0, 10), 4))] == [0, 1]
    assert core.view().owed == span(0, 2)
    ask(core, span(1, 10), 4, sequence=2)
    assert core.view().owed == span(1, 2)
    ask(core, span(2, 10), 4, sequence=3)
    assert not core.view().owed


def test_who_does_not_leave_after_all_learns_on() -> None:
    core = started(frozenset({NEXT}))
    learn(core, 0)
    core.handle(ev.Leave(1.0))
    core.handle(ev.SnapshotTaken(1.0, span(0, 1), "digest"))
    assert not of(ev.Learn, give(core, 1))
    assert [item.batch for item in of(ev.Learn, core.handle(ev.Leave(2.0, is_off=True)))] == [1]
    assert not core.view().learns_no_more


def test_tests_wait_until_the_final_state_is_durable() -> None:
    core = started(lineage=span(0, 10))
    assert not of(ev.ReadInput, core.handle(ev.Tick(1.0)))
    asked = of(ev.ReadInput, core.handle(ev.CheckpointNamed(2.0, span(0, 10))))
    assert [(item.lane, item.batch) for item in asked] == [(Lane("test"), 0)]


def test_past_the_horizon_nothing_is_learned_until_the_head_is_seen() -> None:
    core = started(horizon_s=5.0)
    assert not of(ev.Learn, give(core, 0, now_s=6.0))
    assert "horizon" in core.view().paused_why
    assert of(ev.Learn, core.handle(ev.HeadSeen(7.0)))


def test_while_learning_is_held_nothing_is_learned_and_what_others_ask_for_is_computed() -> None:
    core = started()
    core.handle(ev.LearningHeld(0.5, "waiting_for_audit: 5 intervals are not cleared"))
    assert not of(ev.Learn, give(core, 0, now_s=1.0))
    assert core.view().paused_why.startswith("waiting_for_audit")
    assert of(ev.Learn, core.handle(ev.LearningHeld(2.0, "")))
    assert core.view().paused_why == ""


def test_in_a_halted_plan_nothing_is_learned_and_what_others_ask_for_is_computed() -> None:
    core = started(frozenset({NEXT}), lineage=span(0, 2))

    def planned(now_s: float, *, halted: bool) -> list[Instruction]:
        return core.handle(ev.PlanChanged(now_s, {0: (Share(BEFORE.replica, 1.0),)}, frozenset({NEXT}), 100, halted=halted))

    planned(0.0, halted=True)
    assert not of(ev.Learn, give(core, 2, now_s=1.0))
    assert core.view().paused_why.startswith("job_paused")
    core.handle(ev.LinkUp(1.0, 1, Peer(NEXT, 1)))
    ask(core, span(0, 10), 4, now_s=1.0)
    assert [item.batch for item in of(ev.Forward, give(core, 0, now_s=1.0))] == [0], "a successor that lost its state is served"
    core.handle(ev.Forwarded(1.0, TRAIN_LANE, 0, None))
    core.check()
    assert [item.batch for item in of(ev.Learn, planned(2.0, halted=False))] == [2]
    assert core.view().paused_why == ""


def test_a_fatal_failure_stops_and_an_unasked_answer_is_a_bug() -> None:
    core = started()
    give(core, 0)
    with pytest.raises(InvariantBroken):
        started().handle(ev.Learned(0.0, 0, 1.0, 0.1))
    assert core.handle(ev.ComputeFailed(0.0, TRAIN_LANE, 0, "no memory", fatal=True)) == [ev.Stop("no memory")]
    assert core.handle(ev.Tick(1.0)) == []


def test_training_and_evaluation_take_turns() -> None:
    core = ReplicaCore(config(evaluate_every=1, num_batches=6), EMPTY, 0.0)
    modes: list[str] = []
    waiting = core.handle(ev.PlanChanged(0.0, {}, frozenset(), 100))
    while waiting:
        match waiting.pop(0):
            case ev.ReadInput() as read:
                waiting += give(core, read.batch, lane=read.lane)
            case ev.Learn() as learned:
                modes.append("learn")
                waiting += core.handle(ev.Learned(0.0, learned.batch, 1.0, 0.1))
            case ev.Forward() as forward:
                modes.append("evaluate")
                waiting += core.handle(ev.Forwarded(0.0, forward.lane, forward.batch, 0.1, 1.0, 1, 2))
            case ev.TakeSnapshot() as snapshot:
                waiting += core.handle(ev.SnapshotTaken(0.0, snapshot.lineage, "digest"))
    assert modes.count("learn") == 6
    assert modes.count("evaluate") >= 2
    while_learning = modes[: len(modes) - modes[::-1].index("learn")]
    assert ("evaluate", "evaluate") not in itertools.pairwise(while_learning)
    newest = core.view().evaluations[-1]
    assert (newest.lane, newest.complete) == (Lane("validation", 6), True)


def test_impossible_numbers_are_refused() -> None:
    for changes in ({"window_batches": 0}, {"repeat_s": 0.0}, {"input_edges": frozenset({3})}, {"num_batches": -1}):
        with pytest.raises(InvalidInput):
            config(**changes)


def test_for_a_replica_that_the_plan_does_not_name_nothing_is_computed_or_kept() -> None:
    stranger = ReplicaId("next.999")
    core = started(frozenset({NEXT}))
    core.handle(ev.LinkUp(0.0, 1, Peer(stranger, 1)))
    learn(core, 0)
    assert of(ev.SendFrame, ask(core, span(0, 10), 10)) == [ev.SendFrame(1, TRAIN_LANE, 0, Mode.TRAIN)]  # what lies there is sent
    core.handle(ev.FrameMissing(0.1, TRAIN_LANE, 0))
    assert 0 not in [item.batch for item in of(ev.ReadInput, core.handle(ev.Tick(5.0)))]
    core.handle(ev.LinkUp(6.0, 2, Peer(NEXT, 1)))
    need = ev.NeedHeard(6.0, 2, 1, TRAIN_LANE, span(0, 10), EMPTY, EMPTY)
    asked = core.handle(need) + core.handle(ev.WindowHeard(6.0, 2, 1, TRAIN_LANE, 10))
    assert 0 in [item.batch for item in of(ev.ReadInput, asked)]
