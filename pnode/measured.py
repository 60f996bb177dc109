"""How fast this machine's line carries what leaves it, from the uploads that it does anyway. Pure: times are arguments.

The uplink is the largest rate of any upload of the last hour: bytes over the seconds from the first byte sent to the answer. No single upload says what the
line can do, for others use it too and stores are slow at times, but none is faster than the line; so the largest is the nearest, as the bandwidth filter of
BBR has it (Cardwell et al. 2016, "BBR: Congestion-Based Congestion Control", ACM Queue 14(5)). What says little of the line does not count: an upload that is
too small measures round trips, and one that our own paces held back measures the paces.

That last rule alone would let a machine measure once and never again, for what is measured is what later uploads are held back by. If held-back uploads
counted, each hour would find a quarter of what the hour before had found. So once the newest measurement is older than the hour one upload is held back by
nothing, and measures anew: the pacing never measures itself. One that brings no measurement, for it broke off, is the only one for another hour all the same,
and what comes after it is held back as before. On a line that has become slower than the pace it is the line that holds back, so uploads count again at once,
and the hour takes the old rate away. Until there is a new one the last one stands for everything else: a number that went away every hour would be news to
orchestrators twice an hour.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from dataservice.pacing import BYTES_PER_MBIT, Sent
from dcnr import limits

WINDOW_S: Final = 3600.0
MIN_SENT_BYTES: Final = 4 * limits.MIB
"""Smaller uploads say more of round trips than of the line."""
MAX_HELD: Final = 0.1
"""Of an upload's time. Blocks that fill the buffers of a slow line are asked to wait for a moment, and that line is measured all the same."""


class Largest:
    """The largest figure of the last hour. Holds those that may be the largest of some hour to come: each less than the one before, in steps of `rounded`,
    so they are few.
    """

    def __init__(self) -> None:
        self._figures: deque[tuple[float, float]] = deque()
        """(when, what), oldest and largest first."""

    def add(self, figure: float, now_s: float) -> None:
        """One more."""
        figure = rounded(figure)
        while self._figures and (self._figures[-1][1] <= figure or self._figures[0][0] < now_s - WINDOW_S):
            if self._figures[-1][1] <= figure:
                self._figures.pop()
            else:
                self._figures.popleft()
        self._figures.append((now_s, figure))

    def of(self, now_s: float) -> float:
        """The largest of the last hour; where that has none, the last one before; 0: there was none yet."""
        while len(self._figures) > 1 and self._figures[0][0] < now_s - WINDOW_S:
            self._figures.popleft()
        return self._figures[0][1] if self._figures else 0.0

    def is_fresh(self, now_s: float) -> bool:
        """Whether the last hour has one."""
        return bool(self._figures) and self._figures[-1][0] >= now_s - WINDOW_S


class MeasuredUplink:
    """One per machine."""

    def __init__(self) -> None:
        self._rates = Largest()
        """Mbit/s."""
        self._tried_s = -math.inf

    def uploaded(self, sent: Sent, now_s: float) -> bool:
        """Takes an upload in; whether it counts."""
        if sent.num_bytes < MIN_SENT_BYTES or sent.seconds <= 0.0 or sent.held_s > MAX_HELD * sent.seconds:
            return False
        self._rates.add(sent.num_bytes / sent.seconds / BYTES_PER_MBIT, now_s)
        return True

    def mbit(self, now_s: float) -> float:
        """The largest of the last hour; where that has none, the last one before; 0: nothing was measured yet."""
        return self._rates.of(now_s)

    def is_fresh(self, now_s: float) -> bool:
        """Whether the last hour has one."""
        return self._rates.is_fresh(now_s)

    def tries(self, num_bytes: int, now_s: float) -> bool:
        """Whether an upload that begins now is to be held back by nothing, to measure anew: one that can, where nothing else has or does within the hour."""
        if num_bytes < MIN_SENT_BYTES or self.is_fresh(now_s) or now_s < self._tried_s + WINDOW_S:
            return False
        self._tried_s = now_s
        return True


def rounded(figure: float) -> float:
    """Two significant digits: no two measurements are the very same, and each change is told to others."""
    return float(f"{figure:.2g}")
