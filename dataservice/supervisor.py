"""Runs one child process and never lets it outlive the process that asked for it. A script of its own, standard library only.

Usage: ``supervisor.py '<json options>' -- command…``. Standard input is a pipe whose other end the asking process holds: its end
(that process stopped or was SIGKILLed) means *stop*, the byte ``k`` means *kill now*, ``t`` means *stop*. Stopping is SIGTERM,
then SIGKILL after ``stop_s`` (``orphan_s`` where the asking process died). On Linux the child also dies when this process is
SIGKILLed (parent-death signal; this process forks from its only thread). With ``forward`` it accepts connections on a public
address and passes their bytes to the child's loopback port, so that nothing else of the child is reachable. Exits with the
child's status.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

PR_SET_PDEATHSIG = 1
BLOCK_BYTES = 256 * 1024
MAX_CONNECTIONS = 256
DIAL_S = 5.0
IDLE_S = 180.0


def main(arguments: list[str]) -> int:
    """Parses, starts the child, supervises."""
    options: dict[str, Any] = json.loads(arguments[0])
    command = arguments[arguments.index("--") + 1 :]
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getpid()
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _die_with(parent), close_fds=False, restore_signals=True
    )
    try:
        asyncio.run(_supervise(child, options))
    finally:
        if child.poll() is None:
            child.kill()
        status = child.wait()
        for path in options.get("remove", []):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    return status if status >= 0 else 128 - status


def _die_with(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


async def _supervise(child: subprocess.Popen[bytes], options: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    order: asyncio.Future[bytes] = loop.create_future()
    ended = asyncio.Event()

    def heard() -> None:
        data = os.read(0, 64)
        if not order.done():
            order.set_result(data)
        elif b"k" in data:
            child.kill()
        if not data:
            loop.remove_reader(0)

    def stop() -> None:
        if not order.done():
            order.set_result(b"t")

    def reap() -> None:
        if child.poll() is not None:
            ended.set()
            stop()

    loop.add_reader(0, heard)
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGCHLD, reap)
    reap()
    server = await _forward(**options["forward"]) if options.get("forward") else None
    try:
        received = await order
        if child.poll() is None:
            child.send_signal(signal.SIGKILL if b"k" in received else signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(options["stop_s" if received else "orphan_s"])):
                    await ended.wait()
    finally:
        if server is not None:
            server.close()


async def _forward(*, host: str, port: int, to_port: int) -> asyncio.Server:
    """Listens on (host, port); each connection is spliced to the child's port on loopback."""
    open_connections = asyncio.Semaphore(MAX_CONNECTIONS)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if open_connections.locked():
                return
            async with open_connections:
                async with asyncio.timeout(DIAL_S):
                    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", to_port)
                try:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(_copy(reader, inner_writer))
                        tasks.create_task(_copy(inner_reader, writer))
                finally:
                    inner_writer.close()
        except* (OSError, TimeoutError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(accepted, host, port, limit=BLOCK_BYTES)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        async with asyncio.timeout(IDLE_S):
            block = await reader.read(BLOCK_BYTES)
        if not block:
            break
        writer.write(block)
        async with asyncio.timeout(IDLE_S):
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
