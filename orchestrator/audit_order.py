"""Which open interval is looked at next, and by whom. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest

from orchestrator.audit_case import Case
from orchestrator.audit_events import People
from trust.auditors import Choice, Subject, choose, why_not
from trust.draw import Secret, Task, task_of
from trust.separation import Separation
from trust.standing import State


def in_turns(cases: Iterable[Case], served: Mapping[str, int]) -> list[Case]:
    """One of each PNode after the other, of each the oldest first: whoever has many open keeps nobody waiting who has few. ``cases``: the oldest first.

    ``served``: when an audit of theirs was last given to somebody, by PNode, as a number that grows; whoever waits longest comes first.
    """
    of_each: dict[str, list[Case]] = {}
    for case in cases:
        of_each.setdefault(case.interval.pnode_id, []).append(case)
    rows = sorted(of_each.items(), key=lambda item: served.get(item[0], 0))
    return [case for turn in zip_longest(*(row for _, row in rows)) for case in turn if case is not None]


def chosen(
    case: Case, people: People, busy: Collection[str], secret: Secret, separation: Separation, *, last: Collection[str], own_eyes: bool,
    waits: bool,
) -> Choice | None:  # fmt: skip
    """Somebody independent of the accused and of whoever has a say beside it, else a verifier; of the accused alone where none is worth waiting for.

    ``busy``: who has an audit already. ``last``: who is asked only where none of the others can be. ``own_eyes``: a verifier only. ``waits``: whether one is
    worth waiting for.
    """
    one = case.interval
    verifiers = [party for party in people.verifiers if party.node_id not in busy]
    accused = known.party if (known := people.candidates.get(one.pnode_id)) is not None else case.accused
    subject = Subject(one.name, accused, people.involved.get(one.vnode, frozenset()), frozenset(case.asked))
    free = [] if own_eyes else [item.beside(busy) for item in people.candidates.values() if item.state is State.ACTIVE]
    beside = replace(subject, beside=case.beside(people.candidates))
    for some in [[item.beside(last) for item in free], free] if last else [free]:
        if (choice := choose(secret, beside, some, verifiers if waits else (), separation)) is not None:
            return choice
    if waits and any(party.node_id not in case.asked for party in people.verifiers):
        return None
    return choose(secret, subject, free, verifiers, separation)


def is_sole(case: Case, people: People, separation: Separation) -> bool:
    """Whether no PNode is here that has said nothing of it yet and may audit it, as soon as it is free."""
    one = case.interval
    accused = known.party if (known := people.candidates.get(one.pnode_id)) is not None else case.accused
    subject = Subject(one.name, accused, people.involved.get(one.vnode, frozenset()), frozenset(case.words))
    return all(why_not(replace(item, is_free=True), subject, separation) for item in people.candidates.values())


def is_repeated(secret: Secret, case: Case, choice: Choice, num_passes: int) -> bool:
    """Whether the verifier repeats what this auditor, about to be asked, finds. ``num_passes``: intervals that it was heard to pass before."""
    return (
        not choice.is_verifier and task_of(secret, case.interval.name, choice.node_id, len(case.asked), num_passes) is not Task.REAL
    )
