"""Bugs in merging that the property of merges must notice: one for each part of rules 7 and 8 of the data plane that the simulation's own bugs leave out."""

from __future__ import annotations

from typing import Any

import pytest

from dcnr.intervals import IntervalSet
from vnode.contributing import Contributing
from vnode.holding import Holding
from vnode.merging import Merging
from vnode.vocabulary import Verdict


def deltas_only_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: no delta comes before nothing is left to learn."""
    is_due = Contributing._is_due
    patch.setattr(Contributing, "_is_due", lambda self, now_s: not self._holding.missing and is_due(self, now_s))


def learning_waits_for_the_answer(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: while a delta is open nothing is learned above it."""
    waits_why = Contributing.waits_why

    def wait(self: Contributing) -> str:
        return "a delta is open" if self._holding.open else waits_why(self)

    patch.setattr(Contributing, "waits_why", wait)


def merged_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: what was merged is not remembered by incarnation and sequence, so a repeated question gets another answer."""
    patch.setattr(Merging, "_is_merged", lambda self, event: False)


def delta_without_an_anchor(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a new primary is not asked for its anchor before the next delta."""
    patch.setattr(Contributing, "_lacks_anchor", lambda self: False)


def two_deltas_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: the next delta does not wait for the answer to the one before."""

    ask = Contributing.ask

    def at_once(self: Contributing, now_s: float) -> Any:
        if self._is_due(now_s) and self._holding.open:
            self._asked, self._verdict = None, Verdict.MERGED
        return ask(self, now_s)

    patch.setattr(Contributing, "ask", at_once)


def refused_counts_as_learned(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a batch that is in neither the anchor nor what was kept counts as learned all the same."""
    count, none = Holding._count, IntervalSet.empty()

    def remember(self: Holding) -> None:
        count(self)
        ever: IntervalSet = self.__dict__.get("ever_held", none)
        self.__dict__["ever_held"] = ever | self.lineage
        if not self.leads:
            self.missing -= ever

    patch.setattr(Holding, "_count", remember)
