"""Goal: one decision between replicas of a VNode per test, as events in and instructions out."""

from __future__ import annotations

import pytest
from merges_rig import (
    ME,
    MINE,
    NONE,
    NUM_BATCHES,
    PRIMARY,
    THEIRS,
    THIRD,
    anchored,
    answer,
    config,
    judged,
    learn,
    made,
    of,
    plan,
    primary,
    with_delta,
)

from dcnr import limits
from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from vnode import events as ev
from vnode import merge_events as mev
from vnode.core import ReplicaCore
from vnode.events import Instruction
from vnode.vocabulary import TRAIN_LANE, Peer, Role, Verdict

# ---- a contributor ----------------------------------------------------------------------------------------------------------------


def test_a_contributor_learns_nothing_before_it_has_the_primarys_anchor() -> None:
    core = ReplicaCore(config(ME, Role.CONTRIBUTOR), NONE, 0.0)
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR)))
    first = next(iter(MINE))
    assert not of(ev.Learn, core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, first, "x")))
    assert core.view().paused_why
    _, out = answer(core, ask, NONE)
    assert [item.batch for item in of(ev.Learn, out)] == [first]


def test_without_a_primary_that_answers_it_learns_on_what_it_restored_and_asks_again() -> None:
    core = ReplicaCore(config(ME, Role.CONTRIBUTOR), NONE, 0.0)
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR)))
    assert not of(mev.AskMerge, core.handle(mev.MergeUnanswered(0.0, ask.ask, "not reached")))
    learn(core, next(iter(MINE)))
    (again,) = of(mev.AskMerge, core.handle(ev.Tick(1.0)))
    assert again.ask > ask.ask
    assert not of(mev.Rebase, core.handle(mev.AnchorArrived(1.0, ask.ask, Peer(PRIMARY, 1), NONE, "late")))


def test_it_needs_and_learns_its_own_units_only() -> None:
    core = anchored()
    (need,) = core.view().needs
    assert need.wanted == MINE
    assert not of(ev.Learn, core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, next(iter(THEIRS)), "x")))
    assert core.view().floor == MINE.lowest()


def test_after_so_many_steps_the_anchor_is_asked_for_and_learning_goes_on() -> None:
    core = anchored()
    for batch in list(MINE)[:3]:
        out = learn(core, batch)
    (ask,) = of(mev.AskMerge, out)
    assert ask.sequence is None
    assert not of(mev.AskMerge, learn(core, list(MINE)[3])), "one question at a time"
    make, out = made(core, ask, THEIRS)
    assert (make.batches, make.anchor, make.lineage) == (MINE.first(4), "anchor", THEIRS)
    assert [item.sequence for item in of(mev.AskMerge, out)] == [1]


@pytest.mark.parametrize(("num_others", "is_late"), [(8, False), (9, True)])
def test_who_has_learned_much_less_than_its_part_adds_what_it_learned(num_others: int, is_late: bool) -> None:
    """Two replicas learn, and it has learned two batches."""
    core = anchored(merge_every=2)
    for batch in list(MINE)[:2]:
        out = learn(core, batch)
    (ask,) = of(mev.AskMerge, out)
    make, _ = made(core, ask, THEIRS.first(num_others))
    assert (make.is_late, make.lineage) == (is_late, THEIRS.first(num_others))


@pytest.mark.parametrize("num_lost", [0, 1])
def test_what_another_primary_lacks_of_the_anchor_it_stood_on_is_in_no_delta(num_lost: int) -> None:
    """Goal: that is learned again by whoever owns it; measured against an anchor without it, it would be in the weights twice."""
    core = anchored(THEIRS.first(4))
    for batch in list(MINE)[:3]:
        learn(core, batch)
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR, primary=THIRD)))
    make, _ = made(core, ask, THEIRS.first(4 - num_lost))
    assert (make.batches, make.is_late) == (MINE.first(3), bool(num_lost))


def test_what_was_handed_in_counts_as_held_and_one_delta_is_open_at_a_time() -> None:
    core, ask, batches = with_delta()
    assert batches == MINE.first(3)
    for batch in list(MINE)[3:7]:
        out = learn(core, batch)
    assert not of(mev.AskMerge, out)
    assert core.view().unmerged == MINE.first(7)
    assert core.view().floor == list(MINE)[7]
    out = judged(core, ask, Verdict.MERGED)
    assert core.view().unmerged == MINE.first(7) - batches
    assert core.view().lineage == MINE.first(7)
    (ask,) = of(mev.AskMerge, out)
    assert ask.sequence is None
    make, _ = made(core, ask, batches)
    assert (make.sequence, make.batches) == (2, MINE.first(7) - batches)


