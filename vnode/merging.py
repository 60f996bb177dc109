"""A primary's side of merges: which deltas are taken in, and what each sibling that asks is answered. Pure.

A delta is merged only if it is disjoint from the lineage when it is applied, never when it is queued (PROTOCOL.md, rule 8); all that
wait are merged in one go, between two steps. A delta is answered with the verdict; who asks for the anchor gets it as it is at that moment. What was merged is
remembered by (incarnation, sequence), so that a question asked again gets the same answer. A sibling whose delta failed twice on the same
state will bring it again and again, since nothing that it follows from has changed: then the primary learns these batches itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from vnode.contributing import LATE
from vnode.holding import is_within_reach
from vnode.merge_events import AnswerMerge, CaptureAnchor, DeferMerge, MergeAsked, MergeDeltas
from vnode.vocabulary import Verdict

_NONE = IntervalSet.empty()
_AT_LEAST: Final = 2
"""A primary and whoever brings a delta, though the newest plan may have taken its share away."""
NOT_PRIMARY: Final = "not_primary"
NOT_PLANNED: Final = "not_planned"
EARLY: Final = frozenset({NOT_PRIMARY, NOT_PLANNED})
"""Codes of answers that say no more than that a plan has not arrived yet."""
TOO_LATE: Final = 2 * LATE
"""As `vnode.contributing.LATE`, for whoever brings a delta: it may have counted by a plan with twice as many that learn."""
MIN_CONTRIBUTORS: Final = 4
"""From so many on deltas are clipped around a centre: with fewer, one bad delta is too large a part of all for a centre to mean anything."""


class Merging:
    """Siblings that wait for an answer: at most one question of each. ``num_batches`` bounds what a delta may hold."""

    def __init__(self, num_batches: int) -> None:
        self._everything = IntervalSet.span(0, num_batches)
        self._siblings: frozenset[ReplicaId] = frozenset()
        self._waiting: dict[ReplicaId, MergeAsked] = {}
        self._incarnations: dict[ReplicaId, int] = {}
        """The newest life of each sibling that has asked."""
        self._merged: dict[ReplicaId, tuple[int, int]] = {}
        self._under_way: list[MergeAsked] = []
        self._unusable: set[int] = set()
        self._failed_on: dict[ReplicaId, IntervalSet] = {}
        """The lineage of this state when a delta of each sibling failed last."""
        self._hopeless: list[tuple[ReplicaId, IntervalSet]] = []
        self._captured: IntervalSet | None = None
        self._one_by_one = False
        self.num_learning = _AT_LEAST
        """Replicas that learn by the newest plan, the primary among them."""
        self.num_merged = self.num_refused = 0

    def plan(self, shares: Sequence[Share]) -> list[DeferMerge]:
        """Whose deltas are taken in, and what each counts: one part of as many as there are replicas that learn, itself among them. Who left is forgotten."""
        siblings = self._siblings = frozenset(share.replica for share in shares)
        self.num_learning = max(_AT_LEAST, sum(share.weight > 0 for share in shares))
        self._incarnations = {replica: known for replica, known in self._incarnations.items() if replica in siblings}
        self._merged = {replica: last for replica, last in self._merged.items() if replica in siblings}
        self._failed_on = {replica: lineage for replica, lineage in self._failed_on.items() if replica in siblings}
        gone = [replica for replica in self._waiting if replica not in siblings]
        return [_not_planned(self._waiting.pop(replica).request) for replica in gone]

    def asked(self, event: MergeAsked) -> list[DeferMerge]:
        """Takes in a question; the newer one of a sibling replaces the older."""
        replica, incarnation = event.source.replica, event.source.incarnation
        if replica not in self._siblings:
            return [_not_planned(event.request)]
        if incarnation < (known := self._incarnations.get(replica, incarnation)):
            return [DeferMerge(event.request, "stale_incarnation", f"incarnation {known} of {replica} is known")]
        before, self._incarnations[replica], self._waiting[replica] = self._waiting.get(replica), incarnation, event
        return [DeferMerge(before.request, "replaced", "the same replica asks again")] if before else []

    def computation(self, lineage: IntervalSet) -> MergeDeltas | CaptureAnchor | None:
        """What has to be done to the state before those who wait can be answered."""
        if not self._waiting:
            return None
        self._under_way, total = [], lineage
        for event in self._in_order():
            if self._why_not(event, total) is None and not (self._under_way and self._one_by_one):
                self._under_way.append(event)
                total |= event.batches
        if self._under_way:
            return MergeDeltas(tuple(event.request for event in self._under_way), self.num_learning, total)
        return None if self._captured == lineage else CaptureAnchor(lineage)

    def _in_order(self) -> list[MergeAsked]:
        return sorted(self._waiting.values(), key=lambda event: event.request)

    def _why_not(self, event: MergeAsked, lineage: IntervalSet) -> tuple[Verdict, str, str] | None:
        """The answer to a question that needs no merge; None where its delta is to be merged into ``lineage``."""
        if event.sequence is None or event.delta is None:
            return Verdict.ANCHOR, "", ""
        if self._is_merged(event):
            return Verdict.MERGED, "", ""
        if event.request in self._unusable:
            return Verdict.REFUSED, "unusable", "it could not be merged"
        if event.is_astray:
            return (
                Verdict.REFUSED,
                "unknown_anchor",
                "no way leads from what it begins with to what it was measured against to here",
            )
        if event.num_since > TOO_LATE * self.num_learning * len(event.batches):
            return Verdict.REFUSED, "too_late", f"it would take back a part of {event.num_since} batches for {len(event.batches)}"
        if not event.batches or event.batches - self._everything:
            return Verdict.REFUSED, "foreign_batches", "it holds no batches, or some that the job does not have"
        overlap = event.batches & lineage
        if overlap:
            return Verdict.REFUSED, "overlap", f"{len(overlap)} of its batches are in the lineage"
        if not is_within_reach(event.batches, lineage):
            return Verdict.REFUSED, "out_of_reach", "it is too far ahead of the lowest batch that the state lacks"
        return None

    def _is_merged(self, event: MergeAsked) -> bool:
        last = self._merged.get(event.source.replica)
        return last is not None and event.sequence is not None and last == (event.source.incarnation, event.sequence)

    def answers(self, lineage: IntervalSet) -> list[AnswerMerge]:
        """Answers for all who wait, if the anchor captured last is that of ``lineage`` and nothing is left to merge."""
        if not self._waiting or self._captured != lineage:
            return []
        reasons = {event.request: self._why_not(event, lineage) for event in self._in_order()}
        found = [AnswerMerge(request, *why) for request, why in reasons.items() if why is not None]
        if len(found) < len(reasons):
            return []
        self.num_refused += sum(answer.verdict is Verdict.REFUSED for answer in found)
        self._waiting.clear()
        self._unusable.clear()
        self._one_by_one = False
        return found

    def merged(self, merge: MergeDeltas) -> None:
        """They are in the state, and the anchor after them is captured."""
        for event in self._under_way:
            if event.sequence is not None and event.source.replica in self._siblings:
                self._merged[event.source.replica] = (event.source.incarnation, event.sequence)
        self.num_merged += len(merge.requests)
        self._captured = merge.lineage

    def captured(self, capture: CaptureAnchor) -> None:
        """The newest anchor is that of the capture."""
        self._captured = capture.lineage

    def failed(self, computation: MergeDeltas | CaptureAnchor, reason: str) -> list[DeferMerge]:
        """Several that failed together are tried one by one; one that fails alone is refused; without an anchor nobody is answered."""
        if isinstance(computation, MergeDeltas):
            if len(computation.requests) == 1:
                self._failed_alone(self._under_way[0], computation.lineage)
            self._one_by_one = True
            return []
        waiting, self._waiting = self._waiting, {}
        return [DeferMerge(event.request, "no_anchor", reason) for event in waiting.values()]

    def _failed_alone(self, event: MergeAsked, lineage: IntervalSet) -> None:
        self._unusable.add(event.request)
        replica, failed_on = event.source.replica, lineage - event.batches
        if replica in self._siblings:
            self._hopeless += [(replica, event.batches)] if self._failed_on.get(replica) == failed_on else []
            self._failed_on[replica] = failed_on

    def hopeless(self) -> list[tuple[ReplicaId, IntervalSet]]:
        """By sibling, batches of deltas that failed again on a state that had not changed since the last one of it failed; each is told once."""
        found, self._hopeless = self._hopeless, []
        return found

    def check(self) -> None:
        """Raises InvariantBroken where more is kept than the plan has siblings."""
        if not {*self._incarnations, *self._waiting, *self._merged, *self._failed_on} <= self._siblings:
            raise InvariantBroken("questions of replicas that are no siblings are kept", code="merging_bound")


def counts_of(num_learning: int) -> tuple[float, bool]:
    """What each delta counts where so many replicas learn, the primary among them, and whether it is clipped around the centre."""
    return 1.0 / max(1, num_learning), num_learning > MIN_CONTRIBUTORS


def _not_planned(request: int) -> DeferMerge:
    return DeferMerge(request, NOT_PLANNED, "the plan here does not name that replica")
