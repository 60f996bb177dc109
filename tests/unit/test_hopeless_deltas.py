"""Goal: a delta that is refused again and again, although nothing has changed, keeps nobody waiting: the primary learns its batches, and each counts once."""

from __future__ import annotations

from merges_rig import ME, MINE, NUM_BATCHES, PRIMARY, THEIRS, THIRD, learn, of, plan, primary
from test_replica_merges import asked, verdicts

from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from vnode import events as ev
from vnode import merge_events as mev
from vnode.core import ReplicaCore
from vnode.vocabulary import TRAIN_LANE, Role, Verdict


def refused(core: ReplicaCore, request: int, batches: IntervalSet) -> None:
    """A delta that cannot be merged, with its answer."""
    assert of(mev.MergeDeltas, asked(core, request, batches, sequence=request))
    out = core.handle(ev.ComputeFailed(0.0, TRAIN_LANE, 0, "worsens", fatal=False))
    out += core.handle(mev.AnchorCaptured(0.0)) if of(mev.CaptureAnchor, out) else []
    assert verdicts(out) == {request: Verdict.REFUSED}
    core.check()


def test_what_a_sibling_brings_in_vain_again_and_again_the_primary_learns_itself() -> None:
    """From the same anchor the same delta comes, bit for bit: nobody would ever bring these batches."""
    core = primary()
    for own in THEIRS:
        learn(core, own)
    brought, batch = MINE.first(3), MINE.first(1)
    refused(core, 1, brought)
    assert core.view().needs == ()
    refused(core, 2, brought)
    (need,) = core.view().needs
    assert need.wanted == brought
    assert core.view().floor == brought.lowest()
    learn(core, *batch)
    assert core.view().lineage == THEIRS | batch
    core.handle(plan(Role.PRIMARY, 1.0))
    assert core.view().needs[0].wanted == brought - batch, "whatever plan comes"
    asked(core, 3, brought, sequence=3)
    assert verdicts(core.handle(mev.AnchorCaptured(0.0))) == {3: Verdict.REFUSED}, "each batch once"
    (merge,) = of(mev.MergeDeltas, asked(core, 4, brought - batch, sequence=4))
    core.handle(mev.MergesDone(0.0))
    assert core.view().lineage == merge.lineage == THEIRS | brought
    assert core.view().needs == ()


def test_a_delta_that_failed_on_another_state_counts_for_nothing_and_others_batches_stay_theirs() -> None:
    core = primary()
    learn(core, *THEIRS.first(1))
    refused(core, 1, MINE.first(3))
    learn(core, next(iter(THEIRS - THEIRS.first(1))))
    refused(core, 2, MINE.first(3))
    assert core.view().needs[0].wanted == core.view().owned - core.view().lineage == THEIRS - THEIRS.first(2)
    core = primary()
    core.handle(plan(Role.PRIMARY, shares=(Share(PRIMARY, 0.0), Share(ME, 1.0), Share(THIRD, 1.0))))
    mine = split((Share(ME, 1.0), Share(THIRD, 1.0)), NUM_BATCHES, 2)[ME]
    for request in (1, 2):
        refused(core, request, IntervalSet.span(0, NUM_BATCHES))
    assert core.view().owned == mine, "a sibling gives away what it owns and no more"
