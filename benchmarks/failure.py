"""Killed PNodes, killed deciders, machines that go dark: seconds until they are suspected, taken for gone and placed elsewhere, and training
goes on, and the rate meanwhile. A suspect keeps what it has; whoever is taken for gone loses it (`orchestrator.offers`): that is what is held against limits.

One network and one long job of small steps; every fault waits until the network has recovered from the one before, and the killed process is started
again on the same home. Times are taken from the views of the network, ten a second.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.jobs import Chain
from benchmarks.network import BenchNetwork, LocalPNode, Run, family, running
from benchmarks.result import Options, Result, Row, Target, largest, median, ratio, rounded
from dcnr.demo.story import Kill, Story

CHAIN: Final = Chain("failure", num_stages=4, width=128, batch_size=64, samples=12_800, passes=10_000)
QUICK: Final = Chain("failure", num_stages=2, width=64, batch_size=32, samples=12_800, passes=10_000)
CHECKPOINT_S: Final = 5.0
NUM_PNODES: Final = 5
PNODE_KILLS: Final = 50
"""So many that the largest stands for the 99th percentile."""
MIN_FAULTS: Final = 10
"""Killed deciders, and machines that go dark."""
RECOVERY_LIMIT_S: Final = 90.0
STEADY_S: Final = 5.0
"""Undisturbed training before each fault; the rate of this time is what the rate meanwhile is compared with."""
DETECTED_LIMIT_S: Final = 1.0
TRAINING_LIMIT_S: Final = 10.0
TRAINING_WORST_S: Final = 15.0
SILENCE_LIMIT_S: Final = 7.0
DARK_LIMIT_S: Final = 20.0
DECISION_LIMIT_S: Final = 15.0
TOLD_LATER: Final = "This run did not tell when somebody was taken for gone: it stands with the time at which what it had was placed elsewhere, which is later."


def run(options: Options) -> Result:
    """``rounds`` is the number of faults of each kind, at least fifty killed PNodes and ten of the others unless quick."""
    kills = 1 if options.quick else max(PNODE_KILLS, options.rounds)
    others = 1 if options.quick else max(MIN_FAULTS, options.rounds)
    chain, num_pnodes, num_orchestrators = (QUICK, 3, 2) if options.quick else (CHAIN, NUM_PNODES, 3)
    settings = {
        **chain.settings(), "num_pnodes": num_pnodes, "num_orchestrators": num_orchestrators, "checkpoint_s": CHECKPOINT_S,
        "pnode_kills": kills, "decider_kills": others, "pnodes_gone_dark": others, "steady_s": 2.0 if options.quick else STEADY_S,
    }  # fmt: skip
    result = Result("failure", "Killed PNodes, killed deciders, machines that go dark", settings)
    kinds = ["pnode"] * kills + ["decider"] * others + ["dark"] * others
    asyncio.run(_faults(result, chain, kinds))
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, largest values and targets from the rounds alone."""
    for kind in ("pnode", "decider", "dark"):
        rows = [{**row, "gone_s": row.get("gone_s", row["decided_s"])} for row in result.rounds if row["fault"] == kind]
        for key in ("suspected_s", "gone_s", "decided_s", "training_s", "rate_kept"):
            values = [row.get(key) for row in rows]
            result.medians[f"{kind}_{key}"] = {"p50": rounded(median(values)), "max": rounded(largest(values)), "faults": len(rows)}
    p50 = {name: value["p50"] for name, value in result.medians.items()}
    worst = {name: value["max"] for name, value in result.medians.items()}
    complete = all(row["recovered"] for row in result.rounds)
    result.targets = [
        Target("PNode killed: taken for gone, largest", worst["pnode_gone_s"], DETECTED_LIMIT_S, "s", at_least=False),
        Target("PNode killed: its VNodes train elsewhere, median", p50["pnode_training_s"], TRAINING_LIMIT_S, "s", at_least=False),
        Target(
            "PNode killed: its VNodes train elsewhere, largest", worst["pnode_training_s"], TRAINING_WORST_S, "s", at_least=False
        ),
        Target("decider killed: another decides, largest", worst["decider_decided_s"], DECISION_LIMIT_S, "s", at_least=False),
        Target("decider killed: training rate kept, median", p50["decider_rate_kept"], 0.95, "ratio", at_least=True),
        Target("PNode gone dark: taken for gone, largest", worst["dark_gone_s"], SILENCE_LIMIT_S, "s", at_least=False),
        Target("PNode gone dark: its VNodes train elsewhere, largest", worst["dark_training_s"], DARK_LIMIT_S, "s", at_least=False),
        Target("faults recovered from", float(complete), 1.0, "all", at_least=True),
    ]
    if any("gone_s" not in row for row in result.rounds):
        result.notes = [TOLD_LATER]


