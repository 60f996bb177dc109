"""A contributor's side of merges: when a delta is made, what is asked of the primary, and what of the state an anchor keeps. Pure.

A delta is measured against a fresh anchor: where one is due, the primary's anchor is asked for, how far the state is from that is handed in, and learning
goes on from the anchor at once (PROTOCOL.md, rule 7). Who has learned little beside the others hands in how far it came instead. One delta is open at a time
and is asked about until it is answered. A primary that this replica has no anchor of is asked for it first. Until an anchor shows it, a delta is kept: what
another primary's anchor lacks of it is learned already. A replica that learns nothing takes the anchor now and then, so that it can lead and so that what a
lost primary takes with it is needed again.
"""

from __future__ import annotations

from typing import Final

from dcnr import limits
from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from vnode.entries import MAX_AUDITED_BATCHES
from vnode.holding import Holding, is_within_reach
from vnode.merge_events import AnchorArrived, AskMerge, DeltaAnswered, MakeDelta, MergeOwn, MergeUnanswered, Rebase
from vnode.replica_config import ReplicaConfig, backoff_s
from vnode.vocabulary import Peer, Verdict

EARLY_S: Final = 3.0
"""So long an answer that a plan has not arrived yet only says that: plans come to everybody, not at the same time."""
EARLY_AGAIN_S: Final = 0.1
LATE: Final = 2
"""Who has learned less than its part by this factor adds what it learned: a delta counts the same whatever it was learned from."""


