"""A PNode that misbehaves, as a real process: ``python -m examples.byzantine pnode start … --behaviour tenfold``.

Everything but its worker is the PNode that volunteers run; only this program can put another worker in its place. For tests and demonstrations.
"""

from __future__ import annotations

import functools
import sys

import pnode.entry
from dcnr.cli.pnode import main as pnode_command
from pnode import worker_process
from pnode.supervisor import executed

USAGE = "python -m examples.byzantine pnode start … --behaviour NAME[@FILE]"


def main() -> int:
    """Entry point of the daemon, and of the worker that it starts."""
    arguments = sys.argv[1:]
    if "--fd" in arguments and "--behaviour" in arguments:
        return worker_process.main(_work)
    if arguments[:1] != ["pnode"] or "--behaviour" not in arguments[:-1]:
        from examples.byzantine.process import NAMES

        sys.exit(f"usage: {USAGE}\nbehaviours: {', '.join(NAMES)}")
    daemon(arguments)
    return 0


def _work() -> worker_process.Work:
    from examples.byzantine import process  # torch, which a daemon does without

    return process.main


def daemon(arguments: list[str]) -> None:
    """Takes ``--behaviour NAME`` out of the arguments and runs the command ``pnode`` with the rest."""
    at = arguments.index("--behaviour")
    worker = executed("-m", "examples.byzantine", "--behaviour", arguments[at + 1])
    pnode.entry.run_pnode = functools.partial(pnode.entry.run_pnode, worker=worker)  # type: ignore[assignment]
    sys.argv = ["pnode", *arguments[1:at], *arguments[at + 2 :]]
    pnode_command()


if __name__ == "__main__":
    sys.exit(main())
