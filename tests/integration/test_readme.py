"""Goal: the README's commands work as they stand: real processes on free ports, from an empty directory to an exported model.

Blocks marked ``<!-- run -->`` are run one after the other, those marked ``<!-- run in a terminal -->`` go on until the end. What a block exports holds for
those after it. Only the ports are changed, and terminals end with this process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcnr.testing import clean_environment, free_ports

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 90.0
"""For everything, on a machine with nothing else to do."""
MAX_PATIENCE = 4.0
"""On a busy machine the limit grows with its load, at most so many times."""
POLL_S = 0.05
PORTS = ("7700", "7710", "7790")
BLOCK = re.compile(r"<!-- (run|run in a terminal) -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UP = re.compile(r"^(?:orchestrator|PNode) [0-9a-f]{40}", re.MULTILINE)
"""What a daemon says on its screen when it serves."""


class Shells:
    """Runs blocks in one directory, as one reader with several terminals would."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = clean_environment(os.environ) | {"PATH": path}
        self._exports: list[str] = []
        self._terminals: list[tuple[subprocess.Popen[bytes], Path]] = []
        patience = min(MAX_PATIENCE, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
        self._deadline = time.monotonic() + LIMIT_S * patience

    def left_s(self) -> float:
        """Until the whole must be over."""
        return max(0.1, self._deadline - time.monotonic())

    def run(self, body: str) -> str:
        """Runs a block to its end when all terminals are up; what it printed. Fails with everything that was said if it fails."""
        self.wait_up()
        script = "\n".join([*self._exports, body])
        command = ["bash", "-euo", "pipefail", "-c", script]
        shell = subprocess.Popen(
            command, cwd=self.directory, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = shell.communicate(timeout=self.left_s())
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            said, _ = shell.communicate(timeout=5)
            pytest.fail(f"not over in time:\n{body}\n{said}\n{self.story()}")
        assert shell.returncode == 0, f"exit code {shell.returncode}:\n{body}\n{said}\n{self.story()}"
        self._exports += re.findall(r"^export .*$", body, re.MULTILINE)
        return said

    def open_terminal(self, body: str) -> None:
        """Starts a daemon. Orchestrators begin when those before them serve, PNodes side by side."""
        if body.startswith("orchestrator"):
            self.wait_up()
        log = self.directory / f"terminal-{len(self._terminals) + 1}.log"
        script = "\n".join([*self._exports, f"exec {body.strip()} --until-stdin-closes"])
        with log.open("wb") as out:
            terminal = subprocess.Popen(
                ["bash", "-euc", script], cwd=self.directory, env=self._environment, stdin=subprocess.PIPE, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self._terminals.append((terminal, log))

    def wait_up(self) -> None:
        """Returns when every terminal says that it serves, or has ended well."""
        for terminal, log in self._terminals:
            while not UP.search(log.read_text()):
                assert terminal.poll() is None, f"{log.name} ended with {terminal.returncode}:\n{log.read_text()}"
                assert time.monotonic() < self._deadline, f"{log.name} is not up in time:\n{self.story()}"
                time.sleep(POLL_S)

    def story(self) -> str:
        """The ends of all terminals."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for _, log in self._terminals)

    def close(self) -> None:
        """Ends every daemon by its id: PNodes take their workers along, the first orchestrator its store."""
        for terminal, _ in reversed(self._terminals):
            with contextlib.suppress(ProcessLookupError):
                terminal.kill()
            terminal.wait(5)
            if terminal.stdin is not None:
                terminal.stdin.close()


@pytest.fixture
def shells() -> Iterator[Shells]:
    with tempfile.TemporaryDirectory(prefix="dcnr-") as directory:  # short: Unix sockets lie below it
        found = Shells(Path(directory))
        (found.directory / "run").mkdir()
        try:
            yield found
        finally:
            found.close()


def test_the_readme_runs_from_top_to_bottom(shells: Shells) -> None:
    text = (ROOT / "README.md").read_text()
    for port, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        text = text.replace(f":{port}", f":{free}").replace(f"-port {port}", f"-port {free}")
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks].count("run in a terminal") == 4
    whole = ""
    for kind, body in blocks:
        if kind == "run in a terminal":
            shells.open_terminal(body)
        else:
            whole += shells.run(body)
    assert " completed" in whole
    assert sorted(path.name for path in (shells.directory / "run" / "export").iterdir()) == [
        "README.txt", "graph.json", "model.json", "model.safetensors",
    ]  # fmt: skip
