"""Goal: no worker outlives its daemon, whatever it is doing when that goes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

STANDS_STILL = "import os, time\nos.write({at}, b'.')\ntime.sleep(600)\n"
SOON = "import sys\nfrom pnode import worker_process\nworker_process.ORPHAN_S = 0.1\nsys.exit(worker_process.main())\n"


@pytest.mark.parametrize("while_loading", [True, False], ids=["loads", "starts"])
def test_a_worker_that_stands_still_ends_with_its_daemon(tmp_path: Path, while_loading: bool) -> None:
    """What it loads takes for ever: torch on a machine that has no time for it; or what its owner has it load besides."""
    ours, theirs = socket.socketpair()
    told, tells = os.pipe()
    still = tmp_path / ("torch.py" if while_loading else "own.py")
    still.write_text(STANDS_STILL.format(at=tells))
    path = [str(tmp_path), *sys.path] if while_loading else sys.path
    components = () if while_loading else ("--components", str(still))
    process = subprocess.Popen(
        [sys.executable, "-c", SOON, "--fd", str(theirs.fileno()), *components], pass_fds=[theirs.fileno(), tells],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip
    theirs.close()
    os.close(tells)
    try:
        assert os.read(told, 1) == b".", "it has come so far"
        assert process.poll() is None
        ours.close()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(told)