@pytest.mark.parametrize("merge_every", [1000])
def test_the_last_delta_is_made_at_once(merge_every: int) -> None:
    core = anchored(merge_every=merge_every)
    for batch in MINE:
        out = learn(core, batch)
    (ask,) = of(mev.AskMerge, out)
    assert made(core, ask, NONE)[0].batches == MINE


def test_a_slow_contributor_makes_a_delta_after_a_while() -> None:
    core = anchored()
    learn(core, next(iter(MINE)), 1.0)
    assert not of(mev.AskMerge, core.handle(ev.Tick(49.0)))
    assert of(mev.AskMerge, core.handle(ev.Tick(50.0)))


def test_a_refused_delta_is_gone_and_an_anchor_says_what_is_needed_again() -> None:
    core, ask, batches = with_delta()
    after = list(MINE)[3]
    learn(core, after)
    (ask,) = of(mev.AskMerge, judged(core, ask, Verdict.REFUSED))
    assert ask.sequence is None
    rebase, _ = answer(core, ask, THEIRS)
    assert (rebase.keep_open, rebase.keep_after) == (False, True)
    assert rebase.lineage == core.view().lineage == THEIRS | IntervalSet.span(after, after + 1)
    assert batches - core.view().needs[0].wanted == NONE
    assert (core.view().num_merged, core.view().num_refused) == (0, 1)


def test_what_the_anchor_holds_already_is_not_kept_and_what_it_lacks_is_needed_again() -> None:
    core, ask, batches = with_delta()
    after = list(MINE)[3:5]
    for batch in after:
        learn(core, batch)
    (ask,) = of(mev.AskMerge, judged(core, ask, Verdict.REFUSED))
    overlapping = IntervalSet.span(after[0], after[0] + 1)
    rebase, _ = answer(core, ask, overlapping)
    assert not rebase.keep_after
    assert core.view().needs[0].wanted == MINE - overlapping
    assert batches - core.view().needs[0].wanted == NONE


@pytest.mark.parametrize("is_merged", [False, True], ids=["unanswered", "merged"])
@pytest.mark.parametrize("held", [0, 2, 3])
def test_what_another_primarys_anchor_lacks_of_a_delta_is_learned_already(is_merged: bool, held: int) -> None:
    core, ask, batches = with_delta()
    if is_merged:
        judged(core, ask, Verdict.MERGED)
    after = IntervalSet.span(list(MINE)[3], list(MINE)[3] + 1)
    learn(core, *after)
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR, primary=THIRD)))
    lineage = THEIRS | batches.first(held)
    if held == 0:
        rebase, out = answer(core, ask, lineage)
        assert (rebase.keep_open, rebase.keep_after, rebase.num_learning) == (True, True, 2)
        assert rebase.lineage == core.view().lineage == lineage | batches | after
        (ask,) = of(mev.AskMerge, out)
        assert ask.sequence is None, "nothing is open, and one with all of it is due"
        assert made(core, ask, lineage)[0].batches == batches | after
    else:
        rebase, _ = answer(core, ask, lineage)
        assert not rebase.keep_open
        assert core.view().lineage == lineage | after, "it is there, or needed again"


