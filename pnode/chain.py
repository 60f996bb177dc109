"""The signed chain of one replica: every state or anchor that it hands over names its parent and, in order, each batch learned in between with its
loss, by itself or in the deltas that it took in. Pure.

A primary closes a commit with every anchor and every state. A contributor closes none: it puts what it learned into deltas, and stands on the primary's
commits; they become its own ancestors if it is made the primary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dcnr import limits
from dcnr.errors import InvariantBroken
from dcnr.ids import Digest
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.frames import intervals_message
from trust.commits import MAX_BEHIND, ends_with
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from vnode.vocabulary import Peer

MAX_COMMITS: Final = 1024
MAX_COMMITS_BYTES: Final = 4 * limits.MIB
"""Commits since the newest checkpoint that a manifest names: they travel with every anchor, and with a promoted contributor's first snapshot."""
LONG: Final = 0.5
"""Of these bounds: then a checkpoint is due."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What stays the same in all commits of a replica."""

    network_id: str
    model: str
    job_id: str
    vnode: str
    peer: Peer
    pnode_id: str
    work_digest: str = ""
    """Of what the job's request says is to be learned."""


@dataclass(frozen=True, slots=True)
class Link:
    """One commit made: of a state, or of an anchor."""

    commit: identity_pb2.Envelope
    digest: Digest
    parent_state: str
    state: str


@dataclass(frozen=True, slots=True)
class _Kept:
    commit: identity_pb2.Envelope
    digest: Digest
    state: str


