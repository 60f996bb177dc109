"""Workers forked from a process that has torch, so that starting one costs a fiftieth of the processor's time: real in all else.

A nursery forks them, one for each process of pytest that wants any; it starts with the first and ends with that process, however that ends. `worker_rig` takes
workers from it, and so do the daemons of networks that are made of `nursed` PNodes. Exec'd by the daemon, as volunteers' are, must be the workers of tests
that look at what a start makes: arguments and environment of the process, its memory, what it says before it works, or a program of the test's own.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import contextlib
import errno
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dcnr.testing import PNODE, LocalPNode, clean_environment
from pnode.supervisor import ALLOCATION, UNKNOWN_CODE, Start

START_S = 120.0
"""The first worker waits until the nursery has torch."""
END_S = 10.0
NURSERY = Path(__file__).with_name("nursery_process.py")
DAEMON = Path(__file__).with_name("nursed_daemon.py")


class Nursed:
    """A forked worker: what a supervisor and a test need of a process."""

    def __init__(self, pid: int, nursery: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """None while it runs, as far as the nursery has said."""
        self._ending = asyncio.ensure_future(self._end(nursery))

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.shield(self._ending)

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def _end(self, nursery: socket.socket) -> int:
        nursery.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=nursery)
        said = b""
        with contextlib.suppress(OSError):
            said = await reader.read()
        writer.close()
        self.returncode = int(said or UNKNOWN_CODE)  # nothing: the nursery is gone
        return self.returncode


def forking(nursery: Path) -> Start:
    """Starts workers from the nursery whose socket that is. Raises OSError, which says why it cannot."""

    async def start(pipe: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> Nursed:
        asking = socket.socket(socket.AF_UNIX)
        try:
            pid = await asyncio.to_thread(_asked, asking, nursery, (pipe.fileno(), log), arguments, environment)
        except (OSError, ValueError) as error:
            asking.close()
            raise OSError(errno.ECONNREFUSED, f"the nursery of the tests forks none ({error})") from error
        return Nursed(pid, asking)

    return start


def _asked(
    asking: socket.socket, nursery: Path, descriptors: tuple[int, int], arguments: Sequence[str], environment: Mapping[str, str]
) -> int:
    """Its process."""
    asking.settimeout(START_S)
    asking.connect(str(nursery))
    said = json.dumps({"arguments": [*arguments], "environment": {**environment}}).encode() + b"\n"
    sent = asking.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
    asking.sendall(said[sent:])
    with asking.makefile("rb", buffering=0) as answers:  # a line at once, and nothing of the next
        return int(answers.readline())


@functools.cache
def nursery() -> Path:
    """The socket of this process's nursery, which is started where it does not run."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-n-"))
    where = directory / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(where))
        listening.listen(64)
        process = subprocess.Popen(
            [sys.executable, str(NURSERY), str(listening.fileno()), str(directory)], stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()], env=clean_environment(os.environ) | ALLOCATION, start_new_session=True,
        )  # fmt: skip
    atexit.register(_end, process)
    return where


def _end(nursery: subprocess.Popen[bytes]) -> None:
    """It would end by itself: this waits for it."""
    nursery.communicate(timeout=END_S)


def nursed(pnodes: Sequence[LocalPNode]) -> tuple[LocalPNode, ...]:
    """The same PNodes with forked workers; one with a program of its own stays as it is."""
    program = (str(DAEMON), str(nursery()))
    return tuple(replace(one, program=program) if one.program == PNODE else one for one in pnodes)
