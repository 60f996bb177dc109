"""False accusations: intervals of honest machines, with data that no tolerance was made from, judged with the committed tolerances on other machines.

The machine that claims is this one as it is, with one thread; those that check are `CHECKERS`. Every stage of `tolerance_cases` learns
with seeds from `FIRST_SEED` on; states lie as far apart as a worker's do. What a replay, a sketch and a referee find is what an auditor would report.
In a network audits are replays: these alone are held against the numbers of steps that are wanted, and sketch and referee are told beside them.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from benchmarks.kept import Kept, judging, key_of
from benchmarks.result import Options, Result, Row, Target
from benchmarks.tolerance_cases import DEMO, NARROW, OPTIMIZERS, REGISTRY, Case, cases
from benchmarks.tolerance_machine import load, save
from benchmarks.tolerances import BULK, MACHINES, rows_of
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
WIDE_EVERY: Final = 6
"""Every so many seeds the wide cases as well, and all narrow ones for `NARROW_STEPS`."""
NARROW_STEPS: Final = 256
QUICK_CASES: Final = ("linear, ReLU head", "linear, GELU head", "linear_block", "linear_block, predsim")
"""Whose steps take least: always followed that long."""
IMAGE: Final = "conv_block"
"""The kind of stage that the image example is made of, followed as long: it has to have its share of the steps."""
IMAGE_SHARE: Final = 0.25
"""At least, of the steps wanted at width 64."""
WANTED_STEPS: Final = {64: 1_000_000, 1024: 10_000}
WIDTHS: Final = (128, 256, 512)
"""`WIDENED` between the two, where the wide cases are: residuals by tolerance against the width."""
WIDENED: Final = "linear_block"
CHECKERS: Final = {**MACHINES, "as it is, 4 threads": ({}, 4), "as it is, 8 threads": ({}, 8)}
"""Environment and threads of each."""
SKETCH_EVERY: Final = 8
"""Seeds."""
WAVE: Final = 6
"""Seeds whose claims lie on the disk at a time."""
REFEREE_EVERY: Final = 16
LIMIT_S: Final = 3600.0
QUIET: Final = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait do not spin: on a busy machine two that do take tens of times as long, and no result depends on it."""


def run(options: Options) -> Result:
    """``rounds`` waves of `WAVE` seeds each; quick: one seed, one machine, the cases of the quick tolerances."""
    names = list(MACHINES)[-1:] if options.quick else list(CHECKERS)
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
    kept = Kept(options.kept and options.kept / "honest.jsonl")
    code = key_of(judging("benchmarks/honest.py", "benchmarks/tolerance*.py"))
    for number in range(options.rounds):
        first = FIRST_SEED + number * WAVE
        key = json.dumps([code, names, first, options.quick])
        result.rounds += kept.row(key, partial(judged_wave, claims, first, names, quick=options.quick))["rows"]
    result.rounds = summed(result.rounds)
    conclude(result)
    return result


def judged_wave(claims: Path, first: int, names: Sequence[str], *, quick: bool) -> Row:
    """``rows``: what these machines find in the claims of one wave, as `summed` gives it."""
    elsewhere("record", claims, first, "", quick=quick)
    checks = partial(elsewhere, "check", claims, first, quick=quick)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = [{"machine": name, **row} for name, found in zip(names, pool.map(checks, names), strict=True) for row in found]
    for path in claims.iterdir():
        path.unlink()
    return {"rows": summed(rows)}


def elsewhere(action: str, claims: Path, first: int, name: str, *, quick: bool) -> list[Row]:
    """One machine's rows of one wave; the machine that claims has no name."""
    environment, threads = CHECKERS.get(name, ({}, 1))
    words = [action, str(claims), str(first), str(threads)]
    return rows_of("benchmarks.honest", [*words, "quick"] if quick else words, {**QUIET, **environment}, limit_s=LIMIT_S)


def summed(rows: list[Row]) -> list[Row]:
    """One row for each machine, case, optimiser and level: steps and findings of all seeds together, the worst ratio and where it was, by part, and how many
    intervals came how far.
    """
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(str(row[name]) for name in ("machine", "case", "optimizer", "level", "width"))
        empty = {"intervals": 0, "steps": 0, "doubts": 0, "faults": 0, "worst": 0.0, "part": "", "parts": {}, "spread": {}}
        mine = found.setdefault(key, {**row, **empty})
        mine.pop("seed", None)
        for name in ("intervals", "steps", "doubts", "faults"):
            mine[name] += row[name]
        mine["parts"] = {
            name: max(mine["parts"].get(name, 0.0), row["parts"].get(name, 0.0)) for name in mine["parts"] | row["parts"]
        }
        mine["spread"] = dict(sorted((Counter(mine["spread"]) + Counter(row["spread"])).items()))
        if row["worst"] > mine["worst"]:
            mine["worst"], mine["part"] = row["worst"], row["part"]
    return list(found.values())


