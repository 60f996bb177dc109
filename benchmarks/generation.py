"""Texts over slow links: tokens a second with drafts of the first stage against one token per pass, and the pause where a stage is killed.

Every machine is a network namespace behind an emulated link (`benchmarks.wan`), one more is that of orchestrator, store and client. The job is the byte model
of examples/text, cut short and trained over quick links on half of the machines, one VNode each. Served weights write, as for any user. Redundancy is what the
network gives by itself: two seats of each VNode. No machine has room for two seats, so every pass pays every hop.

Prompts are bytes of the held-out files, from places evenly spread. Each is gone on from greedily and by drawing, plainly and with drafts; both ways have to
write the same text. Rates count from a text's first part on, so the opening of connections is not in them.

For the killed stage a text is written plainly; after some parts the PNode of a middle stage of the newest part gets SIGKILL. The pause is the longest time
between two parts, less the median. By then the connections of who could take over are open, as the network opens them by itself.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.namespaces import told_on_last
from benchmarks.network import BenchNetwork, LocalPNode, running
from benchmarks.result import Options, Result, Row, Target, largest, median, rounded
from benchmarks.wan import Links
from dcnr import limits
from dcnr.errors import NotFound, Unavailable
from dcnr.graph import Graph, stages_of_graph
from dcnr.sdk.asking import Ask
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.sdk.writing import Write
from dcnr.specs import TensorSpec
from dcnr.texts import Part
from dcnr.v1 import model_pb2
from examples.text.prepare import sequences, texts
from pnode.budget import DAEMON_BYTES
from vnode.costs import replica_cost, seat_bytes
from vnode.registry import default_registry

MODEL: Final = "texts"
TOKENS: Final = {"home": 40, "bad": 20}
"""Of each text, by the kind of link."""
QUICK_TOKENS: Final = {"lan": 12}
TRAINED_OVER: Final = "lan"
NUM_STAGES: Final = 4
NUM_MACHINES: Final = 2 * NUM_STAGES
BATCH: Final = 8
NUM_BATCHES: Final = 1200
QUICK_BATCHES: Final = 40
NUM_PROMPTS: Final = 4
QUICK_PROMPTS: Final = 1
PROMPT_BYTES: Final = 64
TEMPERATURES: Final = {"greedy": 0.0, "drawn": 0.8}
KILLED: Final = "killed"
KILLED_TOKENS: Final = 24
KILLED_AFTER: Final = 8
"""Parts."""
LIMIT: Final = 2.0
PAUSE_LIMIT_S: Final = 5.0
JOB_S: Final = 300.0
READY_S: Final = 120.0
AGAIN_S: Final = 0.5
TEXT_S: Final = 120.0
RUN_S: Final = 900.0


def run(options: Options) -> Result:
    """For each round a fresh network, trained over quick links; then for each kind of link all texts, and the one during which a stage is killed."""
    tokens = QUICK_TOKENS if options.quick else TOKENS
    settings = {
        "profiles": list(tokens), "num_stages": NUM_STAGES, "machines": NUM_MACHINES, "batches": QUICK_BATCHES if options.quick else NUM_BATCHES,
        "tokens": tokens, "prompts": QUICK_PROMPTS if options.quick else NUM_PROMPTS, "temperatures": TEMPERATURES, "rounds": options.rounds,
    }  # fmt: skip
    result = Result("generation", "Texts over slow links, drafted against plain", settings)
    asked = {"tokens": tokens, "num_batches": settings["batches"], "num_prompts": settings["prompts"]}
    for number in range(options.rounds):
        told = told_on_last("benchmarks.generation", asked, count=NUM_MACHINES + 1, profile=TRAINED_OVER, within_s=RUN_S)
        result.rounds += [{"round": number, **row} for row in told["rows"]]
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, ratios and targets from the rounds alone."""
    for profile in result.settings["profiles"]:
        for mode in result.settings["temperatures"]:
            rows = [row for row in result.rounds if (row["profile"], row["mode"]) == (profile, mode)]
            found = {
                key: rounded(median(row[key] for row in rows), 3)
                for key in rows[0]
                if key not in ("round", "profile", "mode", "prompt")
            }
            found["least_ratio"] = min(row["ratio"] for row in rows)
            found["drafts_kept"] = rounded(sum(row["accepted"] for row in rows) / max(1, sum(row["drafted"] for row in rows)))
            result.medians[f"{profile}, {mode}"] = found
            result.ratios[f"{profile}, {mode}: drafted / plain"] = found["ratio"]
            name = f"drafted / plain, {profile}, {mode}"
            result.targets.append(Target(name, found["ratio"], LIMIT, "ratio of tokens per second", at_least=True))
        rows = [row for row in result.rounds if row["profile"] == profile]
        killed = [row for row in rows if row["mode"] == KILLED]
        result.medians[f"{profile}, {KILLED}"] = {
            key: rounded(median(row[key] for row in killed), 3) for key in ("gap_s", "longest_gap_s", "pause_s", "replays")
        }
        pause_s = largest(row["pause_s"] for row in killed)
        result.targets.append(Target(f"pause where a stage is killed, {profile}", pause_s, PAUSE_LIMIT_S, "s", at_least=False))
        differing = float(sum(row["differing_tokens"] for row in rows))
        result.targets.append(Target(f"tokens that differ, {profile}", differing, 0.0, "tokens", at_least=False))


