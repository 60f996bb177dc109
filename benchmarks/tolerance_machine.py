"""``python -m benchmarks.tolerance_machine record|check DIRECTORY ROUNDS THREADS [quick]``: one machine of `benchmarks.tolerances`, a process of its own.

``record`` trains every case and keeps what a worker would claim; ``check`` looks at these claims with every check, and judges its own steps as a referee.
CPU capability and kernels come from the environment, which the libraries read once. Prints one row a line as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks.result import Row
from benchmarks.tolerance_cases import REGISTRY, Case, cases
from trust.comparison import PARTS, Comparison
from vnode.checks.claims import Claim, ClaimedStep, MapClaim, read
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.tolerances import Tolerances
from vnode.checks.torch_record import as_array, record
from vnode.checks.torch_referee import Referee
from vnode.checks.torch_sketch import Sketch
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of

SPANS: Final = (1, 16, 64, 256)
SECRET: Final = b"measured"
UNBOUNDED: Final = Tolerances(256, dict.fromkeys(PARTS, 1.0))
"""Residuals are what is measured here, not verdicts."""


def main(arguments: list[str]) -> None:
    """Entry point."""
    action, directory, rounds, threads = arguments[:4]
    torch.set_num_threads(int(threads))
    for number, case in enumerate(cases(int(rounds), quick="quick" in arguments)):
        path = Path(directory) / str(number)
        if action == "record":
            save(path, honest(case))
        else:
            for row in measured(case, load(path, case)):
                print(json.dumps(row), flush=True)


def honest(case: Case) -> Claim:
    """What this machine claims after learning the case, with all states that any span needs."""
    stage = case.stage()
    checks = checks_of_stage(stage, REGISTRY)
    entries, states = case.entries(), {0: case.first()}
    steps: list[ClaimedStep] = []
    compute = _compute(case)
    for start, end in _pieces(case.num_steps):
        part = record(compute, states[start], entries[start:end], codec="raw", sketched=checks)
        steps += part.steps
        states[end] = part.states[end - start]
    return Claim(tuple(steps), states)


def _pieces(num_steps: int) -> list[tuple[int, int]]:
    """Between two states: 16 entries, with single ones at the beginning, in the middle and at the end."""
    cuts = sorted({0, 1, num_steps // 2, num_steps // 2 + 1, num_steps - 1, *range(0, num_steps + 1, 16)})
    return list(pairwise(cuts))


def measured(case: Case, claim: Claim) -> list[Row]:
    """Worst residuals by part, one row per level and span."""
    stage = case.stage()
    checks = checks_of_stage(stage, REGISTRY)
    about = {"case": case.name, "optimizer": case.optimizer, "width": case.width, "smooth": checks.smooth, "seed": case.seed}
    rows: list[Row] = []
    for span in SPANS:
        if span > case.num_steps or case.name.startswith("growth"):
            continue
        found: list[Comparison] = []
        for start in _starts(case.num_steps, span):
            part = Claim(claim.steps[start : start + span], {0: claim.states[start], span: claim.states[start + span]})
            found += replay(_compute(case), schema_of(stage, REGISTRY), part, UNBOUNDED, as_array=as_array)
        rows.append({**about, "level": "replay", "span": span, "steps": _steps(case, span), **worst(found)})
    if checks.maps:
        sketch = Sketch(stage, REGISTRY, checks, secret=SECRET, num_batches=case.num_batches, seed=case.seed)
        rows.append(
            {**about, "level": "sketch", "span": case.num_steps, "steps": case.num_steps, **worst(sketch.check(claim, UNBOUNDED))}
        )
    own = record(_compute(case), case.first(), case.entries(case.referee_steps), state_every=1)
    referee = Referee(stage, REGISTRY, num_batches=case.num_batches, seed=case.seed)
    rows.append({**about, "level": "referee", "span": 1, "steps": case.referee_steps, **worst(referee.check(own, UNBOUNDED))})
    return rows


def worst(comparisons: Iterable[Comparison]) -> dict[str, float]:
    """The greatest residual of each part."""
    found: dict[str, float] = {}
    for item in comparisons:
        found[item.part] = max(found.get(item.part, 0.0), float(f"{item.residual:.3g}"))
    return found


def _starts(num_steps: int, span: int) -> list[int]:
    return [0, num_steps // 2, num_steps - 1] if span == 1 else list(range(0, num_steps - span + 1, span))


def _steps(case: Case, span: int) -> int:
    return span * len(_starts(case.num_steps, span))


def _compute(case: Case) -> TorchCompute:
    return TorchCompute(case.stage(), REGISTRY, num_batches=case.num_batches, seed=case.seed)


def save(path: Path, claim: Claim) -> None:
    """What cannot be made anew elsewhere: outputs, losses, rates, map products, states."""
    values: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {
        "numbers": np.array([(step.loss, step.lr, step.num_learned) for step in claim.steps])
    }
    for index, step in enumerate(claim.steps):
        if step.output is not None:
            values[f"output/{index}"] = read(step.output)
        for name, item in step.maps.items():
            values[f"map/{index}/{name}"] = item.output
            if item.input_gradient is not None:
                values[f"gradient/{index}/{name}"] = item.input_gradient
    values.update({f"state/{at}": np.frombuffer(state, np.uint8) for at, state in claim.states.items()})
    with path.open("wb") as file:
        np.savez(file, **values)  # type: ignore[arg-type]


def load(path: Path, case: Case, codec: str = "raw") -> Claim:
    """What `save` wrote, with the inputs of the case; ``codec``: of its outputs."""
    with np.load(path, allow_pickle=False) as values:
        names = set(values.files)
        maps: dict[int, dict[str, MapClaim]] = {}
        for name in names:
            if name.startswith("map/"):
                _, index, short = name.split("/", 2)
                gradient = f"gradient/{index}/{short}"
                claimed = MapClaim(values[name], values[gradient] if gradient in names else None)
                maps.setdefault(int(index), {})[short] = claimed
        numbers = values["numbers"]
        steps = tuple(
            ClaimedStep(
                entry.batch, entry.mode, entry.inputs, entry.target, int(numbers[index][2]), values[f"output/{index}"], codec,
                float(numbers[index][0]), float(numbers[index][1]), maps.get(index, {}),
            )
            for index, entry in enumerate(case.entries(len(numbers)))
        )  # fmt: skip
        states = {int(name.split("/")[1]): values[name].tobytes() for name in names if name.startswith("state/")}
    return Claim(steps, states)


if __name__ == "__main__":
    main(sys.argv[1:])
