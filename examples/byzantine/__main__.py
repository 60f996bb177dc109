"""A PNode that misbehaves, as a real process: ``python -m examples.byzantine pnode start … --behaviour tenfold``.

Everything but its worker is the PNode that volunteers run; only this program can put another worker in its place. For tests and demonstrations.
"""

from __future__ import annotations

import functools
import sys

import pnode.entry
from dcnr.cli.pnode import main as pnode_command
from examples.byzantine.behaviours import BEHAVIOURS
from pnode.supervisor import executed

USAGE = "python -m examples.byzantine pnode start … --behaviour NAME[@FILE]"


def main() -> None:
    """Takes ``--behaviour NAME`` out of the arguments and runs the command ``pnode`` with the rest."""
    arguments = sys.argv[1:]
    if arguments[:1] != ["pnode"] or "--behaviour" not in arguments[:-1]:
        known = ", ".join(behaviour.name for behaviour in BEHAVIOURS)
        sys.exit(f"usage: {USAGE}\nbehaviours: {known}, equivocating, colluding, slandering, turned_deltas")
    at = arguments.index("--behaviour")
    behaviour = arguments[at + 1]
    worker = executed("-m", "examples.byzantine.process", "--behaviour", behaviour)
    pnode.entry.run_pnode = functools.partial(pnode.entry.run_pnode, worker=worker)  # type: ignore[assignment]
    sys.argv = ["pnode", *arguments[1:at], *arguments[at + 2 :]]
    pnode_command()


if __name__ == "__main__":
    main()
