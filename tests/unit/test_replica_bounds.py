"""Goal: however long a replica goes unmerged and in whatever order batches come, what it has to say about its state stays within the bounds of the wire."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

import pytest

from dcnr import limits
from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from vnode import events as ev
from vnode import merge_events as mev
from vnode.core import ReplicaCore
from vnode.events import Instruction
from vnode.replica_config import ReplicaConfig
from vnode.vocabulary import TRAIN_LANE, Peer, Role, Verdict

PRIMARY, OTHER, ME = (ReplicaId(f"here.{number}") for number in (0, 1, 3))
SHARES = (Share(PRIMARY, 1.0), Share(ME, 1.0))
NUM_BATCHES = 24
MINE = split(SHARES, NUM_BATCHES, 2)[ME]
assert IntervalSet.of((2, 6), (12, 14), (16, 18)) == MINE
NONE = IntervalSet.empty()
T = TypeVar("T")


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pieces, so four batches ahead; three batches in a delta."""
    monkeypatch.setattr(limits, "MAX_INTERVALS", 3)
    monkeypatch.setattr(limits, "MAX_AHEAD_BATCHES", 4)
    monkeypatch.setattr(limits, "MAX_DELTA_BATCHES", 3)


def core_of(role: Role, shares: tuple[Share, ...] = SHARES, lineage: IntervalSet = NONE) -> ReplicaCore:
    replica = PRIMARY if role is Role.PRIMARY else ME
    config = ReplicaConfig(
        vnode=VNodeId("here"), replica=replica, incarnation=1, num_inputs=1, input_edges=frozenset({0}), num_batches=NUM_BATCHES,
        spool_batches=100, window_batches=100, lead_batches=100, unit_batches=2, merge_every=1000, role=role, checkpoint_steps=1000,
        checkpoint_s=1e9, horizon_s=1e9,
    )  # fmt: skip
    core = ReplicaCore(config, lineage, 0.0)
    core.handle(ev.PlanChanged(0.0, {}, frozenset(), 100, shares, role, PRIMARY))
    return core


def contributor(lineage: IntervalSet) -> ReplicaCore:
    core = core_of(Role.CONTRIBUTOR)
    answered(core, 1, lineage)
    return core


def answered(core: ReplicaCore, ask: int, lineage: IntervalSet) -> tuple[mev.Rebase, list[Instruction]]:
    (rebase,) = of(mev.Rebase, core.handle(mev.AnchorArrived(0.0, ask, Peer(PRIMARY, 1), lineage, "anchor")))
    return rebase, carried_out(core, core.handle(mev.Rebased(0.0)))


def of(kind: type[T], instructions: list[Instruction]) -> list[T]:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


def carried_out(core: ReplicaCore, out: list[Instruction]) -> list[Instruction]:
    """Steps and snapshots are made as long as the replica asks for them; everything that it said."""
    said: list[Instruction] = []
    while out:
        said += out
        learn, snapshot = of(ev.Learn, out), of(ev.TakeSnapshot, out)
        if learn:
            out = core.handle(ev.Learned(0.0, learn[0].batch, 1.0, 0.1))
        else:
            out = core.handle(ev.SnapshotTaken(0.0, snapshot[0].lineage, "")) if snapshot else []
        core.check()
    return said


def give(core: ReplicaCore, batches: Iterable[int]) -> list[Instruction]:
    """Each of these batches comes once more."""
    return [said for batch in batches for said in carried_out(core, core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, batch, "x")))]


