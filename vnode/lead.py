"""How far a source may be ahead of the floor: the lead of the plan, and more for a while where one hole holds the floor. Pure, torch-free.

A floor is the lowest batch that anybody lacks. Where a replica dies, its few open batches hold the floor, though its siblings have learned hundreds above
them: until a plan has given them to others, and those have got them, the floor stands still or falls. A source that only followed it would stop with all
behind it at work, and starve them next. So a source that is held back by a floor which stands still for longer than it uses to, or has fallen, goes on to
the plan's widest lead, which no spool on the way is too small for; it falls back as the floor comes up again.
"""

from __future__ import annotations

from typing import Final

from dcnr.intervals import IntervalSet
from vnode.replica_config import ReplicaConfig

LATE_S: Final = 0.3
"""A floor that stood still for so long may have a hole in front: going on costs nothing but room, so being wrong is cheap."""
USUAL: Final = 4.0
"""And for so many times as long as it uses to: where batches take seconds, that is no sign of anything."""
SMOOTHING: Final = 0.2


class Lead:
    """Of one source. ``batches`` and the widest lead count from the floor, and are within its own spool."""

    def __init__(self, config: ReplicaConfig, now_s: float) -> None:
        self._config = config
        self.batches = self._widest = min(config.lead_batches, config.spool_batches)
        self._floor = self._top = self._extended = 0
        self._moved_s, self._usual_s = now_s, 0.0

    def plan(self, batches: int, widest: int) -> None:
        """What the newest plan allows."""
        room = self._config.spool_batches
        self.batches = max(1, min(self._config.lead_batches, room, batches))
        self._widest = max(self.batches, min(room, widest))

    def end(self, floor: int) -> int:
        """Batches from here on must not be begun."""
        return max(floor + self.batches, min(self._extended, floor + self._widest))

    def look(self, now_s: float, floor: int, wanted: IntervalSet) -> bool:
        """Takes in the floor of now, and what would be begun if nothing held it back. Whether more may be begun since this look."""
        if floor > self._floor:
            self._usual_s += SMOOTHING * (now_s - self._moved_s - self._usual_s)
        if floor != self._floor:
            self._floor, self._moved_s = floor, now_s
        self._top = max(self._top, floor)
        lowest = wanted.lowest()
        if lowest is None or not self.end(floor) <= lowest < floor + self._widest:
            return False
        if floor >= self._top and now_s - self._moved_s < max(LATE_S, USUAL * self._usual_s):
            return False
        self._extended = floor + self._widest
        return True
