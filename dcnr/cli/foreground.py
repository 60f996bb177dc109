"""Daemons in the foreground: their loop, their logs, and an end that comes with the owner's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from dcnr import logs
from dcnr.cli import ending
from dcnr.limits import DRAIN_TIMEOUT_S
from dcnr.open_files import let_open

T = TypeVar("T")
SECOND_SIGNAL_S: Final = 2.0
"""An owner that vanished gets so much politeness."""
USUAL_OBJECTS: Final = (700, 10, 10)
"""The interpreter's own thresholds of its search for garbage."""


def start_logging(*, level: str, as_json: bool) -> None:
    """Logs go to standard error, in colour only for a terminal that wants it."""
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    logs.configure(level=level, as_json=as_json, colours=colours)


def loaded() -> None:
    """What a daemon has loaded is set aside from the search for garbage, which is as frequent as usual from now on."""
    gc.freeze()
    gc.set_threshold(*USUAL_OBJECTS)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a daemon to its end, with as many files as it may have, on uvloop where there is one (ADR 0031). Its loop waits for threads at its end:
    `ending` bounds that.
    """
    let_open()
    with contextlib.ExitStack() as at_end:

        async def bounded() -> T:
            try:
                return await main
            finally:
                at_end.callback(ending.bounded().cancel)

        return _run(bounded())


def _run(main: Coroutine[Any, Any, T]) -> T:
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


def end_with_stdin() -> None:
    """Ends this process when its standard input closes: whoever started it is gone."""
    threading.Thread(target=_watch_stdin, name="stdin watcher", daemon=True).start()


def _watch_stdin() -> None:
    while os.read(0, 4096):
        continue
    for wait_s in (SECOND_SIGNAL_S, DRAIN_TIMEOUT_S):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(wait_s)
    os._exit(1)
