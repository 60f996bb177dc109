"""What bulk between workers may take of this machine's line: anchors, deltas and donated states leave at no more than the given rate, together."""

from __future__ import annotations

import asyncio
from typing import Final

from dcnr.limits import KIB, MAX_CHUNK_BYTES
from dcnr.ports import Clock

PACED_S: Final = 1.0
MIN_CHUNK_BYTES: Final = 4 * KIB
BURST_S: Final = 0.5
"""Time without bulk that may be caught up on."""


class Uplink:
    """One per worker. Frames do not pass here: they have their windows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bytes_s = 0.0
        self._free_s = float("-inf")

    @property
    def bytes_s(self) -> float:
        """The rate; 0: no limit."""
        return self._bytes_s

    def limit(self, bytes_s: float) -> None:
        """From now on so many bytes per second; 0: no limit."""
        self._bytes_s = max(0.0, bytes_s)

    @property
    def chunk_bytes(self) -> int:
        """Of one chunk of bulk: at most what leaves within `PACED_S`, so that the other side sees that we live."""
        return max(MIN_CHUNK_BYTES, min(MAX_CHUNK_BYTES, int(PACED_S * self._bytes_s))) if self._bytes_s else MAX_CHUNK_BYTES

    async def take(self, num_bytes: int) -> float:
        """Returns when so many bytes may leave, with the seconds that they waited for it. Callers are served in turn."""
        if not self._bytes_s:
            return 0.0
        now_s = self._clock.monotonic()
        begin_s = max(self._free_s, now_s - BURST_S)
        self._free_s = begin_s + num_bytes / self._bytes_s
        wait_s = max(0.0, self._free_s - now_s)
        if wait_s:
            await asyncio.sleep(wait_s)
        return wait_s
