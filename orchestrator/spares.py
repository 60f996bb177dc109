"""Which connections are opened before a question needs them: to all that may compute a stage of a way, and from each of them to those of the next stage.

Where a way breaks, the next one goes over connections that are open: to open one takes several round trips, and along a way one would wait for the other.
That is for ways that are asked again, since most questions are asked once. Pure but for the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dcnr.ports import Clock
from orchestrator.routing import Candidate, Way

MAX_PER_STAGE: Final = 3
"""PNodes, the one of the way included."""
AGAIN_S: Final = 30.0
"""After this time it is said again, so that connections that nobody uses stay open (`pnode.infer_ways.IDLE_S`),"""
CHANGED_S: Final = 1.0
"""or after this one where others compute now: so often it is looked."""
ASKED_S: Final = 60.0
"""Between two questions that count as asked again."""
MAX_KNOWN: Final = 256


def onward(way: Way) -> Mapping[str, tuple[str, ...]]:
    """By PNode that may compute a stage of the way: those to whom it may hand the question on."""
    chosen = [_chosen(way, hop) for hop in way.hops]
    found: dict[str, dict[str, None]] = {pnode_id: {} for some in chosen for pnode_id in some}
    for these, those in pairwise(chosen):
        for pnode_id in these:
            found[pnode_id] |= dict.fromkeys(other for other in those if other != pnode_id)
    return {pnode_id: tuple(others) for pnode_id, others in found.items()}


def _chosen(way: Way, hop: Candidate) -> tuple[str, ...]:
    others = {item.pnode_id for item in way.table.candidates.get(hop.vnode, ())} - {hop.pnode_id}
    return (hop.pnode_id, *sorted(others)[: MAX_PER_STAGE - 1])


@dataclass(slots=True)
class _Known:
    asked_s: float
    looked_s: float
    """When it was last looked who computes: every question asks, and stages may have hundreds of candidates."""
    opened_s: float
    candidates: frozenset[tuple[str, str]]


class Spares:
    """One per process: when connections are to be opened, by model and exit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}

    def is_due(self, model: str, way: Way) -> bool:
        """That way has just answered: whether the connections of `onward` are to be opened, or kept open, now."""
        now_s, key = self._clock.monotonic(), (model, way.exit)
        known = self._known.pop(key, None)
        is_first = known is None or now_s - known.asked_s > ASKED_S
        if known is None or is_first:
            known = _Known(now_s, float("-inf"), float("-inf"), frozenset())
        known.asked_s = now_s
        self._known[key] = known
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        if is_first or now_s - known.looked_s < CHANGED_S:
            return False
        known.looked_s = now_s
        candidates = frozenset((hop.vnode, item.pnode_id) for hop in way.hops for item in way.table.candidates.get(hop.vnode, ()))
        if candidates == known.candidates and now_s - known.opened_s < AGAIN_S:
            return False
        known.opened_s, known.candidates = now_s, candidates
        return True
