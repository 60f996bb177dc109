"""Decides whom this PNode obeys: only terms that the head itself names, only desired states of that term, only newer ones. Pure.

Rules 4-7 of the control plane: an equal epoch with another holder is refused; no claimed epoch is stored before it is confirmed; a lower epoch that is
read is only "not yet"; confirmation comes from an own GET of exactly the head object or from a second listed orchestrator's fresh statement, and where
the network lists a single orchestrator, from a head signed by it. Envelopes are opened by the caller (`trust`); what arrives here is verified content
with the node id that signed it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto

from dcnr.errors import Refused
from dcnr.ids import NodeId
from dcnr.v1 import model_pb2
from trust.network import NetworkPolicy


@dataclass(frozen=True, slots=True)
class Term:
    """(epoch, holder): the pair that decides."""

    epoch: int
    holder: NodeId


class Source(Enum):
    """Where the bytes of a head came from."""

    OWN_GET = auto()
    """Read by this PNode through its grant for exactly the head object."""
    SECOND_STATEMENT = auto()
    """A listed orchestrator's signed answer to our nonce, other than the claimant's own word."""
    ORCHESTRATOR = auto()
    """Told by an orchestrator: worth nothing by itself, unless only one is listed."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Persist, then act: this desired state is the newest of the confirmed term."""

    desired: model_pb2.DesiredState


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A higher epoch is claimed: read the head (or ask a second orchestrator) before anything is done. The claim waits."""

    model: str
    claimed: Term


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nothing is done, and why (``stale`` is normal, the rest is an event)."""

    code: str
    reason: str


Verdict = Accepted | Unconfirmed | Ignored


def check_asked(
    asked: model_pb2.AuditTask | model_pb2.Challenge, signer: NodeId, *, node_id: NodeId, policy: NetworkPolicy, term: Term | None
) -> None:
    """Raises Refused (``not_for_me``, ``not_the_holder``) unless the holder of the confirmed head, which is in ``term``, asks this PNode."""
    if asked.network_id != policy.network_id or asked.pnode_id != node_id:
        raise Refused("it asks somebody else", code="not_for_me")
    if not policy.is_orchestrator(signer) or term is None or term != Term(int(asked.epoch), signer):
        raise Refused("the holder of the head has not signed it", code="not_the_holder")


class Authority:
    """The newest confirmed term and desired state of one model, as this PNode believes. ``orchestrators``: who is listed at the moment."""

    def __init__(
        self, *, network_id: str, pnode_id: NodeId, model: str, orchestrators: Callable[[], Collection[str]],
        term: Term | None = None, head: model_pb2.Head | None = None,
    ) -> None:  # fmt: skip
        self._network_id, self._pnode_id, self._model = network_id, pnode_id, model
        self._orchestrators = orchestrators
        self.term = term
        self.newest: tuple[int, int] = (0, 0)
        """Epoch and sequence of the desired state that is in force. In a store that went back a later term may have lower sequences than the one before."""
        self.head = head
        self._pending: dict[NodeId, model_pb2.DesiredState] = {}

    def offered(self, desired: model_pb2.DesiredState, signer: NodeId) -> Verdict:
        """Judges a desired state whose signature by ``signer`` is verified."""
        if desired.network_id != self._network_id or desired.pnode_id != self._pnode_id or desired.model != self._model:
            return Ignored("not_for_me", f"the desired state is for {desired.pnode_id or 'nobody'} in network {desired.network_id}")
        if signer not in self._orchestrators():
            return Ignored("unlisted_orchestrator", f"{signer} is not listed in the network document")
        if signer != desired.holder:
            return Ignored("not_the_holder", f"signed by {signer} in the name of {desired.holder}")
        claimed = Term(int(desired.epoch), NodeId(desired.holder))
        if self.term is None or claimed.epoch > self.term.epoch:
            waiting = self._pending.get(signer)
            if waiting is None or (waiting.epoch, waiting.sequence) <= (desired.epoch, desired.sequence):
                self._pending[signer] = desired
            return Unconfirmed(self._model, claimed)
        if claimed.epoch < self.term.epoch:
            return Ignored("stale", f"epoch {claimed.epoch} is over, {self.term.epoch} is in force")
        if claimed.holder != self.term.holder:
            return Ignored("second_holder", f"epoch {claimed.epoch} belongs to {self.term.holder}, not to {claimed.holder}")
        return self._newer(desired)

    def head_read(self, head: model_pb2.Head, signer: NodeId, source: Source) -> list[Verdict]:
        """Takes in a head whose signature by ``signer`` is verified; answers for the desired states that waited for it."""
        if head.network_id != self._network_id or head.model != self._model:
            return [Ignored("not_for_me", "the head belongs to another network or model")]
        if signer not in self._orchestrators() or signer != head.holder:
            return [Ignored("unlisted_orchestrator", f"the head is signed by {signer} and names {head.holder}")]
        if source is Source.ORCHESTRATOR and len(self._orchestrators()) > 1:
            return [Ignored("unconfirmed", "an orchestrator's word on the head does not confirm it")]
        term = Term(int(head.epoch), signer)
        if self.term is not None:
            if term.epoch < self.term.epoch:
                return [Ignored("not_yet", f"the head read names epoch {term.epoch}, {self.term.epoch} is known")]
            if term.epoch == self.term.epoch and term.holder != self.term.holder:
                return [Ignored("second_holder", f"epoch {term.epoch} belongs to {self.term.holder}, not to {term.holder}")]
        if self.head is None or place_of(head) > place_of(self.head):
            self.head = head
        self.term = term
        waiting, self._pending = self._pending, {}
        verdicts: list[Verdict] = []
        for claimant in sorted(waiting):
            desired = waiting[claimant]
            if int(desired.epoch) > term.epoch:
                self._pending[claimant] = desired
                verdicts.append(Ignored("not_yet", f"the head names epoch {term.epoch}, the claim is {desired.epoch}"))
            else:
                verdicts.append(self.offered(desired, claimant))
        return verdicts

    def applied(self, desired: model_pb2.DesiredState) -> None:
        """The desired state was persisted: older ones are stale from now on."""
        self.newest = max(self.newest, place_of(desired))

    @property
    def unconfirmed(self) -> tuple[Term, ...]:
        """Claims that wait for a head, at most one per listed orchestrator."""
        return tuple(Term(int(self._pending[key].epoch), key) for key in sorted(self._pending))

    def _newer(self, desired: model_pb2.DesiredState) -> Verdict:
        if place_of(desired) <= self.newest:
            return Ignored(
                "stale", f"epoch {desired.epoch}, sequence {desired.sequence} is not above {self.newest[0]}, {self.newest[1]}"
            )
        return Accepted(desired)


def place_of(one: model_pb2.Head | model_pb2.DesiredState) -> tuple[int, int]:
    """In which order heads, and desired states, of confirmed terms count."""
    return int(one.epoch), int(one.sequence)
