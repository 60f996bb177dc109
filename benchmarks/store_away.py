"""Training while the object store is stopped: its rate against the rate before and after. Nothing may be decided meanwhile; nothing may wait for it."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.jobs import Chain
from benchmarks.network import LocalPNode, Run, running
from benchmarks.result import Options, Result, Target, median_of, rounded

CHAIN: Final = Chain("store-away", num_stages=4, width=512, batch_size=128, samples=12_800, passes=5_000)
AWAY_S: Final = 30.0
SETTLE_S: Final = 6.0
"""After each change, before the rate is taken again."""
CHECKPOINT_S: Final = 10.0
QUICK: Final = Chain("store-away", num_stages=2, width=64, batch_size=32, samples=12_800, passes=5_000)
WANTED_RATIO: Final = 0.95


def run(options: Options) -> Result:
    """Rounds of before, away, after in one network; the store is stopped by SIGSTOP, so connections to it hang."""
    away_s, settle_s = (3.0, 1.0) if options.quick else (AWAY_S, SETTLE_S)
    chain, num_orchestrators = (QUICK, 1) if options.quick else (CHAIN, 3)
    settings = {
        **chain.settings(), "num_pnodes": chain.num_stages,
        "memory_mb": chain.memory_mb_for_one(), "num_orchestrators": num_orchestrators, "checkpoint_s": CHECKPOINT_S, "away_s": away_s,
        "settle_s": settle_s, "rounds": options.rounds,
    }  # fmt: skip
    result = Result("store_away", "Training while the object store is away", settings)
    asyncio.run(_measure(result, chain, num_orchestrators))
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, ratio and target from the rounds alone."""
    result.medians = {key: rounded(median_of(result.rounds, key)) for key in result.rounds[0] if key != "round"}
    result.ratios = {"away / around": result.medians["rate_kept"]}
    result.targets = [
        Target("training rate kept while the store is away", result.medians["rate_kept"], WANTED_RATIO, "ratio", at_least=True)
    ]


async def _measure(result: Result, chain: Chain, num_orchestrators: int) -> None:
    away_s, settle_s = float(result.settings["away_s"]), float(result.settings["settle_s"])
    pnodes = [LocalPNode(f"p{number + 1}", cores=1.0, memory_mb=chain.memory_mb_for_one()) for number in range(chain.num_stages)]
    async with running(pnodes, num_orchestrators=num_orchestrators) as bench:
        await bench.stage(chain)
        job = await bench.submit(chain, checkpoint_s=CHECKPOINT_S)
        async with job.followed():
            await job.training()
            for number in range(result.settings["rounds"]):
                before = await _rate(job, settle_s, away_s)
                store = bench.store_processes()
                bench.freeze(store)
                try:
                    away = await _rate(job, 0.0, away_s)
                finally:
                    bench.thaw(store)
                after = await _rate(job, settle_s, away_s)
                kept = away / ((before + after) / 2) if before + after else None
                result.rounds.append(
                    {
                        "round": number,
                        "before": round(before, 2),
                        "away": round(away, 2),
                        "after": round(after, 2),
                        "rate_kept": rounded(kept),
                    }
                )


async def _rate(job: Run, wait_s: float, for_s: float) -> float:
    """Batches per second through the chain over ``for_s``."""
    await asyncio.sleep(wait_s)
    begun = time.monotonic()
    await asyncio.sleep(for_s)
    return await job.rate(begun, time.monotonic()) or 0.0
