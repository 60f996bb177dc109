"""Notices that this machine stood still: a laptop that slept, a daemon that was stopped. Pure.

A sleeping machine's monotonic clock may stand still with it, its wall clock does not; a stopped process sees both run on. Whichever ran further than the
looks are apart tells. A wall clock that is set forward looks the same and costs nothing but new control streams.
"""

from __future__ import annotations

from typing import Final

from dcnr import limits

STOOD_S: Final = 2 * limits.HEARTBEAT_S
"""From here on others may take a silent PNode for gone; shorter gaps nobody noticed."""


class Gaps:
    """``look`` is called every second or so."""

    def __init__(self) -> None:
        self._looked: tuple[float, float] | None = None

    def look(self, monotonic_s: float, wall_s: float) -> float:
        """Seconds that this machine stood still since the last look; 0 if it did not, or not for long."""
        before, self._looked = self._looked, (monotonic_s, wall_s)
        if before is None:
            return 0.0
        gap_s = max(monotonic_s - before[0], wall_s - before[1])
        return gap_s if gap_s >= STOOD_S else 0.0
