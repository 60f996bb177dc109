"""Signed statements of what was learned: commits of primaries and deltas of contributors, believed only from the worker that a PNode delegated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import dropwhile
from typing import Final

from dcnr.errors import Corrupt, InvalidInput, Refused, Stale
from dcnr.ids import Digest, ReplicaId, check_digest, check_replica_id, vnode_of
from dcnr.intervals import IntervalSet
from dcnr.limits import KIB, MAX_ENVELOPE_BYTES, MAX_OBJECT_BYTES
from dcnr.v1 import identity_pb2, model_pb2
from trust.delegation import VerifiedDelegation, open_delegation, open_past_delegation
from trust.envelope import open_single, parse

MAX_COMMIT_BYTES: Final = MAX_ENVELOPE_BYTES
MAX_DELTA_BYTES: Final = 256 * KIB
"""Of the statement with its delegation and signature; the weights travel beside it. Enough for thirty thousand batches."""
DELTA_CODECS: Final = ("raw", "int8")
MAX_BEHIND: Final = 1024
"""Where audits are in force a delta begins with what one of so many commits before the one that takes it in ends with: what is replayed up to there."""
Ground = tuple[str, ...]
"""Digests of what a delta was measured against and of what it begins with: so they are met on the way back from the commit that takes it in."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which VNode of which job a statement has to be about, and in which network."""

    network_id: str
    model: str
    job_id: str
    vnode: str


@dataclass(frozen=True, slots=True)
class VerifiedCommit:
    """A commit whose signature, delegation and place were found right."""

    commit: model_pb2.Commit
    delegation: VerifiedDelegation


@dataclass(frozen=True, slots=True)
class VerifiedDelta:
    """A delta whose signature, delegation, place and form were found right."""

    delta: model_pb2.Delta
    delegation: VerifiedDelegation
    replica: ReplicaId
    batches: IntervalSet
    digest: Digest
    """Of the encoded weights."""

    @property
    def measured(self) -> str:
        """Digest of what its displacement leads away from."""
        return measured_of(self.delta)


def open_commit(envelope: identity_pb2.Envelope, place: Place, *, now_wall: float | None = None) -> VerifiedCommit:
    """A commit about that place. ``now_wall`` None: its delegation need only have been valid when it was made.

    Raises Refused (``wrong_commit``, ``wrong_signer``, ``stale_incarnation``, ``delegation_expired``), Corrupt.
    """
    payload, signer = open_single(envelope, identity_pb2.DOMAIN_COMMIT, max_bytes=MAX_COMMIT_BYTES)
    commit = parse(model_pb2.Commit, payload, MAX_COMMIT_BYTES)
    if Place(commit.network_id, commit.model, commit.job_id, commit.vnode) != place:
        raise Refused("a commit of another network, model, job or VNode", code="wrong_commit")
    delegation = _delegation(commit.delegation, place.network_id, now_wall)
    if delegation.worker_public_der != signer.public_der:
        raise Refused("a commit that its delegated worker did not sign", code="wrong_signer")
    if commit.incarnation != delegation.incarnation:
        raise Refused("a commit of another incarnation than its delegation", code="stale_incarnation")
    return VerifiedCommit(commit, delegation)


