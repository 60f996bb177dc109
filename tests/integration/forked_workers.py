"""Worker processes forked from one that has loaded torch, so that starting one costs a fiftieth: real in all else. Networks start theirs as a daemon does."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import socket
from multiprocessing.context import ForkServerProcess

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["pnode.worker", "vnode.devices"])  # torch


class Forked:
    """One worker, with what a test does to a process of asyncio."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        self._process.join()
        assert self.returncode is not None
        return self.returncode


async def fork_worker(pipe: socket.socket) -> Forked:
    """A worker at the other end of the daemon's pipe. The first one waits for torch."""
    process = _server.Process(target=_work, args=(pipe,))
    await asyncio.to_thread(process.start)
    return Forked(process)


def _work(pipe: socket.socket) -> None:
    from pnode.worker import main

    gc.freeze()  # as pnode.worker_process does it
    raise SystemExit(main(["--fd", str(pipe.detach())]))
