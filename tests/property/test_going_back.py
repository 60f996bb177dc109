"""Goal: after a fault every VNode goes on from the newest checkpoint that is clean of it; nothing counts twice, nothing that went back is credited."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvariantBroken, NotFound
from dcnr.intervals import IntervalSet
from trust.going_back import Cause, WayBack, gone_back, way_back
from trust.ledger import CLEAR, MAX_UNCLEARED, Interval, Ledger, Named, Verdict, waits_for_audit

BEHIND = {"a": frozenset(("b", "c")), "b": frozenset(("c",)), "c": frozenset[str]()}
WEIGHT = {"a": 1.0, "b": 2.0, "c": 4.0}


def line(
    vnode: str, pieces: list[tuple[str, int, Verdict]], *, kept: frozenset[int] = frozenset(), first: int = 0
) -> tuple[Ledger, str]:
    """A ledger of one VNode: per piece a PNode, batches and a verdict, one checkpoint each."""
    intervals: dict[str, Interval] = {}
    named = [Named(f"{vnode}0", ())]
    low = 0
    for number, (pnode, count, verdict) in enumerate(pieces, 1):
        name = f"{vnode}.{number}"
        batches = IntervalSet.span(low, low + count)
        intervals[name] = Interval(name, first + number, vnode, f"{vnode}.r", pnode, batches, verdict)
        named.append(Named(f"{vnode}{number}", (name,), is_kept=not kept or number in kept))
        low += count
    return Ledger({vnode: tuple(named)}, intervals), f"{vnode}.{len(pieces)}"


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """Three VNodes one behind the other; checkpoints of one or two intervals by three PNodes, some not kept any more."""
    lines: dict[str, tuple[Named, ...]] = {}
    intervals: dict[str, Interval] = {}
    for at, vnode in enumerate("abc"):
        named, low = [Named(f"{vnode}0", ())], 0
        for checkpoint in range(1, draw(st.integers(1, 6)) + 1):
            names = []
            for _ in range(draw(st.integers(1, 2))):
                count, number = draw(st.integers(1, 4)), len(intervals) * 3 + at
                name = f"{vnode}.{number}"
                verdict = draw(st.sampled_from([Verdict.OPEN, Verdict.SPARED, Verdict.PASSED]))
                pnode = draw(st.sampled_from("xyz"))
                intervals[name] = Interval(
                    name, number, vnode, f"{vnode}.{pnode}", pnode, IntervalSet.span(low, low + count), verdict
                )
                names.append(name)
                low += count
            named.append(Named(f"{vnode}{checkpoint}", tuple(names), is_kept=draw(st.booleans())))
        lines[vnode] = tuple(named)
    return Ledger(lines, intervals)


@dataclass(frozen=True)
class Case:
    """A ledger, what fails in it, and what follows."""

    ledger: Ledger
    name: str
    cause: Cause
    way: WayBack
    after: Ledger

    @property
    def failed(self) -> Interval:
        return self.ledger.intervals[self.name]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ledger = draw(ledgers())
    name, cause = draw(st.sampled_from(sorted(ledger.intervals))), draw(st.sampled_from(Cause))
    way = way_back(ledger, name, cause, BEHIND)
    return Case(ledger, name, cause, way, gone_back(ledger, way))


def held(ledger: Ledger, vnode: str) -> IntervalSet:
    return ledger.held(vnode, len(ledger.lines[vnode]) - 1)


@given(cases())
def test_batches_are_kept_or_needed_again_and_never_both(case: Case) -> None:
    case.after.check()
    for vnode in "abc":
        before, now = held(case.ledger, vnode), held(case.after, vnode)
        found = case.way.returns.get(vnode)
        needed = found.needed_again if found is not None else IntervalSet.empty()
        assert now | needed == before
        assert now.isdisjoint(needed)
        if found is not None:
            kept = case.after.lines[vnode][-1]
            assert (kept.digest, kept.is_kept or kept.digest == f"{vnode}0") == (found.target, True)


@given(cases())
def test_nothing_bad_stays_and_no_newer_checkpoint_would_do(case: Case) -> None:
    failed = case.failed
    passes = [
        one.number for one in case.ledger.intervals.values()
        if (one.vnode, one.pnode_id, one.verdict) == (failed.vnode, failed.pnode_id, Verdict.PASSED) and one.number < failed.number
    ]  # fmt: skip

    own = case.way.returns.get(failed.vnode)
    wrong = failed.batches | (own.needed_again if own is not None else IntervalSet())

    def is_bad(one: Interval) -> bool:
        if one.vnode != failed.vnode:
            behind = case.cause is Cause.FAULT and one.vnode in BEHIND[failed.vnode]
            return behind and not one.batches.isdisjoint(wrong)
        if case.cause is Cause.UNVERIFIABLE:
            return one.name == failed.name
        return one.pnode_id == failed.pnode_id and one.number > max(passes, default=-1)

    for vnode in "abc":
        before, now = case.ledger.lines[vnode], case.after.lines[vnode]
        assert not any(is_bad(case.ledger.intervals[name]) for one in now for name in one.intervals)
        between = before[len(now) :]
        assert now == before[: len(now)]
        for at, one in enumerate(between):
            up_to = [name for other in between[: at + 1] for name in other.intervals]
            assert not one.is_kept or any(is_bad(case.ledger.intervals[name]) for name in up_to), "a newer one was clean and kept"


@given(cases())
def test_only_the_accused_is_blamed_and_only_where_somebody_is(case: Case) -> None:
    changed = {
        name: one.verdict for name, one in case.after.intervals.items() if one.verdict is not case.ledger.intervals[name].verdict
    }
    gone = {name for vnode, one in case.way.returns.items() for name in gone_names(case.ledger, vnode, one.retracted)}
    assert changed.keys() <= gone | {case.name}
    for name, verdict in changed.items():
        one = case.ledger.intervals[name]
        if verdict in (Verdict.FAILED, Verdict.VOID):
            assert (one.pnode_id, one.vnode, case.way.accused) == (case.failed.pnode_id, case.failed.vnode, one.pnode_id)
        else:
            assert verdict is (Verdict.UNVERIFIABLE if name == case.name else Verdict.DROPPED)
    if case.cause is Cause.UNVERIFIABLE:
        assert (case.way.accused, case.way.void) == ("", frozenset())
    else:
        assert case.after.intervals[case.name].verdict is Verdict.FAILED


def gone_names(ledger: Ledger, vnode: str, retracted: tuple[str, ...]) -> set[str]:
    return {name for one in ledger.lines[vnode] if one.digest in retracted for name in one.intervals}


@given(cases())
def test_told_again_nothing_follows(case: Case) -> None:
    again = way_back(case.after, case.name, case.cause, BEHIND)
    assert again.returns == {}
    assert gone_back(case.after, again) == case.after


@given(cases())
def test_credit_only_falls_and_nothing_that_went_back_is_credited(case: Case) -> None:
    before, now = case.ledger.credit(WEIGHT), case.after.credit(WEIGHT)
    assert all(now[pnode] <= before.get(pnode, 0.0) for pnode in now)
    cleared = [one for vnode in "abc" for one in case.after.lines[vnode][: case.after.num_cleared(vnode)]]
    intervals = [case.after.intervals[name] for one in cleared for name in one.intervals]
    assert all(one.verdict in CLEAR for one in intervals)
    assert sum(now.values()) == sum(WEIGHT[one.vnode] * len(one.batches) for one in intervals)


# ---- examples -------------------------------------------------------------------------------------------------------------------

S, P, OPEN = Verdict.SPARED, Verdict.PASSED, Verdict.OPEN


def test_an_accused_loses_what_it_did_since_its_last_passed_audit() -> None:
    ledger, _ = line("a", [("x", 4, P), ("x", 4, S), ("y", 4, P), ("x", 4, OPEN), ("y", 4, S)])
    way = way_back(ledger, "a.4", Cause.FAULT, BEHIND)
    assert (way.returns["a"].target, way.returns["a"].retracted) == ("a1", ("a2", "a3", "a4", "a5"))
    assert way.returns["a"].needed_again == IntervalSet.span(4, 20)
    assert (way.void, way.dropped) == ({"a.2"}, {"a.3", "a.5"})


def test_another_nodes_pass_and_a_later_own_one_vouch_for_nothing() -> None:
    ledger, _ = line("a", [("x", 4, S), ("y", 4, P), ("x", 4, OPEN), ("x", 4, P)])
    assert way_back(ledger, "a.3", Cause.FAULT, BEHIND).returns["a"].target == "a0"


def test_a_checkpoint_that_is_not_kept_is_no_place_to_go_on_from() -> None:
    ledger, _ = line("a", [("x", 4, P), ("x", 4, P), ("x", 4, OPEN)], kept=frozenset((1,)))
    assert way_back(ledger, "a.3", Cause.FAULT, BEHIND).returns["a"].target == "a1"


def test_those_behind_return_before_the_failed_batches_and_blame_nobody_else() -> None:
    first, _ = line("a", [("x", 4, P), ("x", 4, OPEN)])
    second, _ = line("b", [("y", 2, P), ("y", 2, S), ("y", 2, S)], first=10)
    ledger = Ledger({**first.lines, **second.lines}, {**first.intervals, **second.intervals})
    assert set(way_back(ledger, "a.2", Cause.UNVERIFIABLE, BEHIND).returns) == {"a"}
    way = way_back(ledger, "a.2", Cause.FAULT, BEHIND)
    assert way.returns["b"].target == "b2"
    assert way.dropped == {"b.3"}


def test_those_behind_forget_what_others_computed_from_the_wrong_state_too() -> None:
    first, _ = line("a", [("y", 4, P), ("x", 2, OPEN), ("z", 2, P)])
    second, _ = line("b", [("y", 6, P), ("y", 2, P)], first=10)
    ledger = Ledger({**first.lines, **second.lines}, {**first.intervals, **second.intervals})
    way = way_back(ledger, "a.2", Cause.FAULT, BEHIND)
    assert way.returns["a"].needed_again == IntervalSet.span(4, 8)
    assert way.returns["b"].target == "b0"
    assert way.dropped == {"a.3", "b.1", "b.2"}


def test_an_interval_that_went_back_already_takes_only_those_behind_along() -> None:
    ledger, _ = line("a", [("x", 4, S), ("x", 4, OPEN)])
    ledger = gone_back(ledger, way_back(ledger, "a.2", Cause.FAULT, BEHIND))
    behind, _ = line("b", [("y", 4, S)], first=10)  # named late: it had learned from the first of them
    ledger = Ledger({**ledger.lines, **behind.lines}, {**ledger.intervals, **behind.intervals})
    assert [one.digest for one in ledger.lines["a"]] == ["a0"]
    again = Interval("a.9", 99, "a", "a.r", "x", IntervalSet.span(0, 4), P)
    ledger = Ledger({**ledger.lines, "a": (*ledger.lines["a"], Named("a9", ("a.9",)))}, {**ledger.intervals, "a.9": again})
    way = way_back(ledger, "a.1", Cause.FAULT, BEHIND)
    assert set(way.returns) == {"b"}
    assert way.verdict is Verdict.FAILED


def test_told_again_those_that_have_learned_anew_stay() -> None:
    first, _ = line("a", [("x", 4, P), ("x", 4, OPEN)])
    second, _ = line("b", [("y", 4, P), ("y", 4, S)], first=10)
    ledger = Ledger({**first.lines, **second.lines}, {**first.intervals, **second.intervals})
    ledger = gone_back(ledger, way_back(ledger, "a.2", Cause.FAULT, BEHIND))
    assert [len(ledger.lines[vnode]) for vnode in "ab"] == [2, 2]
    for number, vnode in enumerate("ab", 90):
        again = Interval(f"{vnode}.9", number, vnode, f"{vnode}.r", "z", IntervalSet.span(4, 8), S)
        lines = {**ledger.lines, vnode: (*ledger.lines[vnode], Named(f"{vnode}9", (again.name,)))}
        ledger = Ledger(lines, {**ledger.intervals, again.name: again})
    way = way_back(ledger, "a.2", Cause.FAULT, BEHIND)
    assert (way.returns, way.verdict) == ({}, Verdict.FAILED)


def test_without_any_kept_checkpoint_or_for_unknown_intervals_it_says_so() -> None:
    ledger, _ = line("a", [("x", 4, OPEN)])
    with pytest.raises(NotFound):
        way_back(ledger, "a.7", Cause.FAULT, BEHIND)
    broken = Ledger({"a": (replace(ledger.lines["a"][0], is_kept=False), ledger.lines["a"][1])}, ledger.intervals)
    with pytest.raises(InvariantBroken):
        way_back(broken, "a.1", Cause.FAULT, BEHIND)


# ---- the ledger -----------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_cleared_when_everything_before_it_is() -> None:
    ledger, _ = line("a", [("x", 4, P), ("x", 4, S), ("x", 4, OPEN), ("x", 4, P)])
    assert ledger.num_cleared("a") == 3
    assert ledger.credit(WEIGHT) == {"x": 8.0}
    for verdict in Verdict:
        other = replace(ledger, intervals={**ledger.intervals, "a.3": replace(ledger.intervals["a.3"], verdict=verdict)})
        assert other.num_cleared("a") == (5 if verdict in (S, P) else 3)


def test_with_more_than_four_open_intervals_a_replica_waits() -> None:
    assert not waits_for_audit(MAX_UNCLEARED)
    assert waits_for_audit(MAX_UNCLEARED + 1)


@pytest.mark.parametrize("broken", ["no beginning", "nothing", "unknown", "twice", "other vnode"])
def test_a_ledger_that_counts_twice_or_begins_nowhere_is_a_bug_of_ours(broken: str) -> None:
    ledger, _ = line("a", [("x", 4, P), ("x", 4, P)])
    lines, intervals = dict(ledger.lines), dict(ledger.intervals)
    if broken == "no beginning":
        lines["a"] = lines["a"][1:]
    elif broken == "nothing":
        lines["a"] = ()
    elif broken == "unknown":
        del intervals["a.1"]
    elif broken == "twice":
        intervals["a.2"] = replace(intervals["a.2"], batches=IntervalSet.span(3, 5))
    else:
        intervals["a.2"] = replace(intervals["a.2"], vnode="b")
    ledger.check()
    with pytest.raises(InvariantBroken):
        Ledger(lines, intervals).check()