class CommitChain:
    """Begins at the restored state. ``delegation()`` is the newest one of this worker.

    ``sequence``: of the last commit that this worker signed for the replica in an earlier life; two commits of one number would prove an equivocation.
    """

    def __init__(
        self, standing: Standing, key: NodeKey, delegation: Callable[[], identity_pb2.Envelope], state: str, commit: str,
        *, sequence: int = 0,
    ) -> None:  # fmt: skip
        self._standing, self._key, self._delegation = standing, key, delegation
        self.sequence = sequence
        self._state, self._commit = state, commit
        self._learned: list[tuple[int, float]] = []
        self._open: list[tuple[int, float]] = []
        self._merges: list[model_pb2.Merged] = []
        self._kept: list[_Kept] = []
        self._behind: deque[tuple[str, int]] = deque([(state, 0)], maxlen=MAX_BEHIND // 2)
        """What the newest commits on the way to here ended with, and how many batches these had come to: fewer than whoever judges the next one looks at."""
        self._not_handed: dict[Digest, identity_pb2.Envelope] = {}

    @property
    def state_digest(self) -> str:
        """The state or anchor from which learning goes on: parent of the next one."""
        return self._state

    @property
    def commits(self) -> tuple[identity_pb2.Envelope, ...]:
        """All commits since the newest checkpoint that a manifest names, oldest first."""
        return tuple(kept.commit for kept in self._kept)

    def between(self, begin: str, measured: str) -> int | None:
        """How many batches were learned from one state or anchor to another; None where the second is not the first, and does not lie behind it on the way to
        what this replica holds, or one of them lies too far behind.
        """
        places = {end: (place, num_batches) for place, (end, num_batches) in enumerate(self._behind)}
        if begin not in places or measured not in places:
            return None
        (first, before), (second, after) = places[begin], places[measured]
        return after - before if first <= second else None

    @property
    def is_long(self) -> bool:
        """Whether a checkpoint should let go of the oldest of them soon."""
        return self._fullness() > LONG

    @property
    def is_full(self) -> bool:
        """Whether no further anchor may be made before a manifest names a checkpoint."""
        return self._fullness() > 1.0

    def _fullness(self) -> float:
        return max(len(self._kept) / MAX_COMMITS, sum(kept.commit.ByteSize() for kept in self._kept) / MAX_COMMITS_BYTES)

    # ---- learning -----------------------------------------------------------------------------------------------------------

    def learned(self, batch: int, loss: float) -> None:
        """One more batch of our own."""
        self._learned.append((batch, loss))

    def merged(self, delta: identity_pb2.Envelope, num_learning: int) -> None:
        """One more delta, after the batches learned so far; so many replicas learned then."""
        self._merges.append(model_pb2.Merged(after=len(self._learned), delta=delta, replicas=num_learning))

    def close(self, *, state: str = "", anchor: str = "", steps: str = "") -> Link:
        """The commit of a new state, or of a new anchor; ``steps``: digest of the log of its batches. Raises nothing: what it states has happened."""
        standing = self._standing
        self.sequence += 1
        commit = model_pb2.Commit(
            network_id=standing.network_id,
            model=standing.model,
            job_id=standing.job_id,
            vnode=standing.vnode,
            replica=standing.peer.replica,
            incarnation=standing.peer.incarnation,
            parent_digest=self._state,
            state_digest=state,
            anchor_digest=anchor,
            batches=[batch for batch, _ in self._learned],
            losses=[loss for _, loss in self._learned],
            merges=self._merges,
            parent_commit=self._commit,
            delegation=self._delegation(),
            sequence=self.sequence,
            steps_digest=steps,
        )
        envelope = seal(identity_pb2.DOMAIN_COMMIT, commit, self._key)
        link = Link(envelope, digest_of_envelope(envelope), self._state, state)
        self._state, self._commit = state or anchor, link.digest
        self._lead_over(commit)
        self._learned, self._merges = [], []
        self._kept.append(_Kept(envelope, link.digest, state))
        self._not_handed[link.digest] = envelope
        return link

    def _lead_over(self, commit: model_pb2.Commit) -> None:
        merged = sum(len(model_pb2.Delta.FromString(one.delta.payload).batches) for one in commit.merges)
        num_batches = self._behind[-1][1] if self._behind else 0
        self._behind.append((ends_with(commit), num_batches + len(commit.batches) + merged))

    def named(self, state: str) -> None:
        """A manifest names that state: what led to it is in the store."""
        for at, kept in enumerate(self._kept):
            if kept.state and kept.state == state:
                del self._kept[: at + 1]
                return

    def hand_over_anew(self) -> None:
        """The next state is handed over with all `commits`: one of them may never have come into the store, or be there no more."""
        self._not_handed = {kept.digest: kept.commit for kept in self._kept}

    # ---- a contributor ------------------------------------------------------------------------------------------------------

    def delta(
        self, sequence: int, codec: str, digest: Digest, size_bytes: int, *, anchor: str, commits: Sequence[identity_pb2.Envelope], steps: str = "",
        is_late: bool = False,
    ) -> identity_pb2.Envelope:  # fmt: skip
        """The signed statement of everything learned since the last delta, which is settled; it is open from here on, and the replica stands on ``anchor``,
        to which ``commits`` lead, oldest first. It was measured against that, or (``is_late``) against what it began with.

        ``digest`` and ``size_bytes``: of the weights in that codec; ``steps``: digest of the log of its batches.
        """
        standing = self._standing
        learned, begin = self._learned, self._state
        self.rebase(anchor, commits, keep_open=False, keep_after=False)
        self._open = learned
        delta = model_pb2.Delta(
            network_id=standing.network_id,
            model=standing.model,
            job_id=standing.job_id,
            vnode=standing.vnode,
            replica=standing.peer.replica,
            incarnation=standing.peer.incarnation,
            sequence=sequence,
            anchor_digest=begin,
            measured_digest=begin if is_late else anchor,
            batches=[batch for batch, _ in self._open],
            losses=[loss for _, loss in self._open],
            codec=codec,
            digest=digest,
            size_bytes=size_bytes,
            delegation=self._delegation(),
            steps_digest=steps,
        )
        return seal(identity_pb2.DOMAIN_DELTA, delta, self._key)

    def rebase(self, anchor: str, commits: Sequence[identity_pb2.Envelope], *, keep_open: bool, keep_after: bool) -> None:
        """Stands on an anchor of the primary from here on, to which ``commits`` lead, oldest first. Nothing is open: what is kept of it counts as learned."""
        self._learned = [*(self._open if keep_open else []), *(self._learned if keep_after else [])]
        self._open = []
        self._kept = []
        self._behind.clear()
        for commit in commits:
            stated = model_pb2.Commit.FromString(commit.payload)
            self._kept.append(_Kept(commit, digest_of_envelope(commit), stated.state_digest))
            self._lead_over(stated)
        self._not_handed = {kept.digest: kept.commit for kept in self._kept}
        self._state, self._commit = anchor, self._kept[-1].digest

    def lead(self, own: IntervalSet) -> None:
        """This replica is the primary from here on; ``own`` is what it learned on its anchor. What is open and was not `merged` is gone. Raises InvariantBroken
        if that differs.
        """
        self._open = []
        if IntervalSet.of(*((batch, batch + 1) for batch, _ in self._learned)) != own:
            raise InvariantBroken("what this replica learned is not what its commit would say", code="wrong_chain")

    # ---- handing over -------------------------------------------------------------------------------------------------------

    def ready(self, link: Link, *, path: str, size_bytes: int, lineage: IntervalSet, epoch: int) -> local_pb2.SnapshotReady:
        """What the daemon has to know about a state on disk, with the commits before it that it does not have yet."""
        standing = self._standing
        checkpoint = model_pb2.Checkpoint(
            vnode=standing.vnode,
            digest=link.state,
            size_bytes=size_bytes,
            lineage=intervals_message(lineage),
            replica=standing.peer.replica,
            pnode_id=standing.pnode_id,
            incarnation=standing.peer.incarnation,
            step=len(lineage),
            parent_digest=link.parent_state,
            commit_digest=link.digest,
            epoch=epoch,
            job_id=standing.job_id,
        )
        return local_pb2.SnapshotReady(
            replica=standing.peer.replica,
            model=standing.model,
            job_id=standing.job_id,
            path=path,
            checkpoint=checkpoint,
            commit=link.commit,
            work_digest=standing.work_digest,
            ancestors=self._hand_over(link.digest),
        )

    def _hand_over(self, until: Digest) -> list[identity_pb2.Envelope]:
        """The commits before that one which were not handed over yet; none where a later snapshot has taken them along."""
        if until not in self._not_handed:
            return []
        ancestors: list[identity_pb2.Envelope] = []
        while True:
            digest = next(iter(self._not_handed))
            commit = self._not_handed.pop(digest)
            if digest == until:
                return ancestors
            ancestors.append(commit)
