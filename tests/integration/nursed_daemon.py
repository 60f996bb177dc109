"""The daemon that volunteers run, but for where its worker comes from: ``python nursed_daemon.py SOCKET start …``."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from nursery import forking

import pnode.entry
from dcnr.cli import pnode as command


def main() -> None:
    """Entry point."""
    start = forking(Path(sys.argv.pop(1)))
    pnode.entry.run_pnode = functools.partial(pnode.entry.run_pnode, worker=start)  # type: ignore[assignment]
    command.main()


if __name__ == "__main__":
    main()
