"""What audits cost over a PNode's life: processor time and bytes of a real interval's audit against those of the interval, times the rate of the draw.

The interval, its bundle and its audit are real (`benchmarks.audit_bundle`). Counted is all that a drawn interval costs: the accused gathers the bundle, and
makes states between again that it did not keep; it sends the bundle; an auditor fetches, digests, opens and replays it; and of twenty audits the verifier
repeats one, which fetches and replays once more. Bytes of both directions are held against what the interval moves in both: a frame in, a frame out, for
each step.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from benchmarks.audit_bundle import Kind, run_one
from benchmarks.result import Options, Result, Row, Target, median_of
from benchmarks.tolerance_cases import REGISTRY, Case
from trust.comparison import judge
from trust.draw import CANARY_RATE, LAST_AUDITORS, LAST_BATCHES, floors_of, rate
from trust.standing import ACTIVE_PASSES, State
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.torch_record import as_array, record
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.checks.torch_sketch import Sketch
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of

BATCH: Final = 256
LIFE: Final = (0, 10, 19, 40, 100, 200, 399, 1000)
"""Passed audits."""
COMPUTE_LIMIT: Final = 0.06
SKETCH_LIMIT: Final = 0.10
BYTES_SHARE: Final = 0.05
WIDE: Final = 1024
SKETCHED_STEPS: Final = 64
AUDITS: Final = 1.0 + CANARY_RATE
"""Of a drawn interval: the auditor's, and the verifier's repeats."""
IMAGE: Final = (
    "conv_block",
    {"out_channels": 32, "kernel": 5, "stride": 2},
    {"out_channels": 64, "kernel": 3, "pool": 2},
    (1, 28, 28),
)
"""The second stage of the image example, behind its first."""
DEEP: Final = (
    "conv_block",
    {"out_channels": 128, "kernel": 3, "stride": 2},
    {"out_channels": 128, "kernel": 3, "pool": 2},
    (3, 8, 8),
)
"""States weigh more than frames, so that those between are made again."""
KINDS: Final = (
    Kind("linear_block 64, sgd", "linear_block", {}, {}, (64,), "sgd", 64, BATCH, "int8"),
    Kind("linear_block 1024, sgd", "linear_block", {}, {}, (WIDE,), "sgd", WIDE, BATCH, "int8"),
    Kind("linear_block 1024, adamw", "linear_block", {}, {}, (WIDE,), "adamw", WIDE, BATCH, "int8"),
    Kind("linear_block 1024, sgd, anchors", "linear_block", {}, {}, (WIDE,), "sgd", WIDE, BATCH, "int8", anchor_every=64),
    Kind("conv_block, image example", *IMAGE, "sgd", 64, 128, "bf16"),
    Kind("conv_block, states made again", *DEEP, "sgd", 128, 32, "bf16"),
)  # fmt: skip
QUICK: Final = (
    Kind("linear_block 64, sgd", "linear_block", {}, {}, (64,), "sgd", 64, 16, "int8", num_steps=32, anchor_every=16),
    Kind("conv_block, states made again", "conv_block", {"out_channels": 16}, {"out_channels": 16}, (1, 6, 6), "sgd", 64, 2, "bf16", num_steps=48),
)  # fmt: skip


def run(options: Options) -> Result:
    """``rounds`` times: an interval of every kind, from its steps to its audit, and a sketch against a replay."""
    torch.set_num_threads(1)
    kinds = QUICK if options.quick else KINDS
    settings: Row = {
        "batch_size": BATCH,
        "passes": list(LIFE),
        "wide": WIDE,
        "audits_of_drawn": AUDITS,
        "kinds": [kind.name for kind in kinds],
    }
    result = Result("audit_cost", "What audits cost over a PNode's life", settings)
    for number in range(options.rounds):
        for kind in kinds:
            folder = options.scratch / "audit_cost"
            result.rounds.append(run_one(kind, folder, number))
            shutil.rmtree(folder)
        for width in (64,) if options.quick else (64, WIDE):
            result.rounds += [_sketched(width, optimizer, number) for optimizer in ("sgd", "adamw")]
    conclude(result)
    return result


def _sketched(width: int, optimizer: str, seed: int) -> Row:
    """Processor time of a sketch and of a replay of the same steps."""
    name = f"sketch of linear_block {width}, {optimizer}"
    case = Case(name, "linear_block", {}, (width,), optimizer, width, num_steps=SKETCHED_STEPS, batch_size=BATCH, seed=seed)
    stage = case.stage()
    checks = checks_of_stage(stage, REGISTRY)
    worker = TorchCompute(stage, REGISTRY, num_batches=case.num_steps, seed=seed)
    claim = record(worker, case.first(), case.entries(), codec="int8", state_every=checks.replay().span_steps, sketched=checks)
    again = TwoSidedCompute(stage, REGISTRY, num_batches=case.num_steps, seed=seed)
    replayed = _cpu_s(lambda: judge(replay(again, schema_of(stage, REGISTRY), claim, checks.replay(), as_array=as_array)))
    sketch = Sketch(stage, REGISTRY, checks, secret=b"s" * 32, num_batches=case.num_steps, seed=seed)
    sketched = _cpu_s(lambda: judge(sketch.check(claim, checks.sketch())))
    return {
        "case": name,
        "seed": seed,
        "steps": case.num_steps,
        "sketched_s": round(sketched, 4),
        "sketch_replayed_s": round(replayed, 4),
    }


def _cpu_s(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def conclude(result: Result) -> None:
    """By case what a drawn interval costs; then the curve from probation to the floor, with the dearest case."""
    by_case = {
        name: [row for row in result.rounds if row["case"] == name] for name in dict.fromkeys(row["case"] for row in result.rounds)
    }
    drawn = {name: _drawn(rows) for name, rows in by_case.items() if "bundle_bytes" in rows[0]}
    sketches = {name: _median_ratio(rows, "sketched_s", "sketch_replayed_s") for name, rows in by_case.items() if name not in drawn}
    result.medians = {**drawn, **{name: {"sketch_of_replay": value} for name, value in sketches.items()}}
    compute, moved = (max(one[key] for one in drawn.values()) for key in ("compute", "bytes"))
    floors = floors_of(0.0)
    for passes in LIFE:
        state = State.ACTIVE if passes >= ACTIVE_PASSES else State.PROBATION
        p = rate(passes, state, floors, trusted=False)
        result.ratios[f"after_{passes}_passes"] = {
            "rate": round(p, 4),
            "compute": round(p * compute, 6),
            "bytes": round(p * moved, 6),
        }
    result.ratios["job_end"] = {
        "steps_for_sure": LAST_BATCHES, "compute": round(max(one["compute_of_two"] for one in drawn.values()), 4),
        "bytes": round(max(one["bytes_of_two"] for one in drawn.values()), 4),
    }  # fmt: skip
    p = floors.untrusted
    for name, one in drawn.items():
        limit = round(BYTES_SHARE + p * one["states_of_interval"], 6)
        result.targets += [
            Target(f"processor time of audits at the floor / of learning, {name}", round(p * one["compute"], 6), COMPUTE_LIMIT, "", at_least=False),
            Target(f"bytes of audits at the floor, both directions / of learning, {name}", round(p * one["bytes"], 6), limit, "", at_least=False),
        ]  # fmt: skip
    wide = [value for name, value in sketches.items() if f" {result.settings['wide']}," in name]
    if wide:
        name = "processor time of a sketch / of a replay at width 1024, worst"
        result.targets.append(Target(name, max(wide), SKETCH_LIMIT, "", at_least=False))
    result.notes = [
        "Of an interval that is drawn, against learning it: `compute` is gathering the bundle (states between that were not kept are computed again for "
        f"it) and, {AUDITS:g} times for an auditor and the verifier's repeats, digesting, opening and replaying it. `upload` is the bundle against the "
        "frames that go out, `download` that often the bundle against those that come in, `bytes` both together. The limit of bytes is a twentieth, and "
        "the first and last state at the rate of the floor; states between and anchors have no room in it. An interval's frames of both directions are in "
        "its bundle, which moves twice: without any state a twentieth of intervals costs a tenth of the bytes.",
        f"`job_end`: an interval with any of a job's last batches (at most {LAST_BATCHES}) is drawn for sure and audited by {LAST_AUDITORS}; that costs so "
        "much of learning this one interval, and is in no other figure. Displacements that were merged are in no bundle here: each adds its bytes.",
    ]  # fmt: skip


def _drawn(rows: list[Row]) -> dict[str, Any]:
    """What one drawn interval costs, in units of learning it."""

    def checked(audits: float) -> float:
        shares = [
            (row["gathered_s"] + audits * (row["digested_s"] + row["opened_s"] + row["replayed_s"])) / row["learned_s"]
            for row in rows
        ]
        return round(median_of([{"share": share} for share in shares], "share") or 0.0, 4)

    one = rows[0]
    frames, bundle = one["in_bytes"] + one["out_bytes"], one["bundle_bytes"]
    two = LAST_AUDITORS + CANARY_RATE
    return {
        "steps": one["steps"], "compute": checked(AUDITS), "opening": _median_ratio(rows, "opened_s", "replayed_s"),
        "made_again": _median_ratio(rows, "gathered_s", "learned_s"), "upload": round(bundle / one["out_bytes"], 4),
        "download": round(AUDITS * bundle / one["in_bytes"], 4), "bytes": round((1.0 + AUDITS) * bundle / frames, 4),
        "states_of_interval": round(one["ends_bytes"] / frames, 4), "between_and_anchors": round((one["between_bytes"] + one["anchors_bytes"]) / frames, 4),
        "words": round(one["words_bytes"] / frames, 4), "compute_of_two": checked(two), "bytes_of_two": round((1.0 + two) * bundle / frames, 4),
    }  # fmt: skip


def _median_ratio(rows: list[Row], above: str, below: str) -> float:
    return round(median_of([{"share": row[above] / row[below]} for row in rows], "share") or 0.0, 4)
