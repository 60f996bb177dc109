"""The daemon that volunteers run, but for where its worker comes from: ``python nursed_daemon.py SOCKET start …``.

With ``--behaviour NAME`` its workers misbehave, with ``--moments DIRECTORY`` they tell there when they learn. With ``--may-be-deaf`` gossip tells it of
nobody while a file `DEAF` is in its home.
"""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from nursery import forking

import pnode.entry
from dcnr.cli import pnode as command
from dcnr.v1 import identity_pb2
from membership.node import Membership
from pnode.supervisor import Start, WorkerProcess

DEAF: Final = "deaf"
"""Of a file."""
OF_WORKERS: Final = ("--behaviour", "--moments")
"""Flags of `examples.byzantine` and `chaos.watched`, whose workers need them."""


def main() -> None:
    """Entry point."""
    start = forking(Path(sys.argv.pop(1)))
    for flag in set(OF_WORKERS).intersection(sys.argv):
        at = sys.argv.index(flag)
        start = told(start, flag, sys.argv[at + 1])
        del sys.argv[at : at + 2]
    if "--may-be-deaf" in sys.argv:
        sys.argv.remove("--may-be-deaf")
        may_be_deaf(Path(sys.argv[sys.argv.index("--home") + 1]) / DEAF)
    pnode.entry.run_pnode = functools.partial(pnode.entry.run_pnode, worker=start)  # type: ignore[assignment]
    command.main()


def may_be_deaf(switch: Path) -> None:
    """While that file is there, no advert is taken in that another node sent, in a join or an exchange of either side; what the directory answers is."""
    take = Membership._take

    def heard(membership: Membership, envelopes: Iterable[identity_pb2.Envelope]) -> None:
        take(membership, () if switch.exists() else envelopes)

    Membership._take = heard  # type: ignore[method-assign]


def told(start: Start, flag: str, what: str) -> Start:
    """Starts workers that are told that besides."""

    async def begin(pipe: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> WorkerProcess:
        return await start(pipe, [flag, what, *arguments], environment, log)

    return begin


if __name__ == "__main__":
    main()