def open_delta(envelope: identity_pb2.Envelope, place: Place) -> VerifiedDelta:
    """A delta about that place, also one that has outlived its delegation: it is brought until it is answered, and read whenever the commit that holds it is.

    Raises Refused (``wrong_job``, ``wrong_signer``, ``stale_incarnation``), Corrupt (``bad_delta``).
    """
    payload, signer = open_single(envelope, identity_pb2.DOMAIN_DELTA, max_bytes=MAX_DELTA_BYTES)
    delta = parse(model_pb2.Delta, payload, MAX_DELTA_BYTES)
    if Place(delta.network_id, delta.model, delta.job_id, delta.vnode) != place:
        raise Refused("a delta of another network, model, job or VNode", code="wrong_job")
    delegation = _delegation(delta.delegation, place.network_id, None)
    if delegation.worker_public_der != signer.public_der:
        raise Refused("a delta that its delegated worker did not sign", code="wrong_signer")
    if delta.incarnation != delegation.incarnation:
        raise Refused("a delta of another incarnation than its delegation", code="stale_incarnation")
    if delta.codec not in DELTA_CODECS or not 0 < delta.size_bytes <= MAX_OBJECT_BYTES or delta.sequence < 1:
        raise Corrupt("a delta without readable weights", code="bad_delta")
    try:
        batches = IntervalSet.of(*((number, number + 1) for number in delta.batches))
        replica, digest, _ = check_replica_id(delta.replica), check_digest(delta.digest), check_digest(delta.anchor_digest)
        for named in filter(None, (delta.measured_digest, delta.steps_digest)):
            check_digest(named)
    except InvalidInput as error:
        raise Corrupt(f"a delta with a bad name, digest or number: {error.message}", code="bad_delta") from error
    if vnode_of(replica) != delta.vnode:
        raise Corrupt("a delta of a replica for another VNode than its own", code="bad_delta")
    if not batches or len(batches) != len(delta.batches) or len(delta.losses) != len(delta.batches):
        raise Corrupt("a delta names no batch, or one twice, or not one loss for each", code="bad_delta")
    if not all(math.isfinite(loss) for loss in delta.losses):
        raise Corrupt("a delta with a loss that is not finite", code="bad_delta")
    return VerifiedDelta(delta, delegation, replica, batches, digest)


def measured_of(delta: model_pb2.Delta) -> str:
    """Digest of the anchor that a delta was measured against; software before named none, and measured against what the delta begins with."""
    return delta.measured_digest or delta.anchor_digest


def ground_of(delta: model_pb2.Delta) -> Ground:
    """What has to lie behind the commit that takes it in, the newest first. Who was measured against what lies behind its own beginning would hand in again
    what others learned in between, and each replay of its steps would pass.
    """
    return measured_of(delta), delta.anchor_digest


def unmet(grounds: Iterable[Ground], *ends: str) -> frozenset[Ground]:
    """What is left of them where the way back leads over these states or anchors, in this order."""
    left = frozenset(grounds)
    for end in ends:
        left = frozenset(tuple(dropwhile(end.__eq__, ground)) for ground in left)
    return left - {()}


def follows(commit: model_pb2.Commit, parent: model_pb2.Commit) -> bool:
    """Whether a commit begins where its parent ended, and has a higher number if one incarnation of a replica made both. Commits of software that numbered
    none have 0.
    """
    begins = bool(commit.parent_digest) and commit.parent_digest == ends_with(parent)
    of_one_life = (commit.replica, commit.incarnation) == (parent.replica, parent.incarnation)
    grows = commit.sequence > parent.sequence or parent.sequence == 0
    return begins and (grows or not of_one_life)


def ends_with(commit: model_pb2.Commit) -> str:
    """Digest of the state, or else the anchor, that a commit ends with: what is replayed up to there. An anchor beside a state is bound to nothing, so nothing
    begins with it.
    """
    return commit.state_digest or commit.anchor_digest


def begins_interval(found: VerifiedCommit, before: VerifiedCommit | None) -> bool:
    """Whether an interval begins with a commit, given the one that it names as its parent: after a state, after what another life signed, and with the first
    of all. Behind an anchor of its own life a commit belongs to the interval of that.
    """
    return before is None or bool(before.commit.state_digest) or _life(found) != _life(before)


def _life(found: VerifiedCommit) -> tuple[str, int, str]:
    return found.commit.replica, int(found.commit.incarnation), found.delegation.pnode_id


def _delegation(envelope: identity_pb2.Envelope, network_id: str, now_wall: float | None) -> VerifiedDelegation:
    """Valid now, or (None) when it began: then only that it has ended since does not count."""
    try:
        if now_wall is None:
            return open_past_delegation(envelope, network_id=network_id)
        return open_delegation(envelope, network_id=network_id, now_wall=now_wall)
    except Stale as error:
        raise Refused(error.message, code="delegation_expired") from error
