"""Goal: a PNode's standing follows from verified facts and time alone: every rule of probation, doubt, quarantine, rehab and ban, and no way around."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvariantBroken
from trust.decay import DAY_S
from trust.standing import (
    ACTIVE_PASSES,
    LONGEST_QUARANTINE_S,
    MAX_DOUBTS,
    ORDINARY,
    SHADOW_UNITS,
    Assured,
    Doubted,
    Equivocated,
    Event,
    Faulted,
    Passed,
    ShadowFailed,
    ShadowPassed,
    Standing,
    State,
    Terms,
    Unverified,
    Waited,
    after,
    begun,
    folded,
)

T = 1_000_000.0
WORST = (State.BANNED, State.QUARANTINED)


def passed(count: int, at_s: float = T) -> list[Event]:
    return [Passed(at_s, at_s)] * count


def fault(at_s: float, committed_s: float | None = None) -> Faulted:
    return Faulted(at_s, at_s if committed_s is None else committed_s, "e" * 64, "a residual of 1")


def active(at_s: float = T) -> Standing:
    return folded(begun(at_s), passed(40, at_s))


def rehabilitated(standing: Standing) -> Standing:
    """After the quarantine that it is in, all shadow units passed."""
    end_s = standing.until_s
    return folded(standing, [ShadowPassed(end_s)] * SHADOW_UNITS)


# ---- probation and active -------------------------------------------------------------------------------------------------------


def test_ten_passed_audits_end_probation() -> None:
    standing = folded(begun(T), passed(int(ACTIVE_PASSES) - 1))
    assert standing.state is State.PROBATION
    assert after(standing, Passed(T, T)).state is State.ACTIVE


def test_an_audit_of_nothing_learned_is_no_part_of_a_record() -> None:
    """Else who learns nothing, and says so again and again, audits others after ten of them, and lies about merges at the lowest rate."""
    standing = folded(begun(T), [Passed(T, T, 0)] * 400)
    assert (standing.state, standing.record(T, 0)) == (State.PROBATION, 0.0)
    withheld = after(active(), Unverified(T, T))
    assert folded(withheld, [Passed(T, T, 0)] * 400) == withheld, "nor does it make up for what was withheld"


def test_a_record_fades_into_probation() -> None:
    standing = active()
    assert after(standing, Waited(T + 59 * DAY_S)).state is State.ACTIVE, "40 audits, two half-lives"
    assert after(standing, Waited(T + 61 * DAY_S)).state is State.PROBATION


# ---- doubt ----------------------------------------------------------------------------------------------------------------------


def test_a_doubt_ends_when_two_others_find_nothing() -> None:
    standing = after(active(), Doubted(T, "i", "a"))
    assert standing.state is State.SUSPECT
    standing = folded(standing, [Assured(T, "i", "a"), Assured(T, "i", "b"), Assured(T, "i", "b"), Assured(T, "other", "c")])
    assert standing.state is State.SUSPECT, "whoever doubted, the same twice, and another interval do not count"
    standing = after(standing, Assured(T, "i", "c"))
    assert (standing.state, standing.doubts) == (State.ACTIVE, ())


def test_a_second_doubt_about_an_interval_adds_nothing() -> None:
    standing = after(active(), Doubted(T + 1, "i", "a"))
    assert after(standing, Doubted(T + 2, "i", "b")) == standing
    assert standing.since_s == after(standing, Doubted(T + 3, "j", "a")).since_s == T + 1, "it was suspect already"


def test_who_is_under_no_doubt_is_not_helped_by_who_finds_nothing() -> None:
    quarantined = after(active(), fault(T))
    rehab = after(quarantined, Waited(quarantined.until_s))
    for standing in (begun(T), active(), quarantined, rehab):
        assert after(standing, Assured(standing.since_s, "i", "b")) == standing
        if standing.state not in (State.PROBATION, State.ACTIVE):
            assert after(standing, Doubted(standing.since_s, "i", "b")) == standing
            assert after(standing, Passed(standing.since_s, standing.since_s)) == standing
            assert after(standing, Unverified(standing.since_s, standing.since_s)) == standing
    assert after(quarantined, ShadowPassed(T)) == after(quarantined, ShadowFailed(T, "e")) == quarantined


def test_each_doubted_interval_needs_its_own_two() -> None:
    standing = folded(active(), [Doubted(T, "i", "a"), Doubted(T, "j", "a"), Assured(T, "i", "b"), Assured(T, "i", "c")])
    assert standing.state is State.SUSPECT
    assert folded(standing, [Assured(T, "j", "b"), Assured(T, "j", "c")]).state is State.ACTIVE


def test_a_doubt_in_probation_leads_back_to_probation_and_a_fault_out_of_it() -> None:
    standing = after(begun(T), Doubted(T, "i", "a"))
    assert folded(standing, [Assured(T, "i", "b"), Assured(T, "i", "c")]).state is State.PROBATION
    assert after(standing, fault(T)).state is State.QUARANTINED


def test_doubts_are_bounded() -> None:
    standing = folded(active(), [Doubted(T, str(number), "a") for number in range(2 * MAX_DOUBTS)])
    standing.check()
    assert len(standing.doubts) == MAX_DOUBTS


# ---- faults ---------------------------------------------------------------------------------------------------------------------


def test_a_fault_ends_the_record_at_once() -> None:
    standing = after(active(), fault(T))
    assert (standing.state, standing.passes.amount, standing.until_s) == (State.QUARANTINED, 0.0, T + 900)
    assert standing.evidence == "e" * 64
    assert "residual" in standing.reason


def test_quarantines_grow_fourfold_to_a_week() -> None:
    assert [ORDINARY.quarantine_s(number) for number in (1, 2, 3, 4, 5)] == [900, 3600, 14_400, 57_600, 230_400]
    assert ORDINARY.quarantine_s(6) == ORDINARY.quarantine_s(10**9) == LONGEST_QUARANTINE_S == 7 * 86_400


def test_a_network_may_set_other_terms_and_they_hold_for_ever() -> None:
    terms = Terms(first_quarantine_s=5.0, shadow_units=3)
    standing = folded(begun(T, terms), [fault(T)])
    assert standing.until_s == T + 5
    standing = folded(standing, [ShadowPassed(T + 5)] * 2)
    assert (standing.state, standing.num_shadows) == (State.REHAB, 2)
    standing = folded(standing, [ShadowPassed(T + 6)])
    assert standing.state is State.PROBATION
    standing.check()
    again = after(standing, fault(T + 10))
    assert (again.until_s, again.terms) == (T + 10 + 20, terms)
    assert after(again, Equivocated(T + 11, "e" * 64)).terms == terms


def test_the_way_back_leads_over_rehab_to_probation() -> None:
    standing = after(active(), fault(T))
    assert after(standing, Waited(T + 899)).state is State.QUARANTINED
    assert folded(standing, [ShadowPassed(T + 1)] * 40).state is State.QUARANTINED, "shadow units before rehab do not count"
    standing = after(standing, Waited(T + 900))
    assert standing.state is State.REHAB
    almost = folded(standing, [ShadowPassed(T + 1000)] * (SHADOW_UNITS - 1))
    assert almost.state is State.REHAB
    assert folded(almost, passed(40, T + 1000)).state is State.REHAB, "audits of older work do not shorten it"
    back = after(almost, ShadowPassed(T + 1000))
    assert (back.state, back.passes.amount, back.num_quarantines) == (State.PROBATION, 0.0, 1)


def test_a_wrong_unit_in_rehab_begins_a_longer_quarantine() -> None:
    standing = folded(active(), [fault(T), Waited(T + 900), ShadowFailed(T + 950, "s")])
    assert (standing.state, standing.num_quarantines, standing.until_s) == (State.QUARANTINED, 2, T + 950 + 3600)
    assert after(active(), ShadowFailed(T, "s")).state is State.ACTIVE, "outside of rehab there are no shadow units"


def test_what_was_committed_as_a_quarantine_begins_counts() -> None:
    back = rehabilitated(after(active(), fault(T)))
    at_s, edge_s = back.since_s, back.clean_from_s
    assert (back.state, edge_s) == (State.PROBATION, T)
    assert after(back, Passed(at_s, edge_s)).passes.amount == 1.0
    assert after(back, Passed(at_s, edge_s - 1)) == back
    assert after(back, fault(at_s, edge_s)).num_quarantines == 2
    passed_once = after(back, Passed(at_s, edge_s))
    assert after(passed_once, Unverified(at_s, edge_s)).passes.amount == 0.5
    assert after(passed_once, Unverified(at_s, edge_s - 1)) == passed_once


def test_what_was_committed_before_a_quarantine_is_the_same_offence() -> None:
    first = after(active(), fault(T))
    assert after(first, fault(T + 10, committed_s=T - 5)) == first
    back = rehabilitated(first)
    assert after(back, fault(back.since_s, committed_s=T - 5)).state is State.PROBATION
    assert folded(back, [Passed(back.since_s, T - 5)] * 40).state is State.PROBATION, "nor does it count for the PNode"
    assert after(back, fault(back.since_s + 1)).num_quarantines == 2


@pytest.mark.parametrize("events", [[], [fault(T)], [fault(T), Waited(T + 900)], [Doubted(T, "i", "a")]])
def test_equivocation_is_the_end_of_a_key(events: list[Event]) -> None:
    standing = after(folded(active(), events), Equivocated(T + 901, "proof"))
    assert (standing.state, standing.key_is_dead) == (State.BANNED, True)
    for event in (Waited(1e12), ShadowPassed(1e12), *passed(100, 1e12), fault(1e12)):
        assert after(standing, event) == standing


# ---- unverifiable ---------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_verified_halves_the_record_and_blames_nobody() -> None:
    standing = after(active(), Unverified(T, T))
    assert (standing.state, standing.passes.amount, standing.num_quarantines) == (State.ACTIVE, 20.0, 0)
    standing = folded(standing, [Unverified(T, T), Unverified(T, T)])
    assert (standing.state, standing.passes.amount) == (State.PROBATION, 5.0)
    back = rehabilitated(after(active(), fault(T)))
    counted = folded(back, passed(4, back.since_s))
    assert after(counted, Unverified(back.since_s, T - 5)).passes == counted.passes


# ---- whatever happens -----------------------------------------------------------------------------------------------------------

TIMES = st.floats(T, T + 100 * DAY_S)
NAMES = st.sampled_from("abcd")
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Passed, TIMES, TIMES),
    st.builds(Unverified, TIMES, TIMES),
    st.builds(Doubted, TIMES, NAMES, NAMES),
    st.builds(Assured, TIMES, NAMES, NAMES),
    st.builds(Faulted, TIMES, TIMES, st.just("e"), st.just("r")),
    st.builds(Equivocated, TIMES, st.just("e")),
    st.builds(ShadowPassed, TIMES),
    st.builds(ShadowFailed, TIMES, st.just("e")),
    st.builds(Waited, TIMES),
)
HISTORIES = st.lists(EVENTS, max_size=60)


def steps(events: Iterable[Event]) -> list[Standing]:
    standings = [begun(T)]
    for event in events:
        standings.append(after(standings[-1], event))
    return standings


@given(HISTORIES)
def test_every_standing_is_sound_and_only_known_ways_lead_on(events: list[Event]) -> None:
    leads = {
        State.PROBATION: {State.ACTIVE, State.SUSPECT, *WORST},
        State.ACTIVE: {State.PROBATION, State.SUSPECT, *WORST},
        State.SUSPECT: {State.PROBATION, State.ACTIVE, *WORST},
        State.QUARANTINED: {State.REHAB, State.PROBATION, *WORST},
        State.REHAB: {State.PROBATION, *WORST},
        State.BANNED: set(),
    }
    standings = steps(events)
    for before, now in pairwise(standings):
        now.check()
        assert now.state is before.state or now.state in leads[before.state]
        assert now.num_quarantines - before.num_quarantines in (0, 1)
        assert now.since_s >= before.since_s


@given(st.lists(EVENTS, max_size=30).map(lambda events: sorted(events, key=lambda event: event.at_s)))
def test_looking_in_between_changes_nothing(events: list[Event]) -> None:
    plain = folded(begun(T), events)
    looked = begun(T)
    for event in events:
        looked = after(after(looked, Waited(event.at_s)), event)
    end_s = T + 100 * DAY_S
    one, other = after(plain, Waited(end_s)), after(looked, Waited(end_s))
    assert (one.state, one.num_quarantines, one.until_s, one.doubts) == (
        other.state,
        other.num_quarantines,
        other.until_s,
        other.doubts,
    )


@given(HISTORIES)
def test_nothing_but_verified_facts_against_it_takes_work_away(events: list[Event]) -> None:
    harmless = [event for event in events if not isinstance(event, Faulted | Equivocated | ShadowFailed)]
    assert all(one.state not in WORST for one in steps(harmless))


QUARANTINED = after(active(), fault(T))


@pytest.mark.parametrize(
    "wrong",
    [
        Standing(State.SUSPECT, T, "no doubt"),
        replace(active(), doubts=(("i", frozenset("a")),)),
        replace(after(active(), Doubted(T, "i", "a")), doubts=tuple((str(n), frozenset("a")) for n in range(MAX_DOUBTS + 1))),
        replace(QUARANTINED, until_s=QUARANTINED.clean_from_s),
        replace(QUARANTINED, until_s=QUARANTINED.clean_from_s + LONGEST_QUARANTINE_S + 2.0),
        replace(QUARANTINED, evidence=""),
        replace(after(active(), Equivocated(T, "e")), evidence=""),
        replace(QUARANTINED, passes=active().passes),
        replace(begun(T), num_shadows=-1),
        replace(begun(T), num_shadows=SHADOW_UNITS),
    ],
)
def test_a_standing_that_contradicts_itself_is_a_bug_of_ours(wrong: Standing) -> None:
    for right in (
        active(),
        QUARANTINED,
        replace(QUARANTINED, until_s=QUARANTINED.clean_from_s + 0.5),
        begun(T),
        after(active(), Doubted(T, "i", "a")),
        after(active(), Equivocated(T, "e")),
    ):
        right.check()
    with pytest.raises(InvariantBroken):
        wrong.check()
