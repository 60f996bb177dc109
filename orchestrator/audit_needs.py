"""How much has to be found of an open interval before it counts, and what is worth waiting for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.audit_case import BLIND_S, GIVE_UP_S, Case, weighed
from orchestrator.audit_events import Decision, People
from trust.draw import LAST_AUDITORS, is_last


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one interval, now."""

    people: People
    """Who counts as here: no verifier where none comes to an end with it."""
    waits: bool
    """Whether a verifier is worth waiting for."""
    auditors: int
    """That must find nothing, unless the verifier does: two of what a job ends with."""
    executions: int
    """That must find nothing, the verifier's among them: what its graph asks for, less the replica's own."""
    gives_up: bool
    """Whether no verifier has looked for so long that two who cannot verify are believed."""
    is_blind: bool
    """Whether none will."""

    def weigh(self, case: Case) -> Decision | tuple[int, bool]:
        """The decision, or how many auditors have to be at work and whether only own eyes will do."""
        return weighed(
            case, can_look=bool(self.people.verifiers), wanted=self.auditors, executions=self.executions, gives_up=self.gives_up,
            is_blind=self.is_blind,
        )  # fmt: skip


def needs_of(case: Case, people: People, now_s: float) -> Needs:
    """What follows from who is here, and for how long the case waits."""
    is_blind = bool(case.blind_s) and now_s >= case.blind_s + BLIND_S
    people = replace(people, verifiers=()) if is_blind else people
    waits = bool(people.verifiers) and not (case.word_s and now_s >= case.word_s + GIVE_UP_S)
    ends = waits and is_last(case.interval.batches, case.num_held, people.num_batches)
    executions = people.redundancy.get(case.interval.vnode, 1) - 1
    gives_up = bool(case.blind_s) and now_s >= case.blind_s + GIVE_UP_S
    return Needs(people, waits, LAST_AUDITORS if ends else 1, executions, gives_up, is_blind)
