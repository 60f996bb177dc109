"""Goal: no worker outlives its daemon, whatever it is doing when that goes."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BEGIN_S, END_S = 120.0, 30.0
FAILS = "import os, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nos.write({at}, b'.')\nraise ValueError('of no use')\n"
STANDS_STILL = "import os, time\nos.write({at}, b'.')\ntime.sleep(600)\n"
SOON = "import sys\nfrom pnode import worker_process\nworker_process.ORPHAN_S = 0.1\nsys.exit(worker_process.main())\n"


@contextmanager
def started(still: Path, path: list[str], *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A worker that has come as far as a file that says so, and its daemon's end of the pipe."""
    ours, theirs = socket.socketpair()
    told, tells = os.pipe()
    still.write_text(still.read_text().format(at=tells))
    process = subprocess.Popen(
        [sys.executable, "-c", SOON, "--fd", str(theirs.fileno()), *arguments], pass_fds=[theirs.fileno(), tells],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip
    theirs.close()
    os.close(tells)
    try:
        assert select.select([told], [], [], BEGIN_S)[0]
        assert os.read(told, 1) == b".", "it has come so far"
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(told)
        ours.close()


@pytest.mark.parametrize("while_loading", [True, False], ids=["loads", "starts"])
def test_a_worker_that_stands_still_ends_with_its_daemon(tmp_path: Path, while_loading: bool) -> None:
    """What it loads takes for ever: torch on a machine that has no time for it; or what its owner has it load besides."""
    still = tmp_path / ("torch.py" if while_loading else "own.py")
    still.write_text(STANDS_STILL)
    path = [str(tmp_path), *sys.path] if while_loading else sys.path
    with started(still, path, *(() if while_loading else ("--components", str(still)))) as (process, ours):
        assert process.poll() is None
        ours.close()
        assert process.wait(END_S) == 0


def test_a_worker_that_fails_is_heard_to_end_and_ends_whatever_its_threads_wait_for(tmp_path: Path) -> None:
    """One that stood in the disk kept it, and its daemon took it for alive: who waits for the end of the pipe keeps it open, however often it is closed."""
    own = tmp_path / "own.py"
    own.write_text(FAILS)
    with started(own, sys.path, "--components", str(own)) as (process, ours):
        ours.settimeout(END_S)
        assert ours.recv(1) == b""
        assert process.wait(END_S) == 0
