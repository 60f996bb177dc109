"""A PNode that tells when it learns: ``python -m chaos.watched pnode start … --moments DIRECTORY``, and its worker.

Everything is the PNode that volunteers run, but that its worker touches a file after each batch that a replica has learned: what is computed for others without
learning leaves no trace there.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path
from typing import Any

import pnode.entry
from dcnr.cli.pnode import main as pnode_command
from pnode import worker
from pnode.making import Making
from pnode.supervisor import executed
from vnode.compute import StepResult
from vnode.torch_compute import TorchCompute

PROGRAM = ("-m", "chaos.watched", "pnode")
FLAG = "--moments"


def moments_of(directory: Path) -> Path:
    """Where the workers of a network in that directory touch their files."""
    return directory.parent / "moments"


class WatchedCompute(TorchCompute):
    """Touches ``DIRECTORY/VNODE.PROCESS`` after each step."""

    def __init__(self, directory: Path, stage: Any, registry: Any, **given: Any) -> None:
        super().__init__(stage, registry, **given)
        self._path = directory / f"{stage.id}.{os.getpid()}"

    def learn(self, *given: Any, **named: Any) -> StepResult:
        """As `TorchCompute.learn`."""
        result = super().learn(*given, **named)
        self._path.touch()
        return result


def daemon(arguments: list[str]) -> None:
    """Takes the directory out of the arguments and runs the command ``pnode`` with the rest."""
    at = arguments.index(FLAG)
    made = executed("-m", "chaos.watched", FLAG, arguments[at + 1])
    pnode.entry.run_pnode = functools.partial(pnode.entry.run_pnode, worker=made)
    sys.argv = ["pnode", *arguments[1:at], *arguments[at + 2 :]]
    pnode_command()


def work(arguments: list[str]) -> int:
    """What the worker's process does, with the directory among its arguments."""
    parser = argparse.ArgumentParser(prog="chaos.watched")
    parser.add_argument(FLAG, type=Path, required=True)
    options, rest = parser.parse_known_args(arguments)
    return worker.main(rest, Making(compute=functools.partial(WatchedCompute, options.moments)))


def main() -> int:
    """Entry point of the daemon, and of the worker that it starts."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["pnode"]:
        daemon(arguments)
        return 0
    return work(arguments)


if __name__ == "__main__":
    sys.exit(main())