def conclude(result: Result) -> None:
    """Steps, doubts and faults of replays by width and of the other checks beside them; every doubt and fault is a false one."""
    replays = [row for row in result.rounds if row["level"] == "replay"]
    quick = result.settings["quick"]
    for width in sorted({row["width"] for row in replays} & set(WANTED_STEPS)):
        rows = [row for row in replays if row["width"] == width]
        result.ratios[f"replay, width {width}"] = found = {**total(rows), **_apart(rows)}
        wanted = 0 if quick else WANTED_STEPS[width]
        result.targets += [
            Target(f"honest steps replayed, width {width}, all machines together", found["steps"], wanted, "steps", at_least=True),
            Target(f"false accusations by replays, width {width}", found["faults"], 0, "intervals", at_least=False),
        ]
    images = [row for row in replays if row["case"].startswith(IMAGE) and row["width"] == NARROW]
    wanted = 0 if quick else int(IMAGE_SHARE * WANTED_STEPS[NARROW])
    steps = sum(row["steps"] for row in images)
    bulk = max((row["parts"][BULK] for row in replays if BULK in row.get("parts", {})), default=None)
    others = [row for row in result.rounds if row["level"] != "replay"]
    result.targets += [
        Target(f"of them steps of {IMAGE}, width {NARROW}", steps, wanted, "steps", at_least=True),
        Target("replays with kinks: worst residual of most values (bulk) / tolerance", bulk, 1.0, "", at_least=False),
        Target("false accusations by sketches and referees", sum(row["faults"] for row in others), 0, "intervals", at_least=False),
    ]
    for level in ("replay", "sketch", "referee"):
        for smooth in (True, False):
            rows = [row for row in result.rounds if (row["level"], row["smooth"]) == (level, smooth)]
            if rows:
                result.medians[f"{level}, {'smooth' if smooth else 'with kinks'}"] = total(rows)
    result.ratios["replay_by_width"] = by_width = dict[str, float]()
    for width in sorted({row["width"] for row in replays if row["case"] == WIDENED}):
        found = total([row for row in replays if (row["case"], row["width"]) == (WIDENED, width)])
        result.medians[f"replay of {WIDENED}, width {width}"], by_width[str(width)] = found, found["worst"]
    result.notes = _notes(result)


def _notes(result: Result) -> list[str]:
    apart = [
        f"{found['distinct_steps']} distinct steps on {found['machines']} machines ({name.removeprefix('replay, ')})"
        for name, found in result.ratios.items()
        if "machines" in found
    ]
    return [
        "Cells are sums and the worst residual in units of its tolerance, not medians. A doubt (1 to 2) asks for a second opinion; a fault (above) accuses.",
        f"A step that several machines replay counts once for each of them: {', '.join(apart)}.",
    ]


def _apart(rows: list[Row]) -> Row:
    """Steps that differ, and on how many machines: each sees the same claims."""
    by_machine = Counter[str]()
    for row in rows:
        by_machine[row["machine"]] += row["steps"]
    return {"distinct_steps": max(by_machine.values()), "machines": len(by_machine)}


def total(rows: list[Row]) -> Row:
    """Of rows that `summed` gave."""
    return {
        **{name: sum(row[name] for row in rows) for name in ("intervals", "steps", "doubts", "faults")},
        "worst": max(row["worst"] for row in rows),
    }


def spread_of(rows: Sequence[Row]) -> list[tuple[float, int]]:
    """How far honest replays came: residuals in units of the tolerance, rounded up, and how many intervals.

    Of a row that says no more its worst counts for all.
    """
    counts = Counter[float]()
    for row in rows:
        if row["level"] == "replay":
            spread = row.get("spread") or {str(row["worst"]): row["intervals"]}
            counts.update({float(upper): number for upper, number in spread.items()})
    return sorted(counts.items())


