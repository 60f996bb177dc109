"""What the demo proves, each point checked against the network's stored objects or by code that shares nothing with it, and the table at the end."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcnr.audit_ledger import audit_ledger
from dcnr.audit_lineage import audit_lineage
from dcnr.cli.local_door import ask
from dcnr.demo.examples import Example
from dcnr.demo.script import run_script
from dcnr.demo.story import Story
from dcnr.errors import DcnrError
from dcnr.sdk.client import AsyncClient
from dcnr.stages import Stage
from dcnr.testing import LocalNetwork
from dcnr.v1 import local_pb2, model_pb2
from trust.exposure import together

MIN_ACCURACY = 0.99
MAX_BITS = 2.45
MIN_GAIN_BITS = 0.03
SCRIPT_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Verdict:
    """Points that must hold, and figures that are only printed."""

    points: list[tuple[str, bool, str]] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every point held."""
        return all(good for _, good, _ in self.points)

    def point(self, what: str, good: bool, detail: str) -> None:
        """One thing that must hold."""
        self.points.append((what, good, detail))

    def lines(self) -> list[str]:
        """The table as text."""
        width = max(len(name) for name, _ in self.figures)
        result = ["", "figures", *(f"  {name:<{width}}  {value}" for name, value in self.figures), "", "what had to hold"]
        result += [f"  [{'ok' if good else 'FAILED'}] {what}: {detail}" for what, good, detail in self.points]
        return [*result, "", "the demo held in every point" if self.holds else "the demo FAILED"]


async def judge(
    example: Example, story: Story, client: AsyncClient, network: LocalNetwork, *, graph: model_pb2.ModelGraph, stages: Sequence[Stage],
    job_id: str, npz: Path, directory: Path, say: Callable[[str], None],
) -> Verdict:  # fmt: skip
    """Checks everything after the job has ended."""
    verdict = Verdict()
    job = await client.job(job_id, graph.name)
    verdict.point("job completed", job.state == model_pb2.JOB_STATE_COMPLETED, model_pb2.JobState.Name(job.state))
    exits = {item.vnode: _final(item.curve) for item in job.vnodes}
    order = [stage.id for stage in stages]
    await _lineages(verdict, client, graph.name, int(job.num_batches))
    _kills(verdict, story)
    _cheats(verdict, story, network)
    if story.cheats:
        await _ledger(verdict, client, graph.name)
    say("exporting, and loading the export with plain torch")
    manifest, export = await client.export(graph.name, directory / "export")
    plain = await _script([sys.executable, str(example.use_export), str(directory / "export"), str(npz)])
    (_judge_images if example.name == "mnist" else _judge_text)(verdict, [exits[vnode] for vnode in order], plain)
    _figures(verdict, story, example, order, exits, await asyncio.to_thread(_lookups, network))
    verdict.figures.append(("manifest", manifest))
    verdict.figures.append(("export", f"{export.directory} (digest {export.digest[:16]}, {export.num_parameters} parameters)"))
    if "sample" in plain:
        verdict.figures.append(("generated text", repr(plain["sample"])))
    return verdict


async def compare(verdict: Verdict, example: Example, npz: Path, say: Callable[[str], None]) -> None:
    """Adds what end-to-end backprop reaches on the same graph and budget: a figure beside the others, never a point that must hold."""
    say("training the same graph end to end by backprop on the same batches, for comparison (outside every clock)")
    try:
        told = await _script([sys.executable, "-m", "dcnr.demo.reference", str(example.graph), str(npz)])
    except DcnrError as error:
        verdict.figures.append(("backprop, same graph and budget", f"not measured: {error.message}"))
        return
    verdict.figures.append(("backprop, same graph and budget", _told(told["exits"]) + f" in {told['seconds']:.0f} s, one process"))


async def _lineages(verdict: Verdict, client: AsyncClient, model: str, num_batches: int) -> None:
    """Every VNode's stored state: exactly [0, N), each batch once by the commits of its ancestry."""
    try:
        audits = await audit_lineage(client, model)
    except DcnrError as error:
        verdict.point("lineages", False, error.message)
        return
    wrong = [item.vnode for item in audits if item.num_batches != num_batches or not item.exact]
    commits = sum(item.num_commits for item in audits)
    verdict.point(
        "every stored lineage is exactly [0, N), each batch once", not wrong and bool(audits),
        f"N = {num_batches}, {len(audits)} VNodes, {commits} signed commits walked to checkpoint 0" if not wrong else f"wrong: {', '.join(wrong)}",
    )  # fmt: skip


async def _ledger(verdict: Verdict, client: AsyncClient, model: str) -> None:
    """The chain of manifests with its receipts and evidence."""
    try:
        found = await audit_ledger(client, model)
    except DcnrError as error:
        verdict.point("the trust ledger", False, error.message)
        return
    counts = ", ".join(f"{count} {name}" for name, count in found.counts().items() if count)
    verdict.point(
        "the trust ledger holds",
        found.holds,
        found.trouble or f"{found.ledger.num_manifests} manifests, {found.num_receipts} receipts",
    )
    verdict.figures.append(("intervals by verdict", counts))
    whole = together(found.exposures)
    verdict.figures.append(("steps that may be wrong unnoticed, at most", f"{whole.undetected_steps:.1f} of {whole.num_steps}"))


def _kills(verdict: Verdict, story: Story) -> None:
    for kill in story.kills:
        verdict.point(
            f"after SIGKILL of {kill.kind} {kill.name} training went on", kill.settled, "relocated" if kill.vnodes else "taken over"
        )
    pnodes = [kill for kill in story.kills if kill.kind == "PNode"]
    orchestrators = [kill for kill in story.kills if kill.kind == "orchestrator"]
    verdict.point("a PNode and the deciding orchestrator were killed", bool(pnodes and orchestrators), f"{len(story.kills)} kills")


