"""The process that `nursery` starts: ``python nursery_process.py LISTENING DIRECTORY KIND``. It has one thread, and never works itself.

Who connects sends one line of JSON, with the other process's end of a pipe and the descriptor of its log, and hears two: the process's id, and how it
ended. What it forks are workers or daemons; it has loaded what those load before they do anything, and a daemon has no torch.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

STDIN, PIPE = 0, 3
REQUEST_S = 10.0
MAX_REQUEST = 1 << 20
LOADED_BY_DAEMONS = (
    "dcnr.cli.dcnr", "dcnr.cli.foreground", "dcnr.cli.gateway_serving", "dcnr.cli.orchestrator", "dcnr.cli.pnode", "dcnr.cli.screens", "orchestrator.service",
    "pnode.entry", "pnode.verifying", "uvloop", "boto3.s3.transfer", "encodings.idna", "grpc_reflection.v1alpha.reflection", "pydantic.type_adapter",
    "pydantic.types",
)  # fmt: skip
"""What they load only when one starts, the parts of other packages included that load late."""


@dataclass(frozen=True)
class Birth:
    """What a forked process is to be."""

    arguments: list[str]
    environment: dict[str, str]
    pipe: int
    log: int


class Nursery:
    """Forks whatever it is asked for, until its owner is gone."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._told: dict[int, socket.socket] = {}
        """By process, who is to hear of its end."""
        self._woken, self._wakes = socket.socketpair()
        for one in (self._woken, self._wakes):
            one.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for readable in (listening, STDIN, self._woken):
            self._selector.register(readable, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> Birth | None:
        """None: the owner is gone. Else this is the process that was forked, in which nothing of the nursery is left."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == STDIN:
                    if not os.read(STDIN, 4096):
                        self._leave()
                        return None
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif (birth := self._fork(self._listening.accept()[0])) is not None:
                    self._leave()
                    return birth

    def _fork(self, asking: socket.socket) -> Birth | None:
        descriptors: list[int] = []
        try:
            request = self._request(asking, descriptors)
            birth = Birth(request["arguments"], request["environment"], *descriptors)
            pid = os.fork()
            if pid == 0:
                asking.close()
                return birth
            self._told[pid] = asking
            asking.sendall(b"%d\n" % pid)
        except (OSError, ValueError, TypeError, KeyError) as error:  # who asks sees the connection close
            sys.stderr.write(f"nursery: {error!r}\n")
            asking.close()
        for number in descriptors:
            os.close(number)
        return None

    @staticmethod
    def _request(asking: socket.socket, descriptors: list[int]) -> dict[str, Any]:
        asking.settimeout(REQUEST_S)
        said, received, _, _ = socket.recv_fds(asking, MAX_REQUEST, 2)
        descriptors += received
        while not said.endswith(b"\n"):
            more = asking.recv(MAX_REQUEST)
            if not more:
                raise ValueError("a request without an end")
            said += more
        request: dict[str, Any] = json.loads(said)
        return request

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                told = self._told.pop(ended[0], None)
                if told is not None:
                    with told, contextlib.suppress(OSError):  # whoever wanted to know is gone
                        told.sendall(b"%d" % os.waitstatus_to_exitcode(ended[1]))

    def _leave(self) -> None:
        """Closes all that is the nursery's: where it ends, and in a process that was forked from it."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for one in (self._listening, self._woken, self._wakes, *self._told.values()):
            one.close()


def alone(birth: Birth, stdin: int) -> None:
    """Leaves this process nothing but what it was given: its standard streams, its pipe, its environment, and a session of its own."""
    os.setsid()
    for number, what in enumerate((stdin, birth.log, birth.log)):
        os.dup2(what, number)
    os.dup2(birth.pipe, PIPE, inheritable=False)
    os.closerange(PIPE + 1, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(birth.environment)
    gc.enable()


def workers() -> Callable[[Birth], NoReturn]:
    """Makes of a forked process the one that a daemon starts, and works until its pipe closes."""
    import torch

    sys.path.append(os.getcwd())  # examples are not installed
    import vnode.devices  # noqa: F401
    from chaos import watched, watched_worker
    from examples.byzantine import process
    from pnode import courtesy, worker

    # Several networks share this machine, and a worker that gives way gets a hundredth of a core beside what theirs start. `test_proofs` has workers that do.
    courtesy.NICE = 0

    def work(birth: Birth) -> NoReturn:
        alone(birth, os.open(os.devnull, os.O_RDWR))
        torch.set_num_threads(int(birth.environment.get("OMP_NUM_THREADS", "1")))  # read where the library is loaded
        others = {"--behaviour": process.main, watched.FLAG: watched_worker.main}
        main = next((main for flag, main in others.items() if flag in birth.arguments), worker.main)
        leave(main(["--fd", str(PIPE), *birth.arguments]))

    return work


def daemons() -> Callable[[Birth], NoReturn]:
    """Makes of a forked process the one that `LocalNetwork` starts: ``-m MODULE …`` or ``nursed_daemon.py …``. It ends as any program does. Before that stands
    ``--workers SOCKET`` where its verifier, too, is to be forked.
    """
    import nursed_daemon
    from nursery import forking

    import pnode.verifying
    from dataservice import s3

    for name in LOADED_BY_DAEMONS:
        importlib.import_module(name)
    s3.S3Store(s3.StoreAddress("http://127.0.0.1:1", "none", "none", "none")).close()  # reads what boto knows of S3

    def serve(birth: Birth) -> NoReturn:
        alone(birth, birth.pipe)
        os.close(PIPE)
        arguments = birth.arguments
        if arguments[0] == "--workers":
            start = forking(Path(arguments[1]))
            pnode.verifying.WorkerVerifier = functools.partial(pnode.verifying.WorkerVerifier, start=start)  # type: ignore[assignment,misc]
            del arguments[:2]
        if arguments[0] == "-m":
            module = sys.modules[arguments[1]]
            sys.path[0] = os.getcwd()
            sys.argv = [str(module.__file__), *arguments[2:]]
        else:
            module, sys.argv = nursed_daemon, arguments
        module.main()
        sys.exit(0)

    return serve


def leave(code: int) -> NoReturn:
    """Ends a worker that has returned as the interpreter does, threads first, but does not take torch to pieces: that costs more than all before it works."""
    threading._shutdown()  # type: ignore[attr-defined]
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Entry point."""
    gc.disable()
    begin = {"workers": workers, "daemons": daemons}[sys.argv[3]]()
    gc.freeze()  # as pnode.worker_process does it
    birth = Nursery(socket.socket(fileno=int(sys.argv[1]))).run()
    if birth is not None:
        begin(birth)
    shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
