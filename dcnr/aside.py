"""Text for whoever watches, from a thread of its own: a terminal that was halted, or a pipe that nobody reads, keeps nobody waiting."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import select
import stat
import threading
from collections import deque
from typing import Final

MAX_WAITING_BYTES: Final = 1 << 20
"""What waits for a reader; what is said beyond that is lost, and counted."""
LAST_WORDS_S: Final = 1.0
"""What the end of the process waits for a reader."""
LOOK_S: Final = 1.0
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""Of a disk: it may have room later."""


class Aside:
    """Writes to a descriptor. A reader that is gone stays so: nothing more is shown."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._num_lost = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, text: str) -> None:
        """Goes out as soon as it can; never waits, never raises."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
                self._num_lost += 1
                return
            self._keep(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="what is said", daemon=True)
                self._thread.start()
                atexit.register(self.finish, LAST_WORDS_S)

    def finish(self, within_s: float) -> None:
        """Returns when all of it is out, after ``within_s`` at the latest."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes, within_s)

    def _keep(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting.popleft()
            self._write(data)
            with self._changed:
                self._waiting_bytes -= len(data)
                if self._num_lost and not self._waiting:
                    lost, self._num_lost = self._num_lost, 0
                    self._keep(f"({lost} times something was said that nobody read in time)\n".encode())
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # somebody else has made it so
                select.select((), (self._descriptor,), (), LOOK_S)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    show_nothing(self._descriptor)
                return


def show_nothing(descriptor: int) -> None:
    """Whatever is written there from now on goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def keeps_waiting(descriptor: int) -> bool:
    """Whether who writes there may have to wait for somebody: for all but files."""
    with contextlib.suppress(OSError):
        return not stat.S_ISREG(os.fstat(descriptor).st_mode)
    return False
