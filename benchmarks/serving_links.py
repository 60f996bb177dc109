"""Questions over slow links: what an answer takes on warm connections and as the first one, against what its links and its computing take at least.

Every machine is a network namespace behind an emulated link (`benchmarks.wan`), one more is that of orchestrator, store and client; one PNode per stage.
The job is trained over quick links and only for a moment: live weights of the finished job answer, in the int8 that its graph declares and exactly. The least
is the way out, from stage to stage and back, one delay each; what was asked and each activation as encoded, once over the slower of the two ends of its link;
and what the stages say that they waited and computed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np

from benchmarks.jobs import SEED, Chain
from benchmarks.network import LocalPNode, running
from benchmarks.result import Options, Result, Row, Target, median_of, rounded
from benchmarks.serving import CHAIN, QUICK, SMALL, ready
from benchmarks.wan import PROFILES, Links, told_on_last
from dcnr.codecs import encoded_bytes
from dcnr.sdk.asking import Answer, Ask

CODECS: Final = {"int8": False, "raw": True}
"""By the codec between hops: whether the question asks for exactness."""
MEASURED: Final = ("home",)
QUICK_MEASURED: Final = ("lan",)
TRAINED_OVER: Final = "lan"
WARM_UP: Final = 10
QUESTIONS: Final = 40
QUICK_QUESTIONS: Final = 3
CHECKPOINT_S: Final = 5.0
LIMIT: Final = 1.15
RUN_S: Final = 400.0


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
            share = result.medians[f"{profile}_{codec}_ratio"]
            name = f"warm answer / links and computing, {profile}, {codec}"
            result.ratios[name] = share
            result.targets.append(Target(name, share, LIMIT, "ratio of milliseconds", at_least=False))


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
            row[f"{profile}_cold_ms"] = round(1e3 * cold.total_s, 1)
            for codec, exact in CODECS.items():
                wanted = Ask(job.name, "live", full_depth=True, exact=exact)
                for _ in range(WARM_UP):
                    await bench.client.forward(asked, wanted)
                answers = [await bench.client.forward(asked, wanted) for _ in range(count)]
                found = figures(answers, profile, asked.nbytes, encoded_bytes(codec, "float32", asked.size))
                row |= {f"{profile}_{codec}_{name}": value for name, value in found.items()}
    return row


def figures(answers: Sequence[Answer], profile: str, asked_bytes: int, activation_bytes: int) -> Row:
    """Medians over the answers of what they took, the least, and the one over the other."""
    least_s = [least(answer, profile, asked_bytes, activation_bytes) for answer in answers]
    took_s = [answer.total_s for answer in answers]
    return {
        "hops": len({stage.pnode_id for stage in answers[0].stages}), "warm_p50_ms": round(1e3 * float(np.median(took_s)), 1),
        "warm_p90_ms": round(1e3 * float(np.quantile(took_s, 0.9)), 1), "bound_ms": round(1e3 * float(np.median(least_s)), 1),
        "ratio": round(float(np.median([took / bound for took, bound in zip(took_s, least_s, strict=True)])), 3),
    }  # fmt: skip


def least(answer: Answer, profile: str, asked_bytes: int, activation_bytes: int) -> float:
    """Seconds; the readout is a few bytes."""
    link, hops = PROFILES[profile], len({stage.pnode_id for stage in answer.stages})
    carried_s = (asked_bytes + (hops - 1) * activation_bytes) * 8 / (1e6 * min(link.up_mbit, link.down_mbit))
    return (hops + 1) * link.delay_ms / 1e3 + carried_s + sum(stage.waited_s + stage.computed_s for stage in answer.stages)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(**json.load(sys.stdin)))))