async def _faults(result: Result, chain: Chain, kinds: list[str]) -> None:
    steady_s = float(result.settings["steady_s"])
    pnodes = [LocalPNode(f"p{number + 1}", cores=1.0, memory_mb=1024) for number in range(result.settings["num_pnodes"])]
    async with running(pnodes, num_orchestrators=result.settings["num_orchestrators"]) as bench:
        await bench.stage(chain)
        job = await bench.submit(chain, checkpoint_s=CHECKPOINT_S)
        story = Story()
        job.hears.append(story.seen)
        async with job.followed():
            await job.training()
            for number, kind in enumerate(kinds):
                await _steady(job, steady_s)
                row = await (_decider_fault if kind == "decider" else _pnode_fault)(bench, job, story, number, kind, steady_s)
                result.rounds.append({"round": number, "fault": kind, **row})


async def _steady(job: Run, steady_s: float) -> None:
    """Until every VNode learns, and then for a while."""
    before = {vnode: job.meter.learned(vnode) for vnode in job.meter.vnodes}
    await job.until(
        lambda: all(job.meter.learned(vnode) > count for vnode, count in before.items()), RECOVERY_LIMIT_S, "progress of all VNodes"
    )
    await asyncio.sleep(steady_s)


async def _pnode_fault(bench: BenchNetwork, job: Run, story: Story, number: int, kind: str, steady_s: float) -> Row:
    """Kills or freezes the PNode of one VNode after the other, and brings it back when its work has moved."""
    vnodes = job.meter.vnodes
    victim = bench.process_of(job.place_of(vnodes[number % len(vnodes)]))
    hosted = tuple(vnode for vnode in vnodes if job.place_of(vnode) == victim.node_id)
    kill = Kill("PNode", victim.name, victim.node_id, time.monotonic(), hosted, int(job.job.epoch), int(job.job.plan_number))
    story.kills[:] = [kill]
    dark = family(victim.pid)
    if kind == "dark":
        bench.freeze(dark)
    else:
        await bench.kill(victim)
    recovered = await _settled(job, kill)
    if kind == "dark":
        bench.thaw(dark)
    else:
        await asyncio.to_thread(bench.network.restart, victim)
    await bench.attached([victim.node_id])
    return {"hosted": len(hosted), **_times(kill), **await _rate(job, kill, steady_s), "recovered": recovered}


async def _decider_fault(bench: BenchNetwork, job: Run, story: Story, number: int, kind: str, steady_s: float) -> Row:
    """Kills the orchestrator that holds the head and starts it again when another one decides."""
    victim = bench.process_of(job.job.holder)
    learned = sum(story.learned.values())
    kill = Kill(
        "orchestrator", victim.name, victim.node_id, time.monotonic(), (), int(job.job.epoch), int(job.job.plan_number), learned
    )
    story.kills[:] = [kill]
    await bench.kill(victim)
    recovered = await _settled(job, kill)
    await asyncio.to_thread(bench.network.restart, victim)
    return {**_times(kill), **await _rate(job, kill, steady_s), "recovered": recovered}


async def _settled(job: Run, kill: Kill) -> bool:
    try:
        await job.until(lambda: kill.settled, RECOVERY_LIMIT_S, "recovery")
    except RuntimeError:
        return False
    return True


def _times(kill: Kill) -> Row:
    moments = {"suspected_s": kill.suspected_s, "gone_s": kill.gone_s, "decided_s": kill.decided_s, "training_s": kill.training_s}
    return {name: None if at is None else round(at - kill.at_s, 3) for name, at in moments.items()}


async def _rate(job: Run, kill: Kill, steady_s: float) -> Row:
    """Batches per second before, and from the fault until the decision."""
    now = time.monotonic()
    until = max(kill.decided_s or now, kill.training_s or now)
    meanwhile = await job.rate(kill.at_s, until)
    before = job.meter.rate(kill.at_s - steady_s, kill.at_s)
    return {
        "rate_before": rounded(before, 1),
        "rate_meanwhile": rounded(meanwhile, 1),
        "rate_kept": rounded(ratio(meanwhile, before)),
    }