def _cheats(verdict: Verdict, story: Story, network: LocalNetwork) -> None:
    """Whoever cheats is found out, by evidence that is in the store, and nobody else is."""
    if not story.cheats:
        return
    names: dict[str, str] = {process.node_id: process.name for process in network.pnodes}
    for node_id in sorted(story.cheats):
        found = story.accused.get(node_id)
        detail = f"{found.reason} (evidence {found.evidence[:16]})" if found is not None else "not found out"
        verdict.point(f"the PNode that cheats, {names[node_id]}, was caught with evidence", found is not None, detail)
        if found is not None:
            first = story.first_hosted_s.get(node_id, found.at_s)
            verdict.figures.append(
                (f"{names[node_id]} cheats from its first batch on", f"in quarantine after {found.at_s - first:.1f} s")
            )
    honest = sorted(names[node_id] for node_id in story.accused.keys() - story.cheats if node_id in names)
    verdict.point("no honest PNode was accused", not honest, ", ".join(honest) or f"{len(names) - len(story.cheats)} of them")


def _judge_images(verdict: Verdict, exits: Sequence[model_pb2.ExitResult], plain: dict[str, Any]) -> None:
    last = exits[-1]
    accuracy = last.correct / max(1, last.count)
    complete = all(item.complete for item in exits)
    verdict.point(
        f"test accuracy of the last exit is at least {MIN_ACCURACY:.1%}", accuracy >= MIN_ACCURACY and complete, f"{accuracy:.2%}"
    )
    same = plain["correct"] == last.correct and plain["count"] == last.count
    verdict.point(
        "the export in plain torch gives the same number of correct images",
        same,
        f"{plain['correct']} and {last.correct} of {last.count}",
    )


def _judge_text(verdict: Verdict, exits: Sequence[model_pb2.ExitResult], plain: dict[str, Any]) -> None:
    first, last = _bits(exits[0]), _bits(exits[-1])
    verdict.point(f"the last exit has at most {MAX_BITS} bits per byte", last <= MAX_BITS and exits[-1].complete, f"{last:.3f}")
    verdict.point(
        f"and is at least {MIN_GAIN_BITS} better than the first", first - last >= MIN_GAIN_BITS, f"{first:.3f} - {last:.3f}"
    )
    verdict.point(
        "the export in plain torch gives the same bits per byte",
        abs(plain["bits_per_byte"] - last) < 2e-3,
        f"{plain['bits_per_byte']:.4f}",
    )


def _figures(
    verdict: Verdict, story: Story, example: Example, order: Sequence[str], exits: dict[str, model_pb2.ExitResult], lookups: int
) -> None:
    add = verdict.figures.append
    for depth, vnode in enumerate(order, 1):
        add((f"exit {depth} ({vnode}), test split", _one(exits[vnode])))
    if story.first_learned_s is not None and story.last_learned_s is not None:
        took = story.last_learned_s - story.first_learned_s
        add(("first to last learned batch, kills included", f"{took:.1f} s (aim: {example.time_limit_s:.0f} s on 2 idle cores)"))
    total = story.total()
    batches = int(story.job.num_batches)
    add(("batches learned, per VNode", f"{batches} of {batches}, all durable"))
    add(("batches learned again after a restore / forwarded again", f"{story.relearned} / {total.forwarded}"))
    add(("frames that came twice and were dropped", str(total.duplicates)))
    add(("PNodes that hosted a VNode", str(len(story.pnodes_used))))
    for kill in story.kills:
        if kill.kind == "PNode":
            text = f"detected {_after(kill.detected_s, kill.at_s)}, placed elsewhere {_after(kill.decided_s, kill.at_s)}, "
            text += f"training again {_after(kill.training_s, kill.at_s)}"
        else:
            text = f"another decides {_after(kill.decided_s, kill.at_s)}, next batch seen {_after(kill.training_s, kill.at_s)}"
        add((f"SIGKILL of {kill.kind} {kill.name}", text))
    add(("DHT look-ups", str(lookups)))


def _lookups(network: LocalNetwork) -> int:
    """By the daemons that still run; their own word."""
    total = 0
    for process in network.pnodes:
        if process.alive:
            try:
                total += int(ask(process.home, "Status", local_pb2.StatusRequest()).dht_lookups)
            except DcnrError:
                continue
    return total


async def _script(command: list[str]) -> dict[str, Any]:
    """Runs a script that prints one JSON object on its last line."""
    done = await run_script(command, within_s=SCRIPT_TIMEOUT_S)
    lines = done.out.strip().splitlines()
    if done.code != 0 or not lines:
        raise DcnrError(f"{Path(command[1]).name} failed: {done.err.strip()[-600:]}", code="script_failed")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _final(curve: Sequence[model_pb2.ExitResult]) -> model_pb2.ExitResult:
    return next((result for result in reversed(curve) if result.split == "test"), model_pb2.ExitResult())


def _bits(result: model_pb2.ExitResult) -> float:
    return result.sum_loss / max(1, result.count) / math.log(2)


def _one(result: model_pb2.ExitResult) -> str:
    if not result.count:
        return "no result"
    return f"{result.correct / result.count:.2%} ({result.correct} of {result.count}), {_bits(result):.3f} bits each"


def _told(exits: Sequence[dict[str, Any]]) -> str:
    return " / ".join(f"{item['accuracy']:.2%} ({item['loss'] / math.log(2):.3f} bits)" for item in exits)


def _after(at_s: float | None, began_s: float) -> str:
    return f"after {at_s - began_s:.1f} s" if at_s is not None else "not seen"
