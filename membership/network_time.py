"""Network time: this machine's wall clock, corrected by the median offset of at least three authenticated nodes. A `dcnr.ports.Clock`.

Records are judged and issued by it, so a machine with a wrong clock takes part all the same; a minority of liars cannot move the median past honest nodes.
Where the wall clock was set, or the machine slept, nothing that was heard before holds any more: it is forgotten, and heard anew.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from dcnr.ports import Clock

MIN_NODES: Final = 3
MAX_NODES: Final = 64
WORTH_TELLING_S: Final = 60.0
STEP_S: Final = 5.0
"""A wall clock that left the monotonic one by more since the last look was set, or the machine slept."""
DRIFT: Final = 0.1
"""So much of the time since the last look the two may differ besides: a monotonic clock may run a little wrong."""
UNSURE_S: Final = 15.0
"""After a step the partners are heard again within this time, or there are too few."""


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody answered about its wall clock, and between which moments of our monotonic clock."""

    wall_s: float
    asked_s: float
    answered_s: float


class NetworkTime:
    """Remembers the newest offset of up to `MAX_NODES` nodes, the least recently heard forgotten first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._partners: OrderedDict[str, float] = OrderedDict()
        self._strangers: OrderedDict[str, float] = OrderedDict()
        self._looked: tuple[float, float] | None = None
        self._stepped_s = float("-inf")

    def note(self, node_id: str, offset_s: float) -> None:
        """An authenticated node's wall clock minus ours, as they are now."""
        self._look()
        _keep(self._partners, node_id, offset_s)

    def heard(self, node_id: str, said: Said) -> None:
        """What a partner said, authenticated by the connection."""
        if (offset_s := self._offset_of(said)) is not None:
            _keep(self._partners, node_id, offset_s)

    def met(self, node_id: str, said: Said) -> None:
        """What somebody said who introduced us, authenticated by its key alone: it counts only while fewer than three partners were heard."""
        if (offset_s := self._offset_of(said)) is not None:
            _keep(self._strangers, node_id, offset_s)

    @property
    def offset_s(self) -> float:
        """Network time minus our wall clock; 0 while fewer than three nodes were heard."""
        self._look()
        heard = self._heard()
        return statistics.median(heard) if len(heard) >= MIN_NODES else 0.0

    @property
    def is_unsure(self) -> bool:
        """Whether the clock was just set, or the machine slept, and nobody has said yet which of the two: by its time nothing is thrown away."""
        self._look()
        return len(self._partners) < MIN_NODES and self._clock.monotonic() - self._stepped_s < UNSURE_S

    def monotonic(self) -> float:
        """As the machine's."""
        return self._clock.monotonic()

    def wall(self) -> float:
        """Network time, seconds since 1970 UTC."""
        offset_s = self.offset_s  # before the clock is read: a step is seen by then
        return self._clock.wall() + offset_s

    @property
    def trouble(self) -> str:
        """What to tell the machine's owner about the clock; empty if it is about right."""
        offset, heard = self.offset_s, self._heard()
        if not offset and self._strangers:
            offset = statistics.median(heard)  # of too few to be believed; the owner can look
        if abs(offset) < WORTH_TELLING_S:
            return ""
        others = "the network" if len(heard) >= MIN_NODES else "whoever answers" if len(heard) > 1 else "the one node that answers"
        return f"this machine's clock is {abs(offset):.0f} s {'behind' if offset > 0 else 'ahead of'} {others}: set it"

    def _heard(self) -> list[float]:
        """All offsets that count."""
        if len(self._partners) >= MIN_NODES:
            return list(self._partners.values())
        return list((self._strangers | self._partners).values())

    def _offset_of(self, said: Said) -> float | None:
        """That clock minus ours; None for what was asked before the last step: the machine may have slept between question and answer."""
        self._look()
        if said.asked_s <= self._stepped_s or said.wall_s <= 0.0:
            return None
        now, wall = self._clock.monotonic(), self._clock.wall()
        return said.wall_s - (wall - (now - (said.asked_s + said.answered_s) / 2))

    def _look(self) -> None:
        """Forgets what was heard where the wall clock has not kept pace with the monotonic one since the last look."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        before, self._looked = self._looked, (now, wall)
        if before is None:
            return
        ran_s = now - before[0]
        if abs(wall - before[1] - ran_s) > STEP_S + DRIFT * ran_s:
            self._partners.clear()
            self._strangers.clear()
            self._stepped_s = now


def _keep(offsets: OrderedDict[str, float], node_id: str, offset_s: float) -> None:
    offsets[node_id] = offset_s
    offsets.move_to_end(node_id)
    if len(offsets) > MAX_NODES:
        offsets.popitem(last=False)
