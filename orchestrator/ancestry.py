"""What the signed statements behind a checkpoint say: who learned which batches, by the replica's own steps and by the deltas that it took in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dataservice.manifest_form import Contribution
from dcnr.errors import Refused
from dcnr.intervals import IntervalSet
from trust.commits import Place, VerifiedCommit, VerifiedDelta, begins_interval, open_delta
from trust.envelope import digest_of_envelope


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What a state learned from, and from whom: ``contributions`` are disjoint, and since the state from which they were followed."""

    lineage: IntervalSet
    contributions: tuple[Contribution, ...] = ()
    base: str = ""
    """Digest of the state from which they were followed."""

    def after(self, contributions: Iterable[Contribution]) -> Ancestry:
        """The same, and then those. Raises Refused (``bad_lineage``) for a batch that counts twice."""
        lineage, by_whom = self.lineage, {_key(one): one for one in self.contributions}
        for one in contributions:
            if not lineage.isdisjoint(one.batches):
                raise Refused("a batch counts twice in its ancestry", code="bad_lineage")
            lineage = lineage | one.batches
            before = by_whom.get(_key(one))
            if before is not None and one.interval:
                raise Refused("a statement counts twice in its ancestry", code="bad_lineage")
            batches = one.batches if before is None else before.batches | one.batches
            by_whom[_key(one)] = replace(one, batches=batches)
        return Ancestry(lineage, tuple(by_whom.values()), self.base)


def contributions_of(found: VerifiedCommit, place: Place) -> Iterator[Contribution]:
    """What a commit adds: its own batches, then those of each delta. Raises Refused, Corrupt for a delta that does not hold."""
    own = _own(found)
    if own:
        yield Contribution(found.commit.vnode, found.commit.replica, found.delegation.pnode_id, own)
    for _, one in _merged(found, place):
        yield replace(one, interval="")


def intervals_of(chain: Sequence[tuple[str, VerifiedCommit]], place: Place) -> Iterator[Contribution]:
    """What commits add where audits are in force, each piece named by the statement that ends it. ``chain``: from a state on, the oldest first, with digests.

    Of a primary that is the commit that closes a state, with those of anchors before it; where another life goes on from an anchor, the last before that. What
    learned and merged nothing is an interval too: else nobody would look at whether its state is still the one before it.
    Raises as `contributions_of`, and Refused (``no_steps``) for a statement about batches without the log of its steps.
    """
    own = IntervalSet.empty()
    for at, (digest, found) in enumerate(chain):
        commit, batches = found.commit, _own(found)
        if batches and not commit.steps_digest:
            raise Refused("a commit that names no log of its steps, where audits are in force", code="no_steps")
        own = own | batches
        for delta, one in _merged(found, place):
            if not delta.delta.steps_digest:
                raise Refused("a delta that names no log of its steps, where audits are in force", code="no_steps")
            yield one
        if at + 1 == len(chain) or begins_interval(chain[at + 1][1], found):
            yield Contribution(commit.vnode, commit.replica, found.delegation.pnode_id, own, interval=digest)
            own = IntervalSet.empty()


def _key(one: Contribution) -> tuple[str, str, str]:
    return one.replica, one.pnode_id, one.interval


def _own(found: VerifiedCommit) -> IntervalSet:
    commit = found.commit
    own = IntervalSet.of(*((number, number + 1) for number in commit.batches))
    if len(own) != len(commit.batches):
        raise Refused("a batch stands twice in a commit", code="bad_lineage")
    return own


def _merged(found: VerifiedCommit, place: Place) -> Iterator[tuple[VerifiedDelta, Contribution]]:
    commit, before = found.commit, 0
    for merged in commit.merges:
        if not before <= merged.after <= len(commit.batches):
            raise Refused("a delta was merged out of order", code="wrong_delta")
        before = merged.after
        delta = open_delta(merged.delta, place)
        name = digest_of_envelope(merged.delta)
        yield delta, Contribution(commit.vnode, delta.replica, delta.delegation.pnode_id, delta.batches, interval=name)
