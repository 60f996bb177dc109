"""Merges of the control world: anchors with the commits behind them, signed deltas measured against them, and the primary's real judgement of those.

An exchange takes no time here, but its answer may be lost: then the delta stays open and is brought again. Who calls is not modelled: what a delta says
has to follow from its signature and its delegation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcnr.errors import DcnrError, Refused
from dcnr.ids import Digest, ReplicaId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2
from pnode.anchors import place_of
from trust.commits import VerifiedDelta, open_delta
from vnode.contributing import LATE
from vnode.merge_events import CaptureAnchor, MergeAsked, MergeDeltas
from vnode.vocabulary import Peer, Verdict

if TYPE_CHECKING:
    from simulation.control_pnode import PNodeShell
    from simulation.control_replica import Replica


_NONE = IntervalSet.empty()


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a primary's state held at a moment between two steps, and the commits that lead there."""

    digest: str
    lineage: IntervalSet
    commits: tuple[identity_pb2.Envelope, ...]
    kept: IntervalSet
    """Of the newest state among them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A primary's answer."""

    verdict: Verdict
    anchor: Anchor


@dataclass(slots=True)
class Desk:
    """What a primary keeps between two questions."""

    num_asked: int = 0
    anchor: Anchor | None = None


@dataclass(slots=True)
class Owed:
    """A contributor's side: at most one delta is open, and is brought until it is answered. What was merged is kept until an anchor shows it."""

    sequence: int = 0
    batches: IntervalSet = _NONE
    delta: identity_pb2.Envelope | None = None
    primary: Peer | None = None
    """Whose anchor it was measured against."""
    is_merged: bool = False

    def hand_in(self, replica: Replica, batches: IntervalSet, anchor: Anchor, primary: Peer) -> None:
        """How far the replica is from that anchor, having learned those batches; or how far it came, where the others learned much more."""
        self.sequence += 1
        weights = f"{replica.replica} {replica.incarnation} {self.sequence}".encode()
        self.batches, self.primary, self.is_merged = batches, primary, False
        is_late = len(anchor.lineage - replica.anchor) > LATE * max(2, len(replica.shares)) * len(batches)
        self.delta = replica.chain.delta(
            self.sequence, "raw", Digest(digest_of(weights)), len(weights), anchor=anchor.digest, commits=anchor.commits, steps=replica.steps,
            is_late=is_late,
        )  # fmt: skip

    def settled(self) -> None:
        """It is in the anchor or nowhere."""
        self.batches, self.delta, self.primary, self.is_merged = _NONE, None, None, False


def exchange(replica: Replica, pnode: PNodeShell, primary: Replica, *, is_heard: bool) -> bool:
    """A call of a contributor or standby to ``primary`` on ``pnode`` for its anchor, and one that brings what was measured against it; ``is_heard``: whether
    the answer to the last one is. True if all was answered.
    """
    owed, asked = replica.owed, Peer(ReplicaId(primary.replica), primary.incarnation)
    asker = Peer(ReplicaId(replica.replica), replica.incarnation)
    if owed.delta is None or owed.is_merged or owed.primary != asked:
        reply = answer(pnode, primary, asker, None)
        if reply is None or not (is_heard or replica.fresh):
            return False
        replica.stand(reply.anchor, asked)
    if owed.delta is None:
        return True
    reply = answer(pnode, primary, asker, owed.delta)
    if reply is None or not is_heard:
        return False
    replica.judged(reply.verdict)
    return True


def answer(pnode: PNodeShell, primary: Replica, asker: Peer, envelope: identity_pb2.Envelope | None) -> Reply | None:
    """What ``primary`` on ``pnode`` says to a sibling that brings a delta, or asks for the anchor alone; None where it says nothing."""
    merging, desk = primary.merging, primary.desk
    merging.plan(primary.shares)
    delta: VerifiedDelta | None = None
    if envelope is not None:
        try:
            delta = _opened(primary, asker, envelope)
        except DcnrError:
            primary.num_refused += 1
            return None
    desk.num_asked += 1
    sequence, batches = (int(delta.delta.sequence), delta.batches) if delta is not None else (None, _NONE)
    since = primary.chain.between(delta.delta.anchor_digest, delta.measured) if delta is not None and primary.steps else 0
    if merging.asked(MergeAsked(pnode.loop.time(), desk.num_asked, asker, sequence, batches, envelope, since is None, since or 0)):
        return None
    match merging.computation(primary.lineage):
        case MergeDeltas() as work:
            assert envelope is not None
            pnode.world.checkers.merges(primary, batches)
            primary.take_in(envelope, work.lineage)
            desk.anchor = _anchor(pnode, primary)
            merging.merged(work)
        case CaptureAnchor() as work:
            desk.anchor = _anchor(pnode, primary)
            merging.captured(work)
    found = merging.answers(primary.lineage)
    primary.num_refused += sum(one.verdict is Verdict.REFUSED for one in found)
    return Reply(found[0].verdict, desk.anchor) if found and desk.anchor is not None else None


def _opened(primary: Replica, asker: Peer, envelope: identity_pb2.Envelope) -> VerifiedDelta:
    """As `pnode.merge_desk` checks what a sibling brings. Raises Refused, Corrupt."""
    found = open_delta(envelope, place_of(primary.standing))
    planned = any(one.replica == found.replica and one.pnode_id == found.delegation.pnode_id for one in primary.siblings)
    if not planned or (found.replica, found.delta.incarnation) != (asker.replica, asker.incarnation):
        raise Refused("a delta of another replica, PNode or incarnation", code="unknown_replica")
    return found


def _anchor(pnode: PNodeShell, primary: Replica) -> Anchor:
    """A commit closes with every anchor."""
    digest = digest_of(f"{primary.replica} {primary.incarnation} {primary.desk.num_asked} {primary.lineage}".encode())
    link = primary.chain.close(anchor=digest, steps=primary.steps)
    pnode.world.checkers.made(primary, digest, link.parent_state)
    return Anchor(digest, primary.lineage, primary.chain.commits, primary.kept)
