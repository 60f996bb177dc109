"""Keeps transfers under a rate: each block that goes out or comes in is told, and says how long to wait before the next. All transfers share one pace.

Blocks are small against the rate, so that what shares the line (beats, above all) waits for a fraction of a second at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from dcnr import limits

BURST_S: Final = 0.2
"""Unused time that may be made up for, and the time that one block takes at the rate."""
MAX_BLOCK_BYTES: Final = 256 * limits.KIB
MIN_BLOCK_BYTES: Final = 4 * limits.KIB
BYTES_PER_MBIT: Final = 125_000


class Pace:
    """One direction of one machine. ``mbit`` per second; 0: no limit. May be used from several threads."""

    def __init__(self, mbit: float, monotonic: Callable[[], float]) -> None:
        self._bytes_s, self._monotonic = mbit * BYTES_PER_MBIT, monotonic
        self._lock = threading.Lock()
        self._free_at = float("-inf")
        self.num_bytes = 0
        """Noted so far."""

    @classmethod
    def unlimited(cls) -> Pace:
        """One that never asks to wait."""
        return cls(0.0, lambda: 0.0)

    @property
    def limit_bytes_s(self) -> float:
        """The rate; 0: no limit."""
        return self._bytes_s

    @property
    def block_bytes(self) -> int:
        """How much to send or read at once."""
        if not self._bytes_s:
            return MAX_BLOCK_BYTES
        return int(min(MAX_BLOCK_BYTES, max(MIN_BLOCK_BYTES, self._bytes_s * BURST_S)))

    def seconds(self, num_bytes: int) -> float:
        """What so many bytes take at the rate if nothing else goes on; 0 without a limit."""
        return num_bytes / self._bytes_s if self._bytes_s else 0.0

    def wait_s(self, num_bytes: int) -> float:
        """Notes so many bytes and says how long to wait before going on."""
        with self._lock:
            self.num_bytes += num_bytes
            if not self._bytes_s:
                return 0.0
            now = self._monotonic()
            self._free_at = max(self._free_at, now - BURST_S) + num_bytes / self._bytes_s
            return max(0.0, self._free_at - now)
