"""Which connections are opened before a question needs them: to all that may compute a stage of a way, and from each of them to those of the next stage.

Where a way breaks, the next one goes over connections that are open: to open one takes several round trips, and along a way one would wait for the other.
That is for ways that are asked again, since most questions are asked once. Pure but for the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from dcnr.ports import Clock
from orchestrator.routing import Candidate, Load, Way

MAX_PER_STAGE: Final = 3
"""PNodes, the one of the way included."""
AGAIN_S: Final = 30.0
"""After this time it is said again, so that connections that nobody uses stay open (`pnode.infer_ways.IDLE_S`),"""
CHANGED_S: Final = 1.0
"""or after this one where others compute now: so often it is looked."""
ASKED_S: Final = 60.0
"""Between two questions that count as asked again."""
MAX_KNOWN: Final = 256


def onward(way: Way, load: Load, before: Collection[str] = ()) -> Mapping[str, tuple[str, ...]]:
    """By PNode that may compute a stage of the way: those to whom it may hand the question on. Who was named ``before`` stays, then come the quickest."""
    chosen = [_chosen(way, hop, load, before) for hop in way.hops]
    found: dict[str, dict[str, None]] = {pnode_id: {} for some in chosen for pnode_id in some}
    for these, those in pairwise(chosen):
        for pnode_id in these:
            found[pnode_id] |= dict.fromkeys(other for other in those if other != pnode_id)
    return {pnode_id: tuple(others) for pnode_id, others in found.items()}


def _chosen(way: Way, hop: Candidate, load: Load, before: Collection[str]) -> tuple[str, ...]:
    others = {item.pnode_id: item for item in way.table.candidates.get(hop.vnode, ()) if item.pnode_id != hop.pnode_id}
    ranked = sorted(others, key=lambda pnode_id: (pnode_id not in before, load.cost_s(others[pnode_id], ""), pnode_id))
    return (hop.pnode_id, *ranked[: MAX_PER_STAGE - 1])


@dataclass(slots=True)
class _Known:
    asked_s: float
    looked_s: float
    """When it was last looked who computes: every question asks, and stages may have hundreds of candidates."""
    opened_s: float
    candidates: frozenset[tuple[str, str]]
    ready: Collection[str] = field(default=())


class Spares:
    """One per process: which connections are to be opened, by model and exit, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}

    def due(self, model: str, way: Way, load: Load) -> Mapping[str, tuple[str, ...]]:
        """That way has just answered: the connections that are to be opened, or kept open, now (`onward`); empty: none."""
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
            return {}
        known.looked_s = now_s
        candidates = frozenset((hop.vnode, item.pnode_id) for hop in way.hops for item in way.table.candidates.get(hop.vnode, ()))
        if candidates == known.candidates and now_s - known.opened_s < AGAIN_S:
            return {}
        plan = onward(way, load, known.ready)
        known.opened_s, known.candidates, known.ready = now_s, candidates, frozenset(plan)
        return plan

    def ready(self, model: str, exit_: str) -> Collection[str]:
        """Between whom such connections were opened last."""
        known = self._known.get((model, exit_))
        return known.ready if known is not None else ()