# ---- one machine --------------------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """``record|check DIRECTORY FIRST_SEED THREADS [quick]``: makes the claims of a wave, or judges them, a row a line as JSON."""
    action, directory, first, threads = arguments[:4]
    torch.set_num_threads(int(threads))
    for number, case in enumerate(wave(int(first), quick="quick" in arguments)):
        path, codec = Path(directory) / str(number), "int8" if case.seed % 2 else "raw"
        checks, sketched = checks_of_stage(case.stage(), REGISTRY), case.is_sketched and case.seed % SKETCH_EVERY == 0
        if action == "record":
            span, watched = checks.replay().span_steps, checks if sketched else None
            save(path, record(_compute(case), case.first(), case.entries(), codec=codec, state_every=span, sketched=watched))
        else:
            for row in judged(case, load(path, case, codec), checks, sketched=sketched):
                print(json.dumps(row), flush=True)


def wave(first: int, *, quick: bool) -> list[Case]:
    """What this wave learns."""
    if quick:
        return [replace(case, seed=first) for case in cases(1, quick=True)]
    found: list[Case] = []
    for seed in range(first, first + WAVE):
        whole = seed % WIDE_EVERY == 0
        for case in cases(1):
            wide = case.width > NARROW
            if case.name.startswith("growth") or (wide and not whole):
                continue
            is_long = whole or case.name in QUICK_CASES or case.component == IMAGE
            num_steps = NARROW_STEPS if not wide and is_long else min(case.num_steps, 64 if wide else 32)
            found.append(replace(case, seed=seed, num_steps=num_steps))
        if whole:
            found.append(replace(DEMO, seed=seed))
            found += [
                Case(WIDENED, WIDENED, {}, (width,), optimizer, width, num_steps=64, seed=seed)
                for width in WIDTHS
                for optimizer in OPTIMIZERS
            ]
    return found


def judged(case: Case, claim: Claim, checks: StageChecks, *, sketched: bool) -> Iterator[Row]:
    """What each check finds in this interval, a sketch where it is wanted; a referee in its first steps, as this machine's own claim has the states between
    them.
    """
    stage = case.stage()
    about = {"case": case.name, "optimizer": case.optimizer, "width": case.width, "smooth": checks.smooth, "seed": case.seed}
    compute = TwoSidedCompute(stage, REGISTRY, num_batches=case.num_batches, seed=case.seed)
    found = list(replay(compute, schema_of(stage, REGISTRY), claim, checks.replay(), as_array=as_array))
    yield {**about, "level": "replay", "steps": case.num_steps, **finding(found)}
    if checks.maps and sketched:
        sketch = Sketch(stage, REGISTRY, checks, secret=str(case.seed).encode(), num_batches=case.num_batches, seed=case.seed)
        yield {**about, "level": "sketch", "steps": case.num_steps, **finding(sketch.check(claim, checks.sketch()))}
    if case.seed % REFEREE_EVERY == 0:
        own = record(_compute(case), case.first(), case.entries(case.referee_steps), state_every=1)
        referee = Referee(stage, REGISTRY, num_batches=case.num_batches, seed=case.seed)
        yield {**about, "level": "referee", "steps": case.referee_steps, **finding(referee.check(own, checks.referee()))}


def finding(comparisons: Iterator[Comparison] | list[Comparison]) -> Row:
    """What an auditor would report of one interval; ``parts``: the worst ratio of each."""
    compared = list(comparisons)
    outcome = judge(compared, to_the_end=True)
    worst = outcome.worst
    said = outcome.finding
    parts: dict[str, float] = {}
    for one in compared:
        parts[one.part] = max(parts.get(one.part, 0.0), _shown(one.ratio))
    return {
        "intervals": 1, "doubts": int(said is Finding.DOUBT), "faults": int(said is Finding.FAULT),
        "worst": 0.0 if worst is None else _shown(worst.ratio), "part": "" if worst is None else worst.part, "parts": parts,
        "spread": {_step_above(0.0 if worst is None else worst.ratio): 1},
    }  # fmt: skip


def _shown(ratio: float) -> float:
    return float(f"{min(ratio, 1e6):.3g}")


def _step_above(ratio: float) -> str:
    """The next power of √2: as fine as it has to be to draw from."""
    return "0.0" if ratio <= 0.0 else f"{min(2.0 ** (math.ceil(2.0 * math.log2(ratio)) / 2.0), 1e6):.3g}"


def _compute(case: Case) -> TorchCompute:
    return TorchCompute(case.stage(), REGISTRY, num_batches=case.num_batches, seed=case.seed)


if __name__ == "__main__":
    main(sys.argv[1:])
