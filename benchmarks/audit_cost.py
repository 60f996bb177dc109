"""What audits cost over a PNode's life: processor time and bytes of a check against those of the interval that it checks, times the rate of the draw.

Learning, replay and sketch of the same interval, in one process and one thread. Bytes are counted from the formats: what an interval moves over links, and
what a bundle holds. A bundle goes up once, from the accused, and down once, to the auditor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from benchmarks.result import Options, Result, Row, Target, median_of
from benchmarks.tolerance_cases import REGISTRY, Case
from dcnr.codecs import encoded_bytes
from trust.comparison import judge
from trust.draw import floors_of, rate
from trust.standing import ACTIVE_PASSES, State
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.torch_record import as_array, record
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.checks.torch_sketch import Sketch
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of

INTERVAL_STEPS: Final = 256
"""Of a real interval; bytes are counted for it."""
BATCH: Final = 256
CODEC: Final = "int8"
LIFE: Final = (0, 10, 19, 40, 100, 200, 399, 1000)
"""Passed audits."""
COMPUTE_LIMIT: Final = 0.06
SKETCH_LIMIT: Final = 0.10
BYTES_SHARE: Final = 0.05
WIDE: Final = 1024


def run(options: Options) -> Result:
    """``rounds`` times: learn, replay and sketch an interval of every case."""
    torch.set_num_threads(1)
    cases = [
        Case(f"linear_block {width}, {optimizer}", "linear_block", {}, (width,), optimizer, width, num_steps=steps, batch_size=batch)
        for width, steps, batch in ((64, 32 if options.quick else INTERVAL_STEPS, BATCH), *(() if options.quick else ((WIDE, 128, BATCH),)))
        for optimizer in ("sgd", "adamw")
    ]  # fmt: skip
    settings: Row = {"interval_steps": INTERVAL_STEPS, "batch_size": BATCH, "codec": CODEC, "passes": list(LIFE), "wide": WIDE}
    result = Result("audit_cost", "What audits cost over a PNode's life", settings)
    for number in range(options.rounds):
        result.rounds += [_row(replace(case, seed=number)) for case in cases]
    conclude(result)
    return result


def _row(case: Case) -> Row:
    stage = case.stage()
    checks = checks_of_stage(stage, REGISTRY)
    entries, first = case.entries(), case.first()
    worker = TorchCompute(stage, REGISTRY, num_batches=case.num_steps, seed=case.seed)
    info = worker.restore(first)
    learned = _cpu_s(lambda: [worker.learn(one.batch, one.inputs, one.target, number) for number, one in enumerate(entries)])
    claim = record(
        TorchCompute(stage, REGISTRY, num_batches=case.num_steps, seed=case.seed), first, entries, codec=CODEC,
        state_every=checks.replay().span_steps, sketched=checks,
    )  # fmt: skip
    again = TwoSidedCompute(stage, REGISTRY, num_batches=case.num_steps, seed=case.seed)
    compared = lambda: judge(replay(again, schema_of(stage, REGISTRY), claim, checks.replay(), as_array=as_array))  # noqa: E731
    replayed = _cpu_s(compared)
    sketch = Sketch(stage, REGISTRY, checks, secret=b"s" * 32, num_batches=case.num_steps, seed=case.seed)
    sketched = _cpu_s(lambda: judge(sketch.check(claim, checks.sketch())))
    moved = INTERVAL_STEPS * sum(encoded_bytes(CODEC, "float32", BATCH * size) for size in (case.width, case.width))
    return {
        "case": case.name, "seed": case.seed, "learned_s": round(learned, 4), "replayed_s": round(replayed, 4), "sketched_s": round(sketched, 4),
        "replay_of_learning": round(replayed / learned, 4), "sketch_of_replay": round(sketched / replayed, 4),
        "interval_bytes": moved, "state_bytes": len(worker.snapshot(info)),
    }  # fmt: skip


def _cpu_s(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def conclude(result: Result) -> None:
    """By case the ratios; then the curve from probation to the floor, with the dearest case."""
    by_case = {
        name: [row for row in result.rounds if row["case"] == name] for name in dict.fromkeys(row["case"] for row in result.rounds)
    }
    for name, rows in by_case.items():
        result.medians[name] = {key: median_of(rows, key) for key in ("replay_of_learning", "sketch_of_replay")} | {
            "state_of_interval_bytes": round(2 * rows[0]["state_bytes"] / rows[0]["interval_bytes"], 4)
        }
    dearest = max(values["replay_of_learning"] for values in result.medians.values())
    states = max(values["state_of_interval_bytes"] for values in result.medians.values())
    floors = floors_of(0.0)
    for passes in LIFE:
        state = State.ACTIVE if passes >= ACTIVE_PASSES else State.PROBATION
        p = rate(passes, state, floors, trusted=False)
        result.ratios[f"after_{passes}_passes"] = {
            "rate": round(p, 4), "compute": round(p * dearest, 6), "bytes_each_way": round(p * (1 + states), 6),
        }  # fmt: skip
    at_floor = result.ratios[f"after_{LIFE[-1]}_passes"]
    bytes_limit = round(BYTES_SHARE + floors.untrusted * states, 6)
    bytes_share = at_floor["bytes_each_way"]
    result.targets += [
        Target("processor time of audits at the floor / of learning", at_floor["compute"], COMPUTE_LIMIT, "", at_least=False),
        Target("bytes of audits at the floor, each way / of learning", bytes_share, bytes_limit, "", at_least=False),
    ]
    wide = [values["sketch_of_replay"] for name, values in result.medians.items() if f" {WIDE}," in name]
    if wide:
        result.targets.append(
            Target("processor time of a sketch / of a replay at width 1024, worst", max(wide), SKETCH_LIMIT, "", at_least=False)
        )
    result.notes.append("`state_of_interval_bytes`: first and last state against frames in and out of an interval.")
