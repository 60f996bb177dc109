"""False accusations: intervals of honest machines, with data that no tolerance was made from, judged with the committed tolerances on other machines.

The machine that claims is this one as it is, with one thread; those that check are `benchmarks.tolerances.MACHINES`. Every stage of `tolerance_cases` learns
with seeds from `FIRST_SEED` on; states lie as far apart as a worker's do. What a replay, a sketch and a referee find is what an auditor would report.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from benchmarks.result import Options, Result, Row, Target
from benchmarks.tolerance_cases import NARROW, REGISTRY, Case, cases
from benchmarks.tolerance_machine import load, save
from benchmarks.tolerances import MACHINES, rows_of
from trust.comparison import Comparison, judge
from trust.overturned import Finding
from vnode.checks.claims import Claim
from vnode.checks.plan import StageChecks, checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.torch_record import as_array, record
from vnode.checks.torch_referee import Referee
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.checks.torch_sketch import Sketch
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of

FIRST_SEED: Final = 1_000
"""The table of tolerances knows none from here on."""
WIDE_EVERY: Final = 9
"""Every so many seeds the wide cases as well, and all narrow ones for `NARROW_STEPS`."""
NARROW_STEPS: Final = 256
QUICK_CASES: Final = ("linear, ReLU head", "linear, GELU head", "linear_block", "linear_block, predsim")
"""Whose steps take least: always followed that long."""
WANTED_STEPS: Final = {64: 1_000_000, 1024: 10_000}
WAVE: Final = 6
"""Seeds whose claims lie on the disk at a time."""
REFEREE_EVERY: Final = 16
LIMIT_S: Final = 3600.0
QUIET: Final = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait do not spin: on a busy machine two that do take tens of times as long, and no result depends on it."""


def run(options: Options) -> Result:
    """``rounds`` waves of `WAVE` seeds each; quick: one seed, one machine, the cases of the quick tolerances."""
    names = list(MACHINES)[-1:] if options.quick else list(MACHINES)
    settings: Row = {
        "first_seed": FIRST_SEED,
        "wave": WAVE,
        "wide_every": WIDE_EVERY,
        "machines": names,
        "quick": options.quick,
        "rounds": options.rounds,
    }
    result = Result("honest", "Honest machines that are accused", settings)
    claims = options.scratch / "claims"
    claims.mkdir(parents=True, exist_ok=True)
    for number in range(options.rounds):
        first = FIRST_SEED + number * WAVE
        elsewhere("record", claims, first, "", quick=options.quick)
        checks = partial(elsewhere, "check", claims, first, quick=options.quick)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for name, rows in zip(names, pool.map(checks, names), strict=True):
                result.rounds += [{"machine": name, **row} for row in rows]
        for path in claims.iterdir():
            path.unlink()
    result.rounds = summed(result.rounds)
    conclude(result)
    return result


def elsewhere(action: str, claims: Path, first: int, name: str, *, quick: bool) -> list[Row]:
    """One machine's rows of one wave; the machine that claims has no name."""
    environment, threads = MACHINES.get(name, ({}, 1))
    words = [action, str(claims), str(first), str(threads)]
    return rows_of("benchmarks.honest", [*words, "quick"] if quick else words, {**QUIET, **environment}, limit_s=LIMIT_S)


