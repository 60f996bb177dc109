"""What three attackers of ten do to a model whose training is audited: its loss, who is blamed, and how many wrong steps stay in it against what is shown."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from typing import Final

import torch

from benchmarks.attackers_world import FREQUENCIES, INTERVAL_S, NUM_STEPS, RECORDS, SLANDERERS, TENURE, World
from benchmarks.honest import spread_of
from benchmarks.machine import ROOT
from benchmarks.merging_replicas import Setting
from benchmarks.result import Options, Result, Row, Target
from examples.byzantine.behaviours import BEHAVIOURS
from trust.exposure import exposure_of

NUM_NODES: Final = 10
SHARE: Final = 0.3
NUM_STAGES: Final = 4
NUM_BATCHES: Final = 3072
MAX_ROUNDS: Final = 20000
WORSE: Final = 0.03
"""Of the loss, for the mean and for nineteen of twenty seeds."""
RARE_AT_FLOOR: Final = 100.0
"""Wrong steps in intervals drawn near the floor, by who cheats rarely: without them that threat is not in it."""
HONEST: Final = ROOT / "benchmarks" / "results" / "honest.json"
"""What machines find of each other's honest work."""


def run(options: Options) -> Result:
    """``rounds`` seeds, each once with attackers and once without."""
    torch.set_num_threads(1)
    num_batches = 64 if options.quick else NUM_BATCHES
    settings: Row = {
        "num_nodes": NUM_NODES, "attackers": SHARE, "num_stages": NUM_STAGES, "num_batches": num_batches, "interval_steps": NUM_STEPS,
        "interval_s": INTERVAL_S, "slanderers": SLANDERERS, "tenure_intervals": TENURE, "records_passes": list(RECORDS), "frequency": list(FREQUENCIES),
        "behaviours": [behaviour.name for behaviour in BEHAVIOURS],
    }  # fmt: skip
    residuals = spread_of(json.loads(HONEST.read_text())["rounds"])
    settings["worst_honest_residual"] = max(value for value, _ in residuals)
    result = Result("attackers", "Three attackers of ten PNodes", settings)
    for seed in range(options.rounds):
        setting = Setting("sgd", seed, num_batches, batch_size=16, num_stages=NUM_STAGES)
        result.rounds.append(_row(setting, residuals))
    conclude(result)
    return result


def _row(setting: Setting, residuals: Sequence[tuple[float, int]]) -> Row:
    clean = World(setting, num_nodes=NUM_NODES, share=0.0, residuals=residuals).train(MAX_ROUNDS)
    found = World(setting, num_nodes=NUM_NODES, share=SHARE, residuals=residuals).train(MAX_ROUNDS)
    shown = exposure_of(found.lives)
    return {
        "seed": setting.seed, "clean_loss": round(clean.loss, 5), "loss": round(found.loss, 5), "worse": round(found.loss / clean.loss - 1, 5),
        "steps": found.steps, "bad_offered": found.bad_offered, "bad_kept": found.bad_kept, "bad_shown": round(shown.undetected_steps, 1),
        "steps_kept": setting.num_batches * setting.num_stages, "audits": found.audits, "faults": found.faults, "late": found.late, "doubts": found.doubts,
        "at_floor": found.at_floor, "rare_at_floor": found.rare_at_floor, "slanders": found.slanders, "canaries_failed": found.canaries_failed,
        "broken_states": found.broken_states, "names": found.names, "honest": found.honest + clean.honest,
        "honest_quarantined": found.honest_quarantined + clean.honest_quarantined, "clean_audits": clean.audits, "clean_steps": clean.steps,
    }  # fmt: skip


def conclude(result: Result) -> None:
    """Over all seeds."""
    rows = result.rounds
    total = {name: sum(row[name] for row in rows) for name in rows[0] if name not in ("seed", "clean_loss", "loss", "worse")}
    worse = sorted(row["worse"] for row in rows)
    result.medians = {
        "worse": statistics.median(worse), "mean": round(statistics.mean(worse), 5), "of_20_seeds_19": worse[math.ceil(0.95 * len(worse)) - 1],
        "worst": worse[-1],
    }  # fmt: skip
    result.ratios = {**total, "kept_of_shown": round(total["bad_kept"] / total["bad_shown"], 4) if total["bad_shown"] else 0.0}
    result.targets += [
        Target("loss with attackers against without, median of seeds", result.medians["worse"], WORSE, "", at_least=False),
        Target("loss with attackers against without, mean of seeds", result.medians["mean"], WORSE, "", at_least=False),
        Target(
            "loss with attackers against without, 95th percentile of seeds",
            result.medians["of_20_seeds_19"],
            WORSE,
            "",
            at_least=False,
        ),
        Target("honest PNodes quarantined", total["honest_quarantined"] / total["honest"], 0.001, "of all honest", at_least=False),
        Target("bad steps that stay / bad steps that are shown", result.ratios["kept_of_shown"], 1.0, "", at_least=False),
        Target("bad steps offered", float(total["bad_offered"]), 3e4, "steps", at_least=True),
        Target("of them near the floor, by who cheats rarely", total.get("rare_at_floor"), RARE_AT_FLOOR, "steps", at_least=True),
        Target("right intervals that attackers faulted", total.get("slanders"), 1.0, "intervals", at_least=True),
    ]
    result.notes.append(
        "Whoever is found out comes back at once under a new name. Attackers are also auditors: they pass everything, and half of them fault every second of "
        "what they are given. `steps` counts what was learned again too. `worst` is the worst of all seeds; no target hides it. Each audit of honest work "
        "finds what other machines were measured to find of such (`honest.json`)."
    )
