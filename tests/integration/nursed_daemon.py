"""The daemon that volunteers run, but for where its worker comes from: ``python nursed_daemon.py SOCKET start …``.

With ``--behaviour NAME`` its workers misbehave.
"""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nursery import forking

import pnode.entry
from dcnr.cli import pnode as command
from pnode.supervisor import Start, WorkerProcess


def main() -> None:
    """Entry point."""
    start = forking(Path(sys.argv.pop(1)))
    if "--behaviour" in sys.argv:
        at = sys.argv.index("--behaviour")
        start = misbehaving(start, sys.argv[at + 1])
        del sys.argv[at : at + 2]
    pnode.entry.run_pnode = functools.partial(pnode.entry.run_pnode, worker=start)  # type: ignore[assignment]
    command.main()


def misbehaving(start: Start, name: str) -> Start:
    """Starts workers of `examples.byzantine`."""

    async def begin(pipe: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> WorkerProcess:
        return await start(pipe, ["--behaviour", name, *arguments], environment, log)

    return begin


if __name__ == "__main__":
    main()
