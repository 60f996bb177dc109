"""What the signed statements behind a checkpoint say: who learned which batches, by the replica's own steps and by the deltas that it took in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dataservice.manifests import Contribution
from dcnr.errors import Refused
from dcnr.intervals import IntervalSet
from trust.commits import Place, VerifiedCommit, open_delta


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What a state learned from, and from whom: ``contributions`` are disjoint, and since the state from which they were followed."""

    lineage: IntervalSet
    contributions: tuple[Contribution, ...] = ()

    def after(self, contributions: Iterable[Contribution]) -> Ancestry:
        """The same, and then those. Raises Refused (``bad_lineage``) for a batch that counts twice."""
        lineage, by_whom = self.lineage, {(one.replica, one.pnode_id): one for one in self.contributions}
        for one in contributions:
            if not lineage.isdisjoint(one.batches):
                raise Refused("a batch counts twice in its ancestry", code="bad_lineage")
            lineage = lineage | one.batches
            before = by_whom.get((one.replica, one.pnode_id))
            batches = one.batches if before is None else before.batches | one.batches
            by_whom[one.replica, one.pnode_id] = Contribution(one.vnode, one.replica, one.pnode_id, batches)
        return Ancestry(lineage, tuple(by_whom.values()))


def contributions_of(found: VerifiedCommit, place: Place) -> Iterator[Contribution]:
    """What a commit adds: its own batches, then those of each delta. Raises Refused, Corrupt for a delta that does not hold."""
    commit = found.commit
    own = IntervalSet.of(*((number, number + 1) for number in commit.batches))
    if len(own) != len(commit.batches):
        raise Refused("a batch stands twice in a commit", code="bad_lineage")
    if own:
        yield Contribution(commit.vnode, commit.replica, found.delegation.pnode_id, own)
    before = 0
    for merged in commit.merges:
        if not before <= merged.after <= len(commit.batches):
            raise Refused("a delta was merged out of order", code="wrong_delta")
        before = merged.after
        delta = open_delta(merged.delta, place)
        yield Contribution(commit.vnode, delta.replica, delta.delegation.pnode_id, delta.batches)
