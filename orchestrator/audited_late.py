"""Spared intervals that the desk opens after all: those behind a state that nobody can learn from without doubt, and those of who was found out since. Pure.

A doubt is no fault of anybody's, and what nobody can show goes back with all that stands on it. So where doubts took an interval back nobody is asked who
has left, nor for what was named later; only where doubts take what was learned anew from the same checkpoint back as well, the newest of such work is
drawn all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from orchestrator.audit_events import Decision, People
from trust.late_draw import backwards, drawn_late, drawn_of_the_found_out
from trust.ledger import Interval, Ledger, Verdict

FOUND_OUT: Final = "its PNode was found out since"


def opened_late(ledger: Ledger, people: People, held: Iterable[str] = ()) -> Iterator[Decision]:
    """What is to be open in the next manifest, each with the reason (`trust.late_draw`). ``held``: what doubts are about to take back."""
    for vnode, state in sorted(people.broken.items()):
        yield from _opened(ledger, vnode, state, people, people.recent)
    for vnode, one in sorted(people.doubtful.items()):
        known = [ledger.intervals[name] for name in people.recent if name in ledger.intervals]
        asked = {other.name for other in known if _is_here(other, people)}
        if one.is_again:
            left = (other for other in backwards(ledger, vnode, one.state) if other.name in people.recent - asked)
            asked |= {other.name for other in itertools.islice(filter(_is_unjudged, left), 1)}
        yield from _opened(ledger, vnode, one.state, people, asked, one.num_known)
    for name in drawn_of_the_found_out(ledger, people.left):
        yield Decision(name, Verdict.OPEN, FOUND_OUT)
    for other in (other for name in sorted(held if people.has_time else ()) for other in beside(ledger, name)):
        if other.verdict is Verdict.SPARED and other.name in people.recent and _is_here(other, people):
            yield Decision(other.name, Verdict.OPEN, "what came with the same checkpoint is doubted")


def beside(ledger: Ledger, name: str) -> tuple[Interval, ...]:
    """What came with the checkpoint that brought an interval, besides it, and is not judged; nothing where that counts no more."""
    vnode = known.vnode if (known := ledger.intervals.get(name)) is not None else ""
    names = next((one.intervals for one in ledger.lines.get(vnode, ()) if name in one.intervals), ())
    return tuple(filter(_is_unjudged, (ledger.intervals[other] for other in names if other != name)))


def _opened(
    ledger: Ledger, vnode: str, state: str, people: People, asked: Collection[str], num_known: int | None = None
) -> Iterator[Decision]:
    for name in drawn_late(ledger, (vnode, *people.ahead.get(vnode, ())), state, asked, num_known):
        yield Decision(name, Verdict.OPEN, f"nothing, or nothing that holds, can be learned from state {state[:12]}")


def _is_here(one: Interval, people: People) -> bool:
    return one.pnode_id in people.candidates


def _is_unjudged(one: Interval) -> bool:
    return one.verdict in (Verdict.SPARED, Verdict.OPEN)
