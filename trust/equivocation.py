"""Two signed commits for one place in a chain prove themselves: who signed both is banned, and nobody's word is needed. Pure.

The number of a commit grows over a replica's whole incarnation, so an honest worker signs each number once, however often it is given the replica anew. What is
compared is what was stated. The same statement signed twice, or under a renewed delegation, is no equivocation.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.errors import Refused
from dcnr.ids import Digest, NodeId
from dcnr.v1 import identity_pb2, model_pb2
from trust.commits import Place, VerifiedCommit, open_commit
from trust.envelope import digest_of_envelope


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Proof that a PNode told two stories about one place."""

    pnode_id: NodeId
    replica: str
    incarnation: int
    sequence: int
    statements: tuple[Digest, Digest]
    """Digests of the two envelopes, sorted, so that one proof has one form."""


def equivocation_of(one: identity_pb2.Envelope, other: identity_pb2.Envelope, place: Place) -> Equivocation:
    """What the two commits prove. Raises Refused (``no_equivocation``) if nothing, and what `trust.commits.open_commit` raises."""
    first, second = open_commit(one, place), open_commit(other, place)
    where = _where(first)
    if where != _where(second):
        raise Refused("two commits for different places in a chain", code="no_equivocation")
    if not first.commit.sequence:
        raise Refused("commits that are not numbered", code="no_equivocation")
    if _stated(first.commit) == _stated(second.commit):
        raise Refused("both commits state the same", code="no_equivocation")
    digests = sorted((digest_of_envelope(one), digest_of_envelope(other)))
    return Equivocation(first.delegation.pnode_id, *where[1:], (digests[0], digests[1]))


def _where(found: VerifiedCommit) -> tuple[NodeId, str, int, int]:
    commit = found.commit
    return found.delegation.pnode_id, commit.replica, int(commit.incarnation), int(commit.sequence)


def _stated(commit: model_pb2.Commit) -> bytes:
    """Everything but the delegation, which is renewed while the worker lives."""
    copy = model_pb2.Commit()
    copy.CopyFrom(commit)
    copy.ClearField("delegation")
    return copy.SerializeToString(deterministic=True)
