"""What merging costs in learning: four replicas of each stage against one that learns the same batches one after the other, on MNIST.

Every way to merge is tried with several outer steps and, for each, with inner rates that double or halve until neither neighbour is better: on the validation
split, with a seed of its own. At the best, each is judged on the test split with ``rounds`` other seeds. `benchmarks.merging_replicas` has the replicas.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.kept import Kept
from benchmarks.merging_digits import HIDDEN, WIDTH, Digits
from benchmarks.merging_replicas import OPTIMIZERS, Added, Data, Group, Points, Rounds, Setting, train
from benchmarks.merging_rules import Nesterov, averaged
from benchmarks.result import Options, Result, Row, Target
from dcnr.demo.examples import example, prepare_data
from dcnr.errors import InvariantBroken
from dcnr.stages import Stage

NUM_BATCHES: Final = 800
EVERY: Final = (20, 50)
"""Own steps between two deltas; rates are looked for at the first, the last is what a job has by default."""
FIRST_RATE: Final = {"sgd": 0.025, "adamw": 2e-3}
SWEEP_SEED: Final = 100
MAX_LOST: Final = 1.0
MAX_BEHIND: Final = 0.3
GUESSING: Final = 10.0
NOTE: Final = (
    "One process; a delta and an anchor take 16 batches of the job each; percent of the 10,000 test images, last exit, means over seeds. Spread: best less "
    "worst seed. Rates are those of the learner, of the outer step and its momentum, with the least loss on the validation split, with another seed."
)
BROKEN_OFF: Final = "Broken off while rates were tried: what is not in the rows was not tried, and nothing was judged."
Outer = tuple[float, float]
"""Outer rate and momentum."""
PLAIN: Final[Outer] = (1.0, 0.0)
DILOCO: Final[Outer] = (0.7, 0.9)


@dataclass(frozen=True, slots=True)
class Way:
    """How to learn the batches, and with which outer steps that is tried."""

    make: Callable[[Setting, Stage, int, Outer], Group]
    outers: tuple[Outer, ...] = (PLAIN,)
    num_replicas: int = 4
    is_merged: bool = True
    """Whether the steps between two deltas matter."""
    waits: bool = False
    """For everyone."""
    first: float = 1.0
    """The rate that is tried first, in rates that were best for one replica."""


def _added(setting: Setting, stage: Stage, every: int, outer: Outer) -> Group:
    return Added(setting, stage, every, outer=None if outer == PLAIN else lambda: Nesterov(*outer))


def _rounds(setting: Setting, stage: Stage, every: int, outer: Outer) -> Group:
    return Rounds(setting, stage, every, None if outer == PLAIN else Nesterov(*outer))


def _met(setting: Setting, stage: Stage, every: int, outer: Outer) -> Group:
    return Group(setting, stage, every)


def _averaged(setting: Setting, stage: Stage, every: int, outer: Outer) -> Group:
    return Added(setting, stage, every, outer=lambda: averaged)


ALONE: Final = "one_replica"
SHIPPED: Final = "met"
WAYS: Final[dict[str, Way]] = {
    ALONE: Way(_added, num_replicas=1, is_merged=False),
    "added": Way(_added, first=2.0),
    "added_further": Way(_added, ((2.0, 0.0),)),
    "averaged": Way(_averaged, first=2.0),
    SHIPPED: Way(_met, first=2.0),
    "nesterov": Way(_added, (DILOCO, (0.7, 0.5)), first=0.5),
    "rounds_mean": Way(_rounds, waits=True, first=4.0),
    "rounds_nesterov": Way(_rounds, (DILOCO,), waits=True),
}


class Trials:
    """Learns once for every question, whoever asks again."""

    def __init__(self, setting: Setting, kept: Kept, data: Callable[[Setting, str], Data]) -> None:
        self._setting, self._kept, self._data = setting, kept, data

    def row(self, part: str, optimizer: str, way: str, outer: Outer, lr: float, seed: int, every: int) -> Row:
        """What the last exit knows at the end; no finite loss where learning broke off."""
        asked: Row = {
            "part": part, "optimizer": optimizer, "way": way, "outer_lr": outer[0], "outer_momentum": outer[1], "lr": lr, "seed": seed, "every": every,
        }  # fmt: skip
        key = json.dumps([asked, asdict(self._setting)])
        return self._kept.row(key, lambda: asked | self._learned(asked, WAYS[way]))

    def _learned(self, asked: Row, way: Way) -> Row:
        setting = replace(
            self._setting, optimizer=asked["optimizer"], seed=asked["seed"], lr=asked["lr"], num_replicas=way.num_replicas,
        )  # fmt: skip
        stages, outer = setting.stages(), (asked["outer_lr"], asked["outer_momentum"])
        data = self._data(setting, "validation" if asked["part"] == "sweep" else "test")
        try:
            last = train(setting, data, [way.make(setting, stage, asked["every"], outer) for stage in stages], stages)[-1]
        except InvariantBroken:
            return {"loss": None, "percent": None}
        loss = round(last.loss, 4) if math.isfinite(last.loss) else None
        print(f"  {asked} loss {loss} percent {100 * last.share:.2f}", file=sys.stderr, flush=True)
        return {"loss": loss, "percent": round(100 * last.share, 2)}


def climbed(loss_at: Callable[[float], float], first: float, *, most: int = 6) -> list[float]:
    """The rates tried: from the first one doubled while that is better, else halved; both neighbours of the best one, unless ``most`` steps end it."""
    tried = {0: loss_at(first)}
    for direction in (1, -1):
        step = 0
        while abs(step) < most and min(tried, key=tried.__getitem__) == step:
            step += direction
            tried[step] = loss_at(first * 2.0**step)
    return [first * 2.0**step for step in sorted(tried)]


def run(options: Options) -> Result:
    """The sweep, then ``rounds`` seeds of what was best."""
    setting, every = Setting("sgd", 0, NUM_BATCHES, width=WIDTH, hidden=HIDDEN), list(EVERY)
    if options.quick:
        setting, every = replace(setting, num_batches=24, width=32, hidden=16), [2, 3]
    settings = asdict(setting) | {
        "every": every,
        "optimizers": OPTIMIZERS,
        "first_rate": FIRST_RATE,
        "sweep_seed": SWEEP_SEED,
    }
    for unused in ("optimizer", "seed", "lr"):
        del settings[unused]
    result = Result("merging_rates", "Replicas that merge against one that learns alone, on MNIST", settings)
    trials = Trials(
        setting, Kept(options.kept and options.kept / "merging_rates.jsonl"), _made_up if options.quick else _digits(options)
    )
    for optimizer in OPTIMIZERS:
        result.rounds += sweep(trials, optimizer, every[0], most=0 if options.quick else 6)
    for steps in every:
        for seed in range(1, options.rounds + 1):
            for (_, name), row in chosen(result.rounds).items():
                way = WAYS[name]
                if steps == every[0] or (way.is_merged and not way.waits):
                    outer = (row["outer_lr"], row["outer_momentum"])
                    result.rounds.append(trials.row("judged", row["optimizer"], row["way"], outer, row["lr"], seed, steps))
    conclude(result)
    return result


def _made_up(setting: Setting, split: str) -> Data:
    return Points(setting)


def _digits(options: Options) -> Callable[[Setting, str], Data]:
    npz = options.kept / "mnist.npz" if options.kept else options.scratch / "mnist.npz"
    if not npz.exists():
        npz.parent.mkdir(parents=True, exist_ok=True)
        prepared = asyncio.run(prepare_data(example("mnist"), options.scratch / "prepared", lambda text: None))
        shutil.move(prepared, part := npz.with_suffix(".part"))
        part.rename(npz)
    with np.load(npz, allow_pickle=False) as file:
        arrays: Mapping[str, Any] = {key: file[key] for key in file.files}
    return lambda setting, split: Digits(arrays, setting, split)


def sweep(trials: Trials, optimizer: str, every: int, *, most: int) -> list[Row]:
    """All ways with all outer steps; each but the first of a way begins with the rate that was best before."""
    rows: list[Row] = []
    alone = FIRST_RATE[optimizer]
    for name, way in WAYS.items():
        first = alone * way.first
        for outer in way.outers:
            found: list[Row] = []

            def loss_at(lr: float, found: list[Row] = found, name: str = name, outer: Outer = outer) -> float:
                found.append(trials.row("sweep", optimizer, name, outer, lr, SWEEP_SEED, every))
                return loss_of(found[-1])

            climbed(loss_at, first, most=most)
            rows, first = rows + found, min(found, key=loss_of)["lr"]
        alone = first if name == ALONE else alone
    return rows


def loss_of(row: Row) -> float:
    """Infinite where learning broke off."""
    return math.inf if row["loss"] is None else float(row["loss"])


def chosen(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """By optimiser and way the trial with the least loss on the validation split."""
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row["optimizer"], row["way"])
        if row["part"] == "sweep" and (key not in best or loss_of(row) < loss_of(best[key])):
            best[key] = row
    return best


def conclude(result: Result) -> None:
    """Means over seeds with what was chosen, what each way loses against one replica, and the targets; of a run that was broken off what there is."""
    few = result.settings["every"][0]
    for optimizer in result.settings["optimizers"]:
        told: Row = {}
        lost: Row = {}
        right = {name: _judged(result.rounds, optimizer, name) for each, name in chosen(result.rounds) if each == optimizer}
        for (_, name), row in chosen(row for row in result.rounds if row["optimizer"] == optimizer).items():
            told[f"{name}_rates"] = f"{row['lr']:g}, {row['outer_lr']:g}, {row['outer_momentum']:g}"
            told[f"{name}_validation_loss"], told[f"{name}_validation_percent"] = row["loss"], row["percent"]
            for every, by_seed in right.get(name, {}).items():
                label = f"{name}_{every}" if WAYS[name].is_merged else name
                told[label] = round(statistics.mean(by_seed.values()), 2)
                told[f"{label}_spread"] = round(max(by_seed.values()) - min(by_seed.values()), 2)
                alone = right.get(ALONE, {}).get(few, {})
                if alone.keys() >= by_seed.keys():
                    lost[label] = round(statistics.mean(alone[seed] - percent for seed, percent in by_seed.items()), 2)
        result.medians[optimizer] = told
        result.ratios[optimizer] = {f"{label}_lost_points": value for label, value in lost.items()}
        result.targets += _targets(optimizer, lost, result.settings["every"])
    is_whole = any(row["part"] == "judged" for row in result.rounds)
    result.notes = [NOTE] if is_whole else [NOTE, BROKEN_OFF]


def _judged(rows: Iterable[Row], optimizer: str, way: str) -> dict[int, dict[int, float]]:
    """Percent right by steps between deltas and by seed; nothing learned counts as guessing."""
    found: dict[int, dict[int, float]] = {}
    for row in rows:
        if row["part"] == "judged" and (row["optimizer"], row["way"]) == (optimizer, way):
            found.setdefault(row["every"], {})[row["seed"]] = GUESSING if row["percent"] is None else row["percent"]
    return found


def _targets(optimizer: str, lost: Row, every: Iterable[int]) -> Iterable[Target]:
    for steps in every:
        ours = lost.get(f"{SHIPPED}_{steps}")
        names = [f"{name}_{steps}" for name, way in WAYS.items() if way.is_merged and not way.waits]
        others = min((lost[name] for name in names if name in lost), default=0.0)
        at = f"a delta every {steps} steps"
        yield Target(f"{optimizer}: lost against one replica, {at}", ours, MAX_LOST, "points", at_least=False)
        yield Target(
            f"{optimizer}: lost against the best way that waits for nobody, {at}",
            None if ours is None else round(ours - others, 2),
            MAX_BEHIND,
            "points",
            at_least=False,
        )
