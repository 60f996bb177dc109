"""Bounds the end of a process: a thread that hangs, in a disk or a resolver that does not answer, keeps it no longer than `LAST_THREADS_S`."""

from __future__ import annotations

import os
import threading
from typing import Final

LAST_THREADS_S: Final = 10.0
HUNG: Final = 1
"""The exit code of a process that had one of its own to give, and a thread that kept it."""


def bounded(code: int = HUNG) -> threading.Timer:
    """The process has nothing left to do: it ends with ``code`` after `LAST_THREADS_S` at the latest, unless the timer is cancelled."""
    timer = threading.Timer(LAST_THREADS_S, os._exit, (code,))
    timer.name, timer.daemon = "bounds the end", True
    timer.start()
    return timer