async def write(
    addresses: list[str],
    prefixes: list[list[str]],
    links: dict[str, Any],
    tokens: Mapping[str, int],
    num_batches: int,
    num_prompts: int,
) -> dict[str, list[Row]]:
    """The rows of one network whose PNodes have these addresses and commands; this process itself has the last."""
    graph = graph_of(num_batches)
    lent = [replica_mb(graph)] * NUM_STAGES + [seat_mb(graph)] * (NUM_MACHINES - NUM_STAGES)
    pnodes = [
        LocalPNode(f"p{number + 1}", 1.0, memory_mb, host=addresses[number], prefix=tuple(prefixes[number]))
        for number, memory_mb in enumerate(lent)
    ]
    rows: list[Row] = []
    async with running(pnodes, num_orchestrators=1, host=addresses[-1]) as bench:
        path = bench.network.directory / "texts.npz"
        prompts = await asyncio.to_thread(prepare, path, num_batches, num_prompts)
        await bench.client.stage(Source(str(path), MODEL, "PSF-2.0", "the standard library of this Python"))
        job = await bench.client.submit(graph, [bench.key], JobOptions(idempotency_key=MODEL, checkpoint_s=15.0))
        ended = await asyncio.wait_for(bench.client.wait(job.job_id), JOB_S)
        for profile, num_tokens in tokens.items():
            await seated(bench, prompts[0], ended.manifest_digest)
            Links(**links).become(profile)
            for mode, temperature in TEMPERATURES.items():
                for number, prompt in enumerate(prompts):
                    wanted = Write(MODEL, num_tokens, temperature=temperature, seed=number, full_depth=True, deadline_s=TEXT_S)
                    rows.append({"profile": profile, "mode": mode, "prompt": number, **await both(bench, prompt, wanted)})
            rows.append({"profile": profile, "mode": KILLED, **await killed(bench, prompts[0])})
            Links(**links).become(TRAINED_OVER)
    return {"rows": rows}


@dataclass(frozen=True, slots=True)
class Text:
    """As it came: each part, and when."""

    parts: list[Part]
    at_s: list[float]

    @property
    def written(self) -> bytes:
        """All of it."""
        return b"".join(part.said.text for part in self.parts)

    @property
    def tokens_s(self) -> float:
        """Tokens a second, from the first part on."""
        return (self.parts[-1].said.num_tokens - self.parts[0].said.num_tokens) / (self.at_s[-1] - self.at_s[0])

    @property
    def gaps_s(self) -> list[float]:
        """Between its parts."""
        return [after - before for before, after in zip(self.at_s, self.at_s[1:], strict=False)]

    def num_differing(self, other: Text) -> int:
        """Tokens at which another text of the same length differs."""
        return sum(a != b for a, b in zip(self.written, other.written, strict=True))


async def both(bench: BenchNetwork, prompt: bytes, wanted: Write) -> Row:
    """A text written plainly and with drafts."""
    plain, drafted = await text_of(bench, prompt, replace(wanted, plain=True)), await text_of(bench, prompt, wanted)
    last = drafted.parts[-1].said
    return {
        "plain_tokens_s": round(plain.tokens_s, 3), "drafted_tokens_s": round(drafted.tokens_s, 3), "ratio": round(drafted.tokens_s / plain.tokens_s, 3),
        "passes": last.num_passes, "drafted": last.num_drafted, "accepted": last.num_accepted, "close": last.num_close,
        "distinct_bytes": len(set(plain.written)), "differing_tokens": plain.num_differing(drafted),
    }  # fmt: skip


