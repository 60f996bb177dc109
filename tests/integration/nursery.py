"""Workers and daemons forked from processes that have loaded what they need, so that starting one costs a fraction of the processor's time: real in all else.

A nursery forks them, one for workers, which have torch, and one for PNodes' daemons and orchestrators, which have not, in each process of pytest that
wants any; it starts with the first and ends with that process, however that ends. `worker_rig` takes workers from it, and so do the daemons of networks
that are made of `nursed` PNodes; those daemons, and orchestrators, are `forked` where a network is told so. Exec'd, as volunteers' are, must be what tests
look at the start of: arguments and environment of the process, its memory, what it says before it works, or a program of the test's own.
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
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal

from dcnr.children import Child, executed
from dcnr.testing import ORCHESTRATOR, PNODE, LocalPNode, clean_environment
from pnode.supervisor import ALLOCATION, UNKNOWN_CODE, Start

START_S = 120.0
"""The first process waits until the nursery has loaded."""
END_S = 10.0
NURSERY = Path(__file__).with_name("nursery_process.py")
DAEMON = Path(__file__).with_name("nursed_daemon.py")
LEND = "--nurseries="


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
            with contextlib.suppress(ProcessLookupError):  # it ended, and the nursery is about to say so
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
    if rest := said[sent:]:  # with nothing left to say, whoever has its process may have ended by now
        asking.sendall(rest)
    with asking.makefile("rb", buffering=0) as answers:  # a line at once, and nothing of the next
        return int(answers.readline())


class Forked:
    """A forked daemon: what a `LocalNetwork` and a test need of a process."""

    def __init__(self, pid: int, command: Sequence[str], stdin: IO[bytes], nursery: socket.socket) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None
        """None while it runs, as far as anybody has looked."""
        self._command, self._nursery = [*command], nursery
        self._looking = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self._command, timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        """Nothing happens to one that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and the nursery is about to say so
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _look(self, within_s: float | None) -> int | None:
        with self._looking:
            if self.returncode is None:
                self._nursery.settimeout(within_s)
                try:
                    said = self._nursery.recv(16)
                except (BlockingIOError, TimeoutError):
                    return None
                except OSError:
                    said = b""
                self.returncode = int(said or UNKNOWN_CODE)  # nothing: the nursery is gone
                self._nursery.close()
            return self.returncode


def forked(command: Sequence[str], environment: Mapping[str, str], log: int) -> Child:
    """Starts a process of a `LocalNetwork`: from the nursery an orchestrator, with its verifier, and the daemon of a `nursed` PNode; whatever else it is, it is
    executed.
    """
    if [*command[:3]] != [sys.executable, "-m", ORCHESTRATOR] and [*command[:2]] != [sys.executable, str(DAEMON)]:
        return executed(command, environment, log)
    verifying = ["--workers", str(nursery("workers"))] if "--verifier" in command else []
    theirs, ours = os.pipe()
    asking = socket.socket(socket.AF_UNIX)
    try:
        pid = _asked(asking, nursery("daemons"), (theirs, log), [*verifying, *command[1:]], environment)
    except BaseException:
        asking.close()
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return Forked(pid, command, os.fdopen(ours, "wb"), asking)


def ran(arguments: Sequence[str], environment: Mapping[str, str], within_s: float) -> tuple[int, str]:
    """Exit code and output of ``python -m MODULE …``, one that the daemons' nursery has loaded. Raises subprocess.TimeoutExpired: it is killed."""
    with open(os.devnull, "r+b") as nothing, tempfile.TemporaryFile() as out:
        asking = socket.socket(socket.AF_UNIX)
        try:
            pid = _asked(asking, nursery("daemons"), (nothing.fileno(), out.fileno()), arguments, environment)
        except BaseException:
            asking.close()
            raise
        process = Forked(pid, arguments, nothing, asking)
        try:
            code = process.wait(within_s)
        finally:
            process.kill()  # nothing happens to one that has ended
            process.wait(END_S)
        out.seek(0)
        return code, out.read().decode()


@functools.cache
def nursery(of: Literal["workers", "daemons"]) -> Path:
    """The socket of that nursery of this process, which is started where it does not run; or of the process that `lent` it to this one."""
    for word in sys.argv:
        if word.startswith(LEND):
            return Path(json.loads(word.removeprefix(LEND))[of])
    directory = Path(tempfile.mkdtemp(prefix="dcnr-n-"))
    where = directory / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(where))
        listening.listen(64)
        process = subprocess.Popen(
            [sys.executable, str(NURSERY), str(listening.fileno()), str(directory), of], stdin=subprocess.PIPE, pass_fds=[listening.fileno()],
            env=clean_environment(os.environ) | (ALLOCATION if of == "workers" else {}), start_new_session=True,
        )  # fmt: skip
    atexit.register(_end, process)
    return where


def lent() -> str:
    """An argument with which a program that a test starts takes from the nurseries of this process, and has none of its own."""
    return LEND + json.dumps({of: str(nursery(of)) for of in ("workers", "daemons")})


def _end(nursery: subprocess.Popen[bytes]) -> None:
    """It would end by itself: this waits for it."""
    nursery.communicate(timeout=END_S)


def nursed(pnodes: Sequence[LocalPNode]) -> tuple[LocalPNode, ...]:
    """The same PNodes with forked workers, and a daemon that may be `forked`; one with a program of its own stays as it is."""
    program = (str(DAEMON), str(nursery("workers")))
    return tuple(replace(one, program=program) if one.program == PNODE else one for one in pnodes)
