"""How much of the processor the worker takes: the only figure of this machine's load that leaves it. Pure.

It is made of the processor time of the worker alone, so it says nothing of what else the volunteer does here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 10.0
"""The mean is over so long: shorter ones would tell single computations."""
APART_S: Final = 1.0
"""Reports come at once on news; so many are not needed."""
STALE_S: Final = 15.0
"""A worker that has not reported for so long is not known any more."""
_MOST: Final = int(WINDOW_S / APART_S) + 2


class WorkerLoad:
    """Of one worker: a new one begins anew."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def heard(self, now_s: float, cpu_s: float) -> None:
        """The worker says how much processor time it has used since it began."""
        if self._heard and now_s - self._heard[-1][0] < APART_S:
            return
        self._heard.append((now_s, cpu_s))
        while len(self._heard) > 2 and now_s - self._heard[1][0] >= WINDOW_S:
            self._heard.popleft()

    def cores(self, now_s: float) -> float | None:
        """Seconds of processor time per second, to hundredths; None while it is not known."""
        if len(self._heard) < 2 or now_s - self._heard[-1][0] > STALE_S:
            return None
        (began_s, used_s), (until_s, now_used_s) = self._heard[0], self._heard[-1]
        return round(max(0.0, now_used_s - used_s) / (until_s - began_s), 2)
