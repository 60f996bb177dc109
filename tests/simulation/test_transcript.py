"""Goal: one seed gives one history, byte for byte and in every process; a history that fails says how to see it again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.control_knobs import large_knobs
from simulation.runner import ALL, IN_TURN, Choice, run_seed
from tests.simulation import control_planted_places as planted

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240.0


def transcript(world: str, seed: int, hash_seed: str, path: Path) -> bytes:
    """What the command line writes in a process whose sets and dictionaries are ordered differently."""
    command = [sys.executable, "-m", "simulation", "--world", world, "--seed", str(seed), "--transcript", str(path)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return path.read_bytes()


@pytest.mark.parametrize(("world", "seed"), [("data", 1), ("orchestrators", 2)])
def test_equal_seeds_give_equal_transcripts(world: str, seed: int, tmp_path: Path) -> None:
    first = transcript(world, seed, "1", tmp_path / "first.txt")
    second = transcript(world, seed, "2", tmp_path / "second.txt")
    assert first == second
    assert first.count(b"\n") > 1000


def test_every_world_has_its_turn_and_each_of_its_seeds_once() -> None:
    drawn = [Choice(ALL).of(seed) for seed in range(2 * len(IN_TURN))]
    assert drawn == [(Choice(world), seed) for seed in range(2) for world in IN_TURN]
    assert Choice("data").of(7) == (Choice("data"), 7)


def test_a_large_world_is_made_again_from_what_its_summary_says() -> None:
    choice = Choice("control", 200, 0.1, 4)
    assert choice.options == "--world control --nodes 200 --hours 0.1 --replicas 4"
    assert large_knobs(choice.num_pnodes, choice.hours, choice.replicas).replicas == (4,)
    assert Choice("control", 200, 0.1).options == "--world control --nodes 200 --hours 0.1"


def test_a_failure_tells_its_seed_its_end_and_the_command_that_shows_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.placed_without_reason(monkeypatch)
    outcome = run_seed(Choice("orchestrators"), 3)
    told = "\n".join(outcome.told())
    assert "[explain]" in told
    assert "python -m simulation --world orchestrators --seed 3" in told
    assert len(outcome.newest) > 10, "the last part of the transcript"
    assert all(line in told for line in outcome.newest)
