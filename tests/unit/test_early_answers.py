"""Goal: a primary that does not know the plan yet is asked again soon, and does not count as out of reach: meanwhile nothing is learned, and no floor told."""

from __future__ import annotations

from dataclasses import replace

from dcnr.ids import ReplicaId, VNodeId
from tests.unit.merges_rig import ME, MINE, NONE, config, of, plan
from vnode import events as ev
from vnode import merge_events as mev
from vnode.contributing import EARLY_AGAIN_S, EARLY_S
from vnode.core import ReplicaCore
from vnode.vocabulary import TRAIN_LANE, Peer, Role

BEFORE, BEHIND = Peer(ReplicaId("before.0"), 1), Peer(ReplicaId("behind.0"), 1)
FIRST = next(iter(MINE))


def newcomer() -> tuple[ReplicaCore, mev.AskMerge]:
    """A contributor that was just named, with the input of its first batch, and what it asks."""
    core = ReplicaCore(config(ME, Role.CONTRIBUTOR, input_edges=frozenset()), NONE, 0.0)
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR)))
    core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, FIRST, "x"))
    return core, ask


def test_it_is_asked_again_soon_and_nothing_is_learned_or_said_meanwhile() -> None:
    core, ask = newcomer()
    out = core.handle(mev.MergeUnanswered(0.0, ask.ask, "not_primary", is_early=True)) + core.handle(ev.EdgeUp(0.0, 0, BEFORE))
    assert not of(mev.AskMerge, out)
    out += core.handle(ev.Tick(EARLY_AGAIN_S))
    (again,) = of(mev.AskMerge, out)
    assert not of(ev.Learn, out)
    assert not of(ev.SendAck, out)
    (rebase,) = of(mev.Rebase, core.handle(mev.AnchorArrived(1.0, again.ask, Peer(again.primary, 1), NONE, "anchor")))
    out = core.handle(mev.Rebased(1.0))
    assert rebase.lineage == NONE
    assert [ack.floor for ack in of(ev.SendAck, out)] == [FIRST]
    assert [learn.batch for learn in of(ev.Learn, out)] == [FIRST]


def test_one_that_never_hears_of_the_plan_holds_nobody_up_for_ever() -> None:
    core, ask = newcomer()
    now_s = 0.0
    while not (out := core.handle(mev.MergeUnanswered(now_s, ask.ask, "not_primary", is_early=True))):
        assert now_s < EARLY_S
        now_s += EARLY_AGAIN_S
        (ask,) = of(mev.AskMerge, core.handle(ev.Tick(now_s)))
    assert now_s >= EARLY_S
    assert [learn.batch for learn in of(ev.Learn, out)] == [FIRST]


def test_who_has_an_anchor_but_not_heard_its_successors_says_no_floor() -> None:
    """It would be zero, and stop the sources of everybody until the last of them is heard."""
    core = ReplicaCore(config(ME, Role.CONTRIBUTOR, input_edges=frozenset()), NONE, 0.0)
    (ask,) = of(mev.AskMerge, core.handle(replace(plan(Role.CONTRIBUTOR), successors=frozenset({BEHIND.replica}))))
    core.handle(mev.AnchorArrived(0.0, ask.ask, Peer(ask.primary, 1), NONE, "anchor"))
    out = core.handle(mev.Rebased(0.0)) + core.handle(ev.EdgeUp(0.0, 0, BEFORE)) + core.handle(ev.LinkUp(0.0, 1, BEHIND))
    assert not of(ev.SendAck, out)
    out = core.handle(ev.AckHeard(1.0, 1, 1, 0, 0, VNodeId("behind")))
    assert [(ack.floor, ack.floor_vnode) for ack in of(ev.SendAck, out)] == [(0, "behind")]
