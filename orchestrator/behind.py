"""Where audits are in force, what deltas begin with and are measured against lies behind the commit that takes them in: a state or anchor that another
interval is replayed up to, and the second is the first or lies before it.

A contributor is replayed from whatever it says that it began with. Were that a state of its own making, the replay would pass, and what its delta moved would
have nothing to do with the model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dataservice import keys
from dcnr.errors import NotFound, Refused, Unavailable
from dcnr.ports import ObjectStore
from dcnr.v1 import model_pb2
from orchestrator.documents import get_exact
from trust.commits import MAX_BEHIND, MAX_COMMIT_BYTES, Ground, Place, VerifiedCommit, ends_with, ground_of, open_commit, unmet
from trust.envelope import parse, parse_envelope

MAX_REMEMBERED: Final = 32_768


@dataclass(frozen=True, slots=True)
class Sought:
    """What of deltas was not found yet, and the commit before which to look on; so many were looked at."""

    grounds: frozenset[Ground]
    before: str
    num_seen: int


@dataclass(frozen=True, slots=True)
class _Link:
    begin: str
    end: str
    parent: str


class Behind:
    """Of one model. Commits are read once: what one begins and ends with is remembered."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._links: OrderedDict[tuple[Place, str], _Link] = OrderedDict()

    def sought(self, place: Place, chain: Sequence[tuple[str, VerifiedCommit]]) -> Sought:
        """What the deltas in these commits, the oldest first, begin with or are measured against and what is remembered does not show; to be looked for with
        `find`.
        """
        grounds = frozenset[Ground]()
        for digest, found in reversed(chain):
            link = self._remember(place, digest, found)
            taken = {ground_of(parse(model_pb2.Delta, merged.delta.payload)) for merged in found.commit.merges}
            grounds = unmet(unmet(grounds, link.end) | taken, link.begin)
        before = chain[0][1].commit.parent_commit
        num_seen = 0
        while grounds and before and num_seen < MAX_BEHIND and (known := self._links.get((place, before))) is not None:
            grounds = unmet(grounds, known.end, known.begin)
            before, num_seen = known.parent, num_seen + 1
        return Sought(grounds, before, num_seen)

    async def find(self, place: Place, sought: Sought) -> None:
        """Raises Refused (``unknown_anchor``) where one of these does not lie behind, Unavailable where a commit is not in the store, Corrupt."""
        grounds, before, num_seen = sought.grounds, sought.before, sought.num_seen
        while grounds and before and num_seen < MAX_BEHIND:
            link = self._links.get((place, before)) or self._remember(place, before, await self._read(place, before))
            grounds = unmet(grounds, link.end, link.begin)
            before, num_seen = link.parent, num_seen + 1
        if grounds:
            raise Refused(
                f"a delta begins with or was measured against {min(grounds)[0][:12]}, to which nothing that it was merged into leads, or not in that order",
                code="unknown_anchor",
            )

    async def _read(self, place: Place, digest: str) -> VerifiedCommit:
        try:
            data = await get_exact(self._store, keys.commit(place.model, place.vnode, digest), digest, max_bytes=MAX_COMMIT_BYTES)
        except NotFound as error:
            raise Unavailable("an ancestor's commit is not in the store", code="state_missing") from error
        return open_commit(parse_envelope(data, MAX_COMMIT_BYTES), place)

    def _remember(self, place: Place, digest: str, found: VerifiedCommit) -> _Link:
        commit = found.commit
        link = self._links[(place, digest)] = _Link(commit.parent_digest, ends_with(commit), commit.parent_commit)
        while len(self._links) > MAX_REMEMBERED:
            self._links.popitem(last=False)
        return link