@pytest.mark.parametrize("seed", range(8))
def test_in_whatever_order_batches_come_a_lineage_has_few_pieces_and_becomes_whole(seed: int) -> None:
    order = random.Random(seed).sample(range(NUM_BATCHES), NUM_BATCHES)
    core = core_of(Role.PRIMARY, shares=())
    for _ in range(NUM_BATCHES // 2):
        give(core, order)  # checks the core after each step
        assert len(core.view().lineage.pairs()) <= limits.MAX_INTERVALS
    assert core.view().lineage == IntervalSet.span(0, NUM_BATCHES)


def test_a_primary_whose_disk_takes_no_snapshot_learns_no_more_than_a_commit_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_COMMIT_BATCHES", 5)
    core = core_of(Role.PRIMARY, shares=())
    core.handle(ev.CheckpointLost(0.0, "a snapshot is due"))
    core.handle(ev.ComputeFailed(0.0, TRAIN_LANE, 0, "no room on the disk", fatal=False))
    assert learned(give(core, range(NUM_BATCHES))) == [0, 1, 2, 3, 4]
    assert "snapshot" in core.view().paused_why
    out = carried_out(core, core.handle(ev.Tick(100.0)))
    assert of(ev.TakeSnapshot, out)
    assert learned(out)[:2] == [5, 6], "and goes on when the disk has room again"


def brought(core: ReplicaCore, out: list[Instruction], lineage: IntervalSet) -> tuple[IntervalSet, int, list[int]]:
    """The one delta that it wants to make is measured against an anchor of that lineage: its batches, the question about it, and what it learned beside it."""
    (ask,) = of(mev.AskMerge, out)
    assert ask.sequence is None
    (made,) = of(mev.MakeDelta, core.handle(mev.AnchorArrived(0.0, ask.ask, Peer(PRIMARY, 1), lineage, "anchor")))
    then = carried_out(core, core.handle(mev.DeltaMade(0.0, made.sequence, made.batches)))
    (ask,) = of(mev.AskMerge, then)
    return made.batches, ask.ask, learned(then)


def learned(out: list[Instruction]) -> list[int]:
    return [item.batch for item in of(ev.Learn, out)]


def merged(core: ReplicaCore, ask: int) -> list[Instruction]:
    return carried_out(core, core.handle(mev.DeltaAnswered(0.0, ask, Peer(PRIMARY, 1), Verdict.MERGED)))


def test_a_contributor_at_the_end_of_its_reach_brings_what_it_has_and_goes_on_with_the_next_anchor() -> None:
    core = contributor(NONE)
    batches, ask, then = brought(core, give(core, MINE), NONE)
    assert (batches, then) == (IntervalSet.span(2, 4), []), "at once, although few and its time has not come"
    (anew,) = of(mev.AskMerge, merged(core, ask))
    assert anew.sequence is None, "an anchor with it may widen its reach"
    _, out = answered(core, anew.ask, IntervalSet.span(0, 4))
    batches, ask, then = brought(core, out, IntervalSet.span(0, 4))
    assert (batches, then) == (IntervalSet.span(4, 6), [])
    (anew,) = of(mev.AskMerge, merged(core, ask))
    _, out = answered(core, anew.ask, IntervalSet.span(0, 6))
    assert learned(out) == []
    assert not of(mev.AskMerge, out), "nothing is news"
    (alone,) = of(mev.AskMerge, core.handle(ev.Tick(limits.ANCHOR_S)))
    assert alone.sequence is None
    _, out = answered(core, alone.ask, IntervalSet.span(0, 12))
    assert learned(out) == [12, 13, 16], "as many as a delta may name"


def test_what_a_contributor_learned_always_fits_its_next_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_AHEAD_BATCHES", 100)
    core = contributor(IntervalSet.span(0, 2))
    batches, ask, then = brought(core, give(core, MINE), IntervalSet.span(0, 2))
    assert batches == IntervalSet.span(2, 5)
    assert then + learned(give(core, MINE)) == [5, 12, 13], "then it waits for the primary's answer"
    assert "merge" in core.view().paused_why
    batches, _, then = brought(core, merged(core, ask), IntervalSet.span(0, 5))
    assert batches == IntervalSet.of((5, 6), (12, 14))
    assert then + learned(give(core, MINE)) == [16, 17], "nothing was lost, and it goes on"


def test_what_is_too_far_ahead_of_a_new_primarys_anchor_is_let_go_and_needed_again() -> None:
    core = contributor(IntervalSet.span(0, 12))
    brought(core, give(core, MINE), IntervalSet.span(0, 12))
    out = core.handle(ev.PlanChanged(0.0, {}, frozenset(), 100, SHARES, Role.CONTRIBUTOR, OTHER))
    (ask,) = of(mev.AskMerge, out)
    rebase, _ = answered(core, ask.ask, NONE)
    assert (rebase.keep_open, rebase.keep_after, rebase.lineage) == (False, False, NONE)
    assert IntervalSet.span(12, 14) & core.view().needs[0].wanted == IntervalSet.span(12, 14)


def test_a_delta_that_is_too_far_ahead_is_refused_and_one_that_fills_the_gap_is_not() -> None:
    core = core_of(Role.PRIMARY)

    def asked(request: int, batches: IntervalSet) -> list[Instruction]:
        return core.handle(mev.MergeAsked(0.0, request, Peer(ME, 1), request, batches, "delta"))

    assert of(mev.CaptureAnchor, asked(1, IntervalSet.span(16, 18)))
    (answer,) = of(mev.AnswerMerge, core.handle(mev.AnchorCaptured(0.0)))
    assert (answer.verdict, answer.code) == (Verdict.REFUSED, "out_of_reach")
    give(core, [0, 1])
    (merge,) = of(mev.MergeDeltas, asked(2, IntervalSet.span(2, 6)))
    assert merge.lineage == IntervalSet.span(0, 6)
