"""The late draw: intervals that the draw spared are audited after all, for one of two reasons. Pure.

A cheat in an interval that was not drawn costs it nothing, until it breaks the state: then whoever restores that state says so, and the intervals behind it
are drawn. The VNode's own come first, the newest first, since a state breaks within a few intervals of its cause; then those of the VNodes whose
outputs reach it, the nearest first. Who calls a good state broken gains nothing: each interval is spared once, so it is drawn late at most once, and only
while its evidence should be there. Where all of them pass nobody is blamed: honest training can break a state too.

Who is found out has most likely cheated before, wherever it had work: what it did before its quarantine and was spared is drawn, the oldest first, since
what stands on a fault goes back with it. What an honest PNode did whose memory flipped a bit passes, and stays.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from trust.folding import Told
from trust.ledger import Interval, Ledger, Verdict

UNLEARNED: Final = 4
"""So many batches in a row that give nothing finite, or a loss above `BURST_LOSS`, and a state counts as one from which nobody can learn."""
BURST_LOSS: Final = 1e4
"""Nats of a sample. Guessing costs a few: whoever learns on from more trains a ruin, also where every number stays finite."""
AT_ONCE: Final = 4
"""With so many intervals of a VNode open, or of a PNode that was found out, no more are drawn late: the first that fails takes many back."""
MAX_SPARED: Final = 16
"""Spared intervals of a replica whose evidence its PNode keeps, the newest; where they are of different sizes, `Newer` says which."""
SPARED_KEPT_S: Final = 8 * 3600.0
"""So long it keeps it, where there is room; only in the first half of that time an interval is drawn late, so that nobody is asked for what is too old."""
MAX_OLD: Final = 4096
"""So many verdicts in a row that are too old, and nothing is looked for behind them: a job of weeks has more than can be gone through in each look."""


class Newer:
    """Of a replica's spared intervals, told from the newest on: whether the evidence of each is still kept.

    One that came later counts as the part that it is of this one, whole where it is larger: else whoever cheats in a large one would have it out of sight by
    `MAX_SPARED` of a batch each. Who hears of fewer of them keeps no fewer.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        """How many, and their batches, by size: of one power of two to the next."""

    def keeps(self, num_batches: int) -> bool:
        """Of the next older one, of so many batches."""
        own = max(1, num_batches)
        num_newer = sum(min(num * own, batches) for num, batches in self._seen.values()) / own
        num, batches = self._seen.get(own.bit_length(), (0, 0))
        self._seen[own.bit_length()] = (num + 1, batches + own)
        return num_newer < MAX_SPARED


def backwards(ledger: Ledger, vnode: str, state: str = "") -> Iterator[Interval]:
    """Intervals that count of a VNode, newest first, from its checkpoint ``state`` on if its line has that."""
    line = ledger.lines.get(vnode, ())
    place = next((at for at, one in enumerate(line) if one.digest == state), len(line) - 1)
    for one in reversed(line[: place + 1]):
        for name in reversed(one.intervals):
            yield ledger.intervals[name]


def drawn_late(
    ledger: Ledger, vnodes: Sequence[str], state: str, recent: Collection[str], num_known: int | None = None
) -> tuple[str, ...]:
    """Which spared intervals are drawn now since nothing can be learned from ``state``, a checkpoint of the first of ``vnodes``; the others reach it.

    ``recent``: those whose evidence must still be there by their age; ``num_known``: of the first so many that the chain knows. None while enough are open,
    where the state counts no more, and where all are judged.
    """
    if not any(one.digest == state for one in ledger.lines.get(vnodes[0], ())):
        return ()
    for vnode in vnodes:
        found = [one for one in backwards(ledger, vnode, state) if num_known is None or one.number < num_known]
        spared = [one.name for one in _spared(found) if one.name in recent]
        num_open = sum(one.verdict is Verdict.OPEN for one in found)
        if spared or num_open:
            return tuple(spared[: max(0, AT_ONCE - num_open)])
    return ()


def spared_lately(ledger: Ledger, told: Sequence[Told], now_s: float) -> dict[str, float]:
    """Intervals that were spared so lately that their PNodes still keep the evidence, the newest first, with the time. ``told``: oldest first.

    Of each replica the newest that were *ever* spared (`Newer`): what is drawn late makes no room for an older one, whose evidence is gone.
    """
    found: dict[str, float] = {}
    newer: defaultdict[tuple[str, str], Newer] = defaultdict(Newer)
    num_old = 0
    for one in reversed(told):
        num_old = num_old + 1 if one.decided_s <= now_s - SPARED_KEPT_S / 2 else 0
        if num_old > MAX_OLD:
            break
        if one.verdict is Verdict.SPARED:
            is_kept = newer[one.pnode_id, ledger.intervals[one.interval].replica].keeps(one.num_batches)
            if is_kept and not num_old:
                found[one.interval] = one.decided_s
    return found


def left_behind(
    ledger: Ledger, told: Sequence[Told], found_out_s: Mapping[str, float], now_s: float
) -> dict[str, tuple[Interval, ...]]:
    """By VNode, the oldest first: spared intervals that count, of PNodes that went into quarantine since, and whose evidence is still kept.

    ``found_out_s``: of a PNode, until when what it did is suspect (`orchestrator.standings.Standings.found_out_s`).
    """
    lately = spared_lately(ledger, told, now_s) if found_out_s else {}
    names = {name for name, at_s in lately.items() if at_s <= found_out_s.get(ledger.intervals[name].pnode_id, -math.inf)}
    vnodes = sorted({ledger.intervals[name].vnode for name in names})
    found = {vnode: tuple(one for one in _spared(backwards(ledger, vnode)) if one.name in names)[::-1] for vnode in vnodes}
    return {vnode: some for vnode, some in found.items() if some}


def drawn_of_the_found_out(ledger: Ledger, left: Mapping[str, Sequence[Interval]]) -> tuple[str, ...]:
    """Which of what was `left_behind` are drawn now: neither of a VNode nor of a PNode more than `AT_ONCE` are open, since all evidence of
    a PNode leaves over one line.
    """
    drawn: list[str] = []
    if left:
        counting = (ledger.intervals[name] for line in ledger.lines.values() for one in line for name in one.intervals)
        num_open = Counter(who for one in counting if one.verdict is Verdict.OPEN for who in (one.vnode, one.pnode_id))
        for one in (one for some in left.values() for one in some):
            if num_open[one.vnode] < AT_ONCE and num_open[one.pnode_id] < AT_ONCE:
                drawn.append(one.name)
                num_open.update((one.vnode, one.pnode_id))
    return tuple(drawn)


def _spared(found: Iterable[Interval]) -> Iterator[Interval]:
    return (one for one in found if one.verdict is Verdict.SPARED)
