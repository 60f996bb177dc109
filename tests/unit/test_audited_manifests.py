"""Goal: where audits are in force a manifest names whole intervals with what the draw said, clears what stands on no open audit, and goes back in one write."""

from __future__ import annotations

import pytest
from audited_rig import NODES, Job, drawn, judged, name_of, piece

from orchestrator.audit_events import Decision
from orchestrator.costs import StageCost
from orchestrator.verdicts import MAX_AT_ONCE, behind_of, news
from trust.folding import Chronicle, standings_of
from trust.going_back import Cause
from trust.ledger import Verdict

EVIDENCE = name_of("evidence")


def names(*texts: str) -> list[str]:
    return [name_of(text) for text in texts]


def verdicts(job: Job) -> dict[str, Verdict]:
    return {name: one.verdict for name, one in job.chain().ledger.intervals.items()}


def story() -> Job:
    """a: a1 (spared), a2 (open, two pieces), a3 (spared); b: b1 (spared) has learned what a2 sent."""
    job = Job()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]))
    job.named(
        judged("a2", "a1", piece("a-2", 4, 8), piece("a-2h", 8, 10, "y", "a.1"), held=[(0, 10)]),
        judged("b1", "b0", piece("b-1", 0, 8, "z"), held=[(0, 8)]),
        draw=drawn("a-2"),
    )
    job.named(judged("a3", "a2", piece("a-3", 10, 12), held=[(0, 12)]))
    return job


def test_intervals_are_named_whole_with_the_draw_and_only_what_is_clear_is_cleared() -> None:
    job = story()
    assert job.newest.audits == "drawn"
    assert verdicts(job) == {
        name_of("a-1"): Verdict.SPARED, name_of("a-2"): Verdict.OPEN, name_of("a-2h"): Verdict.SPARED, name_of("b-1"): Verdict.SPARED,
        name_of("a-3"): Verdict.SPARED,
    }  # fmt: skip
    assert (job.cleared("a"), job.cleared("b")) == (name_of("a1"), name_of("b1"))
    assert job.working("a") == names("a3", "a2", "a1", "a0")
    job.named(decisions=[Decision(name_of("a-2"), Verdict.PASSED, "why")])
    assert job.cleared("a") == name_of("a3"), "the audit was all that stood in the way"
    assert [one.verdict for one in job.newest.contributions] == ["passed"]
    assert job.named(decisions=[Decision(name_of("a-2"), Verdict.PASSED, "why")]).manifest is None, (
        "what the chain says already is no news"
    )


