"""What SGD with momentum, which every check can follow, costs in accuracy against AdamW on the two example graphs: the same batches, the same initial weights.

Local losses in one process, without a network. Learning rates are tried on the validation split, the chosen one is judged on the test split.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks.result import Options, Result, Row
from dataservice.batches import BatchIndex, eval_indices, num_eval_batches
from dcnr.demo.examples import example, prepare_data
from dcnr.graph import graph_from_toml, num_batches, stages_of_graph
from dcnr.specs import Config
from dcnr.stages import Stage
from vnode.reference import Exit, LocalReference
from vnode.registry import default_registry

EXAMPLES: Final = ("mnist", "text")
OPTIMIZERS: Final[dict[str, tuple[Config, tuple[float, ...]]]] = {
    "sgd": ({"momentum": 0.9, "weight_decay": 5e-4, "schedule": "one_cycle"}, (0.03, 0.1, 0.3)),
    "adamw": ({"beta1": 0.9, "beta2": 0.95, "weight_decay": 0.05, "schedule": "cosine"}, (1e-3, 4e-3)),
}
"""With the learning rates that are tried."""
SWEEP_SHARE: Final = 0.25
"""Of the job's batches, in a trial of a rate."""
Batches = Callable[[str, int], tuple[Any, Any]]


def run(options: Options) -> Result:
    """``rounds`` seeds of both examples with both optimisers; quick: a few batches of the text alone."""
    result = Result(
        "optimizers", "SGD with momentum against AdamW", {"rates": {name: list(rates) for name, (_, rates) in OPTIMIZERS.items()}}
    )
    for name in EXAMPLES[1:] if options.quick else EXAMPLES:
        chosen = example(name)
        npz = asyncio.run(prepare_data(chosen, options.scratch, lambda text: None))
        with np.load(npz, allow_pickle=False) as file:
            arrays: dict[str, Any] = {key: file[key] for key in file.files}
        for optimizer in OPTIMIZERS:
            rate = _rate(name, arrays, optimizer, options)
            for seed in range(options.rounds):
                exits = _train(name, arrays, optimizer, rate, seed, 1.0, "test", options)
                result.rounds.append({"example": name, "optimizer": optimizer, "lr": rate, "seed": seed, **_told(exits)})
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """By example and optimiser the means over seeds, and what SGD costs."""
    for name in dict.fromkeys(row["example"] for row in result.rounds):
        told: Row = {}
        for optimizer in OPTIMIZERS:
            rows = [row for row in result.rounds if (row["example"], row["optimizer"]) == (name, optimizer)]
            told |= {f"{optimizer}_{key}": round(sum(row[key] for row in rows) / len(rows), 4) for key in ("accuracy", "bits")}
            told[f"{optimizer}_lr"] = rows[0]["lr"]
        result.medians[name] = told
        result.ratios[name] = {
            "accuracy_lost_points": round(100 * (told["adamw_accuracy"] - told["sgd_accuracy"]), 3),
            "bits_lost": round(told["sgd_bits"] - told["adamw_bits"], 4),
        }
    result.notes.append(
        "Of the last exit on the test split, means over seeds; bits per image or byte. Negative losses: SGD is better."
    )


def _rate(name: str, arrays: dict[str, Any], optimizer: str, options: Options) -> float:
    rates = OPTIMIZERS[optimizer][1]
    if options.quick:
        return rates[-1]
    losses = {rate: _train(name, arrays, optimizer, rate, 0, SWEEP_SHARE, "validation", options)[-1].loss for rate in rates}
    return min(losses, key=lambda rate: losses[rate] if math.isfinite(losses[rate]) else math.inf)


def _train(
    name: str, arrays: dict[str, Any], optimizer: str, rate: float, seed: int, share: float, split: str, options: Options
) -> Sequence[Exit]:
    graph, registry = graph_from_toml(example(name).graph.read_text()), default_registry()
    stages = [_with(stage, optimizer, rate) for stage in stages_of_graph(graph, registry)]
    batch_size, samples = int(graph.train.batch_size), len(arrays["train_y"])
    count = 4 if options.quick else int(num_batches(graph, samples) * share)
    index = BatchIndex(seed, (samples,), batch_size, int(graph.train.passes))

    def batches(part: str, number: int) -> tuple[Any, Any]:
        chosen = index.indices(number) if part == "train" else eval_indices(number, len(arrays[f"{part}_y"]), batch_size)
        x = arrays[f"{part}_x"][chosen]
        is_text = x.dtype == np.uint8 and graph.input.dtype == "uint8"
        return (x if is_text else x.astype(graph.input.dtype)), arrays[f"{part}_y"][chosen]

    reference = LocalReference(stages, registry, num_batches=count, seed=seed, threads=os.cpu_count() or 1)
    for _ in reference.train(batches):
        pass
    number = 2 if options.quick else num_eval_batches(len(arrays[f"{split}_y"]), batch_size)
    return reference.evaluate(batches, split, number)


def _with(stage: Stage, optimizer: str, rate: float) -> Stage:
    """The same stage under another optimiser; it clips where the graph's own did."""
    config = {**OPTIMIZERS[optimizer][0], "lr": rate, "clip": stage.optimizer_config.get("clip", 0.0)}
    return replace(stage, optimizer=optimizer, optimizer_config=config)


def _told(exits: Sequence[Exit]) -> Row:
    return {"accuracy": round(exits[-1].accuracy, 5), "bits": round(exits[-1].loss / math.log(2), 5)}
