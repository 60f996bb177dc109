"""One installation at a time, and a whole environment at its end: whatever breaks one off, the next begins with a new environment.

``python3 install.py .venv``, as `make` calls it in a checkout. What holds, with nothing but Python's standard library:

- Of two at once the second waits, and installs nothing where the first succeeded.
- Ctrl-C, a kill, a full disk, an error of pip: no process stays, and no file outside the environment's directory. The next one empties it first.
- A complete environment is brought up to date in place.
- A directory that others filled is not touched.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

LOCK: Final = ".installing"
"""Locked while an installation goes on; that it is there marks the directory as made here."""
COMPLETE: Final = ".installed"
"""Taken away first and written last: an environment without it is half made."""
SCRATCH: Final = ".scratch"
"""Temporary files of pip and what it starts: what a kill leaves of them goes with the environment."""
DOWNLOADS: Final = ".downloads"
"""pip's cache, unless PIP_CACHE_DIR names another, until the environment is complete: pip leaves half files in it when it is broken off."""
SOURCES: Final = ("pyproject.toml", "constraints.txt")
GUARDED: Final = """
import os, runpy, signal, sys, threading

def guard():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=guard, daemon=True).start()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""A module with a process group of its own, which ends with whoever holds the other end of its standard input, also where that one is killed."""


class Step(Enum):
    """What an environment needs."""

    NOTHING = "it is as the sources want it"
    UPDATE = "it is complete, and older than the sources"
    CREATE = "there is none"
    RECREATE = "it is not whole"


@dataclass(frozen=True, slots=True)
class Found:
    """An environment's directory as it is found: its entries, whether its Python can be started, and whether it is newer than the sources."""

    names: frozenset[str]
    has_python: bool
    is_current: bool


def may_be_filled(names: frozenset[str]) -> bool:
    """Whether a directory with these entries is empty or was made here: only then may it be emptied, ever."""
    return not names or not names.isdisjoint((LOCK, COMPLETE))


def next_step(found: Found) -> Step:
    """Nothing that is half made is mended: who knows what pip had done of it."""
    if COMPLETE in found.names and found.has_python:
        return Step.NOTHING if found.is_current else Step.UPDATE
    return Step.RECREATE if found.names - {LOCK} else Step.CREATE


def install(venv: Path) -> None:
    """Brings ``venv`` to what the sources want. Raises SystemExit with what to do where others filled it, OSError or CalledProcessError where it fails."""
    venv.mkdir(parents=True, exist_ok=True)
    if not may_be_filled(names_in(venv)):
        raise SystemExit(f"{venv} is not empty, and make did not make it: remove it, or name another directory (make VENV=...)")
    with alone(venv) as lock:
        step = next_step(look(venv))
        if step is Step.NOTHING:
            return
        if step is Step.RECREATE:
            say(f"{venv} is not whole (an installation was broken off, or its Python is gone): beginning with a new environment")
        say(f"installing into {venv} (once; torch is the largest part)")
        fill(venv, step, lock)


def names_in(venv: Path) -> frozenset[str]:
    """Its entries, listed once: the lock is made before anything else, so nobody sees what another installation makes without it."""
    return frozenset(os.listdir(venv))


def look(venv: Path) -> Found:
    """An environment that was complete before its sources were changed is not current, just as make sees it."""
    names = names_in(venv)
    changed_ns = max(os.stat(name).st_mtime_ns for name in SOURCES)
    is_current = COMPLETE in names and (venv / COMPLETE).stat().st_mtime_ns >= changed_ns
    return Found(names, os.access(venv / "bin" / "python", os.X_OK), is_current)


@contextmanager
def alone(venv: Path) -> Iterator[int]:
    """The lock on ``venv``; whoever must wait for it says so. The system takes it back when its holder and pip, which inherits it, have ended."""
    with (venv / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another make installs into {venv}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def fill(venv: Path, step: Step, lock: int) -> None:
    """All of it, and only then the mark."""
    (venv / COMPLETE).unlink(missing_ok=True)
    if step is Step.RECREATE:
        remove(venv, names_in(venv) - {LOCK, DOWNLOADS})
    (venv / SCRATCH).mkdir(exist_ok=True)
    environment = {"PIP_CACHE_DIR": str(venv.absolute() / DOWNLOADS), **os.environ, "TMPDIR": str(venv.absolute() / SCRATCH)}
    if step is not Step.UPDATE:
        run([sys.executable, "-c", GUARDED, "venv", str(venv)], environment, lock)
    pip = [
        "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--constraint", "constraints.txt", "--editable", ".[dev]",
    ]  # fmt: skip
    run([str(venv / "bin" / "python"), "-c", GUARDED, *pip], environment, lock)
    remove(venv, names_in(venv) & {SCRATCH, DOWNLOADS})
    (venv / COMPLETE).touch()


def remove(venv: Path, names: frozenset[str]) -> None:
    """Entries of ``venv``; what they link to stays."""
    for path in (venv / name for name in names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def run(command: list[str], environment: dict[str, str], lock: int) -> None:
    """To its end, which is at the latest the end of this process: Ctrl-C reaches this one alone, and it leaves nothing of pip behind."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=(lock,), start_new_session=True)
    assert process.stdin is not None
    try:
        code = process.wait()
    finally:
        process.stdin.close()
        process.wait()
    if code:
        raise subprocess.CalledProcessError(code, command)


def say(line: str) -> None:
    """At once, also where nobody looks at a terminal."""
    print(line, flush=True)


def main(venv: str) -> None:
    """Ends with 130 after Ctrl-C, and with 1 and a sentence where it failed."""
    try:
        install(Path(venv))
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = str(error) if isinstance(error, OSError) else "see above"
        sys.exit(f"installing into {venv} failed ({reason}); the next make begins with a new environment")


if __name__ == "__main__":
    main(sys.argv[1])
