"""The ways to the replicas of one predecessor, and which batches each of them is asked for. Pure, torch-free.

That is what each owns by the newest plan. Where the way to one of them has broken and there is nothing else to learn, the others are asked for what they would
own without it, before any plan says so: they compute it FORWARD_ONLY, since it is not theirs to learn (PROTOCOL.md, rules 2 and 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from vnode.replica_config import ReplicaConfig
from vnode.vocabulary import TRAIN_LANE, Lane

_NONE = IntervalSet.empty()


@dataclass(slots=True)
class Stated:
    """What was said last about a lane over one edge, and what came since."""

    at_s: float = float("-inf")
    needed: IntervalSet = _NONE
    looked_at: IntervalSet = _NONE
    """What was found to add nothing to that."""
    end: int = -1
    window_at_s: float = float("-inf")
    received: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Edge:
    """The ways to the replicas of one predecessor, and which batches each of them is asked for."""

    ways: dict[ReplicaId, dict[Lane, Stated]] = field(default_factory=dict)
    """What was stated over each open way."""
    primary: ReplicaId | None = None
    owned: Mapping[ReplicaId, IntervalSet] = field(default_factory=dict)
    """What each replica of the newest plan is asked for."""
    _shares: tuple[Share, ...] = ()
    _away: frozenset[ReplicaId] = frozenset()
    """Replicas of the plan whose way broke, or that came with a later plan than others, and whose way is not open yet."""
    _passed_over: frozenset[ReplicaId] = frozenset()
    """Of those, for whom others are asked."""
    _shared_out: tuple[IntervalSet, dict[ReplicaId | None, IntervalSet]] = (_NONE, {})
    """The last set of training batches and whom it is asked from: statements and reports ask again for the same one, many times a second."""

    def plan(self, shares: tuple[Share, ...], config: ReplicaConfig) -> None:
        """Whom to ask from now on."""
        planned, before = ({share.replica for share in known} for known in (shares, self._shares))
        self.primary, self._shares = shares[0].replica if shares else None, shares
        self._away = (self._away & planned) | (planned - before - self.ways.keys() if before else frozenset())
        self._pass_over(self._passed_over & planned, config)

    def up(self, replica: ReplicaId, config: ReplicaConfig) -> None:
        """The way to that replica is open: everything is stated anew, and it is asked for what it owns."""
        self.ways[replica], self._away = {}, self._away - {replica}
        self._pass_over(self._passed_over - {replica}, config)

    def down(self, replica: ReplicaId) -> None:
        """The way to that replica is closed."""
        if self.ways.pop(replica, None) is not None and any(share.replica == replica for share in self._shares):
            self._away |= {replica}

    def goes_around(self, config: ReplicaConfig) -> bool:
        """Asks others for what those own who are away. Whether that is news."""
        is_news = self._passed_over != self._away
        if is_news:
            self._pass_over(self._away, config)
        return is_news

    def _pass_over(self, away: frozenset[ReplicaId], config: ReplicaConfig) -> None:
        """Each of the others is asked for what it would own without those; where there is no other, they are."""
        others = tuple(share for share in self._shares if share.replica not in away)
        asked = others if any(share.weight > 0 for share in others) else self._shares
        self._passed_over, self._shared_out = away, (_NONE, {})
        before, self.owned = self.owned, split(asked, config.num_batches, config.unit_batches)
        for replica, lanes in self.ways.items():
            stated = lanes.get(TRAIN_LANE)
            if stated is not None and stated.needed & before.get(replica, _NONE) - self.owned.get(replica, _NONE):
                stated.at_s = float("-inf")  # it would go on with what others are asked for from now on

    @property
    def num_owners(self) -> int:
        """How many replicas are asked for anything."""
        return sum(1 for owned in self.owned.values() if owned)

    def owned_with(self, batch: int) -> IntervalSet:
        """What the replica is asked for that is asked for this batch."""
        return next((owned for owned in self.owned.values() if batch in owned), IntervalSet.span(batch, batch + 1))

    def asked(self, lane: Lane, batches: IntervalSet) -> Mapping[ReplicaId | None, IntervalSet]:
        """Who is asked for which of ``batches``: the owner, for evaluations the primary; None where there is nobody to ask."""
        if not lane.is_train:
            return {self.primary: batches} if batches else {}
        if batches != self._shared_out[0]:
            self._shared_out = (batches, self._share_out(batches))
        return self._shared_out[1]

    def _share_out(self, batches: IntervalSet) -> dict[ReplicaId | None, IntervalSet]:
        """Worked out from the last set, where that is nearly the same: mostly one batch was learned, and then only that one goes."""
        before, parts = self._shared_out
        gone, new = before - batches, batches - before
        if len(gone.bounds) + len(new.bounds) > len(batches.bounds) // 2:
            gone, new, parts = _NONE, batches, {}
        shared: dict[ReplicaId | None, IntervalSet] = {}
        for replica, owned in self.owned.items():
            shared[replica] = (parts.get(replica, _NONE) - gone) | (new & owned)
            new -= owned
        shared[None] = (parts.get(None, _NONE) - gone) | new
        return {replica: part for replica, part in shared.items() if part}

    def check(self) -> None:
        """Raises InvariantBroken where batches are asked of somebody else than the plan says."""
        batches, parts = self._shared_out
        if parts != Edge(owned=self.owned)._share_out(batches):
            raise InvariantBroken("batches are asked of others than the plan's shares say", code="stale_shares")
