"""Spared intervals that the desk opens after all: those behind a state that nobody can learn from without doubt, and those of who was found out since. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.audit_events import Decision, People
from trust.late_draw import drawn_late, drawn_of_the_found_out
from trust.ledger import Ledger, Verdict


def opened_late(ledger: Ledger, people: People) -> Iterator[Decision]:
    """What is to be open in the next manifest, each with the reason (`trust.late_draw`)."""
    for vnode, state in sorted(people.broken.items()):
        for name in drawn_late(ledger, (vnode, *people.ahead.get(vnode, ())), state, people.recent):
            yield Decision(name, Verdict.OPEN, f"nothing, or nothing that holds, can be learned from state {state[:12]}")
    for name in drawn_of_the_found_out(ledger, people.left):
        yield Decision(name, Verdict.OPEN, "its PNode was found out since")
