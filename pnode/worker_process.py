"""The process of a worker, from before it loads what it works with until after its daemon has gone.

What it loads is set aside from the search for garbage, which would go through torch a dozen times at each start.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

ORPHAN_S: Final = 5.0
"""A worker without a daemon, or that is done, which has not ended by itself within so many seconds is ended, whatever it does."""


Work = Callable[[list[str]], int]
"""What a worker does from its arguments until its pipe closes: its exit code."""


def _real() -> Work:
    from pnode import worker  # torch

    return worker.main


def main(load: Callable[[], Work] = _real) -> int:
    """Entry point: ``python -m pnode.worker_process --fd N …``. ``load`` imports what the worker works with; only programs that start a daemon themselves
    have another one than volunteers.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--fd", type=int, required=True)
    loaded = threading.Event()
    threading.Thread(target=_end_with, args=(parser.parse_known_args()[0].fd, loaded), name="end-with-daemon", daemon=True).start()
    gc.disable()
    work = load()
    gc.freeze()
    gc.enable()
    loaded.set()
    return work(sys.argv[1:])


def _end_with(pipe: int, loaded: threading.Event) -> None:
    """Ends this process once either end is shut, whatever threads wait for: at once while it loads, which takes a minute on a busy machine and leaves nothing
    behind.
    """
    poll = select.poll()
    poll.register(pipe, 0)  # that it was closed is told unasked
    poll.poll()
    if loaded.is_set():
        time.sleep(ORPHAN_S)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
