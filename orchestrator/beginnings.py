"""With which statement an interval begins, as the commits in the store say: what an accused hands over has to be all of it.

Its name says only where an interval ends. An anchor before that is the accused's own word until the steps that led to it are replayed, so auditors are told
from where on. The commits were followed by whoever named the interval, and each holder follows them anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dataservice import keys
from dcnr.errors import Corrupt, NotFound, Unavailable
from dcnr.ids import Digest, check_digest
from dcnr.ports import ObjectStore
from orchestrator.documents import get_exact
from trust.commits import MAX_COMMIT_BYTES, Place, VerifiedCommit, begins_interval, open_commit
from trust.envelope import parse_envelope
from trust.evidence import MAX_STATEMENTS
from trust.network import NetworkPolicy

MAX_REMEMBERED: Final = 4096


class Beginnings:
    """Of the intervals of one model."""

    def __init__(self, store: ObjectStore, policy: Callable[[], NetworkPolicy], model: str) -> None:
        self._store, self._policy, self._model = store, policy, model
        self._known: OrderedDict[str, Digest] = OrderedDict()

    async def of(self, job_id: str, vnode: str, interval: str) -> Digest:
        """Digest of its first statement. A delta is an interval of its own. Raises Unavailable where the store does not give a commit as it was signed."""
        if interval not in self._known:
            self._known[interval] = await self._followed(Place(self._policy().network_id, self._model, job_id, vnode), interval)
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return self._known[interval]

    async def _followed(self, place: Place, interval: str) -> Digest:
        first = check_digest(interval)
        found = await self._commit(place, first)
        for _ in range(MAX_STATEMENTS):  # of more no bundle is read: then none begins as this says
            parent = found.commit.parent_commit if found is not None else ""
            if found is None or not parent:
                break
            before = await self._commit(place, parent)
            if before is None:
                raise Unavailable("an ancestor's commit is not in the store", code="state_missing")
            if begins_interval(found, before):
                break
            first, found = check_digest(parent), before
        return first

    async def _commit(self, place: Place, digest: str) -> VerifiedCommit | None:
        """None where there is none of that name: a delta lies inside a commit, and whoever puts it in the place of one changes nothing."""
        try:
            data = await get_exact(self._store, keys.commit(place.model, place.vnode, digest), digest, max_bytes=MAX_COMMIT_BYTES)
            return open_commit(parse_envelope(data, MAX_COMMIT_BYTES), place)
        except NotFound:
            return None
        except Corrupt as error:
            if error.code == "wrong_domain":
                return None
            raise Unavailable(f"a commit cannot be read: {error.message}", code="commit_unread") from error
