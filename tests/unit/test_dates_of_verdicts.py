"""Goal: the date that a manifest gives a verdict moves nothing but that verdict, whoever wrote it and however wrong its clock was."""

from __future__ import annotations

import pytest

from dcnr.ids import digest_of
from trust.decay import DAY_S
from trust.folding import Chronicle, Told, standings_of
from trust.ledger import Ledger, Verdict
from trust.standing import SHADOW_UNITS, Event, Faulted, ShadowPassed, Standing, State

PASSED, FAILED = Verdict.PASSED, Verdict.FAILED


def name_of(text: str) -> str:
    """A digest for a readable name."""
    return digest_of(text.encode())


def test_a_date_in_the_future_moves_nothing_that_comes_after_it() -> None:
    """One manifest dated in another century left everything after it so far behind that it counted nothing."""
    now_s = 1_800_000_000.0

    def passes(first: int, num: int) -> list[Told]:
        return [Told("x", name_of(f"{at}"), PASSED, now_s - 9000 + at, now_s - 9000 + at, "") for at in range(first, first + num)]

    def standing(*strange: Told, later_s: float = 0.0) -> Standing:
        chronicle = Chronicle(Ledger({}, {}), (*passes(0, 20), *strange, *passes(20, 20)))
        return standings_of(chronicle, (), now_s=now_s + later_s)["x"]

    far_s = now_s + 400 * 365 * DAY_S
    for committed_s in (now_s, far_s):
        found = standing(Told("x", name_of("strange"), PASSED, far_s, committed_s, ""))
        assert (found.state, round(found.passes.amount)) == (State.ACTIVE, 41)
    unverifiable = standing(Told("x", name_of("strange"), Verdict.UNVERIFIABLE, far_s, now_s, ""))
    assert round(unverifiable.passes.amount) == 30, "it takes half of what was before it"
    assert standing(Told("x", name_of("strange"), PASSED, -far_s, -far_s, "")).state is State.ACTIVE


@pytest.mark.parametrize("early_s", [-1.0, 10.0, -1e9])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_date_in_the_past_moves_nothing_that_was_told_before_it(is_own: bool, early_s: float) -> None:
    """A way back was over, and one entry with an early date put all passes before it: it began anew."""
    fault_s = 1_800_000_000.0
    fault = Told("x", name_of("fault"), FAILED, fault_s, fault_s, name_of("evidence"))
    end_s = standings_of(Chronicle(Ledger({}, {}), (fault,)), {fault.proof}, now_s=fault_s)["x"].until_s
    units = [ShadowPassed(end_s + number) for number in range(SHADOW_UNITS)]
    after_s = end_s + 1000.0
    passed = [Told("x", name_of(f"{at}"), PASSED, after_s + at, after_s + at, "") for at in range(12)]
    own: list[Event] = [Faulted(fault_s, fault_s, name_of("report"), "lied"), *units] if is_own else list(units)
    begun = Told("x", name_of("first"), PASSED, fault_s - 100, fault_s - 100, "")
    told = (begun, *passed) if is_own else (begun, fault, *passed)
    early = Told("x", name_of("early"), Verdict.SPARED, fault_s + early_s, fault_s + early_s, "")

    def standing(*more: Told) -> tuple[State, int]:
        found = standings_of(Chronicle(Ledger({}, {}), (*told, *more)), {fault.proof}, {"x": own}, now_s=after_s + 100)["x"]
        return found.state, round(found.passes.amount)

    assert standing() == standing(early) == (State.ACTIVE, 12)
