"""What the state of one replica holds, and what it has still to learn. Pure, torch-free.

The state of a contributor is an anchor, plus what was learned on it. Its open delta lies beside: it was handed in, and no anchor here shows it yet; until one
does it can be taken back, so what it was learned from counts as held. A primary's live weights are the anchor: there is nothing above or beside it. Batches
are in at most one of the three parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from dcnr import limits
from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, owned
from vnode.replica_config import ReplicaConfig
from vnode.vocabulary import Role

_NONE = IntervalSet.empty()


def reach(lineage: IntervalSet) -> int:
    """Batches from here on are not taken into a state of that lineage yet: so it never has more pieces than a state can name."""
    return lineage.lowest_absent() + limits.MAX_AHEAD_BATCHES


def is_within_reach(batches: IntervalSet, lineage: IntervalSet) -> bool:
    """Whether a state of that lineage may take in all these batches at once."""
    highest = batches.highest()
    return highest is None or highest < reach(lineage | batches)


class Holding:
    """The batches of one replica. ``lineage`` is that of the restored state; before the first plan only a primary owns anything."""

    def __init__(self, config: ReplicaConfig, lineage: IntervalSet) -> None:
        self._config = config
        self.everything = IntervalSet.span(0, config.num_batches)
        if lineage - self.everything:
            raise InvariantBroken("the restored lineage reaches beyond the job", code="foreign_lineage")
        self.leads = config.role is Role.PRIMARY
        self._siblings: Sequence[Share] = ()
        self._adopted = _NONE
        self.owned = self.everything if self.leads else _NONE
        self.anchor = lineage
        """Lineage of the anchor; a primary's own lineage."""
        self.open = self.after = _NONE
        """Batches of the open delta, and those learned on the anchor."""
        self.is_leaving = False
        """Nothing is learned; what it owns is still to be learned, by who follows."""
        self._count()

    def _count(self) -> None:
        self.lineage = self.anchor | self.open | self.after
        self.missing = self.owned - self.lineage

    def share(self, siblings: Sequence[Share]) -> None:
        """The newest plan's shares; none means that this replica is alone."""
        self._siblings = siblings
        self.owned = self._share_of(self._config.replica) | self._adopted if siblings else self.everything
        self._count()

    def adopt(self, sibling: ReplicaId, batches: IntervalSet) -> None:
        """What that sibling owns of these is to be learned here as well, whatever plan comes: what it makes of them is taken in by nobody."""
        self._adopted |= batches & self._share_of(sibling)
        self.owned |= self._adopted
        self._count()

    def _share_of(self, replica: ReplicaId) -> IntervalSet:
        return owned(replica, self._siblings, self._config.num_batches, self._config.unit_batches)

    @property
    def floor(self) -> int:
        """The lowest batch that it owns and has not learned; the number of batches where there is none."""
        lowest = self.missing.lowest()
        return self._config.num_batches if lowest is None else lowest

    @property
    def out_of_reach(self) -> IntervalSet:
        """Missing batches that are too far above the lowest one that the state lacks, whoever owns that."""
        highest, end = self.missing.highest(), reach(self.lineage)
        return _NONE if highest is None or highest < end else self.missing.above(end - 1)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to learn, or only what is out of reach."""
        lowest = self.missing.lowest()
        return lowest is None or lowest >= reach(self.lineage)

    @property
    def is_complete(self) -> bool:
        """Whether the state holds every batch of the job."""
        return self.lineage == self.everything

    def learned(self, batch: int) -> None:
        """One local step was made. Raises InvariantBroken for a batch that is in the state."""
        if batch in self.lineage:
            raise InvariantBroken(f"batch {batch} was learned twice", code="learned_twice")
        self.lineage = self.lineage.add(batch)
        self.missing -= IntervalSet.span(batch, batch + 1)
        if self.leads:
            self.anchor = self.lineage
        else:
            self.after = self.after.add(batch)

    @property
    def num_learned(self) -> int:
        """How far it is by the schedule of rates. Where audits are drawn a step is made again from the state before it, which holds no open delta."""
        return len(self.lineage) - (len(self.open) if self._config.audited else 0)

    def hand_in(self, anchor: IntervalSet) -> None:
        """What was learned since the last delta is open from here on, and the state is that anchor; the delta before it is there or nowhere."""
        self.anchor, self.open, self.after = anchor & self.everything, self.after, _NONE
        self._count()

    def rebase(self, anchor: IntervalSet, *, keep_open: bool, keep_after: bool) -> None:
        """The state is that anchor and what was kept; nothing is open."""
        self.anchor = anchor & self.everything
        self.after = (self.open if keep_open else _NONE) | (self.after if keep_after else _NONE)
        self.open = _NONE
        self._count()

    def merge_own(self) -> None:
        """The open delta was merged here."""
        self.anchor, self.open = self.anchor | self.open, _NONE

    def merged(self, lineage: IntervalSet) -> None:
        """Deltas were merged: the state holds ``lineage`` now."""
        self.anchor = lineage
        self._count()

    def lead(self) -> IntervalSet:
        """The state is the anchor from here on, and a delta that is still open is gone; gives what was learned on the anchor before."""
        own = self.after
        self.leads, self.anchor = True, self.anchor | own
        self.open = self.after = _NONE
        self._count()
        return own

    def check(self) -> None:
        """Raises InvariantBroken where the parts overlap, reach beyond the job, or are too many pieces."""
        for part in (self.anchor, self.open, self.after):
            part.check()
        if self.lineage - self.everything:
            raise InvariantBroken("the lineage reaches beyond the job", code="foreign_lineage")
        if len(self.anchor) + len(self.open) + len(self.after) != len(self.lineage):
            raise InvariantBroken("a batch is counted twice", code="counted_twice")
        if self.leads and (self.open or self.after):
            raise InvariantBroken("a primary holds something above its anchor", code="unmerged_primary")
        if len(self.lineage.pairs()) > limits.MAX_INTERVALS:
            raise InvariantBroken("the lineage has more pieces than a state can name", code="too_fragmented")
