"""Bugs in merging that the property of merges must notice: one for each part of rules 7 and 8 of the data plane that the simulation's own bugs leave out."""

from __future__ import annotations

from typing import Any

import pytest

from dcnr.intervals import IntervalSet
from vnode.contributing import Contributing
from vnode.holding import Holding
from vnode.merge_events import MakeDelta
from vnode.merging import Merging


def deltas_only_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: no delta comes before nothing is left to learn."""
    computation = Contributing.computation

    def wait(self: Contributing, now_s: float) -> Any:
        return None if self._arrived is None and self._holding.missing else computation(self, now_s)

    patch.setattr(Contributing, "computation", wait)


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

    def made(self: Contributing, now_s: float) -> Any:
        holding = self._holding
        is_due = self._arrived is None and len(holding.after) >= self._config.merge_every and not self._lacks_anchor()
        return MakeDelta(self._sequence + 1, holding.after) if is_due else computation(self, now_s)

    computation = Contributing.computation
    patch.setattr(Contributing, "computation", made)


def refused_counts_as_learned(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a batch that is in neither the anchor nor what was kept counts as learned all the same."""
    count = Holding._count

    def remember(self: Holding) -> None:
        before = getattr(self, "lineage", IntervalSet.empty())
        count(self)
        if not self.leads:
            self.missing -= before

    patch.setattr(Holding, "_count", remember)
