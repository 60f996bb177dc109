"""Who audits an interval: an active PNode of another owner and subnet, drawn in secret, first the subnet, then the owner, then the node; else a verifier.

A thousand names in four subnets are thus drawn no more often than four nodes in four. Nobody audits itself, a neighbour that has a part in the interval, or an
interval twice; and of those whose words count together each is of another owner and subnet than the others. Where nobody independent is left, the verifier of
an operator does it; where there is none, the audit stays open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trust.draw import Secret
from trust.separation import Party, Separation
from trust.standing import State

_AUDITOR: Final = b"dcnr/auditor/v1\0"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A PNode that could audit."""

    party: Party
    state: State
    is_free: bool
    """Whether it takes an audit now: its own limits and what it does already."""

    def beside(self, busy: Collection[str]) -> Candidate:
        """The same where these already have an audit."""
        return replace(self, is_free=False) if self.is_free and self.party.node_id in busy else self


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be audited. ``involved``: nodes with a part in it, such as contributors whose deltas it took in."""

    interval: str
    accused: Party
    involved: frozenset[str] = frozenset()
    asked: frozenset[str] = field(default=frozenset())
    """Who was asked about it already, whatever came of it."""
    beside: tuple[Party, ...] = ()
    """Auditors that have said something about it, or are asked now: their words count together with the next one's."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The auditor, with the reason for the event."""

    node_id: str
    is_verifier: bool
    reason: str


def choose(
    secret: Secret, subject: Subject, candidates: Iterable[Candidate], verifiers: Sequence[Party], separation: Separation
) -> Choice | None:
    """The auditor of ``subject``; None: it stays open. ``verifiers``: orchestrators with that role. The order of neither matters."""
    fit = [one.party for one in candidates if not why_not(one, subject, separation)]
    if fit:
        attempt = str(len(subject.asked))

        def drawn(part: str, names: Iterable[str]) -> str:
            ranked = [(secret.number(_AUDITOR, subject.interval, attempt, part, name), name) for name in set(names)]
            return max(ranked)[1]

        if not separation.single_host:
            subnet = drawn("subnet", (one.subnet for one in fit))
            fit = [one for one in fit if one.subnet == subnet]
            owner = drawn("owner", (one.owner for one in fit))
            fit = [one for one in fit if one.owner == owner]
        return Choice(drawn("node", (one.node_id for one in fit)), False, "drawn among those that are independent")
    barred = subject.asked | subject.involved | {subject.accused.node_id}
    free = sorted(one.node_id for one in verifiers if one.node_id not in barred)
    if not free:
        return None
    return Choice(free[0], True, "no independent PNode is free")


def why_not(candidate: Candidate, subject: Subject, separation: Separation) -> str:
    """Why a PNode may not audit it; empty if it may."""
    name = candidate.party.node_id
    if candidate.state is not State.ACTIVE:
        return str(candidate.state.value)
    if together := separation.why_together(candidate.party, subject.accused):
        return together
    if any(separation.why_together(candidate.party, one) for one in subject.beside if one.node_id != name):
        return "belongs to somebody who was asked before"
    if name in subject.involved:
        return "has a part in it"
    if name in subject.asked:
        return "was asked before"
    return "" if candidate.is_free else "has no room for an audit"
