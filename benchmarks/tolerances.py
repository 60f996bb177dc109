"""How far apart honest machines come, and the table of tolerances that follows: one machine's claims checked on all others.

"Machines" are processes on this one with other CPU capabilities (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA, MKL_CBWR) and one or two threads: every one
uses other kernels and another order of additions. A committed run also writes ``vnode/checks/tolerances.json``: the worst residual of each part times
`MARGIN`, and for replays the longest span whose tolerances stay below `MAX_TOLERANCE`, which every cheat that matters exceeds.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.result import Options, Result, Row, Target
from benchmarks.tolerance_cases import OPTIMIZERS, WIDE_RATES

MARGIN: Final = 10.0
FLOOR: Final = 5e-5
"""Residuals are taken to be at least this. Other data let honest machines part by many times what a few seeds show (`benchmarks.honest`), and no cheat that
is worth anything is so small: `benchmarks.detection`."""
SLOT_FLOOR: Final = 2e-4
"""The same for slots after a replay: they follow gradients, which part by some times as much as weights do, and mean squares by twice that. On an
accelerator, which shares no rounding with processors, honest ones were seen to part so far (`benchmarks.accelerator`)."""
KINKED_FLOOR: Final = 1e-4
"""The same where a replay, or a referee, meets kinks: one value that falls on the other side moves every part of what follows."""
MAX_TOLERANCE: Final = 2e-3
"""A replay's span is the longest that stays below: skipping one step of 256 moves weights by more."""
KINKED_SPAN: Final = 16
"""Of replays with kinks. Two honest machines take different sides of one now and then, in one step as in many, whatever the optimiser: such a stage is
given what any of them was seen to do in so many steps, and is better judged from the worker's own products (sketch)."""
EXACT: Final = {"rate": 1e-9, "lineage": 1e-9}
"""Parts that are the same on every machine: float64 arithmetic on a few numbers, and counting."""
BULK: Final = "bulk"
"""The part that replays alone look at."""
PARTS: Final = ("map", "input_gradient", "output", "loss", "weights", "wander", "slots", "buffers", BULK)
LOOSE: Final = "wander"
"""The part that may be far off without harm: it decides no span, and all kinds of check and function have one tolerance for it."""
WALK: Final = 1.5
"""At least this for it. A weight without a gradient walks at random, led by rounding. Processors share most of their rounding and part by less; a processor
and an accelerator share none, and two independent walks of the same kind part by √2 of what either moved."""
MACHINES: Final[dict[str, tuple[dict[str, str], int]]] = {
    "as it is, 2 threads": ({}, 2),
    "avx2": ({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}, 1),
    "default": ({"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}, 1),
}
"""Environment and threads of each; the one that claims is this machine as it is, with one thread."""
TABLE: Final = machine.ROOT / "vnode" / "checks" / "tolerances.json"
LIMIT_S: Final = 1800.0


def run(options: Options) -> Result:
    """``rounds`` seeds at width 64; one at width 1024."""
    names = list(MACHINES)[-1:] if options.quick else list(MACHINES)
    settings: Row = {
        "margin": MARGIN, "max_tolerance": MAX_TOLERANCE, "floor": FLOOR, "kinked_floor": KINKED_FLOOR, "machines": names, "quick": options.quick,
        "optimizers": OPTIMIZERS, "lr_above_width_64": WIDE_RATES,
    }  # fmt: skip
    result = Result("tolerances", "Residuals of honest machines, and the tolerances of all checks", settings)
    claims = options.scratch / "claims"
    claims.mkdir(parents=True, exist_ok=True)
    elsewhere("record", claims, options.rounds, {}, 1, quick=options.quick)
    for name in names:
        environment, threads = MACHINES[name]
        for row in elsewhere("check", claims, options.rounds, environment, threads, quick=options.quick):
            result.rounds.append({"machine": name, **row})
    conclude(result)
    if not options.quick:
        TABLE.write_text(json.dumps(table_of(result.rounds, result.settings), indent=1) + "\n")
    return result


def elsewhere(action: str, claims: Path, rounds: int, environment: Mapping[str, str], threads: int, *, quick: bool) -> list[Row]:
    """One machine's rows."""
    words = [action, str(claims), str(rounds), str(threads)]
    return rows_of("benchmarks.tolerance_machine", [*words, "quick"] if quick else words, environment)


def rows_of(module: str, words: Sequence[str], environment: Mapping[str, str], *, limit_s: float = LIMIT_S) -> list[Row]:
    """What a process with these kernels prints, a row a line. Raises CalledProcessError where it fails, TimeoutExpired where it takes too long."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=machine.ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=True,
        timeout=limit_s,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def conclude(result: Result) -> None:
    """The worst residual by level, optimiser, kind and span; what it is of its tolerance; growth with the width; targets."""
    table = table_of(result.rounds, result.settings)
    for name, row in table["rows"].items():
        level, optimizer, kind = name.split(" ")
        rows = [item for item in result.rounds if _is_of(item, level, optimizer, kind)]
        for span in sorted({item["span"] for item in rows}) if level == "replay" else [0]:
            chosen = [item for item in rows if item["span"] == span or not span]
            label = f"{name}, {span} steps" if span else name
            result.medians[label] = {part: value for part in PARTS if (value := _worst(chosen, part)) is not None}
        result.ratios[name] = {"span_steps": row["span_steps"], "worst_part": _worst_part(row)}
    result.ratios["growth_with_inputs"] = growth(result.rounds)
    steps = {f"honest_steps_{width}": _num_steps(result.rounds, width) for width in (64, 1024)}
    result.ratios["checked"] = steps
    result.ratios["held out"] = held = held_out(result.rounds, result.settings)
    name = "worst residual of other seeds / tolerance from seed 0 alone"
    result.targets.append(Target(name, held["worst"], 1.0, "", at_least=False))
    result.notes = [
        "Cells are worst residuals, not medians: of all cases, seeds, widths and machines. Honest steps count every replay, sketch and referee of a step once."
    ]


def table_of(rows: list[Row], settings: Row) -> dict[str, Any]:
    """The table of tolerances that these residuals give."""
    found: dict[str, Any] = {}
    outputs: list[float] = []
    for level in ("replay", "sketch", "referee"):
        for optimizer in sorted({row["optimizer"] for row in rows}):
            for kind in ("smooth", "kinked"):
                chosen = [row for row in rows if _is_of(row, level, optimizer, kind)]
                if not chosen:
                    continue
                span = _span(chosen, kind, settings) if level == "replay" else max(row["span"] for row in chosen)
                within = [row for row in chosen if row["span"] <= span]
                has_flips = kind == "kinked" and level != "sketch"
                if has_flips:
                    within += [row for row in rows if not row["smooth"] and row["level"] == "replay" and row["span"] <= KINKED_SPAN]
                floor = settings["kinked_floor" if has_flips else "floor"]
                outputs.append(_worst(within, "output") or 0.0)
                by_part = _tolerances(within, settings, floor)
                by_part.pop(LOOSE, None)
                if level == "replay" and "slots" in by_part:
                    by_part["slots"] = max(by_part["slots"], float(f"{SLOT_FLOOR * settings['margin']:.2g}"))
                if level != "replay":
                    by_part.pop(BULK, None)
                loose = [row for row in rows if row["optimizer"] == optimizer and row["span"] <= max(span, KINKED_SPAN)]
                if _worst(loose, LOOSE) is not None:
                    by_part[LOOSE] = max(WALK, _tolerances(loose, settings, floor)[LOOSE])
                found[f"{level} {optimizer} {kind}"] = {"span_steps": span, "by_part": by_part}
    answer = float(f"{max(outputs, default=0.0) * settings['margin']:.2g}")
    return {"margin": settings["margin"], "exact": EXACT, "answer": answer, "rows": found}


def _tolerances(rows: list[Row], settings: Row, floor: float) -> dict[str, float]:
    values = {part: value for part in PARTS if (value := _worst(rows, part)) is not None}
    return {part: float(f"{max(value, floor) * settings['margin']:.2g}") for part, value in values.items()}


def held_out(rows: list[Row], settings: Row) -> Row:
    """Whether a table from one seed would have accused an honest machine with another."""
    table = table_of([row for row in rows if row["seed"] == 0], settings)["rows"]
    worst: Row = {"worst": None, "where": ""}
    for row in rows:
        name = f"{row['level']} {row['optimizer']} {'smooth' if row['smooth'] else 'kinked'}"
        if row["seed"] == 0 or row["span"] > table[name]["span_steps"]:
            continue
        for part, limit in table[name]["by_part"].items():
            share = round(row.get(part, 0.0) / limit, 4)
            if worst["worst"] is None or share > worst["worst"]:
                worst = {"worst": share, "where": f"{name}, {row['case']}, {part}"}
    return worst


def growth(rows: list[Row]) -> Row:
    """Worst residual of a sketched map by number of inputs, and the exponent that fits best: 0.5 would be the square root."""
    by_width: dict[int, float] = {}
    for row in rows:
        if str(row["case"]).startswith("growth") and row.get("map"):
            by_width[row["width"]] = max(by_width.get(row["width"], 0.0), row["map"])
    if len(by_width) < 2:
        return {}
    points = [(math.log(width), math.log(value)) for width, value in sorted(by_width.items())]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return {**{str(width): value for width, value in sorted(by_width.items())}, "exponent": round(slope, 3)}


def _span(rows: list[Row], kind: str, settings: Row) -> int:
    """The longest span up to which every tolerance stays below the greatest that is allowed; 1 if none does."""
    if kind == "kinked":
        return KINKED_SPAN
    best = 1
    for span in sorted({row["span"] for row in rows}):
        worst = max(
            value
            for part in PARTS
            if part != LOOSE and (value := _worst([row for row in rows if row["span"] <= span], part)) is not None
        )
        if worst * settings["margin"] <= settings["max_tolerance"]:
            best = span
    return best


def _worst_part(row: Row) -> str:
    """The part with the largest tolerance: where honest machines differ most."""
    limits: dict[str, float] = row["by_part"]
    return max(limits, key=lambda part: limits[part])


def _is_of(row: Row, level: str, optimizer: str, kind: str) -> bool:
    return bool(row["level"] == level and row["optimizer"] == optimizer and row["smooth"] == (kind == "smooth"))


def _worst(rows: list[Row], part: str) -> float | None:
    return max((row[part] for row in rows if part in row), default=None)


def _num_steps(rows: list[Row], width: int) -> int:
    return sum(row["steps"] for row in rows if row["width"] == width)
