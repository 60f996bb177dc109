"""Goal: the README's commands work as they stand: real processes on free ports, from an empty directory to an exported model.

Blocks marked ``<!-- run -->`` are run one after the other, those marked ``<!-- run in a terminal -->`` go on until the end, and those marked
``<!-- run where audits are drawn -->`` are run by `test_audited_network.py`. What a block exports holds for those after it. Only addresses are changed,
screens that go on are looked at once, and terminals end with this process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from readme_blocks import AUDITED, HERE, README, TERMINAL, blocks

from dcnr.testing import clean_environment, free_ports

LIMIT_S = 90.0
"""For everything, on a machine with nothing else to do."""
MAX_PATIENCE = 4.0
"""On a busy machine the limit grows with its load, at most so many times."""
POLL_S = 0.05
BASH = ("bash", "-euo", "pipefail", "-c")
PYTHON = (sys.executable, "-c")
PORTS = ("7700", "7710", "7780", "7790")
ELSEWHERE = "203.0.113.7"
"""An orchestrator's machine, of those who have several."""
OF_ITS_OWN = {
    "PNODE_HOME": "run/p3", "PNODE_LISTEN_HOST": "127.0.0.1", "PNODE_CONTROL_PORT": "0", "PNODE_DATA_PORT": "0", "PNODE_DHT_PORT": "0",
}  # fmt: skip
"""What a volunteer has by having a machine of their own."""
NOT_RUN = {
    "make demo": "minutes of a whole network, with data that it downloads, and these tests themselves",
    "python3 -m venv run/venv": "downloads torch; test_wheel.py installs what is ours into an empty environment",
}
"""By how they begin: why."""
UP = re.compile(r"^(?:orchestrator|PNode) [0-9a-f]{40}|^ *gateway http://", re.MULTILINE)
"""What a daemon says on its screen when it serves."""
PNODE = re.compile(r"^PNode [0-9a-f]{40}", re.MULTILINE)
READY = re.compile(r"^ready: (?:idle|working|serving), ", re.MULTILINE)
"""What a PNode says when it takes part."""


def is_up(screen: str) -> bool:
    """Whether a reader would go on to the next block."""
    return bool(UP.search(screen)) and (not PNODE.search(screen) or bool(READY.search(screen)))


class Shells:
    """Runs blocks in one directory, as one reader with several terminals would."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = clean_environment(os.environ) | {"PATH": path} | OF_ITS_OWN
        self._exports: list[str] = []
        self._terminals: list[tuple[subprocess.Popen[bytes], Path]] = []
        patience = min(MAX_PATIENCE, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
        self._deadline = time.monotonic() + LIMIT_S * patience

    def left_s(self) -> float:
        """Until the whole must be over."""
        return max(0.1, self._deadline - time.monotonic())

    def run(self, body: str, program: Sequence[str] = BASH) -> str:
        """Runs a block to its end when all terminals are up; what it printed. Fails with everything that was said if it fails."""
        self.wait_up()
        script = body if program is PYTHON else "\n".join([*self._exports, body])
        command = [*program, script]
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
        """Returns when every terminal says that it serves, and takes part if it is a PNode's."""
        for terminal, log in self._terminals:
            while not is_up(log.read_text()):
                assert terminal.poll() is None, f"{log.name} ended with {terminal.returncode}:\n{log.read_text()}"
                assert time.monotonic() < self._deadline, f"{log.name} is not up in time:\n{self.story()}"
                time.sleep(POLL_S)

    def screens(self) -> list[str]:
        """All that each terminal shows."""
        return [log.read_text() for _, log in self._terminals]

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


def test_every_block_is_run_or_named() -> None:
    """Goal: a block that nobody runs is in this file with its reason, and no reason outlives its block."""
    unmarked = [block.body for block in blocks(README.read_text("utf-8")) if not block.mark]
    assert [body for body in unmarked if not body.startswith(tuple(NOT_RUN))] == []
    assert [begins for begins in NOT_RUN if not any(body.startswith(begins) for body in unmarked)] == []
    assert {block.mark for block in blocks(README.read_text("utf-8"))} == {"", HERE, TERMINAL, AUDITED}


def test_the_readme_runs_from_top_to_bottom(shells: Shells) -> None:
    text = README.read_text("utf-8").replace(ELSEWHERE, "127.0.0.1").replace("pnode top\n", "pnode top --count 1\n")
    for port, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        text = text.replace(f":{port}", f":{free}").replace(f"-port {port}", f"-port {free}")
    said: list[str] = []
    for block in blocks(text):
        if block.mark == TERMINAL:
            shells.open_terminal(block.body)
        elif block.mark == HERE and ("curl " not in block.body or shutil.which("curl")):
            said.append(shells.run(block.body, PYTHON if block.language == "python" else BASH))
    whole = "\n".join(said)
    assert " completed" in whole
    assert sorted(path.name for path in (shells.directory / "run" / "export").iterdir()) == [
        "README.txt", "graph.json", "model.json", "model.safetensors",
    ]  # fmt: skip
    asked = [one for one in said if '"output":{"vnode":"deep"' in one]
    assert len(asked) == (shutil.which("curl") is not None), "REST answers"
    screens = [screen for screen in shells.screens() if PNODE.search(screen)]
    assert screens
    assert all(READY.search(screen) for screen in screens), "a terminal says when it is ready"
    assert any(screen.rstrip().endswith("stopped") for screen in screens), "and when it has stopped"
    assert re.search(r"^\[[012]( [012]){3}\]$", whole, re.MULTILINE), "and so does the SDK"
