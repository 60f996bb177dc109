"""Goal: after any `make` the environment is whole: two install one after the other, and what was broken off leaves nothing behind and is begun anew."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from install import COMPLETE, DOWNLOADS, LOCK, SCRATCH, Found, Step, alone, may_be_filled, next_step, run

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0
POLL_S = 0.05
MAKE = shutil.which("make") or "make"
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1"
[project.optional-dependencies]
dev = []
"""
BACKEND = """
import os, pathlib, socket, sys, tempfile, zipfile

DATA = {"METADATA": "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\nProvides-Extra: dev\\n", "WHEEL": "Wheel-Version: 1.0\\nTag: py3-none-any\\n"}

def prepare_metadata_for_build_editable(directory, config_settings=None):
    made = pathlib.Path(directory) / "tiny-1.dist-info"
    made.mkdir()
    for name, text in DATA.items():
        (made / name).write_text(text)
    return made.name

def build_editable(directory, config_settings=None, metadata_directory=None):
    cache = pathlib.Path(os.environ.get("PIP_CACHE_DIR") or pathlib.Path.home() / ".cache" / "pip")
    cache.mkdir(parents=True, exist_ok=True)
    tempfile.mkstemp(dir=cache)
    tempfile.mkstemp()
    with socket.create_connection(("127.0.0.1", PORT)) as test:
        if test.recv(1) != b"+":
            sys.exit("the test says that this fails")
    with zipfile.ZipFile(pathlib.Path(directory) / "tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        for name, text in DATA.items():
            wheel.writestr("tiny-1.dist-info/" + name, text)
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return "tiny-1-py3-none-any.whl"
"""
"""Writes where pip writes, and asks the test whether to go on."""
VENV_MODULE = """
import pathlib, sys

sys.path = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != pathlib.Path.cwd()]
import venv

venv.create(sys.argv[1], symlinks=True)
"""
"""``python -m venv`` without the seconds in which it unpacks a pip: the tests' own lies in the project."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """The real Makefile and install.py around a project of one empty module, and a home and a directory for temporary files in which nothing may stay."""

    path: Path
    asked: socket.socket
    lines: ExitStack

    @property
    def venv(self) -> Path:
        return self.path / "tiny" / ".venv"

    def make(self) -> subprocess.Popen[str]:
        """With a process group of its own, as a terminal gives it one. On an empty PATH: some compilers that pip asks for their version write into the home."""
        environment = {
            "PATH": str(self.path), "HOME": str(self.path / "home"), "TMPDIR": str(self.path / "tmp"),
            "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull,
        }  # fmt: skip
        command = [MAKE, "--no-print-directory", f"PYTHON={sys.executable}", ".venv/.installed"]
        return subprocess.Popen(
            command, cwd=self.path / "tiny", env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )  # fmt: skip

    def pip_asks(self) -> socket.socket:
        """The line to a pip that is in the middle of its work."""
        line, _ = self.asked.accept()
        line.settimeout(LIMIT_S)
        return self.lines.enter_context(line)

    def nobody_asks(self) -> bool:
        return not select.select([self.asked], [], [], 0)[0]

    def installed(self) -> str:
        """What a make says that installs and ends well."""
        making = self.make()
        self.pip_asks().sendall(b"+")
        return ended_well(making)

    def changes(self, name: str) -> None:
        """After the installation, whatever the clock's steps are."""
        newer_ns = (self.venv / COMPLETE).stat().st_mtime_ns + 1
        os.utime(self.path / "tiny" / name, ns=(newer_ns, newer_ns))

    def assert_clean(self) -> None:
        """No file outside the checkout."""
        assert list((self.path / "tmp").iterdir()) == []
        assert list((self.path / "home").rglob("*")) == []


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    for name in ("tiny", "home", "tmp"):
        (tmp_path / name).mkdir()
    for name in ("Makefile", "install.py"):
        shutil.copy(ROOT / name, tmp_path / "tiny" / name)
    (tmp_path / "tiny" / "pip").symlink_to(next(path for entry in sys.path if (path := Path(entry) / "pip").is_dir()))
    with socket.create_server(("127.0.0.1", 0)) as asked, ExitStack() as lines:
        asked.settimeout(LIMIT_S)
        port = asked.getsockname()[1]
        texts = {
            "pyproject.toml": PROJECT, "constraints.txt": "", "backend.py": f"PORT = {port}\n{BACKEND}", "venv.py": VENV_MODULE
        }  # fmt: skip
        for name, text in texts.items():
            (tmp_path / "tiny" / name).write_text(text)
        yield Checkout(tmp_path, asked, lines)


def next_line(making: subprocess.Popen[str]) -> str:
    """What it says next."""
    assert making.stdout is not None
    assert select.select([making.stdout], [], [], LIMIT_S)[0], "it says nothing"
    return making.stdout.readline()


