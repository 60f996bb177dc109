"""An accelerator among processors: whether honest training on it is accused by processors that check it, and what it is worth.

Every stage of `tolerance_cases` learns on the accelerator that torch finds here, with seeds that no tolerance was made from, and each claim is judged on
the processor with the committed tolerances, as an auditor would. Stages with convolutions learn once more with shortened products
(`benchmarks.shortened`), from which `vnode.devices` keeps accelerators: what auditors say of those shows what that is for, and that anything is seen at all.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks.honest import FIRST_SEED, WIDE_EVERY, judged, summed, total, wave
from benchmarks.result import Options, Result, Row, Target, rounded
from benchmarks.shortened import ShortenedCompute
from benchmarks.tolerance_cases import REGISTRY, Case
from benchmarks.tolerance_machine import load, save
from dcnr.errors import Unavailable
from vnode.checks.plan import checks_of_stage
from vnode.checks.torch_record import record
from vnode.devices import CPU, Device, measured_gflops, opened
from vnode.registry import default_registry
from vnode.torch_compute import TorchCompute

IEEE: Final = "ieee"
SHORT: Final = "tf32"
PACE: Final = "pace"
STEPS: Final = {64: 200, 1024: 20}
"""Of each pace that is measured, by width."""
CPU_STEPS: Final = 5
BATCH: Final = 256
LIMIT_S: Final = 600.0
SAME: Final = ("case", "optimizer", "width", "level")
"""What rows of both precisions are told apart by."""


def run(options: Options) -> Result:
    """``rounds`` seeds, of which every ninth has the wide cases as well; quick: two cases. Raises Unavailable where no accelerator works."""
    device = opened("auto")
    if device.name == CPU:
        raise Unavailable("torch finds no accelerator here", code="no_device", remedy="run this where there is one")
    return measured(device, options)


def measured(device: Device, options: Options) -> Result:
    """What `run` gives, for this device."""
    settings: Row = {
        "device": device.name, "title": device.title, "rounds": options.rounds, "first_seed": FIRST_SEED, "quick": options.quick,
        "free_mib": device.memory_bytes >> 20, "runtime_mib": device.runtime_bytes >> 20,
    }  # fmt: skip
    result = Result("accelerator", "An accelerator among processors", settings)
    claims = options.scratch / "claims"
    claims.mkdir(parents=True, exist_ok=True)
    jobs = list(recorded(device, claims, options))
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for rows in pool.map(checked, jobs, timeout=LIMIT_S):
            result.rounds += rows
    result.rounds = [row for name in (IEEE, SHORT) for row in summed([one for one in result.rounds if one["machine"] == name])]
    result.rounds.append({"machine": PACE, **paces(device)})
    conclude(result)
    return result


def chosen(options: Options) -> list[Case]:
    """The seed with which the wide cases come first is the first."""
    first = FIRST_SEED + (-FIRST_SEED) % WIDE_EVERY
    found = [
        case
        for number in range(options.rounds)
        for case in wave(first + number, quick=options.quick)
        if case.seed == first + number
    ]
    return [found[0], next(case for case in found if _has_convolutions(case))] if options.quick else found


def _has_convolutions(case: Case) -> bool:
    return case.component.startswith("conv")


def recorded(device: Device, claims: Path, options: Options) -> Iterator[tuple[Path, Case, str]]:
    """Learns each case on the accelerator; where the claim lies, of what, and with which products."""
    for precision, kind in ((IEEE, TorchCompute), (SHORT, ShortenedCompute)):
        for case in chosen(options):
            if precision == SHORT and not _has_convolutions(case):
                continue
            checks, path = (
                checks_of_stage(case.stage(), REGISTRY),
                claims / f"{precision}-{case.seed}-{case.optimizer}-{case.width}-{case.name}",
            )
            compute = kind(case.stage(), REGISTRY, num_batches=case.num_batches, seed=case.seed, device=device.name)
            watched, span = checks if case.is_sketched else None, checks.replay().span_steps
            save(path, record(compute, case.first(), case.entries(), state_every=span, sketched=watched))
            yield path, case, precision


def checked(job: tuple[Path, Case, str]) -> list[Row]:
    """What a processor finds in that claim; a process of its own. It looks at the accelerator's own referee steps as at its own."""
    torch.set_num_threads(1)
    path, case, precision = job
    rows = judged(
        replace(case, referee_steps=1), load(path, case), checks_of_stage(case.stage(), REGISTRY), sketched=case.is_sketched
    )
    return [{"machine": precision, **row} for row in rows if row["level"] != "referee"]


def paces(device: Device) -> Row:
    """Learning steps per second of a dense stage, batches of `BATCH`, here and on the processor with all its cores; and what is advertised."""
    found: Row = {"advertised_gflops": rounded(device.gflops), "processor_gflops": rounded(measured_gflops(CPU))}
    for width, steps in STEPS.items():
        found[f"width_{width}_steps_s"] = rounded(_pace(device.name, width, steps))
        found[f"width_{width}_processor_steps_s"] = rounded(_pace(CPU, width, CPU_STEPS))
    return found


def _pace(device: str, width: int, num_steps: int) -> float:
    case = Case("pace", "linear_block", {}, (width,), "sgd", width, batch_size=BATCH, num_steps=max(STEPS.values()) + 1)
    compute = TorchCompute(case.stage(), default_registry(), num_batches=case.num_batches, seed=0, device=device)
    compute.restore(case.first())
    entry = next(iter(case.entries(1)))
    inputs, target = [np.asarray(value) for value in entry.inputs], entry.target
    compute.learn(0, inputs, target, 0)
    began_s = time.perf_counter()
    for _ in range(num_steps):
        compute.learn(0, inputs, target, 1)
    return num_steps / (time.perf_counter() - began_s)


def conclude(result: Result) -> None:
    """Steps, doubts and faults with exact and with shortened products; the pace."""
    pace = next(row for row in result.rounds if row["machine"] == PACE)
    result.medians = {PACE: {name: value for name, value in pace.items() if name != "machine"}}
    for precision in (IEEE, SHORT):
        rows = [row for row in result.rounds if row["machine"] == precision]
        if rows:
            result.ratios[precision] = total(rows)
    honest = result.ratios[IEEE]
    result.targets = [
        Target("honest intervals that are accused", honest["faults"], 0, "intervals", at_least=False),
        Target("worst residual / tolerance", honest["worst"], 1.0, "", at_least=False),
    ]
    short = result.ratios.get(SHORT)
    accused, alike = (short["faults"], _alike(result.rounds)) if short else (None, None)
    result.targets += [
        Target("intervals with shortened products that are accused", accused, 1, "intervals", at_least=True),
        Target("rows that shortened products left as they were", alike, 0, "rows", at_least=False),
    ]
    result.notes = ["Cells are sums and the worst residual in units of its tolerance; a fault accuses."]


def _alike(rows: list[Row]) -> int:
    """Rows that are the same with exact and with shortened products: there nothing was shortened, or nothing was looked at."""
    exact = {tuple(row[name] for name in SAME): row for row in rows if row["machine"] == IEEE}
    return sum(exact[tuple(row[name] for name in SAME)] == {**row, "machine": IEEE} for row in rows if row["machine"] == SHORT)
