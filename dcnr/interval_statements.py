"""The signed statements behind the intervals of a ledger, as whoever audits it reads them: of a primary all commits since a state or another life, and the
deltas inside them. Shares no code with the orchestrator's decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dcnr.errors import Corrupt, NotFound
from dcnr.intervals import IntervalSet
from dcnr.planned import PlannedCommits
from dcnr.stored import StoredDocuments
from dcnr.v1 import model_pb2
from trust.commits import Ground, Place, VerifiedDelta, ground_of, open_delta, unmet
from trust.envelope import digest_of_envelope
from trust.ledger import Interval


@dataclass(frozen=True, slots=True)
class _Signed:
    commit: model_pb2.Commit
    pnode_id: str

    @property
    def end(self) -> str:
        return self.commit.state_digest or self.commit.anchor_digest

    @property
    def life(self) -> tuple[str, int, str]:
        return self.commit.replica, int(self.commit.incarnation), self.pnode_id


class Statements:
    """Of one job. ``place`` names it, whatever the VNode. All methods raise Corrupt for what does not hold, and what reading raises."""

    def __init__(self, documents: StoredDocuments, planned: PlannedCommits, place: Place) -> None:
        self._documents, self._planned, self._place = documents, planned, place
        self._commits: dict[tuple[str, str], _Signed | None] = {}
        self._deltas: dict[tuple[str, str], VerifiedDelta] = {}

    async def check(self, one: Interval, *, counts: bool) -> bool:
        """That an interval credits just what its commits state, each signed by a primary that plans of the job had, and, where it counts, that the deltas in
        them begin with and were measured against what commits behind them end with. False where there is no commit of its name.

        Raises NotFound (``no_statement``) where there is one, and one before it is missing.
        """
        last = await self._commit(one.vnode, one.name)
        if last is None:
            return False
        stated, num_batches = IntervalSet.empty(), 0
        for signed in await self._whole(one, last):
            await self._planned.check(signed.commit, signed.pnode_id)
            await self._note_deltas(one.vnode, signed, counts=counts)
            stated = stated | _set(signed.commit.batches)
            num_batches += len(signed.commit.batches)
        _check_credit(one, last.commit.replica, last.pnode_id, stated)
        if len(stated) != num_batches:
            raise Corrupt(f"interval {one.name[:12]}: its statements name a batch twice", code="bad_ledger")
        return True

    def check_delta(self, one: Interval) -> bool:
        """The same of a contributor's interval, once all commits were checked; False where none of them took in a delta of its name."""
        delta = self._deltas.get((one.vnode, one.name))
        if delta is None:
            return False
        _check_credit(one, delta.replica, delta.delegation.pnode_id, delta.batches)
        return True

    async def _whole(self, one: Interval, last: _Signed) -> list[_Signed]:
        """Its commits, the newest first: back to a state, to another life, or to the first of all."""
        whole = [last]
        while parent := whole[-1].commit.parent_commit:
            before = await self._commit(one.vnode, parent)
            if before is None:
                raise NotFound(
                    f"interval {one.name[:12]} of {one.vnode}: a statement before its last is not in the store", code="no_statement"
                )
            if whole[-1].commit.parent_digest != before.end:
                raise Corrupt(
                    f"interval {one.name[:12]} begins with what the commit before it does not end with", code="broken_chain"
                )
            if before.commit.state_digest or before.life != last.life:
                break
            whole.append(before)
        return whole

    async def _note_deltas(self, vnode: str, signed: _Signed, *, counts: bool) -> None:
        grounds = frozenset[Ground]()
        for merged in signed.commit.merges:
            delta = open_delta(merged.delta, replace(self._place, vnode=vnode))
            self._deltas[vnode, digest_of_envelope(merged.delta)] = delta
            grounds |= {ground_of(delta.delta)}
        at: _Signed | None = signed
        while counts and grounds and at is not None:
            before = await self._commit(vnode, at.commit.parent_commit)
            grounds = unmet(grounds, at.commit.parent_digest if before is None else before.end)
            at = before
        if counts and grounds:
            raise Corrupt(
                f"{vnode}: a delta begins with or was measured against {min(grounds)[0][:12]}, to which no commit leads, or not in that order",
                code="broken_chain",
            )

    async def _commit(self, vnode: str, digest: str) -> _Signed | None:
        """None where there is none of that name, also where anybody has put the delta of that name in its place."""
        if digest and (vnode, digest) not in self._commits:
            try:
                self._commits[vnode, digest] = _Signed(*await self._documents.commit(vnode, digest, self._place.job_id))
            except NotFound:
                self._commits[vnode, digest] = None
            except Corrupt as error:
                if error.code != "wrong_domain":
                    raise
                self._commits[vnode, digest] = None
        return self._commits.get((vnode, digest))


def _set(batches: Iterable[int]) -> IntervalSet:
    return IntervalSet.of(*((batch, batch + 1) for batch in batches))


def _check_credit(one: Interval, replica: str, pnode_id: str, batches: IntervalSet) -> None:
    if (replica, pnode_id) != (one.replica, one.pnode_id):
        raise Corrupt(f"interval {one.name[:12]} credits {one.replica} for what {replica} signed", code="bad_ledger")
    if batches != one.batches:
        raise Corrupt(f"interval {one.name[:12]} credits other batches than its statements name", code="bad_ledger")