def summed(rows: list[Row]) -> list[Row]:
    """One row for each machine, case, optimiser and level: steps and findings of all seeds together, the worst ratio and where it was."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(str(row[name]) for name in ("machine", "case", "optimizer", "level", "width"))
        mine = found.setdefault(key, {**row, "intervals": 0, "steps": 0, "doubts": 0, "faults": 0, "worst": 0.0, "part": ""})
        mine.pop("seed", None)
        for name in ("intervals", "steps", "doubts", "faults"):
            mine[name] += row[name]
        if row["worst"] > mine["worst"]:
            mine["worst"], mine["part"] = row["worst"], row["part"]
    return list(found.values())


def conclude(result: Result) -> None:
    """Steps, doubts and faults by width, and by level and kind of stage; every doubt and fault is a false one."""
    for width in sorted({row["width"] for row in result.rounds}):
        rows = [row for row in result.rounds if row["width"] == width]
        result.ratios[f"width {width}"] = total(rows)
        wanted = 0 if result.settings["quick"] else WANTED_STEPS[width]
        result.targets += [
            Target(f"honest steps checked, width {width}", total(rows)["steps"], wanted, "steps", at_least=True),
            Target(f"false accusations, width {width}", total(rows)["faults"], 0, "intervals", at_least=False),
        ]
    for level in ("replay", "sketch", "referee"):
        for smooth in (True, False):
            rows = [row for row in result.rounds if (row["level"], row["smooth"]) == (level, smooth)]
            if rows:
                result.medians[f"{level}, {'smooth' if smooth else 'with kinks'}"] = total(rows)
    result.notes = [
        "Cells are sums and the worst residual in units of its tolerance, not medians. A doubt (1 to 2) asks for a second opinion; a fault (above) accuses."
    ]


def total(rows: list[Row]) -> Row:
    """Of rows that `summed` gave."""
    return {
        **{name: sum(row[name] for row in rows) for name in ("intervals", "steps", "doubts", "faults")},
        "worst": max(row["worst"] for row in rows),
    }


# ---- one machine --------------------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """``record|check DIRECTORY FIRST_SEED THREADS [quick]``: makes the claims of a wave, or judges them, a row a line as JSON."""
    action, directory, first, threads = arguments[:4]
    torch.set_num_threads(int(threads))
    for number, case in enumerate(wave(int(first), quick="quick" in arguments)):
        path, codec = Path(directory) / str(number), "int8" if case.seed % 2 else "raw"
        checks = checks_of_stage(case.stage(), REGISTRY)
        if action == "record":
            span = checks.replay().span_steps
            save(path, record(_compute(case), case.first(), case.entries(), codec=codec, state_every=span, sketched=checks))
        else:
            for row in judged(case, load(path, case, codec), checks):
                print(json.dumps(row), flush=True)


def wave(first: int, *, quick: bool) -> list[Case]:
    """What this wave learns."""
    if quick:
        return [replace(case, seed=first) for case in cases(1, quick=True)]
    found: list[Case] = []
    for seed in range(first, first + WAVE):
        for case in cases(1):
            wide, whole = case.width > NARROW, seed % WIDE_EVERY == 0
            if case.name.startswith("growth") or (wide and not whole):
                continue
            num_steps = (
                NARROW_STEPS if not wide and (whole or case.name in QUICK_CASES) else min(case.num_steps, 64 if wide else 32)
            )
            found.append(replace(case, seed=seed, num_steps=num_steps))
    return found


def judged(case: Case, claim: Claim, checks: StageChecks) -> Iterator[Row]:
    """What each check finds in this interval; a referee in its first steps, as this machine's own claim has the states between them."""
    stage = case.stage()
    about = {"case": case.name, "optimizer": case.optimizer, "width": case.width, "smooth": checks.smooth, "seed": case.seed}
    compute = TwoSidedCompute(stage, REGISTRY, num_batches=case.num_steps, seed=case.seed)
    found = list(replay(compute, schema_of(stage, REGISTRY), claim, checks.replay(), as_array=as_array))
    yield {**about, "level": "replay", "steps": case.num_steps, **finding(found)}
    if checks.maps:
        sketch = Sketch(stage, REGISTRY, checks, secret=str(case.seed).encode(), num_batches=case.num_steps, seed=case.seed)
        yield {**about, "level": "sketch", "steps": case.num_steps, **finding(sketch.check(claim, checks.sketch()))}
    if case.seed % REFEREE_EVERY == 0:
        own = record(_compute(case), case.first(), case.entries(case.referee_steps), state_every=1)
        referee = Referee(stage, REGISTRY, num_batches=case.num_steps, seed=case.seed)
        yield {**about, "level": "referee", "steps": case.referee_steps, **finding(referee.check(own, checks.referee()))}


def finding(comparisons: Iterator[Comparison] | list[Comparison]) -> Row:
    """What an auditor would report of one interval."""
    outcome = judge(comparisons, to_the_end=True)
    worst = outcome.worst
    said = outcome.finding
    return {
        "intervals": 1, "doubts": int(said is Finding.DOUBT), "faults": int(said is Finding.FAULT),
        "worst": 0.0 if worst is None else float(f"{min(worst.ratio, 1e6):.3g}"), "part": "" if worst is None else worst.part,
    }  # fmt: skip


def _compute(case: Case) -> TorchCompute:
    return TorchCompute(case.stage(), REGISTRY, num_batches=case.num_steps, seed=case.seed)


if __name__ == "__main__":
    main(sys.argv[1:])
