"""Runs test files again and again, each time in a process of its own, without loading what they have in common each time.

``python -m benchmarks.forked_tests`` loads that once, then reads what to run from its input, a line of JSON each, and answers with a line. The process of a run
is a fork of that one: nothing of this house that is under test is loaded there yet, so a run sees the copy that it is given, and leaves nothing behind.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from benchmarks.machine import ROOT
from dcnr.errors import InvariantBroken

LOADED: Final = (
    "asyncio", "http.server", "grpc", "numpy", "safetensors.numpy", "torch", "hypothesis.strategies", "google.protobuf.descriptor_pb2",
    "cryptography.hazmat.primitives.asymmetric.ed25519", "cryptography.x509", "dcnr.v1.orchestrator_pb2", "dcnr.v1.membership_pb2", "dcnr.tensor", "dcnr.graph",
)  # fmt: skip
"""What tests load most often, of other houses and of the layers below what is under test."""
BEGINNING: Final = "".join(f"import {name}\n" for name in LOADED) + "def test_nothing() -> None: ...\n"
ALWAYS: Final = ("-q", "-p", "no:xdist", "--hypothesis-seed=0")


@dataclass(frozen=True, slots=True)
class Ending:
    """Of a run: how pytest ended (below 0: the signal that ended it; None: stopped by the clock), and what it said."""

    code: int | None
    output: str


class ForkedTests:
    """The process that runs tests; ends with the block. ``under_test``: the package of which each run is given a copy."""

    def __init__(self, under_test: str, scratch: Path, *, cpu_s: int, wall_s: float) -> None:
        self._settings = {"under_test": under_test, "cpu_s": cpu_s, "wall_s": wall_s, "scratch": str(scratch)}
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.forked_tests", json.dumps(self._settings)], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.communicate()

    def run(self, tests: Sequence[Path], place: Path) -> Ending:
        """Up to the first test that fails, with ``place`` before everything else that is imported from. Raises InvariantBroken if nothing can be run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"tests": [str(test) for test in tests], "place": str(place)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise InvariantBroken("the process that runs tests has ended", code="bad_tests")
        return Ending(**json.loads(line))


def _serve(under_test: str, scratch: Path, cpu_s: int, wall_s: float) -> None:
    begun, said = scratch / "forked" / "test_beginning.py", scratch / "forked" / "said"
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.write_text(BEGINNING)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # by pytest, which has a way of its own to load what its plug-ins may import
    if pytest.main([*ALWAYS, "-c", str(ROOT / "pyproject.toml"), f"--rootdir={begun.parent}", str(begun)]) != 0:
        raise InvariantBroken("what tests have in common cannot be loaded", code="bad_tests")
    del sys.modules[begun.stem]
    if under_test in sys.modules:
        raise InvariantBroken(f"{under_test} is loaded by what all tests have in common", code="bad_tests")
    importlib.invalidate_caches()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_run_here(asked["tests"], Path(asked["place"]), said, cpu_s))
        code = _ending_of(child, wall_s)
        answers.write(json.dumps({"code": code, "output": said.read_text(errors="replace")}) + "\n")
        answers.flush()


def _run_here(tests: Sequence[str], place: Path, said: Path, cpu_s: int) -> int:
    """In the child."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(place), os.environ["PYTHONPATH"]])
    os.chdir(place)
    sys.path.insert(0, str(place))
    try:
        return int(pytest.main(["-x", *ALWAYS, *tests]))
    finally:
        sys.stdout.flush()


def _ending_of(child: int, wall_s: float) -> int | None:
    watched = os.pidfd_open(child)
    ended, _, _ = select.select([watched], [], [], wall_s)
    os.close(watched)
    with suppress(ProcessLookupError):  # it, if time is up, and what it leaves behind
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    _serve(settings["under_test"], Path(settings["scratch"]), settings["cpu_s"], settings["wall_s"])
