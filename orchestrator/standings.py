"""Where every PNode stands with this orchestrator: folded from the verdicts in the chains of its models, the evidence that it has verified itself, and
what it alone saw. One per process.

The chain can be read by everybody, so a standing is lost with no process; what this orchestrator alone saw (lies of auditors to it, units) follows from what it
keeps for its successors (`orchestrator.audit_memory`), as far as signed reports show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from dcnr.v1 import orchestrator_pb2
from orchestrator.audit_events import Doubt
from orchestrator.silence import Judgement
from trust.folding import Proof, Told, standing_of
from trust.ledger import Verdict
from trust.standing import (
    ORDINARY,
    Doubted,
    Equivocated,
    Event,
    Faulted,
    ShadowFailed,
    ShadowPassed,
    Standing,
    State,
    Terms,
    Waited,
    after,
    begun,
)

MAX_OWN: Final = 64
"""Events kept of one PNode that no chain tells: so many right units, of which none older than the last fault says anything, and so many others, of which far
fewer make the longest quarantine. A ban stays.
"""
STATES: Final[Mapping[State, orchestrator_pb2.NodeState.ValueType]] = {
    State.PROBATION: orchestrator_pb2.NODE_STATE_PROBATION,
    State.ACTIVE: orchestrator_pb2.NODE_STATE_ACTIVE,
    State.SUSPECT: orchestrator_pb2.NODE_STATE_SUSPECT,
    State.QUARANTINED: orchestrator_pb2.NODE_STATE_QUARANTINED,
    State.REHAB: orchestrator_pb2.NODE_STATE_REHAB,
    State.BANNED: orchestrator_pb2.NODE_STATE_QUARANTINED,
}


class Standings:
    """Pure, but for what it remembers and the clock. Times are seconds of network time; ``now``: of this reader. Nothing happened later than it was heard."""

    def __init__(self, terms: Terms = ORDINARY, now: Callable[[], float] = lambda: math.inf) -> None:
        self._terms, self._now = terms, now
        self._told: dict[str, tuple[Told, ...]] = {}
        self._doubts: dict[str, tuple[Doubt, ...]] = {}
        self._own: dict[str, dict[Event, Event]] = {}
        """What this orchestrator alone saw of a PNode, as it was told, and as it was heard: no later than that."""
        self._banned: set[str] = set()
        self._verified: set[Proof] = set()
        self._shown_by: dict[str, str] = {}
        """By evidence: the bundle that it names."""
        self._of_two_stories: set[str] = set()
        """Evidence of nothing but two signed statements about one step."""
        self._refuted: set[Proof] = set()
        self._by_node: dict[str, dict[str, list[Told]]] = {}
        """What is told of a PNode, by model."""
        self._folded: dict[str, Standing] = {}

    def chain(self, model: str, told: tuple[Told, ...]) -> None:
        """Every verdict that the chain of a model tells, in order. A chain that has grown costs what concerns the PNodes of its news."""
        before = self._told.get(model, ())
        if told == before:
            return
        self._told[model] = told
        if told[: len(before)] == before:
            news = {model: told[len(before) :]}
        else:
            self._by_node.clear()
            news = self._told
            self._folded.clear()
        now_s = self._now()
        for name, some in news.items():
            for one in some:
                self._by_node.setdefault(one.pnode_id, {}).setdefault(name, []).append(one.heard(now_s))
        self._fold({one.pnode_id for some in news.values() for one in some} | ({*self._own} if not self._folded else set()))

    def doubted(self, model: str, doubts: Iterable[Doubt]) -> None:
        """What is under doubt at this orchestrator's desk now."""
        found = tuple(doubts)
        before = self._doubts.get(model, ())
        if before != found:
            self._doubts[model] = found
            self._fold({one.accused for one in (*before, *found)})

    def verified(self, proof: Proof, bundle: str = "") -> None:
        """This process has verified itself that the record convicts that PNode of that interval. Nobody else is convicted by it. ``bundle``: the one that the
        record names.
        """
        self._shown_by[proof[0]] = bundle
        if proof not in self._verified:
            self._verified.add(proof)
            self._fold({proof[1]})

    def has_seen_wrong(self, proof: Proof) -> bool:
        """Whether this process has verified that a computation is wrong: two signed statements say nothing of what either is about."""
        return proof in self._verified and proof[0] not in self._of_two_stories

    def bundle_of(self, evidence: str) -> str:
        """The bundle that a verified fault record names; empty where that is not known."""
        return self._shown_by.get(evidence, "")

    def refuted(self, proof: Proof) -> None:
        """The record does not prove that: whoever decided by it, it moves that PNode nowhere here."""
        self._refuted.add(proof)

    def equivocated(self, pnode_id: str, evidence: str, now_s: float) -> bool:
        """Two signed statements about one step, verified here; whether that is news. What manifests tell of intervals by that evidence is looked at apart."""
        self._of_two_stories.add(evidence)
        if pnode_id in self._banned:
            return False
        self._banned.add(pnode_id)
        self._saw(pnode_id, Equivocated(now_s, evidence))
        return True

    def lied(self, auditor: str, evidence: str, reason: str, at_s: float) -> None:
        """An auditor's word did not hold: the same as a wrong computation, and one offence however often it is found. ``evidence``: its signed report."""
        known = (event.evidence for event in self._own.get(auditor, ()) if isinstance(event, Faulted))
        if not evidence or evidence not in known:
            self._saw(auditor, Faulted(at_s, at_s, evidence, reason))

    def shadowed(self, pnode_id: str, evidence: str, now_s: float, *, is_right: bool) -> None:
        """A unit in rehab was right or wrong."""
        self._saw(pnode_id, ShadowPassed(now_s) if is_right else ShadowFailed(now_s, evidence))

    def unverified(self) -> list[tuple[str, Told]]:
        """(model, verdict) of failures that manifests tell, whose evidence this process has not looked at yet."""
        seen = self._verified | self._refuted
        return [
            (model, one)
            for model, told in sorted(self._told.items())
            for one in told
            if one.verdict is Verdict.FAILED and one.proof not in seen
        ]

    def of(self, pnode_id: str, now_s: float) -> Standing:
        """Where a PNode stands now; one that no chain names has just begun."""
        found = self._folded.get(pnode_id)
        return after(found, Waited(now_s)) if found is not None else begun(now_s, self._terms)

    def known(self) -> frozenset[str]:
        """PNodes about which anything is known."""
        return frozenset(self._folded)

    def found_out_s(self, oldest_s: float) -> dict[str, float]:
        """Of PNodes that were put into quarantine later than that: until when what they did is suspect."""
        return {name: one.suspect_until_s for name, one in self._folded.items() if one.clean_from_s > oldest_s}

    def _saw(self, pnode_id: str, event: Event) -> None:
        known, now_s = self._own.setdefault(pnode_id, {}), self._now()
        if event not in known:
            known[event] = event if event.at_s <= now_s else replace(event, at_s=now_s)
            alike = [one for one in known if not isinstance(one, Equivocated) and _is_right(one) == _is_right(event)]
            for old in alike[: -max(MAX_OWN, self._terms.shadow_units)]:
                del known[old]
            self._fold({pnode_id})

    def _fold(self, names: Iterable[str]) -> None:
        """Of these PNodes; of one about which nothing is known any more, nothing is kept."""
        for pnode_id in names:
            own = list(self._own.get(pnode_id, {}).values())
            doubts = (one for model in sorted(self._doubts) for one in self._doubts[model] if one.accused == pnode_id)
            own += [Doubted(one.at_s, one.interval, one.auditor) for one in doubts]
            told = self._by_node.get(pnode_id, {})
            if told or own:
                chains = [told[model] for model in sorted(told)]
                self._folded[pnode_id] = standing_of(chains, self._verified, own, self._terms, now_s=self._now())
            else:
                self._folded.pop(pnode_id, None)


def _is_right(event: Event) -> bool:
    return isinstance(event, ShadowPassed)


def judgement_of(standing: Standing) -> Judgement:
    """A standing as everybody is told."""
    banned = "its key is banned: " if standing.state is State.BANNED else ""
    return Judgement(STATES[standing.state], banned + standing.reason, standing.evidence)
