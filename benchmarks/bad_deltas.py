"""What one contributor of four costs that sends its deltas times -3: added as they come, and clipped around a centre.

Every row is one optimiser and one seed: the share of test points that the last exit has right. `benchmarks.merging_replicas` has the setting.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from typing import Final

from benchmarks.merging_replicas import OPTIMIZERS, Group, Points, Setting, train
from benchmarks.result import Options, Result, Row, Target
from vnode.merging import MIN_CONTRIBUTORS

NUM_BATCHES: Final = 800
MERGE_EVERY: Final = 20
BAD_FACTOR: Final = -3.0
WAYS: Final = {
    "added_honest": (False, 1.0), "added_attacked": (False, BAD_FACTOR), "centred_honest": (True, 1.0), "centred_attacked": (True, BAD_FACTOR),
}  # fmt: skip


def run(options: Options) -> Result:
    """All ways; ``rounds`` seeds."""
    num_batches, every = (60, 3) if options.quick else (NUM_BATCHES, MERGE_EVERY)
    setting = Setting("sgd", 0, num_batches, num_replicas=MIN_CONTRIBUTORS + 1)
    settings = asdict(setting) | {"merge_every": every, "optimizers": OPTIMIZERS, "bad_factor": BAD_FACTOR}
    del settings["optimizer"], settings["seed"], settings["lr"]
    result = Result("bad_deltas", "One contributor of four that sends its deltas times -3", settings)
    for seed in range(1, options.rounds + 1):
        for optimizer in OPTIMIZERS:
            result.rounds.append(_row(replace(setting, optimizer=optimizer, seed=seed), every))
    conclude(result)
    return result


def _row(setting: Setting, every: int) -> Row:
    row: Row = {"optimizer": setting.optimizer, "seed": setting.seed}
    stages, points = setting.stages(), Points(setting)
    for way, (centred, factor) in WAYS.items():
        groups = [Group(setting, stage, every, centred=centred, bad_factor=factor) for stage in stages]
        row[way] = round(100 * train(setting, points, groups, stages)[-1].share, 2)
    return row


def conclude(result: Result) -> None:
    """Medians over seeds, and what clipping saves and costs."""
    for optimizer in result.settings["optimizers"]:
        rows = [row for row in result.rounds if row["optimizer"] == optimizer]
        result.medians[optimizer] = {way: round(statistics.median(row[way] for row in rows), 2) for way in WAYS}
        saved = statistics.median(row["centred_attacked"] - row["added_attacked"] for row in rows)
        cost = statistics.median(row["added_honest"] - row["centred_honest"] for row in rows)
        result.targets.append(
            Target(f"{optimizer}: gained by clipping with one bad of four", round(saved, 2), 0.0, "points", at_least=True)
        )
        result.targets.append(
            Target(f"{optimizer}: lost by clipping where all are honest", round(cost, 2), 2.0, "points", at_least=False)
        )
    result.notes = ["One process; a delta and an anchor take 16 batches of the job each; percent of 8,192 test points, last exit."]
