"""Network time: this machine's wall clock, corrected by the median offset of at least three authenticated nodes. A `dcnr.ports.Clock`.

Records are judged and issued by it, so a machine with a wrong clock takes part all the same; a minority of liars cannot move the median past honest nodes.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from typing import Final

from dcnr.ports import Clock

MIN_NODES: Final = 3
MAX_NODES: Final = 64
WORTH_TELLING_S: Final = 60.0


class NetworkTime:
    """Remembers the newest offset of up to `MAX_NODES` nodes, the least recently heard forgotten first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offsets: OrderedDict[str, float] = OrderedDict()

    def note(self, node_id: str, offset_s: float) -> None:
        """An authenticated node's wall clock minus ours."""
        self._offsets[node_id] = offset_s
        self._offsets.move_to_end(node_id)
        if len(self._offsets) > MAX_NODES:
            self._offsets.popitem(last=False)

    @property
    def offset_s(self) -> float:
        """Network time minus our wall clock; 0 while fewer than three nodes were heard."""
        return statistics.median(self._offsets.values()) if len(self._offsets) >= MIN_NODES else 0.0

    def monotonic(self) -> float:
        """As the machine's."""
        return self._clock.monotonic()

    def wall(self) -> float:
        """Network time, seconds since 1970 UTC."""
        return self._clock.wall() + self.offset_s

    @property
    def trouble(self) -> str:
        """What to tell the machine's owner about the clock; empty if it is about right."""
        offset = self.offset_s
        if abs(offset) < WORTH_TELLING_S:
            return ""
        return f"this machine's clock is {abs(offset):.0f} s {'behind' if offset > 0 else 'ahead of'} the network: set it"