@pytest.mark.parametrize(("num_after", "is_kept"), [(2, True), (3, False)])
def test_what_is_taken_back_fits_the_next_delta_with_what_was_learned_since(
    num_after: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a delta that is too long to be read would be brought for ever, and its contributor learn nothing more."""
    monkeypatch.setattr(limits, "MAX_DELTA_BATCHES", 5)
    core, _, batches = with_delta()
    after = list(MINE)[3 : 3 + num_after]
    for batch in after:
        learn(core, batch)
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR, primary=THIRD)))
    rebase, _ = answer(core, ask, THEIRS)
    assert (rebase.keep_open, rebase.keep_after) == (is_kept, True)
    assert (not batches - core.view().lineage) is is_kept, "it is there, or needed again"


def test_a_verdict_of_another_life_of_the_primary_makes_its_anchor_wanted() -> None:
    core, ask, batches = with_delta()
    (ask,) = of(mev.AskMerge, judged(core, ask, Verdict.MERGED, incarnation=2))
    assert ask.sequence is None
    rebase, _ = answer(core, ask, batches, incarnation=2)
    assert (rebase.keep_open, rebase.lineage) == (False, batches)


def test_an_unanswered_delta_is_asked_about_until_it_is_answered() -> None:
    core, ask, _ = with_delta()
    now_s = 0.0
    for _ in range(6):
        core.handle(mev.MergeUnanswered(now_s, ask.ask, "lost"))
        now_s += limits.ANCHOR_S
        (again,) = of(mev.AskMerge, core.handle(ev.Tick(now_s)))
        assert (again.sequence, again.ask) == (1, ask.ask + 1)
        ask = again


def test_a_new_primary_is_asked_for_its_anchor_before_the_delta() -> None:
    core, old, batches = with_delta()
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR, primary=THIRD)))
    assert (ask.primary, ask.sequence) == (THIRD, None)
    assert not judged(core, old, Verdict.REFUSED), "void"
    assert answer(core, ask, NONE)[0].lineage == batches


def test_a_failed_rebase_leaves_everything_and_asks_again() -> None:
    core, _, batches = with_delta()
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR, primary=THIRD)))
    assert of(mev.Rebase, core.handle(mev.AnchorArrived(0.0, ask.ask, Peer(THIRD, 1), NONE, "bad")))
    core.handle(ev.ComputeFailed(0.0, TRAIN_LANE, 0, "bad anchor", fatal=False))
    assert core.view().unmerged == batches
    assert [item.sequence for item in of(mev.AskMerge, core.handle(ev.Tick(1.0)))] == [None]


def test_a_standby_takes_the_anchor_now_and_then_and_learns_nothing() -> None:
    core = ReplicaCore(config(THIRD, Role.STANDBY), NONE, 0.0)
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.STANDBY)))
    answer(core, ask, THEIRS)
    assert core.view().floor == NUM_BATCHES
    assert not of(mev.AskMerge, core.handle(ev.Tick(limits.ANCHOR_S - 0.1)))
    (ask,) = of(mev.AskMerge, core.handle(ev.Tick(limits.ANCHOR_S)))
    answer(core, ask, IntervalSet.span(0, NUM_BATCHES), limits.ANCHOR_S)
    core.handle(ev.CheckpointNamed(limits.ANCHOR_S, IntervalSet.span(0, NUM_BATCHES)))
    assert not of(mev.AskMerge, core.handle(ev.Tick(10 * limits.ANCHOR_S)))  # nothing can be lost any more


def test_an_idle_contributor_finds_out_what_its_primary_lost() -> None:
    core = anchored(THEIRS | MINE)
    (ask,) = of(mev.AskMerge, core.handle(ev.Tick(limits.ANCHOR_S)))
    rebase, _ = answer(core, ask, THEIRS, limits.ANCHOR_S, incarnation=2)
    assert rebase.lineage == THEIRS
    assert core.view().needs[0].wanted == MINE


def test_a_contributor_never_snapshots_until_it_leads() -> None:
    core, _, batches = with_delta(checkpoint_steps=1, checkpoint_s=1.0)
    assert not of(ev.TakeSnapshot, core.handle(ev.Tick(100.0)))
    last = list(MINE)[3]
    learn(core, last)
    out = core.handle(plan(Role.PRIMARY, primary=ME))
    own = IntervalSet.span(last, last + 1)
    assert of(mev.MergeOwn, out) == [mev.MergeOwn(1, 2, batches | own)]
    assert not of(mev.Lead, out)
    out = core.handle(mev.OwnMerged(100.0))
    assert of(mev.Lead, out) == [mev.Lead(batches | own, own)]
    assert [item.lineage for item in of(ev.TakeSnapshot, out)] == [batches | own]
    assert out.index(of(mev.Lead, out)[0]) < out.index(of(ev.TakeSnapshot, out)[0])
    assert core.view().unmerged == NONE


def test_who_is_to_lead_finishes_the_step_first() -> None:
    core = anchored()
    batch = next(iter(MINE))
    core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, batch, "x"))
    assert not of(mev.Lead, core.handle(plan(Role.PRIMARY, primary=ME)))
    out = core.handle(ev.Learned(0.0, batch, 1.0, 0.1))
    assert [lead.own for lead in of(mev.Lead, out)] == [IntervalSet.span(batch, batch + 1)]


def test_a_primary_that_the_plan_has_replaced_stops() -> None:
    core = primary()
    assert of(ev.Stop, core.handle(plan(Role.CONTRIBUTOR, primary=ME)))


@pytest.mark.parametrize("has_failed", [False, True], ids=["refused", "failed"])
def test_who_is_to_lead_leaves_a_delta_that_cannot_be_merged_and_learns_it_again(has_failed: bool) -> None:
    core, ask, batches = with_delta()
    if has_failed:
        assert of(mev.MergeOwn, core.handle(plan(Role.PRIMARY, primary=ME)))
        out = core.handle(ev.ComputeFailed(0.0, TRAIN_LANE, 0, "not finite", fatal=False))
    else:
        judged(core, ask, Verdict.REFUSED)
        out = core.handle(plan(Role.PRIMARY, primary=ME))
    assert of(mev.Lead, out) == [mev.Lead(NONE, NONE)]
    core.handle(ev.SnapshotTaken(0.0, NONE, "digest"))
    assert batches - core.view().needs[0].wanted == NONE


@pytest.mark.parametrize("audited", [False, True])
def test_who_merges_its_own_delta_and_is_not_to_lead_after_all_stops(audited: bool) -> None:
    """Goal: its state holds a part of a delta above an anchor that lacks it. What is measured from there would take that in once more, and where audits are
    drawn it follows from nothing that this replica has signed.
    """
    core, _, _ = with_delta(audited=audited)
    assert of(mev.MergeOwn, core.handle(plan(Role.PRIMARY, primary=ME)))
    assert of(ev.Stop, core.handle(plan(Role.CONTRIBUTOR)))
    assert not core.handle(mev.OwnMerged(0.0))


def test_who_was_to_lead_and_has_not_begun_to_merge_its_own_delta_contributes_on() -> None:
    core, _, batches = with_delta()
    core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, list(MINE)[3], "x"))
    core.handle(plan(Role.PRIMARY, primary=ME))
    core.handle(plan(Role.CONTRIBUTOR))
    out = core.handle(ev.Learned(0.0, list(MINE)[3], 1.0, 0.1))
    assert not of(mev.MergeOwn, out)
    assert not of(ev.Stop, out)
    assert core.view().unmerged == batches | IntervalSet.span(list(MINE)[3], list(MINE)[3] + 1)


def test_who_is_to_lead_merges_what_was_merged_by_a_primary_that_is_gone() -> None:
    core, ask, batches = with_delta()
    judged(core, ask, Verdict.MERGED)
    assert [item.lineage for item in of(mev.MergeOwn, core.handle(plan(Role.PRIMARY, primary=ME)))] == [batches]


def test_where_audits_are_drawn_learning_goes_on_from_the_anchor_and_by_its_number_of_batches() -> None:
    core, ask, batches = with_delta(audited=True)
    fresh = list(MINE)[3]
    (learning,) = of(ev.Learn, core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, fresh, "x")))
    assert learning.num_learned == 0, "a step is made again from the anchor, which holds nothing of an open delta"
    core.handle(ev.Learned(0.0, fresh, 1.0, 0.1))
    judged(core, ask, Verdict.MERGED)
    assert core.view().lineage == batches | IntervalSet.span(fresh, fresh + 1)


def test_where_audits_are_drawn_nothing_stays_over_another_primarys_anchor() -> None:
    core, _, batches = with_delta(audited=True)
    learn(core, list(MINE)[3])
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR, primary=THIRD)))
    rebase, _ = answer(core, ask, THEIRS)
    assert (rebase.keep_open, rebase.keep_after, rebase.lineage) == (False, False, THEIRS)
    assert batches.isdisjoint(core.view().lineage), "and is needed again"


def test_where_audits_are_drawn_what_was_learned_beside_a_refused_delta_is_handed_in() -> None:
    core, ask, batches = with_delta(audited=True)
    after = IntervalSet.span(list(MINE)[3], list(MINE)[3] + 1)
    learn(core, *after)
    (ask,) = of(mev.AskMerge, judged(core, ask, Verdict.REFUSED))
    make, _ = made(core, ask, THEIRS)
    assert (make.batches, make.lineage) == (after, THEIRS)
    assert batches - core.view().needs[0].wanted == NONE


def test_a_contributor_whose_interval_should_end_takes_an_anchor_though_it_learned_nothing() -> None:
    """It brings no delta of nothing, and no other statement ends its interval."""
    core = anchored(audited=True)
    (ask,) = of(mev.AskMerge, core.handle(ev.CheckpointLost(1.0, "much evidence")))
    assert ask.sequence is None
    _, out = answer(core, ask, NONE)
    assert not of(mev.AskMerge, out + core.handle(ev.Tick(2.0)))
    learned = MINE.first(1)
    learn(core, *learned)
    (ask,) = of(mev.AskMerge, core.handle(ev.CheckpointLost(3.0, "much evidence")))
    assert made(core, ask, NONE)[0].batches == learned


@pytest.mark.parametrize(("incarnation", "is_kept"), [(1, True), (2, False)])
def test_an_anchor_asked_for_in_idle_times_does_not_take_what_was_learned_since(incarnation: int, is_kept: bool) -> None:
    core = anchored(MINE, audited=True)
    (ask,) = of(mev.AskMerge, core.handle(ev.Tick(limits.ANCHOR_S)))
    assert ask.sequence is None
    core.handle(plan(Role.CONTRIBUTOR, shares=(Share(PRIMARY, 0.0), Share(ME, 1.0))))
    learned = THEIRS.first(1)
    learn(core, *learned)
    out = core.handle(mev.AnchorArrived(0.0, ask.ask, Peer(PRIMARY, incarnation), MINE, "anchor"))
    assert [make.batches for make in of(mev.MakeDelta, out)] == [learned] * is_kept
    assert bool(of(mev.Rebase, out)) != is_kept, "only another incarnation's anchor is the beginning of everything"


# ---- a primary --------------------------------------------------------------------------------------------------------------------


def asked(
    core: ReplicaCore, request: int, batches: IntervalSet, sequence: int | None = 1, source: ReplicaId = ME, incarnation: int = 1
) -> list[Instruction]:
    delta = None if sequence is None else "delta"
    return core.handle(mev.MergeAsked(0.0, request, Peer(source, incarnation), sequence, batches, delta))


def verdicts(instructions: list[Instruction]) -> dict[int, Verdict]:
    return {item.request: item.verdict for item in of(mev.AnswerMerge, instructions)}


def test_a_delta_is_merged_and_answered() -> None:
    core = primary()
    (merge,) = of(mev.MergeDeltas, asked(core, 7, MINE.first(3)))
    assert (merge.requests, merge.lineage) == ((7,), MINE.first(3))
    out = core.handle(mev.MergesDone(0.0))
    assert verdicts(out) == {7: Verdict.MERGED}
    assert core.view().lineage == MINE.first(3)
    assert core.view().num_merged == 1


def test_asked_again_it_is_answered_again_and_merged_once() -> None:
    core = primary()
    asked(core, 1, MINE.first(3))
    core.handle(mev.MergesDone(0.0))
    assert verdicts(asked(core, 2, MINE.first(3))) == {2: Verdict.MERGED}
    assert core.view().num_merged == 1


def test_an_overlap_is_refused_when_it_would_be_merged() -> None:
    core = primary()
    batch = next(iter(THEIRS))
    core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, batch, "x"))  # its step is under way
    overlapping = MINE.first(2) | IntervalSet.span(batch, batch + 1)
    assert not asked(core, 1, overlapping)
    out = core.handle(ev.Learned(0.0, batch, 1.0, 0.1))
    assert not of(mev.MergeDeltas, out)
    assert of(mev.CaptureAnchor, out)
    out = core.handle(mev.AnchorCaptured(0.0))
    assert [(item.verdict, item.code) for item in of(mev.AnswerMerge, out)] == [(Verdict.REFUSED, "overlap")]
    assert core.view().lineage == IntervalSet.span(batch, batch + 1)


def test_waiting_deltas_are_merged_in_one_go_and_of_two_that_overlap_the_first() -> None:
    shares = (Share(PRIMARY, 1.0), Share(ME, 1.0), Share(THIRD, 1.0))
    core = primary()
    core.handle(plan(Role.PRIMARY, shares=shares))
    batch = next(iter(split(shares, NUM_BATCHES, 2)[PRIMARY]))
    core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, batch, "x"))
    others = IntervalSet.span(0, NUM_BATCHES) - IntervalSet.span(batch, batch + 1)
    asked(core, 1, others.first(3))
    asked(core, 2, others - others.first(3), source=THIRD)
    out = core.handle(ev.Learned(0.0, batch, 1.0, 0.1))
    assert [merge.requests for merge in of(mev.MergeDeltas, out)] == [(1, 2)]
    assert verdicts(core.handle(mev.MergesDone(0.0))) == {1: Verdict.MERGED, 2: Verdict.MERGED}
    core = primary()
    core.handle(plan(Role.PRIMARY, shares=shares))
    core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, batch, "x"))
    asked(core, 1, others.first(3))
    asked(core, 2, others.first(1), source=THIRD)
    out = core.handle(ev.Learned(0.0, batch, 1.0, 0.1))
    assert [merge.requests for merge in of(mev.MergeDeltas, out)] == [(1,)]
    assert verdicts(core.handle(mev.MergesDone(0.0))) == {1: Verdict.MERGED, 2: Verdict.REFUSED}


def test_a_delta_counts_one_part_of_as_many_as_learn() -> None:
    core = primary()
    (merge,) = of(mev.MergeDeltas, asked(core, 1, MINE.first(2)))
    assert merge.num_learning == 2  # the third stands by


def test_the_anchor_alone_is_captured_once_for_each_lineage() -> None:
    core = primary()
    assert of(mev.CaptureAnchor, asked(core, 1, NONE, None))
    assert verdicts(core.handle(mev.AnchorCaptured(0.0))) == {1: Verdict.ANCHOR}
    assert verdicts(asked(core, 2, NONE, None)) == {2: Verdict.ANCHOR}


def test_the_newer_question_of_a_sibling_replaces_the_older() -> None:
    core = primary()
    batch = next(iter(THEIRS))
    core.handle(ev.FrameArrived(0.0, 0, TRAIN_LANE, batch, "x"))
    asked(core, 1, MINE.first(3))
    assert [(item.request, item.code) for item in of(mev.DeferMerge, asked(core, 2, MINE.first(3)))] == [(1, "replaced")]
    stale = asked(core, 3, MINE.first(3), incarnation=0)
    assert [(item.request, item.code) for item in of(mev.DeferMerge, stale)] == [(3, "stale_incarnation")]


def test_a_life_before_one_that_took_the_anchor_brings_nothing_more() -> None:
    """Its delta would take what the newer life is learning: that one's next would be refused whole."""
    core = primary()
    asked(core, 1, IntervalSet.empty(), sequence=None, incarnation=2)
    assert verdicts(core.handle(mev.AnchorCaptured(0.0))) == {1: Verdict.ANCHOR}
    earlier = asked(core, 2, MINE.first(3), incarnation=1)
    assert [(item.request, item.code) for item in of(mev.DeferMerge, earlier)] == [(2, "stale_incarnation")]
    assert of(mev.MergeDeltas, asked(core, 3, MINE.first(3), incarnation=2))


def test_strangers_and_those_who_do_not_lead_give_no_verdict() -> None:
    stranger = ReplicaId("here.9")
    assert [item.code for item in of(mev.DeferMerge, asked(primary(), 1, MINE, source=stranger))] == ["not_planned"]
    assert [item.code for item in of(mev.DeferMerge, asked(anchored(), 1, THEIRS, source=PRIMARY))] == ["not_primary"]


def test_what_fails_together_is_tried_one_by_one_and_what_fails_alone_is_refused() -> None:
    core = primary()
    core.handle(plan(Role.PRIMARY, shares=(Share(PRIMARY, 0.0), Share(ME, 1.0), Share(THIRD, 1.0))))
    first, second = IntervalSet.span(0, 3), IntervalSet.span(3, 6)
    asked(core, 1, first)
    core.handle(ev.ComputeFailed(0.0, TRAIN_LANE, 0, "not finite", fatal=False))
    core.handle(mev.AnchorCaptured(0.0))
    asked(core, 2, NONE, None)
    asked(core, 3, first)
    assert asked(core, 4, second, source=THIRD) == []
    out = core.handle(ev.ComputeFailed(0.0, TRAIN_LANE, 0, "not finite", fatal=False))
    assert core.view().lineage == NONE
    assert [merge.requests for merge in of(mev.MergeDeltas, out)] == [(4,)]
    assert verdicts(core.handle(mev.MergesDone(0.0))) == {3: Verdict.REFUSED, 4: Verdict.MERGED}


def test_a_delta_of_batches_that_the_job_does_not_have_is_refused() -> None:
    core = primary()
    asked(core, 1, IntervalSet.span(NUM_BATCHES, NUM_BATCHES + 1))
    assert verdicts(core.handle(mev.AnchorCaptured(0.0))) == {1: Verdict.REFUSED}


def test_an_answer_to_nothing_is_a_bug() -> None:
    for event in (mev.DeltaMade(0.0, 1, NONE), mev.Rebased(0.0), mev.MergesDone(0.0), mev.AnchorCaptured(0.0)):
        with pytest.raises(InvariantBroken):
            primary().handle(event)
