"""Goal: who is asked for which batches where VNodes have several replicas: one decision per test, as events in and instructions out."""

from __future__ import annotations

from typing import Any

from merges_rig import (
    MINE,
    NONE,
    NUM_BATCHES,
    PRIMARY,
    SHARES,
    THEIRS,
    config,
    learn,
    of,
    primary,
)

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from vnode import events as ev
from vnode.core import ReplicaCore
from vnode.events import Instruction
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Peer, Role

BEFORE = (Share(ReplicaId("before.0"), 1.0), Share(ReplicaId("before.1"), 1.0))


def sole(**changes: Any) -> ReplicaCore:
    core = ReplicaCore(config(PRIMARY, Role.PRIMARY, input_edges=frozenset(), **changes), NONE, 0.0)
    core.handle(ev.PlanChanged(0.0, {0: BEFORE}, frozenset({ReplicaId("next.0")}), 100))
    return core


def asking() -> tuple[ReplicaCore, dict[ReplicaId, IntervalSet]]:
    """One with a way to each replica of its predecessor, and what each of these owns."""
    core, parts = sole(), dict(split(BEFORE, NUM_BATCHES, 2))
    for share in BEFORE:
        (need,) = of(ev.SendNeed, core.handle(ev.EdgeUp(0.0, 0, Peer(share.replica, 1))))
        assert (need.source, need.wanted) == (share.replica, parts[share.replica])
    return core, parts


def asked(out: list[Instruction]) -> dict[ReplicaId, IntervalSet]:
    """What each is asked for; nobody is told twice."""
    needs = of(ev.SendNeed, out)
    told = {need.source: need.wanted for need in needs}
    assert len(told) == len(needs)
    return told


def test_each_replica_of_the_predecessor_is_asked_for_what_it_owns() -> None:
    core, _ = asking()
    out = core.handle(ev.PlanChanged(0.2, {0: (Share(BEFORE[0].replica, 0.0), BEFORE[1])}, frozenset(), 100))
    assert asked(out) == {BEFORE[0].replica: IntervalSet.empty(), BEFORE[1].replica: IntervalSet.span(0, NUM_BATCHES)}


def test_where_a_way_breaks_and_there_is_nothing_else_to_learn_the_other_is_asked_until_it_is_open_again() -> None:
    core, parts = asking()
    out = core.handle(ev.EdgeDown(0.1, 0, BEFORE[0].replica))
    assert [(need.source, need.wanted) for need in of(ev.SendNeed, out)] == [(BEFORE[1].replica, IntervalSet.span(0, NUM_BATCHES))]
    assert {view.predecessor: view.why for view in core.view().needs} == {BEFORE[1].replica: "not received yet"}
    assert asked(core.handle(ev.EdgeUp(0.2, 0, Peer(BEFORE[0].replica, 2)))) == parts, "and whoever stood in hears it at once"
    assert {view.predecessor for view in core.view().needs} == {share.replica for share in BEFORE}


def test_floors_and_durable_sets_are_stated_over_every_way() -> None:
    core = sole()
    for share in BEFORE:
        core.handle(ev.EdgeUp(0.0, 0, Peer(share.replica, 1)))
    core.handle(ev.LinkUp(0.0, 1, Peer(ReplicaId("next.0"), 1)))
    core.handle(ev.AckHeard(0.0, 1, 1, 0, 0, VNodeId("next")))
    out = core.handle(ev.Tick(30.0))
    for kind in (ev.SendAck, ev.SendDurable, ev.SendWindow):
        assert {item.source for item in of(kind, out)} == {share.replica for share in BEFORE}


def test_evaluations_are_asked_of_the_predecessors_primary() -> None:
    core = sole(evaluate_every=1)
    for share in BEFORE:
        core.handle(ev.EdgeUp(0.0, 0, Peer(share.replica, 1)))
    out = learn(core, 0)
    asked_of = {need.source for need in of(ev.SendNeed, out) if need.lane == Lane("validation", 1)}
    assert asked_of == {BEFORE[0].replica}


def test_what_it_owns_is_learned_first_and_what_it_does_not_own_is_only_computed() -> None:
    core = primary()
    core.handle(ev.PlanChanged(0.0, {}, frozenset({ReplicaId("next.0")}), 100, SHARES, Role.PRIMARY, PRIMARY))
    mine, theirs = next(iter(THEIRS)), next(iter(MINE))  # as this replica is the primary
    core.handle(ev.LinkUp(0.0, 1, Peer(ReplicaId("next.0"), 1)))
    core.handle(ev.NeedHeard(0.0, 1, 1, TRAIN_LANE, IntervalSet.of((mine, mine + 1), (theirs, theirs + 1)), NONE, NONE))
    core.handle(ev.WindowHeard(0.0, 1, 2, TRAIN_LANE, NUM_BATCHES))
    found: list[Instruction] = []
    for batch in sorted((mine, theirs)):
        out = core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, batch, "x"))
        found += [*of(ev.Learn, out), *of(ev.Forward, out)]
        core.handle(ev.Learned(0.0, mine, 1.0, 0.1) if batch == mine else ev.Forwarded(0.0, TRAIN_LANE, theirs, 0.1))
    assert {type(item) for item in found} == {ev.Learn, ev.Forward}
    assert all(item.mode is Mode.FORWARD_ONLY for item in of(ev.Forward, found))
    assert core.view().lineage == IntervalSet.span(mine, mine + 1)


def test_what_is_evaluated_because_a_successor_asks_is_no_round_of_its_own() -> None:
    """Its own rounds say which batches merges are judged by; a successor names any number."""
    core = ReplicaCore(config(PRIMARY, Role.PRIMARY, evaluate_every=1), NONE, 0.0)
    core.handle(ev.PlanChanged(0.0, {}, frozenset({ReplicaId("next.0")}), 100))
    core.handle(ev.LinkUp(0.0, 1, Peer(ReplicaId("next.0"), 1)))
    core.handle(ev.AckHeard(0.0, 1, 1, 0, 0, VNodeId("next")))
    learn(core, 0)
    asked, found = Lane("validation", 2**31 - 1), dict[Lane, bool]()
    core.handle(ev.NeedHeard(0.0, 1, 1, asked, IntervalSet.span(0, 2), NONE, NONE))
    core.handle(ev.WindowHeard(0.0, 1, 2, asked, 2))
    for lane in (Lane("validation", 1), asked):
        for forward in of(ev.Forward, core.handle(ev.FrameArrived(0.0, 0, lane, 0, "x"))):
            found[forward.lane] = forward.is_own
            core.handle(ev.Forwarded(0.0, lane, 0, 0.1, 1.0, 1, 2))
    assert found == {Lane("validation", 1): True, asked: False}
