"""How surely the checks see a cheat: every behaviour of ``examples/byzantine`` in intervals of several components, checked with the committed tolerances."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from benchmarks.result import Options, Result, Row, Target
from benchmarks.tolerance_cases import REGISTRY, Case
from examples.byzantine.behaviours import BEHAVIOURS, Behaviour
from examples.byzantine.worker import CheatingCompute
from trust.comparison import Outcome, judge
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.torch_record import as_array, record
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.checks.torch_sketch import Sketch
from vnode.torch_stage import schema_of

NUM_STEPS: Final = 16
NUM_BATCHES: Final = 64
CASES: Final = tuple(
    Case(name, component, {"out_features": 12} if component == "linear" else {"out_channels": 6, "pool": 2} if shape[1:] else {}, shape, optimizer, 16)
    for optimizer in ("sgd", "adamw")
    for name, component, shape in (("linear", "linear", (20,)), ("linear_block", "linear_block", (16,)), ("conv_block", "conv_block", (3, 6, 6)))
)  # fmt: skip


def run(options: Options) -> Result:
    """``rounds`` seeds of every behaviour and component, one interval of 16 steps each; outputs as int8 in every second."""
    torch.set_num_threads(1)
    settings: Row = {"num_steps": NUM_STEPS, "batch_size": 16, "behaviours": [behaviour.name for behaviour in BEHAVIOURS]}
    result = Result("detection", "Cheats that the checks see", settings)
    for seed in range(options.rounds):
        for case in CASES[:2] if options.quick else CASES:
            for behaviour in BEHAVIOURS:
                result.rounds.append(
                    _row(replace(case, seed=seed, num_steps=NUM_BATCHES), behaviour, "int8" if seed % 2 else "raw")
                )
    conclude(result)
    return result


def _row(case: Case, behaviour: Behaviour, codec: str) -> Row:
    stage = case.stage()
    checks = checks_of_stage(stage, REGISTRY)
    cheat = CheatingCompute(stage, REGISTRY, behaviour, num_batches=NUM_BATCHES, seed=case.seed, num_steps=NUM_STEPS)
    claim = record(
        cheat, case.first(), case.entries(NUM_STEPS), codec=codec, state_every=checks.replay().span_steps, sketched=checks
    )
    honest = TwoSidedCompute(stage, REGISTRY, num_batches=NUM_BATCHES, seed=case.seed)
    sketch = Sketch(stage, REGISTRY, checks, secret=f"secret {case.seed}".encode(), num_batches=NUM_BATCHES, seed=case.seed)
    return {
        "case": f"{case.name}, {case.optimizer}", "behaviour": behaviour.name, "seed": case.seed, "codec": codec,
        "replay": _ratio(judge(replay(honest, schema_of(stage, REGISTRY), claim, checks.replay(), as_array=as_array), to_the_end=True)),
        "sketch": _ratio(judge(sketch.check(claim, checks.sketch()), to_the_end=True)),
    }  # fmt: skip


def _ratio(outcome: Outcome) -> float:
    """The worst residual in units of its tolerance, at most a million."""
    return 0.0 if outcome.worst is None else float(f"{min(outcome.worst.ratio, 1e6):.3g}")


def conclude(result: Result) -> None:
    """By behaviour: the share of intervals that are over a tolerance, and the faintest of them."""
    for name in result.settings["behaviours"]:
        rows = [row for row in result.rounds if row["behaviour"] == name]
        result.medians[name] = {
            f"{level}_{figure}": value
            for level in ("replay", "sketch")
            for figure, value in (("caught", _share(rows, level)), ("faintest_ratio", min(row[level] for row in rows)))
        }
    result.ratios["intervals"] = len(result.rounds)
    for level in ("replay", "sketch"):
        result.targets.append(
            Target(f"cheated intervals that a {level} sees", _share(result.rounds, level), 0.99, "", at_least=True)
        )
    result.notes = [
        "Ratios are worst residuals in units of their tolerance; above 1 an interval is not passed. Cells are shares and minima, not medians."
    ]


def _share(rows: list[Row], level: str) -> float:
    caught = sum(1 for row in rows if float(row[level]) > 1)
    return round(caught / len(rows), 4)
