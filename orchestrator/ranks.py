"""Nodes in the order in which they are worth a look, so that a plan does not ask every node about every replica.

Idle nodes stand by speed: a stage takes at least as long on each that follows. Busy ones stand by what they have to do already: whatever comes on top
makes it longer. So whoever looks for the soonest may stop where the next in line cannot be sooner.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.costs import MIN_GFLOPS

if TYPE_CHECKING:
    from orchestrator.board import Load


class Ranks:
    """The open nodes of a board. `taken_out` before a load changes, `put_back` after."""

    def __init__(self, loads: Iterable[Load]) -> None:
        self.idle: list[tuple[float, str]] = []
        """(-speed, node id), fastest first."""
        self.busy: list[tuple[float, str]] = []
        """(seconds, node id), least first; whoever reports measurements too, since its speed for a stage may be any."""
        for load in loads:
            if load.is_open:
                (self.idle if _is_idle(load) else self.busy).append(_key(load))
        self.idle.sort()
        self.busy.sort()

    def taken_out(self, load: Load) -> None:
        """Forgets where a node stands."""
        if load.is_open:
            row = self.idle if _is_idle(load) else self.busy
            del row[bisect_left(row, _key(load))]

    def put_back(self, load: Load) -> None:
        """Remembers where it stands now."""
        if load.is_open:
            insort(self.idle if _is_idle(load) else self.busy, _key(load))


def _is_idle(load: Load) -> bool:
    return not load.hosted and not load.offer.measured


def _key(load: Load) -> tuple[float, str]:
    if _is_idle(load):
        return -max(load.offer.gflops, MIN_GFLOPS) / load.correction, load.offer.node_id
    return load.seconds, load.offer.node_id
