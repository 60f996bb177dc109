"""Goal: Ctrl-C while an installed command is still being loaded ends it as at any other moment: quietly, with the code of an interruption."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
INTERRUPTED_HERE = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_a_command_is_loaded_ends_it_quietly(tmp_path: Path, command: str) -> None:
    (tmp_path / "typer.py").write_text(INTERRUPTED_HERE)  # the first that all of them load
    module, _, function = COMMANDS[command].partition(":")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    program = f"import sys; from {module} import {function}; sys.exit({function}())"  # as the installed script does it
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )  # fmt: skip
    assert (ended.returncode, ended.stderr, ended.stdout) == (130, b"", b"")
