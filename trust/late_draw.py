"""The late draw: intervals that the draw spared are audited after all, for one of two reasons. Pure.

A cheat in an interval that was not drawn costs it nothing, until it breaks the state: then whoever restores that state says so, and the intervals behind it
are drawn. The VNode's own come first, the newest first, since a state breaks within a few intervals of its cause; then those of the VNodes whose
outputs reach it, the nearest first. Who calls a good state broken gains nothing: each interval is spared once, so it is drawn late at most once, and only
while its evidence has to be there. Where all of them pass nobody is blamed: honest training can break a state too.

Who is found out has most likely cheated before, wherever it had work: what it did before its quarantine and was spared is drawn, the oldest first, since
what stands on a fault goes back with it. An honest PNode whose memory flipped a bit loses nothing by it: what it did passes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from trust.folding import Told
from trust.ledger import Interval, Ledger, Verdict

UNLEARNED: Final = 4
"""So many batches in a row that give nothing finite, and a state counts as one from which nobody can learn."""
AT_ONCE: Final = 4
"""Intervals of one VNode that are open while more are drawn late: most faults lie in the newest."""
MAX_SPARED: Final = 16
"""Spared intervals of a replica whose evidence its PNode keeps, the newest."""
SPARED_KEPT_S: Final = 8 * 3600.0
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


def spared_lately(told: Sequence[Told], now_s: float) -> Iterator[Told]:
    """What was spared so lately that its evidence must be there. ``told``: in the order of the chain, so about in that of time; the old end is not read."""
    for one in takewhile(lambda one: one.decided_s > now_s - SPARED_KEPT_S, reversed(told)):
        if one.verdict is Verdict.SPARED and one.decided_s > now_s - SPARED_KEPT_S / 2:
            yield one


def left_behind(
    ledger: Ledger, told: Sequence[Told], found_out_s: Mapping[str, float], now_s: float
) -> dict[str, tuple[Interval, ...]]:
    """By VNode, the oldest first: spared intervals that count, of PNodes that went into quarantine since, and whose evidence must be there.

    ``found_out_s``: when the last quarantine of a PNode began.
    """
    if not found_out_s:
        return {}
    names = {one.interval for one in spared_lately(told, now_s) if one.decided_s <= found_out_s.get(one.pnode_id, -math.inf)}
    vnodes = sorted({ledger.intervals[name].vnode for name in names})
    found = {vnode: tuple(one for one in _kept(backwards(ledger, vnode)) if one.name in names)[::-1] for vnode in vnodes}
    return {vnode: some for vnode, some in found.items() if some}


def drawn_of_the_found_out(ledger: Ledger, left: Mapping[str, Sequence[Interval]]) -> tuple[str, ...]:
    """Which of what was `left_behind` are drawn now: few enough that of no VNode more than `AT_ONCE` are open."""
    num_open = {vnode: sum(one.verdict is Verdict.OPEN for one in backwards(ledger, vnode)) for vnode in left}
    return tuple(one.name for vnode, some in left.items() for one in some[: max(0, AT_ONCE - num_open[vnode])])


def _kept(found: Iterable[Interval]) -> Iterator[Interval]:
    """Spared ones, of each replica the newest."""
    seen: dict[str, int] = {}
    for one in found:
        seen[one.replica] = seen.get(one.replica, 0) + (one.verdict is Verdict.SPARED)
        if one.verdict is Verdict.SPARED and seen[one.replica] <= MAX_SPARED:
            yield one
