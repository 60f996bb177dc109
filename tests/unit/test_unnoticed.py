"""Goal: what may be wrong unnoticed follows from the chain and the network document alone: rates by records as they were, lives that end with a failure."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from dcnr.cli import unnoticed
from dcnr.cli.unnoticed import told_of_release, unnoticed_data, unnoticed_text
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.ledger_check import JobLedger, exposures_of
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.chain import Chain
from orchestrator.unnoticed import Unnoticed
from orchestrator.view import ModelView
from trust.decay import DAY_S
from trust.draw import Floors, floors_of
from trust.exposure import CAUGHT, Drawn, Exposure, Life, together, undetected_steps
from trust.folding import Chronicle, Told
from trust.identity import NodeKey
from trust.ledger import Interval, Ledger, Named, Verdict
from trust.network import create_document, verify_chain
from trust.unnoticed import DrawRules, exposure_of_job, rules_of

NOW = 1_800_000_000.0
STRICT = DrawRules(floors_of(0.0), lambda pnode_id, at_s: False)
TRUSTING = DrawRules(floors_of(0.0), lambda pnode_id, at_s: True)
SPARED, PASSED, OPEN, FAILED, GONE = Verdict.SPARED, Verdict.PASSED, Verdict.OPEN, Verdict.FAILED, Verdict.UNVERIFIABLE


@dataclass
class Book:
    """A chain of one VNode in the making; an interval is named in one second and judged in the next."""

    intervals: list[Interval] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    def add(self, verdict: Verdict, pnode: str = "x", *, num_batches: int = 10, times: int = 1) -> Book:
        for _ in range(times):
            number, now_s = len(self.intervals), NOW + len(self.told)
            name, batches = digest_of(f"{id(self)} {number}".encode()), IntervalSet.span(number * 100, number * 100 + num_batches)
            self.intervals.append(Interval(name, number, "a", "a.0", pnode, batches, verdict))
            self.told.append(Told(pnode, name, SPARED if verdict is SPARED else OPEN, now_s, now_s, "", num_batches))
            if verdict not in (SPARED, OPEN):
                self.told.append(Told(pnode, name, verdict, now_s + 1, now_s, "e" if verdict is FAILED else "", num_batches))
        return self

    def chronicle(self) -> Chronicle:
        counting = [one for one in self.intervals if one.verdict in (SPARED, PASSED, OPEN)]
        line = (Named("zero", ()), *(Named("state " + one.name, (one.name,)) for one in counting))
        ledger = Ledger({"a": line}, {one.name: one for one in self.intervals})
        ledger.check()
        return Chronicle(ledger, tuple(self.told))


def shown(book: Book, rules: DrawRules = STRICT) -> Exposure:
    return exposure_of_job(book.chronicle(), rules)


def best(*rates: float) -> float:
    return undetected_steps(Life([Drawn(10, one) for one in rates], is_over=False))


def test_of_who_is_new_everything_is_drawn_and_what_checks_miss_remains() -> None:
    found = shown(Book().add(PASSED, times=4))
    assert (found.num_steps, found.cheaters) == (40, 1.0)
    assert found.undetected_steps == pytest.approx(best(1.0, 1.0, 1.0, 1.0)) == pytest.approx(10 * (1 - CAUGHT), rel=0.02)


def test_rates_fall_with_the_audits_that_were_passed_before_an_interval_was_named() -> None:
    """The 25th is drawn by 24 passes, whatever was passed after it."""
    book = Book().add(PASSED, times=24).add(SPARED).add(PASSED, times=15)
    rates = [1.0] * 19 + [min(1.0, 20 / (k + 1)) for k in range(19, 25)] + [20 / (k + 1) for k in range(24, 39)]
    assert shown(book).undetected_steps == pytest.approx(best(*rates), rel=1e-4)
    assert shown(book).undetected_steps > shown(Book().add(PASSED, times=20)).undetected_steps * 5


def test_an_interval_that_is_opened_and_passes_again_and_again_lowers_no_rate() -> None:
    book = Book().add(PASSED, times=30)
    last = book.told[-1]
    book.told += [replace(last, verdict=verdict) for _ in range(100) for verdict in (OPEN, PASSED)]
    assert shown(book.add(SPARED)).undetected_steps == pytest.approx(
        shown(Book().add(PASSED, times=30).add(SPARED)).undetected_steps, rel=1e-3
    )


def test_each_pnode_has_its_own_record_and_what_they_may_do_adds_up() -> None:
    alone = shown(Book().add(PASSED, times=30))
    both = shown(Book().add(PASSED, times=30).add(PASSED, "y", times=2))
    assert both.num_steps == alone.num_steps + 20
    assert both.undetected_steps == pytest.approx(alone.undetected_steps + best(1.0, 1.0))


def test_only_what_is_cleared_is_in_a_release() -> None:
    """An open audit holds up what stands behind it; a release that holds nothing shows nothing."""
    before = shown(Book().add(PASSED, times=3))
    assert shown(Book().add(PASSED, times=3).add(OPEN).add(SPARED, "y", times=5)) == before
    assert shown(Book()) == Exposure(0.0, 0, 1.0)
    assert shown(Book()).share == 0.0


@pytest.mark.parametrize("end", [FAILED, GONE])
def test_a_life_that_ended_counts_what_was_not_found_by_what_was(end: Verdict) -> None:
    """With a record of 39 passes the next interval is drawn with p = 1/2: one that is found stands for (1 - d/2) / (d/2) that were not."""
    book = Book().add(PASSED, times=39).add(end)
    assert shown(book).undetected_steps == pytest.approx(10 * (1 - CAUGHT / 2) / (CAUGHT / 2), rel=1e-3)
    assert shown(book).num_steps == 390, "what failed is not in the release"


def test_who_was_found_out_begins_anew_and_is_trusted_no_more() -> None:
    honest, found_out = Book().add(PASSED, times=39), Book().add(PASSED, times=38).add(FAILED)
    for rules in (STRICT, TRUSTING):
        ended = shown(found_out, rules).undetected_steps
        again = Book().add(PASSED, times=38).add(FAILED).add(SPARED, times=2)
        assert shown(again, rules).undetected_steps == pytest.approx(ended + best(1.0, 1.0), rel=1e-6), "everything is drawn again"
    honest.add(SPARED, times=2)
    assert shown(honest).undetected_steps > best(0.5, 0.5)


def test_trust_and_lower_floors_show_more() -> None:
    def book() -> Book:
        return Book().add(SPARED, times=3)

    assert shown(book(), TRUSTING).undetected_steps == pytest.approx(best(0.2, 0.2, 0.2)), "a fifth, from the first interval on"
    for_a_time = DrawRules(floors_of(0.0), lambda pnode_id, at_s: at_s < NOW + 1)
    assert shown(book(), for_a_time).undetected_steps == pytest.approx(best(0.2, 1.0, 1.0))
    practised = Book().add(PASSED, times=199).add(SPARED, times=100)
    assert shown(practised, DrawRules(Floors(0.5, 0.1), STRICT.trusts)).undetected_steps < shown(practised).undetected_steps


def test_records_go_on_from_job_to_job_and_a_release_holds_all_of_them() -> None:
    first, second = Book().add(PASSED, times=39), Book().add(SPARED, times=3)
    ledgers = [JobLedger(name, 1, book.chronicle()) for name, book in (("one", first), ("two", second))]
    found = exposures_of(ledgers, STRICT)
    assert found[0] == shown(first)
    assert found[1].undetected_steps == pytest.approx(best(0.5, 0.5, 0.5), rel=1e-3) != shown(second).undetected_steps
    whole = together(found)
    assert (whole.num_steps, whole.undetected_steps) == (420, found[0].undetected_steps + found[1].undetected_steps)
    assert unnoticed_data(whole) == {"steps": whole.undetected_steps, "of": 420, "share": whole.undetected_steps / 420}
    assert f"{whole.undetected_steps:.1f} of 420 cleared steps" in unnoticed_text(whole)
    assert "0.0 of 0 cleared steps (0.00%)" in unnoticed_text(Exposure(0.0, 0, cheaters=1.0))


def test_nobody_waits_for_a_chain_that_is_not_read_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unnoticed, "WITHIN_S", 0.01)

    class Silent:
        async def manifest(self, model: str, digest: str) -> Any:
            await asyncio.get_running_loop().create_future()

    silent: Any = Silent()
    data, text = asyncio.run(told_of_release(silent, "m", "d" * 64))
    assert data is None
    assert "took more than 0.01 s" in text


def test_no_more_is_shown_than_there_is() -> None:
    book = Book().add(SPARED).add(GONE, num_batches=1000)
    assert shown(book, TRUSTING) == Exposure(10.0, 10, 1.0)


def test_rules_are_those_of_the_document_and_where_versions_differ_the_laxer() -> None:
    maintainer, trusted, other = (NodeKey.generate() for _ in range(3))
    policy = verify_chain([
        create_document(maintainer, name="n", now_wall=NOW, orchestrator_ids=[other.node_id], trusted=[trusted.node_id], trusted_s=DAY_S, audit_floor=0.5)
    ])  # fmt: skip
    rules = rules_of(policy)
    assert (rules.floors.untrusted, rules.floors.trusted) == (0.5, 0.1)
    assert [rules.trusts(trusted.node_id, NOW + at) for at in (0.0, DAY_S + 1)] == [True, False]
    assert not rules.trusts(other.node_id, NOW)
    stricter = identity_pb2.NetworkDocument(audit_floor=1.0)
    assert (
        rules_of(replace(policy, past=(stricter,))).floors
        == rules.floors
        == rules_of(replace(policy, document=stricter, past=(policy.document,))).floors
    )
    assert rules_of(replace(policy, document=stricter, past=(policy.document,))).trusts(trusted.node_id, NOW), "it was trusted then"


def test_an_orchestrator_says_what_the_chain_says_and_reckons_it_once_for_each_manifest() -> None:
    maintainer = NodeKey.generate()
    policy = verify_chain([create_document(maintainer, name="n", now_wall=NOW, orchestrator_ids=[maintainer.node_id])])
    unnoticed, book, earlier = Unnoticed(lambda: policy), Book().add(SPARED, times=3), Book().add(PASSED, times=39)
    view = ModelView("m", model_pb2.Head(manifest_digest="1"), b"", chain=Chain(book.chronicle(), {}, tuple(earlier.told)))
    found = unnoticed.of(view)
    assert found == exposure_of_job(book.chronicle(), rules_of(policy), earlier.told) != shown(book)
    assert unnoticed.of(view) is found
    later = replace(view, head=model_pb2.Head(manifest_digest="2"), chain=Chain(book.add(SPARED).chronicle(), {}))
    assert unnoticed.of(later) == shown(book)
    assert unnoticed.of(replace(view, chain=None)) is None
