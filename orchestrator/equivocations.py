"""Commits that PNodes bring with their checkpoints, remembered by their numbers: two different ones of one number prove an equivocation. Pure.

Memory is bounded: an equivocation is found where both commits come to one holder within the memory of its term, or where evidence of it is brought. So is what
one PNode has written down about itself.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dcnr import limits
from dcnr.errors import DcnrError
from dcnr.ids import Digest
from dcnr.v1 import identity_pb2, model_pb2
from trust.commits import Place, open_commit
from trust.equivocation import Equivocation, equivocation_of

MAX_BYTES: Final = 64 * limits.MIB
"""Of commits remembered; the oldest go first."""
MAX_PROOFS: Final = 4
"""Told of one PNode: the first bans its key, and whatever else it did is audited for that."""
Key = tuple[str, str, str, int, int]
"""PNode, job, replica, incarnation, number."""


class Equivocations:
    """One per model."""

    def __init__(self, network_id: str, model: str) -> None:
        self._network_id, self._model = network_id, model
        self._seen: OrderedDict[Key, identity_pb2.Envelope] = OrderedDict()
        self._num_bytes = 0
        self._proofs: dict[str, set[tuple[Digest, Digest]]] = {}
        """By PNode: pairs of statements that were told."""

    def brought(self, checkpoint: model_pb2.Checkpoint, envelope: identity_pb2.Envelope) -> tuple[Equivocation, bytes] | None:
        """What the commit behind a checkpoint proves together with one seen before, and the fault record of it.

        None in all other cases, also for a commit that does not hold, or that another PNode or replica made.
        """
        place = Place(self._network_id, self._model, checkpoint.job_id, checkpoint.vnode)
        try:
            found = open_commit(envelope, place)
        except DcnrError:
            return None  # whoever judges the checkpoint refuses it with the reason
        commit, pnode_id = found.commit, str(found.delegation.pnode_id)
        if (pnode_id, commit.replica) != (checkpoint.pnode_id, checkpoint.replica):
            return None
        key = (pnode_id, place.job_id, commit.replica, int(commit.incarnation), int(commit.sequence))
        before = self._seen.get(key)
        if before is None:
            self._seen[key] = envelope
            self._num_bytes += envelope.ByteSize()
            while self._num_bytes > MAX_BYTES:
                self._num_bytes -= self._seen.popitem(last=False)[1].ByteSize()
            return None
        try:
            proof = equivocation_of(before, envelope, place)
        except DcnrError:
            return None
        told = self._proofs.setdefault(pnode_id, set())
        if proof.statements not in told and len(told) >= MAX_PROOFS:
            return None
        told.add(proof.statements)
        record = model_pb2.FaultRecord(
            kind=model_pb2.FAULT_KIND_EQUIVOCATION, network_id=self._network_id, model=self._model, job_id=place.job_id,
            vnode=place.vnode, statements=[before, envelope],
        )  # fmt: skip
        return proof, record.SerializeToString(deterministic=True)
