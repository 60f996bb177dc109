"""Commands as processes whose lines can be waited for, and a model so small that a whole job takes seconds."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import psutil
from nursery import ran
from schemas_rig import check_output

from dcnr.cli import errors, pnode
from dcnr.testing import clean_environment

LINE_S = 240.0
END_S = 120.0
POLL_S = 0.2

GRAPH = """
[model]
name = "tiny"
version = 1
num_classes = 4
input = { dtype = "float32", shape = [16] }
target = { dtype = "int64", shape = [] }

[data]
train = "dataset:tiny#train"
validation = "dataset:tiny#validation"
test = "dataset:tiny#test"

[train]
passes = PASSES
batch_size = 16
seed = 0
codec = "raw"

[[vnode]]
id = "a"
component = "linear"
config = { out_features = 32 }
inputs = ["input"]
objective = { name = "local_ce" }
optimizer = { name = "sgd", lr = 0.02 }

[[vnode]]
id = "b"
component = "linear"
config = { out_features = 16 }
inputs = ["a"]
objective = { name = "local_ce" }
optimizer = { name = "sgd", lr = 0.02 }
"""
SAMPLES = 640


def graph_text(*, passes: int = 2, name: str = "tiny", dataset: str = "tiny") -> str:
    """A chain of two linear VNodes."""
    return (
        GRAPH.replace("PASSES", str(passes))
        .replace("dataset:tiny", f"dataset:{dataset}")
        .replace('name = "tiny"', f'name = "{name}"')
    )


def write_data(path: Path, seed: int = 0) -> Path:
    """Samples that a linear teacher labels."""
    rng = np.random.default_rng(seed)
    teacher = rng.standard_normal((16, 4)).astype(np.float32)
    arrays = {}
    for split, count in (("train", SAMPLES), ("validation", 64), ("test", 64)):
        arrays[f"{split}_x"] = rng.integers(0, 256, (count, 16)).astype(np.float32) / 255
        arrays[f"{split}_y"] = ((arrays[f"{split}_x"] - 0.5) @ teacher).argmax(axis=1)
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's stub wants no arrays by keyword
    return path


class Command:
    """A running command; everything it prints is kept, and it is gone when the block is left."""

    def __init__(self, *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd,
            env=clean_environment(os.environ) | dict(environment or {}), start_new_session=True,
        )  # fmt: skip
        self._news = threading.Condition()
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, name="reader", daemon=True)
        self._reader.start()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *error: object) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait(5)
        self._reader.join(5)
        if self._popen.stdout is not None:
            self._popen.stdout.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._popen.pid

    @property
    def text(self) -> str:
        """All it has printed."""
        with self._news:
            return "\n".join(self._lines)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def line(self, part: str, within_s: float = LINE_S) -> str:
        """The first line that contains ``part``, as soon as it is printed."""
        deadline = time.monotonic() + within_s
        with self._news:
            while True:
                for line in self._lines:
                    if part in line:
                        return line
                left = deadline - time.monotonic()
                runs = self._popen.poll() is None or self._reader.is_alive()
                assert runs, f"ended without printing {part!r}:\n" + "\n".join(self._lines)
                assert left > 0, f"not within {within_s:.0f} s: {part!r}:\n" + "\n".join(self._lines)
                self._news.wait(min(left, 0.5))

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._popen.send_signal(signal.SIGINT)

    def end(self, within_s: float = END_S) -> int:
        """The exit code."""
        try:
            code = self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {within_s:.0f} s:\n{self.text}") from None
        self._reader.join(5)
        return code


def run(*arguments: str, code: int, environment: Mapping[str, str] | None = None) -> str:
    """What a command that ends by itself with ``code`` prints; forked, since what it loads is not looked at."""
    ended, text = ran(arguments, clean_environment(os.environ) | dict(environment or {}), END_S)
    assert ended == code, f"{arguments}: {ended}\n{text}"
    return text.rstrip("\n")


def asked(*arguments: str) -> str:
    """What a command of a PNode's owner prints, which must end well; in this process, for those who ask again and again."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        ended = errors.exit_code(pnode.app, "pnode", list(arguments))
    assert ended == 0, f"{arguments}: {ended}\n{out.getvalue()}"
    check_output(" ".join(["pnode", *arguments]), out.getvalue())
    return out.getvalue()


def told(text: str, *, code: str, what: str, remedy: str = "") -> None:
    """An error as people must see it: what happened, why, the next command."""
    assert what in text, text
    assert f"  why: {code}" in text, text
    assert not remedy or remedy in text.partition("  next: ")[2], text
    assert "Traceback" not in text, text


def until(condition: Callable[[], object], within_s: float = LINE_S, *, say: Callable[[], str] = lambda: "") -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {say()}"
        time.sleep(POLL_S)


def processes_of(directory: Path) -> list[psutil.Process]:
    """Every process that names the directory, works in it or has its log there, which is all that one of a nursery shows."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.cwd()]
        except psutil.Error:
            continue
        with contextlib.suppress(OSError):  # it is another's, or has closed it
            words.append(os.readlink(f"/proc/{process.pid}/fd/1"))
        if process.status() != psutil.STATUS_ZOMBIE and any(str(directory) in word for word in words):
            found.append(process)
    return found


@contextlib.contextmanager
def nothing_left(directory: Path, temporary: Path) -> Iterator[None]:
    """Afterwards no process of ``directory`` runs, and nothing lies in ``temporary`` (its TMPDIR) or where the store's program puts its sockets."""
    before = set(
        Path("/tmp").glob("seaweedfs-*.sock")
    )  # of stores that were killed with those who look after them, perhaps at these ports
    yield
    until(lambda: not processes_of(directory), 10.0, say=lambda: str(processes_of(directory)))
    assert list(temporary.iterdir()) == []
    ports = directory / "store" / "ports.json"
    numbers = json.loads(ports.read_text()).values() if ports.exists() else ()
    left = [path for path in Path("/tmp").glob("seaweedfs-*.sock") if any(path.stem.endswith(f"-{number}") for number in numbers)]
    assert not set(left) - before, left
