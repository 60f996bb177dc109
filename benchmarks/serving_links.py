"""Questions over slow links: what an answer takes on warm connections and as the first one, against what its links and its computing take at least.

Every machine is a network namespace behind an emulated link (`benchmarks.wan`), one more is that of orchestrator, store and client; one PNode per stage.
The job is trained over quick links and only for a moment: live weights of the finished job answer, in the int8 that its graph declares and exactly. The least
is the way out, from stage to stage and back, one delay each; what was asked and each activation as encoded, once over the slower of the two ends of its link;
and what the stages say that they waited and computed.

The peer is bare TCP with the same bytes and pauses over one connection for each hop (`benchmarks.bare_chain`), with the signs of life of our streams, and for
exact answers also without them. One of six exact answers loses a packet at home; for seconds TCP's window is then smaller than an activation, which costs each
answer a round trip more at that hop. Ours go over several connections there (ADR 0078); the ratio to the peer depends on what each of them lost.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.bare_chain import Carried, times_s
from benchmarks.jobs import SEED, Chain
from benchmarks.namespaces import told_on_last
from benchmarks.network import BenchNetwork, LocalPNode, running
from benchmarks.result import Options, Result, Row, Target, median_of, rounded
from benchmarks.serving import CHAIN, QUICK, SMALL, ready
from benchmarks.wan import PROFILES, Links
from dcnr import limits
from dcnr.codecs import encoded_bytes
from dcnr.sdk.asking import Answer, Ask

CODECS: Final = {"raw": True, "int8": False}
"""By the codec between hops: whether the question asks for exactness. Raw comes first, for the same reason as below."""
MEASURED: Final = ("clean", "home")
"""What is lost at home leaves small windows behind, so links that lose nothing come first."""
QUICK_MEASURED: Final = ("lan",)
TRAINED_OVER: Final = "lan"
WARM_UP: Final = 10
QUESTIONS: Final = 40
QUICK_QUESTIONS: Final = 3
SILENT_QUESTIONS: Final = 15
"""Of bare TCP without signs of life, after as many more as warm up."""
CHECKPOINT_S: Final = 5.0
LIMIT: Final = 1.15
RUN_S: Final = 500.0


def run(options: Options) -> Result:
    """For each round a fresh network, trained over quick links, then asked over each kind of link."""
    chain, profiles = (QUICK, QUICK_MEASURED) if options.quick else (CHAIN, MEASURED)
    chain = replace(chain, codec="int8")
    settings = {
        **chain.settings(), "profiles": list(profiles), "questions": QUICK_QUESTIONS if options.quick else QUESTIONS, "warm_up": WARM_UP,
        "rounds": options.rounds,
    }  # fmt: skip
    result = Result("serving_links", "Questions over slow links against what the links take", settings)
    for number in range(options.rounds):
        result.rounds.append({"round": number, **measured(chain, profiles, quick=options.quick)})
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, ratios and targets from the rounds alone."""
    result.medians = {key: rounded(median_of(result.rounds, key), 3) for key in result.rounds[0] if key != "round"}
    for profile in result.settings["profiles"]:
        for codec in CODECS:
            result.ratios[f"warm answer / links and computing, {profile}, {codec}"] = result.medians.get(f"{profile}_{codec}_ratio")
            result.ratios[f"warm answer / bare TCP, {profile}, {codec}"] = result.medians.get(f"{profile}_{codec}_tcp_ratio")
        for codec in CODECS:
            name = f"warm answer / links and computing, {profile}, {codec}"
            result.targets.append(Target(name, result.ratios[name], LIMIT, "ratio of milliseconds", at_least=False))


def measured(chain: Chain, profiles: Sequence[str], *, quick: bool) -> Row:
    """What `ask` gives."""
    asked = {"chain": asdict(chain), "profiles": profiles, "count": QUICK_QUESTIONS if quick else QUESTIONS}
    return told_on_last("benchmarks.serving_links", asked, count=chain.num_stages + 1, profile=TRAINED_OVER, within_s=RUN_S)


