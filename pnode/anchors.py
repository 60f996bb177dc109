"""An anchor with the commits behind it, and what a contributor checks before it stands on one. Pure, without gRPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dcnr.errors import Corrupt, RemoteFault
from dcnr.ids import Digest, digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, vnode_pb2
from pnode.chain import MAX_COMMITS, Standing
from trust.commits import Place, VerifiedCommit, ends_with, follows, open_commit
from trust.delegation import VerifiedDelegation
from trust.envelope import digest_of_envelope
from vnode.state import StateInfo
from vnode.vocabulary import Peer, Verdict

VERDICTS = {
    vnode_pb2.MERGE_VERDICT_MERGED: Verdict.MERGED, vnode_pb2.MERGE_VERDICT_REFUSED: Verdict.REFUSED, vnode_pb2.MERGE_VERDICT_ANCHOR: Verdict.ANCHOR,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Anchor:
    """The bytes of an anchor and the commits that lead to it from a state that a manifest names, oldest first; the last one names the anchor."""

    data: bytes
    digest: Digest
    info: StateInfo
    commits: tuple[identity_pb2.Envelope, ...]

    @property
    def lineage(self) -> IntervalSet:
        """What it holds."""
        return self.info.lineage


@dataclass(frozen=True, slots=True)
class Reply:
    """What a primary sent, whole but not believed yet."""

    answer: vnode_pb2.MergeAnswer
    commits: Sequence[identity_pb2.Envelope]
    anchor: bytes


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of whom: what becomes of delta ``sequence``, or (0) the anchor."""

    standing: Standing
    primary: Peer
    worker: VerifiedDelegation
    sequence: int


def place_of(standing: Standing) -> Place:
    """What statements about this replica's VNode have to be about."""
    return Place(standing.network_id, standing.model, standing.job_id, standing.vnode)


def check_verdict(reply: Reply, question: Question) -> Verdict:
    """What a reply says of the question. Raises RemoteFault."""
    answer = reply.answer
    verdict = VERDICTS.get(answer.verdict)
    if verdict is None or answer.sequence != question.sequence or (verdict is Verdict.ANCHOR) is bool(question.sequence):
        raise RemoteFault("an answer to another question", code="bad_answer")
    if answer.primary_incarnation != question.primary.incarnation:
        raise RemoteFault("another incarnation of the primary answered", code="stale_incarnation")
    return verdict


def check_anchor(reply: Reply, question: Question, own: StateInfo, check: Callable[[bytes], StateInfo]) -> Anchor:
    """What may be believed of the anchor in a reply. Raises RemoteFault, Corrupt, Refused."""
    answer = reply.answer
    newest = _check_chain(reply.commits, place_of(question.standing))
    signed = (newest.commit.replica, newest.commit.incarnation, newest.delegation.worker_public_der)
    if signed != (question.primary.replica, question.primary.incarnation, question.worker.worker_public_der):
        raise RemoteFault("the anchor's commit is not by the primary that was asked", code="wrong_signer")
    digest = digest_of(reply.anchor)
    if not digest == answer.anchor_digest == newest.commit.anchor_digest == ends_with(newest.commit):
        raise Corrupt("the anchor is not the one that its commit names", code="wrong_digest")
    info = check(reply.anchor)
    if (info.vnode, info.model, info.graph) != (own.vnode, own.model, own.graph):
        raise RemoteFault("an anchor of another VNode, model or graph", code="bad_anchor")
    return Anchor(reply.anchor, digest, info, tuple(reply.commits))


def _check_chain(commits: Sequence[identity_pb2.Envelope], place: Place) -> VerifiedCommit:
    """The newest of commits that follow one another."""
    if not 0 < len(commits) <= MAX_COMMITS:
        raise RemoteFault(f"{len(commits)} commits behind an anchor", code="bad_answer")
    before: VerifiedCommit | None = None
    for at, envelope in enumerate(commits):
        found = open_commit(envelope, place)
        begins = before is None or (
            found.commit.parent_commit == digest_of_envelope(commits[at - 1]) and follows(found.commit, before.commit)
        )
        if not begins:
            raise RemoteFault("the commits behind an anchor do not follow one another", code="broken_chain")
        before = found
    assert before is not None
    return before
