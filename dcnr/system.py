"""The operating system's clocks and randomness, as adapters of the ports: only entry points make them."""

from __future__ import annotations

import time


class SystemClock:
    """`dcnr.ports.Clock` over this machine's clocks."""

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970 UTC, as this machine believes."""
        return time.time()
