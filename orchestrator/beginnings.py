"""With which statement an interval begins, as the commits in the store say: what an accused hands over has to be all of it.

Its name says only where an interval ends. An anchor before that is the accused's own word until the steps that led to it are replayed, so auditors are told
from where on. The commits were followed by whoever named the interval, and each holder follows them anew.

A name does not say either whether it is that of a commit or of a delta. A delta lies inside a commit that leads to the checkpoint which brought it; what lies
in none of them, and is not in the store, is a commit that the store has lost or does not show now.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dataservice import keys
from dcnr.errors import Corrupt, NotFound, Unavailable
from dcnr.ids import Digest, check_digest
from dcnr.ports import ObjectStore
from dcnr.v1 import identity_pb2
from orchestrator.chain import Chain
from orchestrator.checkpoints import MAX_ANCESTORS
from orchestrator.documents import get_exact
from trust.commits import MAX_COMMIT_BYTES, Place, VerifiedCommit, begins_interval, open_commit
from trust.envelope import digest_of_envelope, parse_envelope
from trust.evidence import MAX_STATEMENTS
from trust.network import NetworkPolicy

MAX_REMEMBERED: Final = 4096


class Beginnings:
    """Of the intervals of one model."""

    def __init__(self, store: ObjectStore, policy: Callable[[], NetworkPolicy], model: str) -> None:
        self._store, self._policy, self._model = store, policy, model
        self._known: OrderedDict[str, Digest] = OrderedDict()

    async def of(self, job_id: str, vnode: str, interval: str, chain: Chain | None) -> Digest:
        """Digest of its first statement. A delta is an interval of its own, and so is what was left aside where the store has no commit of that name: no
        checkpoint leads to it any more. Raises Unavailable where the store does not give a commit as it was signed.
        """
        if interval not in self._known:
            place = Place(self._policy().network_id, self._model, job_id, vnode)
            first, found = check_digest(interval), await self._commit(place, interval)
            ways = _ways(chain, vnode, interval)
            if found is None and ways is None:
                return first
            if found is None and ways is not None:
                for one in (deltas := await self._deltas(place, *ways)):
                    self._remember(one, check_digest(one))
                if interval not in deltas:
                    raise Unavailable("its own commit is not in the store", code="state_missing")
            self._remember(interval, first if found is None else await self._followed(place, first, found))
        return self._known[interval]

    def _remember(self, interval: str, first: Digest) -> None:
        self._known[interval] = first
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    async def _deltas(self, place: Place, newest: str, before: str) -> frozenset[str]:
        """What commits take in from the one that made a checkpoint back to that of the one before it in its line. Raises Unavailable where one is not there."""
        deltas: set[str] = set()
        for _ in range(MAX_ANCESTORS):
            if newest in ("", before):
                break
            found = await self._commit(place, newest)
            if found is None:
                raise Unavailable("a commit that leads to its checkpoint is not in the store", code="state_missing")
            envelopes = (one.delta for one in found.commit.merges)
            deltas.update(digest_of_envelope(one) for one in envelopes if one.domain == identity_pb2.DOMAIN_DELTA)
            newest = found.commit.parent_commit
        return frozenset(deltas)

    async def _followed(self, place: Place, first: Digest, found: VerifiedCommit) -> Digest:
        for _ in range(MAX_STATEMENTS):  # of more no bundle is read: then none begins as this says
            parent = found.commit.parent_commit
            if not parent:
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


def _ways(chain: Chain | None, vnode: str, interval: str) -> tuple[str, str] | None:
    """Commits that made the checkpoint which brought that interval, and the one before it in its line; None where none in the line did."""
    if chain is None:
        return None
    line = chain.ledger.lines.get(vnode, ())
    at = next((at for at in range(len(line) - 1, 0, -1) if interval in line[at].intervals), 0)
    newest, before = (chain.checkpoints.get(line[place].digest) if at else None for place in (at, at - 1))
    return (newest.commit_digest, before.commit_digest) if newest is not None and before is not None else None
