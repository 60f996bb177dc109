"""Intervals that wait since nobody may audit them: why, and what to do about it, in words for who looks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.audit_events import People, Wait
from trust.auditors import Subject, why_not
from trust.ledger import waits_for_audit
from trust.separation import Separation

ALONE_S: Final = 60.0
"""An interval for which nobody was found for so long is told of: whoever is busy, or restarts, is back by then."""
MAX_LOOKED_AT: Final = 16
"""Intervals of which it is looked for why they wait, each second: where auditors are few and busy many wait for a while."""
REMEDY: Final = (
    "start the orchestrators with --verifier; or PNodes in other subnets, with owners of their own (pnode own), "
    "which audit once ten of their intervals have passed"
)


class Missing:
    """Of one model, at the orchestrator that decides. ``tell`` hears once when the waiting begins."""

    def __init__(self, separation: Separation, tell: Callable[[str], object]) -> None:
        self._separation, self._tell = separation, tell
        self.words = ""
        """Of the interval that has waited longest: whose it is, why, and what to do; empty where none waits for that."""
        self.holds_up = ""
        """The same where a replica learns no more before it, or the job does not end."""

    def look(self, waits: Sequence[Wait], people: People, now_s: float, *, settles: bool) -> None:
        """``settles``: the job has learned everything, and ends when all is judged."""
        alone = sorted((one for one in waits if is_alone(one, now_s)), key=lambda one: one.alone_s)
        found = (_words(one, why) for one in alone[:MAX_LOOKED_AT] if (why := why_nobody(people, one, self._separation)))
        before, self.words = self.words, next(found, "")
        num_open = Counter(one.replica for one in waits)
        self.holds_up = self.words if settles or any(waits_for_audit(num_open[one.replica]) for one in alone) else ""
        if self.words and not before:
            self._tell(self.words)

    def explained(self, waits: Sequence[Wait], people: People, now_s: float) -> list[Wait]:
        """The same, with why nobody may audit them and what to do, of those that have waited for somebody for `ALONE_S`."""
        return [self._explained(one, people) if is_alone(one, now_s) else one for one in waits]

    def _explained(self, wait: Wait, people: People) -> Wait:
        why = why_nobody(people, wait, self._separation)
        return replace(wait, why=f"somebody who may audit it: {why}; {REMEDY}") if why else wait


def why_nobody(people: People, wait: Wait, separation: Separation) -> str:
    """Why none of the PNodes that are here audits that interval, the commonest reason first; empty where one may."""
    known = people.candidates.get(wait.accused)
    accused = known.party if known is not None else wait.party
    subject = Subject(wait.interval, accused, people.involved.get(wait.vnode, frozenset()))
    reasons = Counter[str]()
    for one in people.candidates.values():
        if one.party.node_id != wait.accused:
            if not (reason := why_not(one, subject, separation)):
                return ""  # who is busy with another audit has this one later
            reasons[reason] += 1
    shown = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items(), key=lambda one: (-one[1], one[0])))
    pnodes = f"no other PNode may audit it: {shown}" if shown else "no other PNode is here"
    return pnodes if people.verifiers else f"{pnodes}; and the orchestrator that decides has no verifier"


def is_alone(wait: Wait, now_s: float) -> bool:
    """Whether nobody was found to audit it for `ALONE_S`."""
    return bool(wait.alone_s) and now_s >= wait.alone_s + ALONE_S


def _words(wait: Wait, why: str) -> str:
    return f"nobody audits what {wait.replica} on {wait.accused[:8]} did: {why}; {REMEDY}"
