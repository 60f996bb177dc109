"""Goal: where audits are in force a primary takes in no delta that begins with a state of its sibling's own making, and whoever brings one goes on from the
primary's anchor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_merge_desk import ANCHOR, DATA, HELPER, Counter, delta, opening, run
from test_withdrawn_questions import MINE, THEIRS, Maths, around, primary

from dcnr.ids import ReplicaId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from pnode.chain import CommitChain, Standing
from pnode.merge_desk import Answer
from trust.commits import MAX_BEHIND
from trust.delegation import make_delegation
from trust.identity import NodeKey
from vnode.merge_events import CaptureAnchor, MergeAsked, MergeDeltas
from vnode.merging import Merging
from vnode.vocabulary import Peer, Verdict

NODE, WORKER = NodeKey.generate(), NodeKey.generate()


def chain(state: str = "0" * 64) -> CommitChain:
    delegation = make_delegation(NODE, "5" * 40, WORKER.public_der, 3, ["127.0.0.1:1"], 1_700_000_000.0)
    return CommitChain(
        Standing("5" * 40, "m", "j", "a", Peer(ReplicaId("a.0"), 3), NODE.node_id), WORKER, lambda: delegation, state, ""
    )


def test_the_desk_tells_its_core_of_a_delta_that_begins_with_or_was_measured_against_what_this_replica_does_not_know() -> None:
    async def story(counter: Counter) -> None:
        counter.desk._between = lambda begin, measured: 5 if {begin, measured} == {"c" * 64} else None
        told = []
        known, made_up = "c" * 64, digest_of(b"made up")
        for number, (anchor, measured) in enumerate(((known, known), (known, ""), (made_up, known), (known, made_up)), start=1):
            brought = delta(anchor_digest=anchor, measured_digest=measured, sequence=number)
            asked = asyncio.ensure_future(counter.ask(opening(brought)))
            await counter.until_heard(number)
            told.append((counter.heard[-1].is_astray, counter.heard[-1].num_since))
            counter.desk.answer(counter.heard[-1].request, Verdict.REFUSED, "unknown_anchor", "", ANCHOR)
            await asked
        asked = asyncio.ensure_future(counter.ask(opening()))
        await counter.until_heard(5)
        assert told == [(False, 5), (False, 5), (True, 0), (True, 0)]
        assert (counter.heard[-1].is_astray, counter.heard[-1].num_since) == (False, 0)
        counter.desk.close()
        await asyncio.gather(asked, return_exceptions=True)

    run(story)


def test_who_brings_one_is_told_the_anchor_from_which_it_goes_on(tmp_path: Path) -> None:
    """Through the whole replica: refused above an anchor of its own making, merged above the one that it was given."""
    maths, thread = Maths(), ThreadPoolExecutor(1)

    async def story() -> None:
        host = primary(maths, tmp_path, thread, audited=True)
        running = asyncio.ensure_future(host.run())
        host.plan(around(MINE, THEIRS))

        async def asked(**facts: Any) -> Answer:
            async def weights(size_bytes: int) -> AsyncIterator[bytes]:
                yield DATA

            async with host.merges.desk.asked(opening(delta(**facts)), HELPER.node_id, weights) as answer:
                return answer

        refused = await asked(anchor_digest=digest_of(b"made up"))
        assert (refused.verdict, refused.code, maths.merged) == (Verdict.REFUSED, "unknown_anchor", [])
        merged = await asked(anchor_digest=refused.anchor.digest, sequence=5)
        assert (merged.verdict, len(maths.merged)) == (Verdict.MERGED, 1)
        await host.release(hand_over=False)
        await running

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(bounded())
    thread.shutdown()


@pytest.mark.parametrize("was_merged", [False, True])
def test_it_is_refused_with_the_anchor_from_which_to_go_on_and_one_that_was_merged_stays_so(was_merged: bool) -> None:
    core, lineage = Merging(20), IntervalSet.span(0, 2)
    core.plan([Share(ReplicaId(name), 1.0) for name in ("a.0", "a.1")])
    one = MergeAsked(0.0, 1, Peer(ReplicaId("a.1"), 7), 4, IntervalSet.span(5, 7), "delta")
    if was_merged:
        core.asked(one)
        work = core.computation(lineage)
        assert isinstance(work, MergeDeltas)
        core.merged(work)
        core.answers(work.lineage)
        lineage = work.lineage
    core.asked(replace(one, request=2, is_astray=True))
    capture = core.computation(lineage)
    if not was_merged:
        assert isinstance(capture, CaptureAnchor), "nothing is merged"
        core.captured(capture)
    [answer] = core.answers(lineage)
    assert (answer.verdict, answer.code) == ((Verdict.MERGED, "") if was_merged else (Verdict.REFUSED, "unknown_anchor"))


@pytest.mark.parametrize(("num_since", "is_merged"), [(16, True), (17, False)])
def test_who_would_take_back_much_for_little_is_refused(num_since: int, is_merged: bool) -> None:
    """Goal: else a contributor begins with a state of long ago again and again, and each of its deltas takes back a part of all that was learned since.

    Two replicas learn, and it has learned two batches.
    """
    core, lineage = Merging(20), IntervalSet.span(0, 2)
    core.plan([Share(ReplicaId(name), 1.0) for name in ("a.0", "a.1")])
    core.asked(MergeAsked(0.0, 1, Peer(ReplicaId("a.1"), 7), 4, IntervalSet.span(5, 7), "delta", num_since=num_since))
    work = core.computation(lineage)
    assert isinstance(work, MergeDeltas) is is_merged
    if isinstance(work, CaptureAnchor):
        core.captured(work)
        assert [(answer.verdict, answer.code) for answer in core.answers(lineage)] == [(Verdict.REFUSED, "too_late")]


def test_a_chain_tells_how_many_batches_lie_between_what_leads_to_here_and_in_which_order_that_lies() -> None:
    primary, promoted = chain(), chain("7" * 64)
    primary.learned(0, 1.0)
    primary.close(anchor="a" * 64)
    primary.learned(1, 1.0)
    primary.merged(delta(batches=[4, 5, 6], losses=[1.0] * 3), 2)
    primary.close(state="1" * 64)
    primary.close(anchor="b" * 64)
    assert [primary.between("0" * 64, one * 64) for one in ("0", "a", "1", "b")] == [0, 1, 5, 5]
    assert [primary.between(one * 64, "1" * 64) for one in ("a", "1", "b")] == [4, 0, None]
    promoted.rebase("b" * 64, primary.commits, keep_open=False, keep_after=False)
    promoted.lead(IntervalSet.empty())
    promoted.learned(2, 1.0)
    promoted.close(anchor="d" * 64)
    assert [promoted.between(one * 64, "d" * 64) for one in ("a", "1", "b", "d")] == [5, 1, 1, 0]
    assert promoted.between("d" * 64, "a" * 64) is None


def test_a_chain_leads_over_what_its_commits_end_with_and_what_it_was_restored_from() -> None:
    def leads_over(one: CommitChain, anchor: str) -> bool:
        return one.between(anchor, anchor) == 0

    primary, promoted, restarted = chain(), chain("7" * 64), chain("1" * 64)
    primary.close(anchor="a" * 64)
    primary.close(state="1" * 64)
    primary.close(anchor="b" * 64)
    assert all(leads_over(primary, one * 64) for one in ("0", "a", "1", "b"))
    assert not leads_over(primary, "c" * 64)
    promoted.rebase("b" * 64, primary.commits, keep_open=False, keep_after=False)
    promoted.lead(IntervalSet.empty())
    promoted.close(anchor="d" * 64)
    assert [leads_over(promoted, one * 64) for one in ("a", "b", "d", "7")] == [True, True, True, False]
    restarted.close(anchor="e" * 64)
    assert [leads_over(restarted, one * 64) for one in ("1", "e", "b")] == [True, True, False], "what its earlier life gave is lost"
    for _ in range(MAX_BEHIND):
        primary.close(anchor="f" * 64)
    assert not leads_over(primary, "b" * 64)
