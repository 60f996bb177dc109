"""Goal: the summary of a run says what made it: the command that makes it again, the commit, the machine and how loaded it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from simulation.__main__ import main
from simulation.control_knobs import in_heavy_weather, large_knobs
from simulation.runner import Choice


def test_a_summary_says_commit_machine_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", "--world", "restored", "--seed", "4", "--json", str(tmp_path / "summary.json")])
    assert main() == 0
    ran_on = json.loads((tmp_path / "summary.json").read_text())["machine"]
    assert {"commit", "cores", "cpu", "load_before", "load_after"} <= ran_on.keys()


def test_the_command_of_a_large_world_makes_the_same_world_again() -> None:
    choice = Choice("control", 2000, 1.0, 3, heavy=True)
    assert choice.options == "--world control --nodes 2000 --hours 1 --replicas 3 --heavy"
    knobs = in_heavy_weather(large_knobs(2000, 1.0, 3))
    assert all((knobs.liar, knobs.audited, knobs.blackout_s, knobs.slow_disk_rate, knobs.call_repeat_rate, knobs.call_delay_rate))
    assert (knobs.num_pnodes, knobs.replicas, knobs.faults_s) == (2000, (3,), 3600.0)