async def ask(
    chain: dict[str, Any], addresses: list[str], prefixes: list[list[str]], links: dict[str, Any], profiles: list[str], count: int
) -> Row:
    """One network whose PNodes have these addresses and commands; this process itself has the last."""
    job = Chain(**chain)
    pnodes = [
        LocalPNode(f"p{number + 1}", 1.0, job.memory_mb_for_one(), host=addresses[number], prefix=tuple(prefixes[number]))
        for number in range(job.num_stages)
    ]
    asked = np.random.default_rng(SEED).standard_normal((SMALL, job.width), dtype=np.float32)
    row: Row = {}
    async with running(pnodes, num_orchestrators=1, host=addresses[-1]) as bench:
        await bench.stage(job)
        submitted = await bench.submit(job, checkpoint_s=CHECKPOINT_S)
        await bench.client.wait(submitted.job_id)
        for profile in profiles:
            Links(**links).become(profile)
            cold = await ready(bench, asked, Ask(job.name, "live", full_depth=True))
            if not row:  # the next kind of link finds connections that are open
                row["cold_ms"] = round(1e3 * cold.total_s, 1)
            for codec, exact in CODECS.items():
                answers = await warm(bench, asked, Ask(job.name, "live", full_depth=True, exact=exact), count)
                sizes = asked.nbytes, encoded_bytes(codec, "float32", asked.size)
                found = figures(answers, profile, *sizes)
                found |= await bare(answers, found["warm_p50_ms"], sizes, addresses, prefixes)
                row |= {f"{profile}_{codec}_{name}": value for name, value in found.items()}
    return row


async def warm(bench: BenchNetwork, asked: NDArray[np.float32], wanted: Ask, count: int) -> list[Answer]:
    """So many answers, one after the other, after some that do not count."""
    for _ in range(WARM_UP):
        await bench.client.forward(asked, wanted)
    return [await bench.client.forward(asked, wanted) for _ in range(count)]


async def bare(
    answers: Sequence[Answer], warm_p50_ms: float, sizes: tuple[int, int], addresses: list[str], prefixes: list[list[str]]
) -> Row:
    """What bare TCP takes for such answers, with signs of life and, where it has to do with windows, without; and what ours take against the first."""
    computed_s = float(np.median([stage.waited_s + stage.computed_s for answer in answers for stage in answer.stages]))
    carried = Carried(*sizes, answers[0].output.nbytes, computed_s, limits.WARM_BEAT_S)
    alive_s = float(np.median((await times_s(addresses, prefixes, carried, WARM_UP + len(answers)))[WARM_UP:]))
    found = {"tcp_p50_ms": round(1e3 * alive_s, 1), "tcp_ratio": round(warm_p50_ms / (1e3 * alive_s), 3)}
    if sizes[1] == sizes[0]:
        took_s = (await times_s(addresses, prefixes, replace(carried, beat_s=None), 2 * SILENT_QUESTIONS))[SILENT_QUESTIONS:]
        found["tcp_silent_p50_ms"] = round(1e3 * float(np.median(took_s)), 1)
    return found


def figures(answers: Sequence[Answer], profile: str, asked_bytes: int, activation_bytes: int) -> Row:
    """Medians over the answers of what they took, the least, and the one over the other; and the share of those half a round trip above it."""
    least_s = [least(answer, profile, asked_bytes, activation_bytes) for answer in answers]
    took_s = [answer.total_s for answer in answers]
    return {
        "hops": len({stage.pnode_id for stage in answers[0].stages}), "warm_p50_ms": round(1e3 * float(np.median(took_s)), 1),
        "warm_p90_ms": round(1e3 * float(np.quantile(took_s, 0.9)), 1), "bound_ms": round(1e3 * float(np.median(least_s)), 1),
        "ratio": round(float(np.median([took / bound for took, bound in zip(took_s, least_s, strict=True)])), 3),
        "late": round(float(np.mean([took - bound > PROFILES[profile].delay_ms / 1e3 for took, bound in zip(took_s, least_s, strict=True)])), 3),
    }  # fmt: skip


def least(answer: Answer, profile: str, asked_bytes: int, activation_bytes: int) -> float:
    """Seconds; the readout is a few bytes."""
    link, hops = PROFILES[profile], len({stage.pnode_id for stage in answer.stages})
    carried_s = (asked_bytes + (hops - 1) * activation_bytes) * 8 / (1e6 * min(link.up_mbit, link.down_mbit))
    return (hops + 1) * link.delay_ms / 1e3 + carried_s + sum(stage.waited_s + stage.computed_s for stage in answer.stages)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(**json.load(sys.stdin)))))
