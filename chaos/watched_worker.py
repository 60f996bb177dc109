"""The worker of a PNode that tells when it learns (`chaos.watched`)."""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path
from typing import Any

from chaos.watched import FLAG
from pnode import worker
from pnode.making import Making
from vnode.compute import StepResult
from vnode.torch_compute import TorchCompute


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


def main(arguments: list[str]) -> int:
    """What the worker's process does, with the directory among its arguments."""
    parser = argparse.ArgumentParser(prog="chaos.watched")
    parser.add_argument(FLAG, type=Path, required=True)
    options, rest = parser.parse_known_args(arguments)
    return worker.main(rest, Making(compute=functools.partial(WatchedCompute, options.moments)))