def runs(process: psutil.Process) -> bool:
    """Whether it does; one that ended and that nobody has asked for its exit code yet does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ended_well(making: subprocess.Popen[str]) -> str:
    said, _ = making.communicate(timeout=LIMIT_S)
    assert making.returncode == 0, said
    return said


def test_of_two_at_once_one_installs_and_the_other_waits(checkout: Checkout) -> None:
    first = checkout.make()
    pip = checkout.pip_asks()
    second = checkout.make()
    assert next_line(second) == "another make installs into .venv: waiting for it\n"
    assert checkout.nobody_asks()
    pip.sendall(b"+")
    assert ended_well(first) == "installing into .venv (once; torch is the largest part)\n"
    assert ended_well(second) == ""
    assert checkout.nobody_asks(), "installed twice"
    subprocess.run([checkout.venv / "bin" / "python", "-c", "import tiny"], check=True, timeout=LIMIT_S)
    assert {path.name for path in checkout.venv.iterdir()}.isdisjoint((SCRATCH, DOWNLOADS))
    checkout.assert_clean()
    assert ended_well(checkout.make()).endswith("is up to date.\n")


def test_a_complete_environment_is_updated_in_place_and_half_made_while_that_goes_on(checkout: Checkout) -> None:
    checkout.installed()
    (checkout.venv / "kept").touch()
    checkout.changes("constraints.txt")
    assert checkout.installed() == "installing into .venv (once; torch is the largest part)\n"
    assert (checkout.venv / "kept").exists(), "a complete environment was thrown away"
    checkout.changes("pyproject.toml")
    failing = checkout.make()
    checkout.pip_asks().sendall(b"-")
    said, _ = failing.communicate(timeout=LIMIT_S)
    assert failing.returncode != 0
    assert "the test says that this fails" in said
    assert "installing into .venv failed (see above); the next make begins with a new environment" in said
    assert not (checkout.venv / COMPLETE).exists()
    checkout.assert_clean()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL], ids=lambda ending: ending.name)
def test_what_was_broken_off_leaves_nothing_and_is_begun_anew(checkout: Checkout, ending: signal.Signals) -> None:
    """Goal: neither Ctrl-C nor a kill of all that a terminal knows of leaves a process or a file outside; a second make that waited does it all."""
    making = checkout.make()
    pip = checkout.pip_asks()
    processes = [psutil.Process(making.pid), *psutil.Process(making.pid).children(recursive=True)]
    assert len(processes) >= 4, "make, install.py, pip, what pip builds with"
    second = checkout.make()
    assert "waiting" in next_line(second)
    (checkout.venv / "left").touch()
    os.killpg(making.pid, ending)
    assert making.wait(LIMIT_S) != 0
    assert pip.recv(1) == b""
    deadline = time.monotonic() + LIMIT_S
    while any(map(runs, processes)):
        assert time.monotonic() < deadline, processes
        time.sleep(POLL_S)
    assert making.stdout is not None
    making.stdout.close()
    checkout.pip_asks().sendall(b"+")
    assert "not whole (an installation was broken off" in ended_well(second)
    assert not (checkout.venv / "left").exists(), "a half-made environment was mended"
    assert (checkout.venv / COMPLETE).exists()
    checkout.assert_clean()


def test_what_others_filled_is_refused_and_not_touched(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "mine").touch()
    refused = checkout.make()
    said, _ = refused.communicate(timeout=LIMIT_S)
    assert refused.returncode != 0
    assert ".venv is not empty, and make did not make it: remove it, or name another directory (make VENV=...)" in said
    assert [path.name for path in checkout.venv.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("names", "has_python", "is_current", "step"),
    [
        ((), False, False, Step.CREATE),
        ((LOCK,), False, False, Step.CREATE),
        ((LOCK, "bin"), True, False, Step.RECREATE),
        ((LOCK, DOWNLOADS), False, False, Step.RECREATE),
        ((LOCK, COMPLETE, "bin"), True, True, Step.NOTHING),
        ((LOCK, COMPLETE, "bin"), True, False, Step.UPDATE),
        ((COMPLETE, "bin"), True, False, Step.UPDATE),
        ((LOCK, COMPLETE, "bin"), False, True, Step.RECREATE),
    ],
)
def test_what_is_next_follows_from_what_is_found(names: tuple[str, ...], has_python: bool, is_current: bool, step: Step) -> None:
    assert next_step(Found(frozenset(names), has_python, is_current)) is step
    assert may_be_filled(frozenset(names))


def test_a_directory_without_a_mark_is_somebody_elses() -> None:
    assert not may_be_filled(frozenset({"bin", "pyvenv.cfg"}))


def test_pip_holds_the_lock_too(tmp_path: Path) -> None:
    """Goal: where make and install.py are killed nobody empties the environment before pip has ended as well."""
    with alone(tmp_path) as lock:
        run([sys.executable, "-c", f"import os; os.fstat({lock})"], dict(os.environ), lock)