async def killed(bench: BenchNetwork, prompt: bytes) -> Row:
    """A text during which a stage is killed, against the same one in peace; the PNode is started again at the end."""
    wanted = Write(MODEL, KILLED_TOKENS, full_depth=True, deadline_s=TEXT_S, plain=True)
    whole = await text_of(bench, prompt, wanted)
    text = await text_of(bench, prompt, wanted, kill_after=KILLED_AFTER)
    stages = text.parts[KILLED_AFTER - 1].said.stages
    victim = bench.process_of(stages[len(stages) // 2].pnode_id)
    await asyncio.to_thread(bench.network.restart, victim)
    await bench.attached([victim.node_id])
    gap_s, longest_s = statistics.median(text.gaps_s), max(text.gaps_s)
    return {
        "gap_s": round(gap_s, 3), "longest_gap_s": round(longest_s, 3), "pause_s": round(longest_s - gap_s, 3),
        "replays": text.parts[-1].said.num_replays, "differing_tokens": text.num_differing(whole),
    }  # fmt: skip


async def text_of(bench: BenchNetwork, prompt: bytes, wanted: Write, kill_after: int = 0) -> Text:
    """One text; after so many parts the PNode of its middle stage is killed, if any."""
    parts, at_s = [], []
    async for part in bench.client.generate(prompt, wanted):
        at_s.append(time.monotonic())
        parts.append(part)
        if len(parts) == kill_after:
            stages = part.said.stages
            await bench.kill(bench.process_of(stages[len(stages) // 2].pnode_id))
    return Text(parts, at_s)


async def seated(bench: BenchNetwork, prompt: bytes, manifest: str) -> None:
    """Once that version answers over two ways that share no machine, each of as many machines as there are stages."""
    wanted = Ask(MODEL, full_depth=True, exact=True, redundancy=2)
    deadline = time.monotonic() + READY_S
    while True:
        try:
            answer = await bench.client.forward(np.frombuffer(prompt, np.uint8)[None], wanted)
            if answer.manifest == manifest and len({stage.pnode_id for stage in answer.stages}) == NUM_STAGES:
                return
        except (Unavailable, NotFound):
            pass  # not yet
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"not all stages have two seats of their own machines within {READY_S:g} s; {bench.network.trouble()}"
            )
        await asyncio.sleep(AGAIN_S)


def graph_of(num_batches: int) -> model_pb2.ModelGraph:
    """That of examples/text."""
    graph = Graph(
        MODEL, input=TensorSpec("uint8", (128,)), target=TensorSpec("uint8", (128,)), num_classes=256,
        train={"passes": 1, "batch_size": BATCH, "seed": 7, "codec": "auto"},
        data={use: f"dataset:{MODEL}#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    both: dict[str, Any] = {
        "objective": {"name": "local_ce", "config": {}},
        "optimizer": {
            "name": "adamw",
            "lr": 4e-3,
            "beta1": 0.9,
            "beta2": 0.95,
            "weight_decay": 0.05,
            "clip": 1.0,
            "schedule": "cosine",
        },
    }
    graph.vnode("block1", "byte_embedding", {"width": 64, "blocks": 1, "heads": 4}, inputs=["input"], **both)
    for number in range(2, NUM_STAGES + 1):
        graph.vnode(f"block{number}", "transformer_block", {"heads": 4}, inputs=[f"block{number - 1}"], **both)
    built: model_pb2.ModelGraph = graph.build()
    return built


def replica_mb(graph: model_pb2.ModelGraph) -> int:
    """MiB that a PNode lends so that it can host one stage and not two, and has one seat beside it."""
    registry = default_registry()
    costs = [replica_cost(stage, registry, BATCH).memory_bytes for stage in stages_of_graph(graph, registry)]
    return (DAEMON_BYTES + max(costs) + min(costs) // 2) // limits.MIB


def seat_mb(graph: model_pb2.ModelGraph) -> int:
    """MiB that a PNode lends so that it can have one seat and not two, and host nothing."""
    seats = [seat_bytes(stage, BATCH) for stage in stages_of_graph(graph, default_registry())]
    return (DAEMON_BYTES + max(seats) + min(seats) // 2) // limits.MIB


def prepare(path: Path, num_batches: int, num_prompts: int) -> list[bytes]:
    """The data set as an npz; prompts from files that nothing is learned from."""
    found = texts(Path(sysconfig.get_paths()["stdlib"]))
    arrays: dict[str, Any] = {}
    for split, text in found.items():
        x, y = sequences(text)
        count = num_batches * BATCH if split == "train" else BATCH
        chosen = np.linspace(0, len(x) - 1, num=count).round().astype(np.int64)
        arrays[f"{split}_x"], arrays[f"{split}_y"] = x[chosen], y[chosen]
    np.savez(path, **arrays)
    places = np.linspace(0, len(found["test"]), num=num_prompts, endpoint=False).astype(np.int64) + PROMPT_BYTES
    return [found["test"][place : place + PROMPT_BYTES] for place in places]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(write(**json.load(sys.stdin)))))