class Contributing:
    """What one replica owes and is owed by its primary."""

    def __init__(self, config: ReplicaConfig, holding: Holding, now_s: float) -> None:
        self._config, self._holding = config, holding
        self._primary: ReplicaId | None = None
        self._is_next = False
        """Whether it is the primary by the newest plan, and does not lead yet."""
        self._anchor_from: Peer | None = None
        self._anchor_s = float("-inf")
        self._delta_s = now_s
        self._sequence = self._num_asks = 0
        self._asked: AskMerge | None = None
        self._arrived: AnchorArrived | None = None
        self._under_way: AnchorArrived | None = None
        """The anchor that the computation under way takes over."""
        self._verdict: Verdict | None = None
        """On the open delta; None while nothing is known of it."""
        self._is_old = False
        """Whether a verdict says that the primary's lineage is not what the anchor here shows, and what it has learned since."""
        self._num_failures, self._not_before_s = 0, now_s
        self._early_s: float | None = None
        """Since when answers are early."""
        self._is_crowded = False
        """Whether its interval has to end soon, with a delta or where nothing was learned with the next anchor."""
        self._named = IntervalSet.empty()
        self.num_merged = self.num_refused = 0

    def plan(self, primary: ReplicaId | None) -> None:
        """Who the primary is from now on; what another one was asked or has answered is void."""
        self._is_next = primary == self._config.replica
        if primary != self._primary:
            self._primary = None if self._is_next else primary
            self._asked = self._arrived = None
            self._num_failures, self._not_before_s, self._early_s = 0, float("-inf"), None

    def named(self, lineage: IntervalSet) -> None:
        """What is durable cannot be lost with the primary."""
        self._named = lineage

    def crowded(self) -> None:
        """Much was written down since the last anchor. Where nobody audits nothing is."""
        self._is_crowded = self._config.audited

    def waits_why(self) -> str:
        """Why nothing may be learned yet: the primary's anchor comes first, unless the primary cannot be reached and nobody audits; and a delta must
        not grow beyond what its statement holds.
        """
        if len(self._holding.after) >= limits.MAX_DELTA_BATCHES:
            return f"{len(self._holding.after)} batches wait for the primary to merge them"
        return "waiting for the primary's anchor" if self.awaits_anchor else ""

    @property
    def awaits_anchor(self) -> bool:
        """Whether what its state lacks is not known yet: so it says of itself neither what it learns next nor how far it is."""
        is_first = self._anchor_from is None and self._primary is not None and not self._num_failures
        return is_first or (self._config.audited and self._lacks_anchor())

    @property
    def unmerged(self) -> IntervalSet:
        """Batches in its state or its open delta that no primary is known to have."""
        holding = self._holding
        return holding.after if self._verdict is Verdict.MERGED else holding.open | holding.after

    # ---- what the primary says --------------------------------------------------------------------------------------------------

    def heard(self, event: AnchorArrived | DeltaAnswered | MergeUnanswered) -> None:
        """The answer to a question: nothing where there is a newer one."""
        if self._asked is None or event.ask != self._asked.ask:
            return
        self._asked = None
        if isinstance(event, MergeUnanswered):
            self._unanswered(event)
            return
        self._num_failures, self._early_s = 0, None
        if isinstance(event, AnchorArrived):
            self._arrived = event
        else:
            self._judged(event)

    def _judged(self, event: DeltaAnswered) -> None:
        """A delta that was refused is gone, and an anchor tells why it could not be otherwise."""
        self._verdict = event.verdict
        self._is_old = event.verdict is Verdict.REFUSED or event.primary != self._anchor_from
        self.num_merged += event.verdict is Verdict.MERGED
        self.num_refused += event.verdict is Verdict.REFUSED

    def _unanswered(self, event: MergeUnanswered) -> None:
        """Asks again: soon, while who was asked does not know the plan yet, else later each time."""
        if event.is_early:
            self._early_s = event.now_s if self._early_s is None else self._early_s
            if event.now_s - self._early_s < EARLY_S:
                self._not_before_s = event.now_s + EARLY_AGAIN_S
                return
        self._fail(event.now_s)

    def _fail(self, now_s: float) -> None:
        self._num_failures += 1
        self._not_before_s = now_s + min(limits.ANCHOR_S, backoff_s(self._num_failures))

    # ---- what to do now -----------------------------------------------------------------------------------------------------------

    def computation(self, now_s: float, num_learning: int) -> MakeDelta | Rebase | MergeOwn | None:
        """What has to be done to the state now, between two steps, with an anchor that has arrived or because it is to lead; it is done next."""
        if self._is_next and self.has_own:
            return MergeOwn(self._sequence, num_learning, self._holding.lineage)
        arrived, self._arrived = self._arrived, None
        if arrived is None:
            return None
        self._under_way = arrived
        if self._is_measured_against(arrived, now_s):
            is_late = self._is_late(arrived.lineage, num_learning)
            return MakeDelta(self._sequence + 1, self._holding.after, arrived.anchor, arrived.lineage, is_late)
        return self._rebase(arrived, num_learning)

    def _is_measured_against(self, event: AnchorArrived, now_s: float) -> bool:
        """Whether a delta is made with this anchor. Where audits are drawn nothing stays over an anchor, so one is made of whatever was learned on an older
        one of the same primary.
        """
        after = self._holding.after
        if not after or not _fits(after, event.lineage):
            return False
        if self._config.audited:
            return event.primary == self._anchor_from
        return self._is_due(now_s) and not self._takes_back(event.lineage)

    def _is_late(self, lineage: IntervalSet, num_learning: int) -> bool:
        """Whether the others have learned so much more than their parts since that measuring against it would mostly take back what they learned; or whether
        it lacks what was learned before, by whomever, which is nothing that this replica may hand in.
        """
        before = self._holding.anchor
        return bool(before - lineage) or len(lineage - before) > LATE * num_learning * len(self._holding.after)

    def _takes_back(self, lineage: IntervalSet) -> bool:
        """Whether an anchor of that lineage lacks the open delta, which was not refused, and may have it. Nothing is kept where each interval begins with an
        anchor.
        """
        open_, is_refused = self._holding.open, self._verdict is Verdict.REFUSED
        return bool(open_) and not is_refused and not self._config.audited and _fits(open_, lineage)

    def _rebase(self, event: AnchorArrived, num_learning: int) -> Rebase:
        """What was learned stays where the anchor does not hold it already and it is in reach, and as far as one delta may name it. Nothing stays where each
        interval begins with an anchor.
        """
        holding, lineage = self._holding, event.lineage
        if self._config.audited:
            return Rebase(event.anchor, keep_open=False, keep_after=False, num_learning=num_learning, lineage=lineage)
        keep_open = self._takes_back(lineage) and len(holding.open) + len(holding.after) <= limits.MAX_DELTA_BATCHES
        lineage |= holding.open if keep_open else IntervalSet.empty()
        keep_after = _fits(holding.after, lineage)
        lineage |= holding.after if keep_after else IntervalSet.empty()
        return Rebase(event.anchor, keep_open, keep_after, num_learning, lineage)

    def _is_due(self, now_s: float) -> bool:
        """Whether what was learned since the last delta should be handed in."""
        holding = self._holding
        most = min(self._config.merge_every, MAX_AUDITED_BATCHES if self._config.audited else limits.MAX_DELTA_BATCHES)
        is_time = self._is_crowded or len(holding.after) >= most or now_s - self._delta_s >= self._config.checkpoint_s
        return bool(holding.after) and (is_time or holding.is_leaving or holding.is_idle)

    def ask(self, now_s: float) -> AskMerge | None:
        """What to ask of the primary now, if anything."""
        is_answered = self._arrived is not None or self._under_way is not None
        if self._primary is None or self._asked is not None or is_answered or now_s < self._not_before_s:
            return None
        holding = self._holding
        is_idle = holding.is_idle and not holding.after and self._named != holding.everything
        is_crowded = self._is_crowded and not holding.after
        is_news = self._verdict is Verdict.MERGED and bool(holding.missing)
        is_old = is_idle and (is_news or now_s - self._anchor_s >= limits.ANCHOR_S)
        if holding.open and self._verdict is None and not self._lacks_anchor():
            sequence: int | None = self._sequence
        elif self._lacks_anchor() or is_crowded or is_old or self._is_due(now_s):
            sequence = None
        else:
            return None
        self._num_asks += 1
        self._asked = AskMerge(self._num_asks, self._primary, sequence)
        return self._asked

    def _lacks_anchor(self) -> bool:
        return self._anchor_from is None or self._anchor_from.replica != self._primary or self._is_old

    # ---- what was done ------------------------------------------------------------------------------------------------------------

    def made(self, delta: MakeDelta, now_s: float) -> None:
        """The delta is open, and the state stands on the anchor that it was measured against."""
        self._sequence, self._delta_s = delta.sequence, now_s
        self._holding.hand_in(delta.lineage)
        self._stand(now_s)

    def rebased(self, rebase: Rebase, now_s: float) -> None:
        """The state stands on the anchor that had arrived, also where a new plan has named another primary meanwhile."""
        event = self._stand(now_s)
        self._holding.rebase(event.lineage, keep_open=rebase.keep_open, keep_after=rebase.keep_after)

    def _stand(self, now_s: float) -> AnchorArrived:
        event, self._under_way = self._under_way, None
        if event is None:
            raise InvariantBroken("no anchor had arrived", code="unexpected_answer")
        self._anchor_from, self._anchor_s = event.primary, now_s
        self._verdict, self._is_old, self._is_crowded = None, False, False
        return event

    def failed(self, computation: MakeDelta | Rebase | MergeOwn, now_s: float) -> None:
        """The state is as it was; tried again, later each time. An own delta that cannot be merged is gone: what it was learned from is needed again."""
        self._under_way = None
        self._fail(now_s)
        if isinstance(computation, MergeOwn):
            self._verdict = Verdict.REFUSED

    @property
    def has_own(self) -> bool:
        """Whether a replica that is to lead has a delta to take in first: its own that no anchor here shows, unless it was refused."""
        return bool(self._holding.open) and self._verdict is not Verdict.REFUSED


def _fits(batches: IntervalSet, lineage: IntervalSet) -> bool:
    return batches.isdisjoint(lineage) and is_within_reach(batches, lineage)
