"""A PNode that tells when it learns: ``python -m chaos.watched pnode start … --moments DIRECTORY``, and its worker.

Everything is the PNode that volunteers run, but that its worker touches a file after each batch that a replica has learned: what is computed for others without
learning leaves no trace there.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pnode.entry
from dcnr.cli.pnode import main as pnode_command
from pnode import worker_process
from pnode.supervisor import executed

PROGRAM = ("-m", "chaos.watched", "pnode")
FLAG = "--moments"


def moments_of(directory: Path) -> Path:
    """Where the workers of a network in that directory touch their files."""
    return directory.parent / "moments"


def daemon(arguments: list[str]) -> None:
    """Takes the directory out of the arguments and runs the command ``pnode`` with the rest."""
    at = arguments.index(FLAG)
    made = executed("-m", "chaos.watched", FLAG, arguments[at + 1])
    pnode.entry.run_pnode = functools.partial(pnode.entry.run_pnode, worker=made)
    sys.argv = ["pnode", *arguments[1:at], *arguments[at + 2 :]]
    pnode_command()


def main() -> int:
    """Entry point of the daemon, and of the worker that it starts."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["pnode"]:
        daemon(arguments)
        return 0
    return worker_process.main(_work)


def _work() -> worker_process.Work:
    from chaos import watched_worker  # torch, which a daemon does without

    return watched_worker.main


if __name__ == "__main__":
    sys.exit(main())
