"""What merging costs in learning: four replicas of each stage against one that learns the same batches one after the other.

Every row is one optimiser and one seed: the share of test points that the last exit has right, for each way to merge and each number of own
steps between two deltas, at one rate. `benchmarks.merging_rates` looks for the rates that suit each way. `benchmarks.merging_replicas` has the setting.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, Final

from benchmarks.merging_replicas import (
    HIDDEN,
    NUM_CLUSTERS,
    OPTIMIZERS,
    SPREAD,
    WIDTH,
    Added,
    Group,
    Points,
    Rounds,
    Setting,
    train,
)
from benchmarks.merging_rules import DelayedNesterov, Nesterov, averaged
from benchmarks.result import Options, Result, Row, Target
from dcnr.stages import Stage

NUM_BATCHES: Final = 800
MAX_LOST: Final = 1.0
STEPS: Final = (20, 50, 100)
"""Own steps between two deltas."""
DILOCO: Final = (0.7, 0.9)
"""Outer rate and momentum of Douillard et al. 2023."""
Make = Callable[[Setting, Stage, int], Group]
WAYS: Final[dict[str, Make]] = {
    "added": lambda setting, stage, every: Added(setting, stage, every),
    "added_int8": lambda setting, stage, every: Added(setting, stage, every, codec="int8"),
    "averaged": lambda setting, stage, every: Added(setting, stage, every, outer=lambda: averaged),
    "synchronous_mean": Rounds,
    "nesterov": lambda setting, stage, every: Added(setting, stage, every, outer=lambda: Nesterov(*DILOCO)),
    "delayed_nesterov": lambda setting, stage, every: Added(setting, stage, every, outer=lambda: DelayedNesterov(*DILOCO)),
}
"""Those that were compared first. What workers do today is `benchmarks.merging_replicas.Group`, which `benchmarks.merging_rates` compares."""


def run(options: Options) -> Result:
    """All ways; ``rounds`` seeds."""
    num_batches, steps = (64, (5,)) if options.quick else (NUM_BATCHES, STEPS)
    setting = Setting("sgd", 0, num_batches)
    settings = asdict(setting) | {
        "steps": list(steps), "optimizers": OPTIMIZERS, "width": WIDTH, "hidden": HIDDEN, "num_clusters": NUM_CLUSTERS, "spread": SPREAD,
    }  # fmt: skip
    del settings["optimizer"], settings["seed"], settings["lr"]
    result = Result("merging", "Replicas that merge against one that learns alone", settings)
    for seed in range(1, options.rounds + 1):
        for optimizer in OPTIMIZERS:
            result.rounds.append(_row(replace(setting, optimizer=optimizer, seed=seed), steps))
    conclude(result)
    return result


def _row(setting: Setting, steps: tuple[int, ...]) -> Row:
    row: Row = {"optimizer": setting.optimizer, "seed": setting.seed}
    row["one_replica"] = _percent(replace(setting, num_replicas=1), WAYS["added"], setting.num_batches)
    quarter = setting.num_batches // setting.num_replicas
    row["one_replica_a_quarter"] = _percent(replace(setting, num_replicas=1, num_batches=quarter), WAYS["added"], quarter)
    for way, make in WAYS.items():
        for every in steps:
            row[f"{way}_{every}"] = _percent(setting, make, every)
    return row


def _percent(setting: Setting, make: Make, every: int) -> float:
    stages = setting.stages()
    return round(100 * train(setting, Points(setting), [make(setting, stage, every) for stage in stages], stages)[-1].share, 2)


def conclude(result: Result) -> None:
    """Medians over seeds, what each way loses against one replica, and the targets."""
    for optimizer in result.settings["optimizers"]:
        rows = [row for row in result.rounds if row["optimizer"] == optimizer]
        result.medians[optimizer] = {key: round(statistics.median(row[key] for row in rows), 2) for key in _figures(rows[0])}
        lost = {key: round(statistics.median(row["one_replica"] - row[key] for row in rows), 2) for key in _figures(rows[0])}
        result.ratios[optimizer] = {f"{key}_lost_points": value for key, value in lost.items() if key != "one_replica"}
        for every in result.settings["steps"]:
            gained = statistics.median(row[f"added_{every}"] - row[f"synchronous_mean_{every}"] for row in rows)
            name = f"{optimizer}: above the mean that waits for everyone, a delta every {every} steps"
            result.targets.append(Target(name, round(gained, 2), 0.0, "points", at_least=True))
            name = f"{optimizer}: lost against one replica that learns the same batches, a delta every {every} steps"
            result.targets.append(Target(name, lost[f"added_{every}"], MAX_LOST, "points", at_least=False))
    result.notes = ["One process; a delta and an anchor take 16 batches of the job each; percent of 8,192 test points, last exit."]


def _figures(row: dict[str, Any]) -> Iterator[str]:
    return (key for key in row if key not in ("optimizer", "seed"))
