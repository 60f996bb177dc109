"""The late draw: a VNode whose state nobody can learn from is traced back to whoever made it, through the intervals that the draw spared. Pure.

A cheat in an interval that was not drawn costs it nothing, until it breaks the state: then whoever restores that state says so, and the intervals behind it
are drawn after all. The VNode's own come first, the newest first, since a state breaks within a few intervals of its cause; then those of the VNodes whose
outputs reach it, the nearest first. Who calls a good state broken gains nothing: each interval is spared once, so it is drawn late at most once, and only
while its evidence has to be there. Where all of them pass nobody is blamed: honest training can break a state too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from trust.ledger import Interval, Ledger, Verdict

UNLEARNED: Final = 4
"""So many batches in a row that give nothing finite, and a state counts as one from which nobody can learn."""
AT_ONCE: Final = 4
"""Intervals of one VNode that are open while more are drawn late: most faults lie in the newest."""
MAX_SPARED: Final = 16
"""Spared intervals of a replica whose evidence its PNode keeps, the newest."""
SPARED_KEPT_S: Final = 3600.0
"""So long it keeps it; only in the first half of that time an interval is drawn late, so that nobody is asked for what it may have thrown away."""


def backwards(ledger: Ledger, vnode: str, state: str = "") -> Iterator[Interval]:
    """Intervals that count of a VNode, newest first, from its checkpoint ``state`` on if its line has that."""
    line = ledger.lines.get(vnode, ())
    place = next((at for at, one in enumerate(line) if one.digest == state), len(line) - 1)
    for one in reversed(line[: place + 1]):
        for name in reversed(one.intervals):
            yield ledger.intervals[name]


def drawn_late(ledger: Ledger, vnodes: Sequence[str], state: str, recent: Collection[str]) -> tuple[str, ...]:
    """Which spared intervals are drawn now since nothing can be learned from ``state``, a checkpoint of the first of ``vnodes``; the others reach it.

    ``recent``: those whose evidence must still be there by their age. None while enough are open, where the state counts no more, and where all are judged.
    """
    if not any(one.digest == state for one in ledger.lines.get(vnodes[0], ())):
        return ()
    for vnode in vnodes:
        found = list(backwards(ledger, vnode, state))
        spared = [one.name for one in _kept(found) if one.name in recent]
        num_open = sum(one.verdict is Verdict.OPEN for one in found)
        if spared or num_open:
            return tuple(spared[: max(0, AT_ONCE - num_open)])
    return ()


def _kept(found: Iterable[Interval]) -> Iterator[Interval]:
    """Spared ones, of each replica the newest."""
    seen: dict[str, int] = {}
    for one in found:
        seen[one.replica] = seen.get(one.replica, 0) + (one.verdict is Verdict.SPARED)
        if one.verdict is Verdict.SPARED and seen[one.replica] <= MAX_SPARED:
            yield one
