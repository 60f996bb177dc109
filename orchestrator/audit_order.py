"""Which auditor is asked next about an open interval. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orchestrator.audit_case import Case
from orchestrator.audit_events import People
from trust.auditors import Choice, Subject, choose
from trust.draw import Secret
from trust.separation import Party, Separation
from trust.standing import State


def chosen(
    case: Case, people: People, busy: Collection[str], secret: Secret, separation: Separation, *, own_eyes: bool, waits: bool
) -> Choice | None:
    """Somebody independent of the accused and of whoever has a say beside it, else a verifier; of the accused alone where none is worth waiting for.

    ``busy``: who has an audit already. ``own_eyes``: a verifier only. ``waits``: whether one is worth waiting for.
    """
    one = case.interval
    verifiers = [party for party in people.verifiers if party.node_id not in busy]
    accused = known.party if (known := people.candidates.get(one.pnode_id)) is not None else Party(one.pnode_id)
    subject = Subject(one.name, accused, people.involved.get(one.vnode, frozenset()), frozenset(case.asked))
    free = () if own_eyes else [item.beside(busy) for item in people.candidates.values() if item.state is State.ACTIVE]
    beside = replace(subject, beside=case.beside(people.candidates))
    choice = choose(secret, beside, free, verifiers if waits else (), separation)
    if choice is None and not (waits and any(party.node_id not in case.asked for party in people.verifiers)):
        choice = choose(secret, subject, free, verifiers, separation)
    return choice