def test_a_failure_and_its_way_back_are_one_manifest() -> None:
    job = story()
    job.named(decisions=[Decision(name_of("a-2"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])
    made = job.newest
    assert job.working("a") == names("a0"), "the accused has passed no audit yet: everything of its is taken back"
    assert job.working("b") == names("b0"), "b learned from wrong outputs"
    assert set(made.retracted) == set(names("a1", "a2", "a3", "b1"))
    assert made.fences == {"a": 7, "b": 7}
    assert (job.cleared("a"), job.cleared("b")) == (name_of("a0"), name_of("b0"))
    told = verdicts(job)
    assert [told[name_of(one)] for one in ("a-1", "a-2", "a-2h", "a-3", "b-1")] == [
        Verdict.VOID, Verdict.FAILED, Verdict.DROPPED, Verdict.VOID, Verdict.DROPPED,
    ]  # fmt: skip
    assert [one.evidence for one in made.contributions if one.interval == name_of("a-2")] == [EVIDENCE]
    job.primaries["a"] = "a.7"
    job.named(judged("a4", "a0", piece("a-4", 0, 8, "y", "a.7"), held=[(0, 8)], replica="a.7"))
    assert job.line("a") == names("a0", "a4"), "the same batches are learned again by somebody else"


def test_the_way_back_ends_at_a_state_that_is_still_there() -> None:
    job = Job()
    job.named(judged("a1", "a0", piece("a-1", 0, 4, "y"), held=[(0, 4)]))
    job.named(judged("a2", "a1", piece("a-2", 4, 6, "y"), held=[(0, 6)]))
    job.named(judged("a3", "a2", piece("a-3", 6, 8), held=[(0, 8)]))
    job.missing = {name_of("a2")}
    job.named(decisions=[Decision(name_of("a-3"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])
    assert job.working("a") == names("a1", "a0")
    assert job.newest.fences == {"a": 7, "b": 7}, "whoever is behind may have learned from it what no manifest names yet"


def test_an_interval_nobody_can_verify_is_dropped_without_blame() -> None:
    job = story()
    job.named(decisions=[Decision(name_of("a-2"), Verdict.UNVERIFIABLE, "why")])
    assert job.working("a") == names("a1", "a0")
    assert verdicts(job)[name_of("a-3")] is Verdict.DROPPED
    assert verdicts(job)[name_of("b-1")] is Verdict.SPARED


def test_what_was_going_on_from_a_state_that_is_taken_back_is_refused() -> None:
    job = story()
    late = judged("a4", "a3", piece("a-4", 12, 14), held=[(0, 14)])
    outcome = job.named(late, decisions=[Decision(name_of("a-2"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])
    assert [(one.record.digest, one.reason) for one in outcome.refused] == [(name_of("a4"), "retracted")]
    outcome = job.named(late)
    assert [one.reason for one in outcome.refused] == ["retracted"]
    through = judged("a5", "a0", piece("a-1", 0, 4), piece("a-5", 12, 14), held=[(0, 4), (12, 14)])
    assert [one.reason for one in job.named(through).refused] == ["retracted"], (
        "a void interval comes back under no other checkpoint"
    )


def test_a_checkpoint_beside_the_newest_leaves_that_one_aside() -> None:
    """A contributor that becomes primary goes on from an anchor before the newest checkpoint: what both hold is taken up, nobody is blamed."""
    job = Job()
    shared = piece("a-1h", 4, 6, "y", "a.1")
    job.named(judged("a1", "a0", piece("a-1", 0, 4), shared, held=[(0, 6)]), draw=drawn("a-1", "a-1h"))
    job.primaries["a"] = "a.1"
    new = piece("a-2", 6, 9, "y", "a.1")
    job.named(judged("a2", "a0", piece("a-0", 0, 2), shared, new, held=[(0, 2), (4, 9)], replica="a.1", node="y"))
    assert job.line("a") == names("a0", "a2")
    assert job.working("a") == names("a2", "a0")
    assert job.newest.retracted == (name_of("a1"),)
    told = verdicts(job)
    assert (told[name_of("a-1")], told[name_of("a-1h")]) == (Verdict.OPEN, Verdict.OPEN), "no verdict changes"
    assert job.cleared("a") == name_of("a0")
    assert [one.name for one in job.chain().open_intervals()] == [name_of("a-1h")], "what is on no line holds nobody up"
    assert job.chain().ledger.held("a", 1).pairs() == ((0, 2), (4, 9))


def test_who_goes_on_from_before_its_own_open_interval_is_not_drawn_anew() -> None:
    """Whatever it brings is drawn for certain until what it left is judged; and that is judged, though it counts nowhere."""
    job = Job()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), draw=drawn("a-1"))
    job.named(judged("a2", "a0", piece("a-2", 0, 5), held=[(0, 5)]))
    assert job.line("a") == names("a0", "a2")
    assert [one.name for one in job.chain().open_intervals()] == names("a-2")
    assert [one.name for one in job.chain().left_open()] == names("a-1")
    assert [one.name for one in job.chain().to_judge()] == names("a-1", "a-2")
    job.named(judged("a3", "a2", piece("a-3", 5, 6), held=[(0, 6)]))
    job.named(judged("b1", "b0", piece("b-1", 0, 4), held=[(0, 4)]))
    told = verdicts(job)
    assert [told[name_of(one)] for one in ("a-3", "b-1")] == [Verdict.OPEN] * 2, "wherever it is a primary"
    passed = [Decision(name_of(one), Verdict.PASSED, "why") for one in ("a-2", "a-3", "b-1")]
    job.named(decisions=[*passed, Decision(name_of("a-1"), Verdict.UNVERIFIABLE, "it shows nothing")])
    assert job.line("a") == names("a0", "a2", "a3"), "nothing that counts goes back with it"
    assert job.newest.fences == {}
    assert job.chain().to_judge() == ()
    before, after = (
        standings_of(Chronicle(job.chain().ledger, told), (), now_s=job.now_ms / 1000)[NODES["x"]].passes.amount
        for told in (job.chain().told[:-1], job.chain().told)
    )
    assert after == before / 2 > 1, "as for whoever withholds evidence"
    job.named(judged("a4", "a3", piece("a-4", 6, 7), held=[(0, 7)]))
    assert verdicts(job)[name_of("a-4")] is Verdict.SPARED, "what is judged is over"


def test_an_open_interval_that_somebody_else_left_aside_is_judged_and_can_be_taken_up_again() -> None:
    """Whoever is promoted neither sheds what its friend did nor costs it anything: evidence is asked for, and shown."""
    job = Job()
    left = piece("a-1", 0, 4)
    job.named(judged("a1", "a0", left, held=[(0, 4)]), draw=drawn("a-1"))
    job.primaries["a"] = "a.1"
    job.named(judged("a2", "a0", piece("a-2", 4, 9, "y", "a.1"), held=[(4, 9)], replica="a.1", node="y"))
    told = verdicts(job)
    assert [told[name_of(one)] for one in ("a-1", "a-2")] == [Verdict.OPEN, Verdict.SPARED], "y left nothing of its own"
    assert [one.name for one in job.chain().to_judge()] == names("a-1")
    job.named(judged("a3", "a2", left, piece("a-3", 9, 10, "y", "a.1"), held=[(0, 10)], replica="a.1", node="y"))
    assert [one.name for one in job.chain().open_intervals()] == names("a-1"), "it counts again"
    assert job.chain().left_open() == ()
    job.named(decisions=[Decision(name_of("a-1"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])
    assert job.line("a") == names("a0", "a2")


def test_a_fault_in_what_was_left_aside_takes_back_who_learned_from_it() -> None:
    job = Job()
    job.named(
        judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), judged("b1", "b0", piece("b-1", 0, 4, "z"), held=[(0, 4)]),
        draw=drawn("a-1"),
    )  # fmt: skip
    job.named(judged("a2", "a0", piece("a-2", 4, 9), held=[(4, 9)]))
    job.named(decisions=[Decision(name_of("a-1"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])
    assert (job.line("a"), job.line("b")) == (names("a0", "a2"), names("b0"))
    assert job.newest.fences == {"a": 7, "b": 7}


def test_a_checkpoint_beside_that_cannot_be_named_leaves_nothing_aside() -> None:
    job = Job()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]))
    job.missing = {name_of("a2")}
    outcome = job.named(
        judged("a2", "a0", piece("a-2", 0, 5), held=[(0, 5)]), judged("b1", "b0", piece("b-1", 0, 1), held=[(0, 1)])
    )
    assert [one.reason for one in outcome.refused] == ["missing_object"]
    assert (job.line("a"), job.line("b")) == (names("a0", "a1"), names("b0", "b1"))


def test_a_state_that_the_store_lost_leaves_its_line_and_what_it_held_can_come_again() -> None:
    job = Job()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]))
    job.named(judged("a2", "a1", piece("a-2", 4, 6), held=[(0, 6)]))
    job.lost = frozenset({name_of("a2")})
    job.named()
    assert job.line("a") == names("a0", "a1")
    assert job.newest.fences == {}, "nothing in it was wrong"
    job.lost = frozenset()
    job.named(judged("a3", "a1", piece("a-2", 4, 6), piece("a-3", 6, 7), held=[(0, 7)]))
    assert job.line("a") == names("a0", "a1", "a3")


def test_repeated_records_and_records_without_anything_new_are_refused() -> None:
    job = story()
    assert [one.reason for one in job.named(judged("a9", "a0", piece("a-1", 0, 4), held=[(0, 4)])).refused] == ["nothing_new"]
    longer = judged(
        "a4", "a1", piece("a-2", 4, 8), piece("a-2h", 8, 10, "y", "a.1"), piece("a-3", 10, 12), piece("a-4", 12, 13), held=[(0, 13)]
    )
    job.named(longer)
    assert job.line("a") == names("a0", "a1", "a2", "a3", "a4"), (
        "followed from an older state: it goes on from the newest that it holds"
    )


@pytest.mark.parametrize(
    "decision",
    [
        Decision(name_of("nobody's"), Verdict.PASSED, "why"),
        Decision(name_of("a-1"), Verdict.PASSED, "why"),
        Decision(name_of("a-2"), Verdict.SPARED, "why"),
        Decision(name_of("a-2"), Verdict.DROPPED, "why"),
        Decision(name_of("a-2"), Verdict.FAILED, "why", Cause.FAULT, ""),
        Decision(name_of("a-2"), Verdict.FAILED, "why", None, EVIDENCE),
        Decision(name_of("a-2"), Verdict.FAILED, "why", Cause.UNVERIFIABLE, EVIDENCE),
    ],
)
def test_what_the_chain_does_not_allow_is_no_decision(decision: Decision) -> None:
    assert news(story().chain(), [decision]) == []


def test_one_failure_at_a_time_after_the_passes() -> None:
    chain = story().chain()
    fails = [Decision(name_of(one), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE) for one in ("a-1", "a-3")]
    passed = Decision(name_of("a-2"), Verdict.PASSED, "why")
    assert news(chain, [*fails, passed, passed]) == [passed, fails[0]]
    assert MAX_AT_ONCE * 600 < 512 * 1024, "verdicts fit what is kept free for them"


def test_who_is_behind_follows_from_the_stages() -> None:
    costs = [StageCost(name, before, (), not before, 1, 1.0, 1, 1, 1) for name, before in (("c", ("b",)), ("b", ("a",)), ("a", ()))]
    assert behind_of(costs) == {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()}
