"""Training while the object store is stopped: its rate against the rate before and after. Nothing may be decided meanwhile; nothing may wait for it.

The job has a tempo below what two cores can do, and steps as large as those of `training`: a rate that the machine itself makes scatter shows nothing. So the
figure counts only where the rates of all windows before and after are within `WANTED_SCATTER` of one another; what a tempo lets a job catch up on within its
window, the longest time in which a VNode learned nothing shows.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.jobs import Chain
from benchmarks.moments import heard, longest_s, telling
from benchmarks.network import BenchNetwork, Run, running
from benchmarks.result import Options, Result, Row, Target, largest, median, median_of, ratio, rounded
from chaos.pulse import Pulse

CHAIN: Final = Chain("store-away", num_stages=4, width=1024, batch_size=256, samples=12_800, passes=1_000)
BATCHES_PER_S: Final = 4.0
"""Two cores do about ten of these (`training`)."""
AWAY_S: Final = 30.0
SETTLE_S: Final = 6.0
"""After each change, before the rate is taken again."""
MIN_ROUNDS: Final = 10
CHECKPOINT_S: Final = 10.0
QUICK: Final = Chain("store-away", num_stages=2, width=64, batch_size=32, samples=12_800, passes=5_000)
WANTED_RATIO: Final = 0.95
WANTED_SCATTER: Final = 0.10
QUICK_SCATTER: Final = 10.0
"""Windows of three seconds hold one report or two."""
WANTED_STILL_S: Final = 2.0


def run(options: Options) -> Result:
    """Rounds of before, away, after in one network; the store is stopped by SIGSTOP, so connections to it hang."""
    away_s, settle_s = (3.0, 1.0) if options.quick else (AWAY_S, SETTLE_S)
    chain, num_orchestrators = (QUICK, 1) if options.quick else (CHAIN, 3)
    settings = {
        **chain.settings(), "num_pnodes": chain.num_stages, "batches_per_s": BATCHES_PER_S,
        "memory_mb": chain.memory_mb_for_one(), "num_orchestrators": num_orchestrators, "checkpoint_s": CHECKPOINT_S, "away_s": away_s,
        "settle_s": settle_s, "rounds": options.rounds if options.quick else max(MIN_ROUNDS, options.rounds),
        "scatter_limit": QUICK_SCATTER if options.quick else WANTED_SCATTER,
    }  # fmt: skip
    result = Result("store_away", "Training while the object store is away", settings)
    asyncio.run(_measure(result, chain, num_orchestrators))
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, ratio and targets from the rounds alone."""
    result.medians = {key: rounded(median_of(result.rounds, key)) for key in result.rounds[0] if key != "round"}
    result.medians["scatter"] = rounded(scatter(result.rounds))
    result.ratios = {"away / around": result.medians["rate_kept"]}
    limit = result.settings.get("scatter_limit", WANTED_SCATTER)
    is_sound = result.medians["scatter"] is not None and result.medians["scatter"] <= limit
    least = min((row["rate_kept"] for row in result.rounds if row["rate_kept"] is not None), default=None)
    result.medians["rate_kept_least"] = least
    result.targets = [
        Target("scatter of the rates before and after among themselves", result.medians["scatter"], limit, "ratio", at_least=False),
        Target(
            "training rate kept while the store is away, median", result.medians["rate_kept"] if is_sound else None, WANTED_RATIO, "ratio",
            at_least=True,
        ),
        Target("training rate kept while the store is away, least", least if is_sound else None, WANTED_RATIO, "ratio", at_least=True),
        Target(
            "longest time in which a VNode learned nothing while the store is away", largest(row.get("away_still_s") for row in result.rounds),
            WANTED_STILL_S, "s", at_least=False,
        ),
    ]  # fmt: skip
    if not is_sound:
        result.notes = [
            "The rates before and after scatter too much among themselves: what was kept between them is no figure of this run."
        ]


def scatter(rows: list[Row]) -> float | None:
    """How far the furthest of all rates before and after lies from their median, in parts of it."""
    around = [row[key] for row in rows for key in ("before", "after")]
    middle = median(around)
    return ratio(max(abs(one - middle) for one in around), middle) if middle else None


async def _measure(result: Result, chain: Chain, num_orchestrators: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        moments = Path(scratch)
        pnodes = [telling(f"p{number + 1}", chain.memory_mb_for_one(), moments) for number in range(chain.num_stages)]
        async with running(pnodes, num_orchestrators=num_orchestrators) as bench, heard(moments) as pulse:
            await bench.stage(chain)
            job = await bench.submit(chain, checkpoint_s=CHECKPOINT_S, batches_per_s=float(result.settings["batches_per_s"]))
            async with job.followed():
                await job.training()
                for number in range(result.settings["rounds"]):
                    result.rounds.append({"round": number, **await _round(result, bench, job, pulse)})


async def _round(result: Result, bench: BenchNetwork, job: Run, pulse: Pulse) -> Row:
    away_s, settle_s = float(result.settings["away_s"]), float(result.settings["settle_s"])
    before, before_still_s = await _window(job, pulse, settle_s, away_s)
    store = bench.store_processes()
    bench.freeze(store)
    try:
        away, away_still_s = await _window(job, pulse, 0.0, away_s)
    finally:
        bench.thaw(store)
    after, _ = await _window(job, pulse, settle_s, away_s)
    return {
        "before": round(before, 3),
        "away": round(away, 3),
        "after": round(after, 3),
        "rate_kept": rounded(ratio(away, (before + after) / 2)),
        "before_still_s": rounded(before_still_s),
        "away_still_s": rounded(away_still_s),
    }


async def _window(job: Run, pulse: Pulse, wait_s: float, for_s: float) -> tuple[float, float | None]:
    """Batches per second through the chain over ``for_s``, and the longest time of it in which a VNode learned nothing."""
    await asyncio.sleep(wait_s)
    begun_s = time.monotonic()
    await asyncio.sleep(for_s)
    ended_s = time.monotonic()
    still_s = longest_s(pulse, job.meter.vnodes, begun_s, ended_s)
    return await job.rate(begun_s, ended_s) or 0.0, still_s
