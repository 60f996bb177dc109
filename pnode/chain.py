"""The signed chain of one replica: every state that it hands over names its parent and, in order, each batch learned in between with its loss. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.frames import intervals_message
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from vnode.events import Peer


@dataclass(frozen=True, slots=True)
class Standing:
    """What stays the same in all commits of a replica."""

    network_id: str
    model: str
    job_id: str
    vnode: str
    peer: Peer
    pnode_id: str


@dataclass(frozen=True, slots=True)
class Link:
    """One commit made: what it took in, so that it can be taken back while nobody has seen it."""

    batches: tuple[int, ...]
    losses: tuple[float, ...]
    parent_state: str
    parent_commit: str
    state: str
    commit: identity_pb2.Envelope


class CommitChain:
    """Begins at the restored state. ``delegation()`` is the newest one of this worker."""

    def __init__(
        self, standing: Standing, key: NodeKey, delegation: Callable[[], identity_pb2.Envelope], state: str, commit: str
    ) -> None:
        self._standing, self._key, self._delegation = standing, key, delegation
        self._state, self._commit = state, commit
        self._batches: list[int] = []
        self._losses: list[float] = []

    @property
    def state_digest(self) -> str:
        """The state from which learning goes on: parent of the next one."""
        return self._state

    def learned(self, batch: int, loss: float) -> None:
        """One more batch."""
        self._batches.append(batch)
        self._losses.append(loss)

    def close(self, state: str) -> Link:
        """The commit of a new state. Raises nothing: what it states has happened."""
        standing = self._standing
        commit = model_pb2.Commit(
            network_id=standing.network_id,
            model=standing.model,
            job_id=standing.job_id,
            vnode=standing.vnode,
            replica=standing.peer.replica,
            incarnation=standing.peer.incarnation,
            parent_digest=self._state,
            state_digest=state,
            batches=self._batches,
            losses=self._losses,
            parent_commit=self._commit,
            delegation=self._delegation(),
        )
        envelope = seal(identity_pb2.DOMAIN_COMMIT, commit, self._key)
        link = Link(tuple(self._batches), tuple(self._losses), self._state, self._commit, state, envelope)
        self._state, self._commit = state, digest_of_envelope(envelope)
        self._batches, self._losses = [], []
        return link

    def take_back(self, link: Link) -> None:
        """The newest state could not be kept: its batches belong to the next commit."""
        if self._state == link.state:
            self._state, self._commit = link.parent_state, link.parent_commit
            self._batches[:0] = link.batches
            self._losses[:0] = link.losses

    def ready(self, link: Link, *, path: str, size_bytes: int, lineage: IntervalSet, epoch: int) -> local_pb2.SnapshotReady:
        """What the daemon has to know about a state on disk."""
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
            commit_digest=digest_of_envelope(link.commit),
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
        )
