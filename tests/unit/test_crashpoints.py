"""Goal: a crash point kills its own process at the told passing and leaves a note, once for all processes; without the variable nothing happens; what is
no point is an error at the start of every command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dcnr import crashpoints
from dcnr.errors import InvalidInput
from dcnr.settings import ClientSettings, OrchestratorSettings, PNodeSettings, load_settings

PASSES = """
import os, sys, threading
from dcnr import crashpoints
crashpoints.arm(os.environ)
for number in range(5):
    crashpoints.reached("head.written")
    crashpoints.reached("plan.named")
    print(number, flush=True)
"""
IN_THREADS = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from dcnr import crashpoints
crashpoints.arm(os.environ)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda _: crashpoints.reached("snapshot.drafted"), range(100)))
print("lives")
"""


def run(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A process of its own that passes points."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_process_dies_at_the_told_passing_and_only_once(tmp_path: Path) -> None:
    environment = crashpoints.setting("plan.named", tmp_path / "note", times=3)
    ended = run(PASSES, environment)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == ["0", "1"]
    assert (tmp_path / "note").read_text().startswith("plan.named ")
    again = run(PASSES, environment)
    assert again.returncode == 0, "a process that finds the note lives"
    assert again.stdout.split() == ["0", "1", "2", "3", "4"]


def test_passings_are_counted_over_all_threads(tmp_path: Path) -> None:
    assert run(IN_THREADS, crashpoints.setting("snapshot.drafted", tmp_path / "a", times=100)).returncode == -signal.SIGKILL
    assert run(IN_THREADS, crashpoints.setting("snapshot.drafted", tmp_path / "b", times=101)).returncode == 0
    assert not (tmp_path / "b").exists()


def test_without_the_variable_nothing_happens() -> None:
    assert run(PASSES, {}).returncode == 0
    crashpoints.arm({})
    for name in crashpoints.POINTS:
        crashpoints.reached(name)


@pytest.mark.parametrize(
    "value",
    ["plan.nmaed:1:/tmp/x", "plan.named", "plan.named:0:/tmp/x", "plan.named:x:/tmp/x", "plan.named:1:", "plan.named:1:here", ":1:/x",
     "plan.named:-1:/x", "plan.named:9999999999999:/x"],
)  # fmt: skip
def test_what_is_no_point_is_an_error(value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        crashpoints.arm({crashpoints.VARIABLE: value})
    assert caught.value.code == "bad_crash_point"
    assert crashpoints.VARIABLE in caught.value.remedy
    crashpoints.reached("plan.named")


def test_every_command_refuses_to_start_with_what_is_no_point() -> None:
    environment = {**os.environ, crashpoints.VARIABLE: "no.such.point:1:/tmp/x"}
    for module in ("dcnr.cli.pnode", "dcnr.cli.orchestrator", "dcnr.cli.dcnr"):
        ended = subprocess.run(
            [sys.executable, "-m", module, "--version"], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 2, module
        assert "why: bad_crash_point" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_the_variable_is_no_unknown_setting(tmp_path: Path) -> None:
    for cls, prefix in ((ClientSettings, "DCNR"), (PNodeSettings, "PNODE"), (OrchestratorSettings, "ORCHESTRATOR")):
        load_settings(cls, home=tmp_path, env=crashpoints.setting("plan.named", tmp_path / "note"), env_prefix=prefix, flags={})


def test_a_setting_names_a_point(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        crashpoints.setting("no.such.point", tmp_path / "note")
    with pytest.raises(InvalidInput):
        crashpoints.setting("plan.named", tmp_path / "note", times=0)
