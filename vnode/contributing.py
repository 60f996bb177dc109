"""A contributor's side of merges: when a delta is made, what is asked of the primary, and what of the state an answer keeps. Pure.

One delta is open at a time and is asked about until it is answered; learning goes on above it. A primary that this replica has no
anchor of is asked for it first (PROTOCOL.md, rule 7). A replica that learns nothing takes the anchor now and then, so that it can lead
and so that what a lost primary takes with it is needed again.
"""

from __future__ import annotations

from typing import Final

from dcnr import limits
from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from vnode.entries import MAX_AUDITED_BATCHES
from vnode.holding import Holding, is_within_reach
from vnode.merge_events import AnchorArrived, AskMerge, MakeDelta, MergeUnanswered, Rebase
from vnode.replica_config import ReplicaConfig, backoff_s
from vnode.vocabulary import Peer, Verdict

EARLY_S: Final = 3.0
"""So long an answer that a plan has not arrived yet only says that: plans come to everybody, not at the same time."""
EARLY_AGAIN_S: Final = 0.1


class Contributing:
    """What one replica owes and is owed by its primary."""

    def __init__(self, config: ReplicaConfig, holding: Holding, now_s: float) -> None:
        self._config, self._holding = config, holding
        self._primary: ReplicaId | None = None
        self._anchor_from: Peer | None = None
        self._anchor_s = float("-inf")
        self._delta_s = now_s
        self._sequence = self._num_asks = 0
        self._asked: AskMerge | None = None
        self._arrived: AnchorArrived | None = None
        self._came_alone = False
        """Whether what arrived answers a question for the anchor alone."""
        self._rebasing: AnchorArrived | None = None
        self._num_failures, self._not_before_s = 0, now_s
        self._early_s: float | None = None
        """Since when answers are early."""
        self._is_crowded = False
        """Whether its interval has to end soon, with a delta or where nothing was learned with the next anchor."""
        self._named = IntervalSet.empty()
        self.num_merged = self.num_refused = 0

    def plan(self, primary: ReplicaId | None) -> None:
        """Who the primary is from now on; what another one was asked or has answered is void."""
        if primary != self._primary:
            self._primary = None if primary == self._config.replica else primary
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
        if self.is_between:
            return "waiting for the primary to take in its delta"
        return "waiting for the primary's anchor" if self.awaits_anchor else ""

    @property
    def awaits_anchor(self) -> bool:
        """Whether what its state lacks is not known yet: so it says of itself neither what it learns next nor how far it is."""
        is_first = self._anchor_from is None and self._primary is not None and not self._num_failures
        return is_first or (self._config.audited and self._lacks_anchor())

    @property
    def is_between(self) -> bool:
        """Whether what is computed now would belong to no interval: a delta was made, and there is no anchor to go on from yet."""
        return self._config.audited and bool(self._holding.open)

    # ---- what the primary says --------------------------------------------------------------------------------------------------

    def arrived(self, event: AnchorArrived) -> None:
        """Takes in the answer to the newest question."""
        if self._asked is not None and event.ask == self._asked.ask:
            self._came_alone = self._asked.sequence is None
            self._asked, self._arrived, self._num_failures, self._early_s = None, event, 0, None

    def unanswered(self, event: MergeUnanswered) -> None:
        """Asks again: soon, while who was asked does not know the plan yet, else later each time."""
        if self._asked is None or event.ask != self._asked.ask:
            return
        self._asked = None
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

    def computation(self, now_s: float) -> MakeDelta | Rebase | None:
        """What has to be done to the state now, between two steps; it is done next."""
        holding = self._holding
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not self._is_overtaken(arrived):
            self._rebasing = arrived
            return self._rebase(arrived)
        if not holding.after or holding.open or self._lacks_anchor() or now_s < self._not_before_s:
            return None
        most = min(self._config.merge_every, MAX_AUDITED_BATCHES if self._config.audited else limits.MAX_DELTA_BATCHES)
        is_due = self._is_crowded or len(holding.after) >= most or now_s - self._delta_s >= self._config.checkpoint_s
        return MakeDelta(self._sequence + 1, holding.after) if is_due or holding.is_leaving or holding.is_idle else None

    def _is_overtaken(self, event: AnchorArrived) -> bool:
        """Whether this anchor was asked for while there was nothing to learn, and something was learned since that nothing may stay of where audits are
        drawn: its delta comes first.
        """
        is_for_nothing = self._came_alone and event.primary == self._anchor_from
        return self._config.audited and is_for_nothing and bool(self._holding.open | self._holding.after)

    def _rebase(self, event: AnchorArrived) -> Rebase:
        """An answered delta is in the anchor or nowhere; anything else stays where the anchor does not hold it already and it is in reach. Nothing stays where
        each interval begins with an anchor.
        """
        holding, lineage = self._holding, event.lineage
        if self._config.audited:
            return Rebase(event.anchor, keep_open=False, keep_after=False, lineage=lineage)
        keep_open = event.verdict is Verdict.ANCHOR and _fits(holding.open, lineage)
        lineage |= holding.open if keep_open else IntervalSet.empty()
        keep_after = _fits(holding.after, lineage)
        lineage |= holding.after if keep_after else IntervalSet.empty()
        return Rebase(event.anchor, keep_open, keep_after, lineage)

    def ask(self, now_s: float) -> AskMerge | None:
        """What to ask of the primary now, if anything."""
        is_answered = self._arrived is not None or self._rebasing is not None
        if self._primary is None or self._asked is not None or is_answered or now_s < self._not_before_s:
            return None
        holding = self._holding
        is_idle = holding.is_idle and not holding.after and self._named != holding.everything
        is_crowded = self._is_crowded and not holding.after
        if holding.open and not self._lacks_anchor():
            sequence: int | None = self._sequence
        elif self._lacks_anchor() or is_crowded or (is_idle and now_s - self._anchor_s >= limits.ANCHOR_S):
            sequence = None
        else:
            return None
        self._num_asks += 1
        self._asked = AskMerge(self._num_asks, self._primary, sequence)
        return self._asked

    def _lacks_anchor(self) -> bool:
        return self._anchor_from is None or self._anchor_from.replica != self._primary

    # ---- what was done ------------------------------------------------------------------------------------------------------------

    def made(self, delta: MakeDelta, now_s: float) -> None:
        """The delta is set apart."""
        self._sequence, self._delta_s = delta.sequence, now_s
        self._holding.set_apart()

    def rebased(self, rebase: Rebase, now_s: float) -> None:
        """The state stands on the anchor that had arrived, also where a new plan has named another primary meanwhile."""
        event, self._rebasing = self._rebasing, None
        if event is None:
            raise InvariantBroken("no anchor had arrived", code="unexpected_answer")
        self._holding.rebase(event.lineage, keep_open=rebase.keep_open, keep_after=rebase.keep_after)
        self._anchor_from, self._anchor_s, self._is_crowded = event.primary, now_s, False
        self.num_merged += event.verdict is Verdict.MERGED
        self.num_refused += event.verdict is Verdict.REFUSED

    def failed(self, now_s: float) -> None:
        """The state is as it was; tried again, later each time."""
        self._rebasing = None
        self._fail(now_s)


def _fits(batches: IntervalSet, lineage: IntervalSet) -> bool:
    return batches.isdisjoint(lineage) and is_within_reach(batches, lineage)
