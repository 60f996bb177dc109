"""Killed PNodes, killed deciders, machines that go dark or are cut off: seconds until they are suspected, taken for gone and placed elsewhere, and training
goes on, and the rate meanwhile. A suspect keeps what it has; whoever is taken for gone loses it (`orchestrator.offers`): that is what is held against limits.

One network and one long job of small steps; every fault waits until the network has recovered from the one before, and the killed process is started
again on the same home. Times are taken from the views of the network, ten a second. Dark is a machine whose processes are stopped: its kernel still takes what
comes. Cut is one that nothing reaches; that needs machines of their own (`benchmarks.namespaces`), and is left out where they cannot be made.

Deciders are killed in a network of their own, whose job has a tempo below what two cores can do: a rate that scatters by itself tells nothing of a kill. There
the longest time in which some VNode learned nothing, from the kill to the next decision, stands beside that of as long a time just before.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.jobs import Chain
from benchmarks.moments import heard, longest_s, telling
from benchmarks.namespaces import Machines, lacking
from benchmarks.network import BenchNetwork, LocalPNode, Run, family, running
from benchmarks.result import Options, Result, Row, Target, largest, median, ratio, rounded
from chaos.pulse import Pulse
from dcnr.demo.story import Kill, Story

CHAIN: Final = Chain("failure", num_stages=4, width=128, batch_size=64, samples=12_800, passes=10_000)
QUICK: Final = Chain("failure", num_stages=2, width=64, batch_size=32, samples=12_800, passes=10_000)
CHECKPOINT_S: Final = 5.0
NUM_PNODES: Final = 5
MEMORY_MB: Final = 1024
PNODE_KILLS: Final = 50
"""So many that the largest stands for the 99th percentile."""
MIN_FAULTS: Final = 10
"""Killed deciders, machines that go dark, and machines that are cut off."""
RECOVERY_LIMIT_S: Final = 90.0
STEADY_S: Final = 5.0
"""Undisturbed training before each fault; the rate of this time is what the rate meanwhile is compared with."""
DETECTED_LIMIT_S: Final = 1.0
TRAINING_LIMIT_S: Final = 10.0
TRAINING_WORST_S: Final = 15.0
SILENCE_LIMIT_S: Final = 7.0
DARK_LIMIT_S: Final = 15.0
DECISION_LIMIT_S: Final = 15.0
BATCHES_PER_S: Final = 10.0
"""Tempo of the job whose deciders are killed."""
PEER_S: Final = DECISION_LIMIT_S
"""Undisturbed training before a decider is killed: as long as a decision may take."""
STILL_LIMIT_S: Final = 1.0
"""No VNode learns nothing for longer because its decider is gone."""
STILL: Final = ("still_s", "still_before_s")
"""Longest times in which a VNode learned nothing: from the kill to the next decision, and in as long a time just before."""
SILENT: Final = {"dark": "gone dark", "cut": "cut off"}
TOLD_LATER: Final = "This run did not tell when somebody was taken for gone: it stands with the time at which what it had was placed elsewhere, which is later."


def run(options: Options) -> Result:
    """``rounds`` is the number of faults of each kind, at least fifty killed PNodes and ten of the others unless quick."""
    kills = 1 if options.quick else max(PNODE_KILLS, options.rounds)
    others = 1 if options.quick else max(MIN_FAULTS, options.rounds)
    chain, num_pnodes, num_orchestrators = (QUICK, 3, 2) if options.quick else (CHAIN, NUM_PNODES, 3)
    cuts = 0 if lacking() else others
    settings = {
        **chain.settings(), "num_pnodes": num_pnodes, "num_orchestrators": num_orchestrators, "checkpoint_s": CHECKPOINT_S,
        "pnode_kills": kills, "decider_kills": others, "pnodes_gone_dark": others, "pnodes_cut_off": cuts, "steady_s": 2.0 if options.quick else STEADY_S,
        "batches_per_s": BATCHES_PER_S, "peer_s": 5.0 if options.quick else PEER_S,
    }  # fmt: skip
    result = Result("failure", "Killed PNodes, killed deciders, machines that go dark", settings)
    asyncio.run(_pnode_faults(result, chain, ["pnode"] * kills + ["dark"] * others + ["cut"] * cuts))
    asyncio.run(_decider_faults(result, chain, others))
    conclude(result)
    if not cuts:
        result.notes += [f"No cable was cut: that needs {lacking()}."]
    return result


def conclude(result: Result) -> None:
    """Medians, largest values and targets from the rounds alone."""
    kinds = ["pnode", "decider", "dark"] + ["cut"] * any(row["fault"] == "cut" for row in result.rounds)
    for kind in kinds:
        rows = [{**row, "gone_s": row.get("gone_s", row["decided_s"])} for row in result.rounds if row["fault"] == kind]
        for key in ("suspected_s", "gone_s", "decided_s", "training_s", "rate_kept", *STILL):
            if key in STILL and kind != "decider":
                continue
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
        Target(
            "decider killed: longest time in which a VNode learned nothing until another decides",
            worst["decider_still_s"],
            STILL_LIMIT_S,
            "s",
            at_least=False,
        ),
        Target("decider killed: training rate kept, median", p50["decider_rate_kept"], 0.95, "ratio", at_least=True),
        *(target for kind in kinds if kind in SILENT for target in _silent(result, kind)),
        Target("faults recovered from", float(complete), 1.0, "all", at_least=True),
    ]
    if any("gone_s" not in row for row in result.rounds):
        result.notes = [TOLD_LATER]


def _silent(result: Result, kind: str) -> list[Target]:
    """Of machines that fall silent. So few have no 99th percentile: the largest of them is named as what it is."""
    gone, training = result.medians[f"{kind}_gone_s"], result.medians[f"{kind}_training_s"]
    of = f"largest of {gone['faults']}"
    return [
        Target(f"PNode {SILENT[kind]}: taken for gone, {of}", gone["max"], SILENCE_LIMIT_S, "s", at_least=False),
        Target(f"PNode {SILENT[kind]}: its VNodes train elsewhere, {of}", training["max"], DARK_LIMIT_S, "s", at_least=False),
    ]


async def _pnode_faults(result: Result, chain: Chain, kinds: list[str]) -> None:
    steady_s = float(result.settings["steady_s"])
    async with contextlib.AsyncExitStack() as stack:
        count = result.settings["num_pnodes"]
        machines = stack.enter_context(Machines(count)) if "cut" in kinds else None
        host = machines.host if machines else "127.0.0.1"
        orchestrators = result.settings["num_orchestrators"]
        bench = await stack.enter_async_context(running(_pnodes(count, machines), num_orchestrators=orchestrators, host=host))
        await bench.stage(chain)
        job = await bench.submit(chain, checkpoint_s=CHECKPOINT_S)
        story = Story()
        job.hears.append(story.seen)
        async with job.followed():
            await job.training()
            for number, kind in enumerate(kinds):
                await _steady(job, steady_s)
                row = await _pnode_fault(bench, machines, job, story, number, kind, steady_s)
                result.rounds.append({"round": number, "fault": kind, **row})


async def _decider_faults(result: Result, chain: Chain, count: int) -> None:
    before, peer_s = len(result.rounds), float(result.settings["peer_s"])
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        moments = Path(scratch)
        pnodes = [telling(f"p{number + 1}", MEMORY_MB, moments) for number in range(result.settings["num_pnodes"])]
        async with running(pnodes, num_orchestrators=result.settings["num_orchestrators"]) as bench, heard(moments) as pulse:
            await bench.stage(chain)
            job = await bench.submit(chain, checkpoint_s=CHECKPOINT_S, batches_per_s=float(result.settings["batches_per_s"]))
            story = Story()
            job.hears.append(story.seen)
            async with job.followed():
                await job.training()
                for number in range(count):
                    await _steady(job, peer_s)
                    row = await _decider_fault(bench, job, story, pulse, peer_s)
                    result.rounds.append({"round": before + number, "fault": "decider", **row})


def _pnodes(count: int, machines: Machines | None) -> list[LocalPNode]:
    """Each on a machine of its own, if there are any."""
    pnodes = [LocalPNode(f"p{number + 1}", cores=1.0, memory_mb=MEMORY_MB) for number in range(count)]
    if machines is None:
        return pnodes
    return [replace(pnode, host=machines.address(number), prefix=machines.prefix(number)) for number, pnode in enumerate(pnodes)]


async def _steady(job: Run, steady_s: float) -> None:
    """Until every VNode learns, and then for a while."""
    before = {vnode: job.meter.learned(vnode) for vnode in job.meter.vnodes}
    await job.until(
        lambda: all(job.meter.learned(vnode) > count for vnode, count in before.items()), RECOVERY_LIMIT_S, "progress of all VNodes"
    )
    await asyncio.sleep(steady_s)


async def _pnode_fault(
    bench: BenchNetwork, machines: Machines | None, job: Run, story: Story, number: int, kind: str, steady_s: float
) -> Row:  # fmt: skip
    """Kills, freezes or cuts off the PNode of one VNode after the other, and brings it back when its work has moved."""
    vnodes = job.meter.vnodes
    victim = bench.process_of(job.place_of(vnodes[number % len(vnodes)]))
    hosted = tuple(vnode for vnode in vnodes if job.place_of(vnode) == victim.node_id)
    kill = Kill("PNode", victim.name, victim.node_id, time.monotonic(), hosted, int(job.job.epoch), int(job.job.plan_number))
    story.kills[:] = [kill]
    dark = family(victim.pid)
    index = bench.network.pnodes.index(victim)
    if kind == "dark":
        bench.freeze(dark)
    elif kind == "cut" and machines:
        machines.cut(index)
    else:
        await bench.kill(victim)
    recovered = await _settled(job, kill)
    if kind == "dark":
        bench.thaw(dark)
    elif kind == "cut" and machines:
        machines.join(index)
    else:
        await asyncio.to_thread(bench.network.restart, victim)
    await bench.attached([victim.node_id])
    return {"hosted": len(hosted), **_times(kill), **await _rate(job, kill, steady_s), "recovered": recovered}


async def _decider_fault(bench: BenchNetwork, job: Run, story: Story, pulse: Pulse, peer_s: float) -> Row:
    """Kills the orchestrator that holds the head and starts it again when another one decides."""
    victim = bench.process_of(job.job.holder)
    learned = sum(story.learned.values())
    kill = Kill(
        "orchestrator", victim.name, victim.node_id, time.monotonic(), (), int(job.job.epoch), int(job.job.plan_number), learned
    )
    story.kills[:] = [kill]
    await bench.kill(victim)
    recovered = await _settled(job, kill)
    span_s = (kill.decided_s or time.monotonic()) - kill.at_s
    still = {
        "still_s": rounded(longest_s(pulse, job.meter.vnodes, kill.at_s, kill.at_s + span_s)),
        "still_before_s": rounded(longest_s(pulse, job.meter.vnodes, kill.at_s - min(span_s, peer_s), kill.at_s)),
    }
    await asyncio.to_thread(bench.network.restart, victim)
    return {**_times(kill), **await _rate(job, kill, peer_s), **still, "recovered": recovered}


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
