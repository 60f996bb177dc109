"""What auditors said, and what is known to be true of it: who pays for a word that did not hold, and what passed on the word of one of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from orchestrator.audit_events import Pay, Report, Word
from trust.overturned import Finding, Heard, Payment, Truth, audited_again, payments

MAX_HEARD: Final = 8192
"""Findings remembered."""
FINDINGS: Final = {Word.PASS: Finding.PASS, Word.DOUBT: Finding.DOUBT, Word.FAULT: Finding.FAULT}


class Accounts:
    """Of one desk."""

    def __init__(self) -> None:
        self._heard: list[Heard] = []
        self._digests: dict[tuple[str, str], str] = {}
        """By interval and auditor: the signed report."""
        self.num_passes = Counter[str]()
        """By auditor: intervals that it was heard to pass."""
        self._truth: dict[str, Truth] = {}
        self._shown_by: dict[str, str] = {}
        """By interval whose truth is known: the evidence that shows it."""
        self._paid: set[str] = set()
        self.liars: set[str] = set()
        """Who has passed what is wrong."""
        self._alone: tuple[frozenset[str], dict[str, str]] | None = None
        """What `passed_alone` found last, until something new is heard or known."""

    def heard(self, report: Report, *, is_canary: bool) -> None:
        """A finding, as signed by its auditor."""
        self._alone = None
        number = self._heard[-1].number + 1 if self._heard else 1
        self._heard.append(Heard(number, report.auditor, report.interval, FINDINGS[report.word], is_canary, report.bundle))
        self._digests[report.interval, report.auditor] = report.digest
        self.num_passes[report.auditor] += report.word is Word.PASS
        for old in self._heard[:-MAX_HEARD]:
            self._digests.pop((old.interval, old.auditor), None)
        del self._heard[:-MAX_HEARD]

    def recall(self, reports: Iterable[Report]) -> None:
        """What earlier desks heard, oldest first: all of it came before what this one has heard."""
        own, digests, self._heard = self._heard, self._digests, []
        for report in reports:
            self.heard(report, is_canary=False)
        since = len(self._heard)
        self._heard += [replace(one, number=since + at) for at, one in enumerate(own, start=1)]
        self._digests, self._alone = {**self._digests, **digests}, None

    def passed_alone(self, auditors: Collection[str]) -> dict[str, str]:
        """Intervals that count as audited on the word of these alone, each with whose."""
        asked = frozenset(auditors)
        if self._alone is None or self._alone[0] != asked:
            self._alone = asked, audited_again(self._heard, self._truth, asked)
        return self._alone[1]

    def see(self, interval: str, truth: Truth, bundle: str = "") -> bool:
        """What is true of an interval; whether that is news. ``bundle``: the evidence that shows it, if known: nobody pays for what it said of another."""
        self._alone = None
        before = self._truth.get(interval), self._shown_by.get(interval)
        self._truth[interval], self._shown_by[interval] = truth, bundle
        return before != (truth, bundle)

    def settle(self) -> list[Pay]:
        """Who pays now, each once. Whoever pays is found out like any other: what it passed is audited again while there is evidence to show."""
        if len(self._truth) > 2 * MAX_HEARD or not self._heard:
            known = {one.interval for one in self._heard}
            self._truth = {name: truth for name, truth in self._truth.items() if name in known}
            self._shown_by = {name: bundle for name, bundle in self._shown_by.items() if name in known}
        pays = list[Pay]()
        alike = [one for one in self._heard if not one.bundle or self._shown_by.get(one.interval, "") in ("", one.bundle)]
        for auditor, payment in sorted(payments(alike, self._truth).items()):
            if auditor in self._paid:
                continue
            self._paid.add(auditor)
            wrong = Finding.PASS if payment is Payment.WAVED_THROUGH else Finding.FAULT
            untrue = Truth.WRONG if payment is Payment.WAVED_THROUGH else Truth.RIGHT
            told = next(
                one for one in alike
                if (one.auditor, one.finding) == (auditor, wrong) and self._truth.get(one.interval) is untrue
            )  # fmt: skip
            pays.append(Pay(auditor, payment, told.interval, self._digests.get((told.interval, auditor), "")))
            if payment is Payment.WAVED_THROUGH:
                self.liars.add(auditor)
        return pays
