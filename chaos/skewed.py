"""An orchestrator whose clocks are wrong: this machine's wall clock, so many seconds off, and its monotonic one at another rate. Only this program does that;
`orchestrator start` has no such setting. ``CHAOS_CLOCK=SECONDS:RATE`` in its environment says how wrong they are.
"""

from __future__ import annotations

import os
import time
from typing import Final

from dcnr.cli.orchestrator import main
from dcnr.system import SystemClock

VARIABLE: Final = "CHAOS_CLOCK"


def skew(value: str) -> None:
    """From here on every `SystemClock` of this process is wrong by that much."""
    off_s, _, rate = value.partition(":")
    began, off, pace = time.monotonic(), float(off_s), float(rate)
    setattr(SystemClock, "monotonic", lambda self: began + (time.monotonic() - began) * pace)  # noqa: B010  mypy: a method is replaced
    setattr(SystemClock, "wall", lambda self: time.time() + off)  # noqa: B010


if __name__ == "__main__":
    skew(os.environ[VARIABLE])
    main()
