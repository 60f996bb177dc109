"""How much has to be found of an open interval before it counts, and what is worth waiting for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.audit_case import GIVE_UP_S, Case
from orchestrator.audit_events import People
from trust.draw import LAST_AUDITORS, is_last


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one interval, now."""

    waits: bool
    """Whether a verifier is worth waiting for."""
    auditors: int
    """That must find nothing, unless the verifier does: two of what a job ends with."""
    executions: int
    """That must find nothing, the verifier's among them: what its graph asks for, less the replica's own."""
    gives_up: bool
    """Whether no verifier has looked for so long that two who cannot verify are believed."""


def needs_of(case: Case, people: People, now_s: float) -> Needs:
    """What follows from who is here, and for how long the case waits."""
    waits = bool(people.verifiers) and not (case.word_s and now_s >= case.word_s + GIVE_UP_S)
    ends = waits and is_last(case.interval.batches, case.num_held, people.num_batches)
    executions = people.redundancy.get(case.interval.vnode, 1) - 1
    return Needs(waits, LAST_AUDITORS if ends else 1, executions, bool(case.blind_s) and now_s >= case.blind_s + GIVE_UP_S)
