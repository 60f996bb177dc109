"""Keeps transfers under a rate: each block that goes out or comes in is told, and says how long to wait before the next. All transfers share one pace.

Blocks are small against the rate, so that what shares the line (beats, above all) waits for a fraction of a second at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dcnr import limits

BURST_S: Final = 0.2
"""Unused time that may be made up for, and the time that one block takes at the rate."""
MAX_BLOCK_BYTES: Final = 256 * limits.KIB
MIN_BLOCK_BYTES: Final = 4 * limits.KIB
BYTES_PER_MBIT: Final = 125_000


class Paced(Protocol):
    """What a transfer keeps."""

    @property
    def block_bytes(self) -> int:
        """How much to send or read at once."""

    def seconds(self, num_bytes: int) -> float:
        """What so many bytes take if nothing else goes on; 0 without a limit."""

    def wait_s(self, num_bytes: int) -> float:
        """Notes so many bytes and says how long to wait before going on."""


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

    def limit(self, bytes_s: float) -> None:
        """From the next block on so many bytes per second; 0: no limit."""
        self._bytes_s = bytes_s

    def now_s(self) -> float:
        """By its clock."""
        return self._monotonic()

    @property
    def block_bytes(self) -> int:
        """How much to send or read at once."""
        bytes_s = self._bytes_s
        return int(min(MAX_BLOCK_BYTES, max(MIN_BLOCK_BYTES, bytes_s * BURST_S))) if bytes_s else MAX_BLOCK_BYTES

    def seconds(self, num_bytes: int) -> float:
        """What so many bytes take at the rate if nothing else goes on; 0 without a limit."""
        bytes_s = self._bytes_s
        return num_bytes / bytes_s if bytes_s else 0.0

    def wait_s(self, num_bytes: int) -> float:
        """Notes so many bytes and says how long to wait before going on."""
        with self._lock:
            self.num_bytes += num_bytes
            bytes_s = self._bytes_s
            if not bytes_s:
                return 0.0
            now = self._monotonic()
            self._free_at = max(self._free_at, now - BURST_S) + num_bytes / bytes_s
            return max(0.0, self._free_at - now)


@dataclass(frozen=True, slots=True)
class Sent:
    """An upload that was answered: what it took from its first byte to the answer, and how long of that its own paces held it back."""

    num_bytes: int
    seconds: float
    held_s: float


class Outgoing:
    """One upload: keeps ``own`` and every other pace that it is given, and knows what it took."""

    def __init__(self, own: Pace, *others: Pace) -> None:
        self._own, self._paces = own, (own, *others)
        self._began_s: float | None = None
        self._num_bytes, self._held_s = 0, 0.0

    @property
    def block_bytes(self) -> int:
        """How much to send at once."""
        return min(pace.block_bytes for pace in self._paces)

    def seconds(self, num_bytes: int) -> float:
        """At the slowest of its rates."""
        return max(pace.seconds(num_bytes) for pace in self._paces)

    def wait_s(self, num_bytes: int) -> float:
        """Of the slowest; each pace has noted the bytes."""
        if self._began_s is None:
            self._began_s = self._own.now_s()
        wait_s = max(pace.wait_s(num_bytes) for pace in self._paces)
        self._num_bytes += num_bytes
        self._held_s += wait_s
        return wait_s

    def answered(self) -> Sent:
        """What it took until now."""
        now_s = self._own.now_s()
        return Sent(self._num_bytes, now_s - (now_s if self._began_s is None else self._began_s), self._held_s)
