"""Goal: `dcnr local down` and `status` believe what a network wrote of itself only while it runs: its number may be another process's by now."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_rig import run

from dcnr.home_lock import LOCK_FILE


@pytest.mark.parametrize("command", ["down", "status"])
@pytest.mark.parametrize("has_lock_file", [True, False])
def test_a_stranger_with_the_number_of_a_network_that_was_killed_lives_on(
    tmp_path: Path, command: str, has_lock_file: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = [sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, text=True) as stranger:
        (tmp_path / "local.json").write_text(json.dumps({"pid": stranger.pid, "network": "n", "bootstrap": ["127.0.0.1:1"]}))
        if has_lock_file:
            (tmp_path / LOCK_FILE).touch()
        assert run(f"dcnr local {command} --directory {tmp_path}") == 3
        stranger.communicate("lives")
        assert stranger.returncode == len("lives")
    assert "no local network runs" in capsys.readouterr().err
