"""Finds the facts of a run when its job has ended: asks the network, reads its store, and has the export tried by a script that knows nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from dcnr.audit_ledger import LedgerAudit, audit_ledger
from dcnr.audit_lineage import VNodeLineage, audit_lineage
from dcnr.cli.local_door import asked
from dcnr.demo.examples import Example
from dcnr.demo.facts import WHOLE_LIMIT_S, Compared, Facts
from dcnr.demo.script import run_script, script_of
from dcnr.demo.story import Story
from dcnr.errors import DcnrError, TimedOut
from dcnr.intervals import IntervalSet
from dcnr.sdk.client import AsyncClient
from dcnr.testing import LocalNetwork, Process
from dcnr.v1 import local_pb2, model_pb2

MACHINE: Final = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "machine.py"
LAST_WORD_S: Final = 2.0
"""Nothing waits longer for what one daemon tells."""


async def gather(
    example: Example, story: Story, client: AsyncClient, network: LocalNetwork, *, model: str, job_id: str, order: Sequence[str], npz: Path,
    directory: Path, are_kills_wanted: bool, elapsed_s: Callable[[], float], say: Callable[[str], None],
) -> Facts:  # fmt: skip
    """Everything but the comparison. ``order``: the VNodes, sources first. Raises DcnrError where the model cannot be exported, or the export not be used."""
    job = await client.job(job_id, model)
    lineages, no_lineages = await _lineages(client, model)
    ledger, no_ledger = await _ledger(client, model) if story.cheats else (None, "")
    durable, cleared = await _stored(client, model)
    say("exporting, and loading the export with plain torch")
    manifest, export = await client.export(model, directory / "export")
    plain = await _script([sys.executable, str(example.use_export), str(directory / "export"), str(npz)])
    await ask_lookups(story, network.pnodes)
    return Facts(
        example=example.name, time_limit_s=example.time_limit_s, story=story,
        names={process.node_id: process.name for process in network.pnodes}, order=tuple(order), job=job, took_s=elapsed_s(),
        are_kills_wanted=are_kills_wanted, plain=plain, lineages=lineages, no_lineages=no_lineages, durable=durable,
        cleared=cleared, ledger=ledger, no_ledger=no_ledger, manifest=manifest,
        export=f"{export.directory} (digest {export.digest[:16]}, {export.num_parameters} parameters)",
    )  # fmt: skip


async def reference_of(example: Example, npz: Path, say: Callable[[str], None]) -> Compared:
    """What end-to-end backprop reaches on the same graph and budget: its figures stand beside the others, and are no point that must hold."""
    say("training the same graph end to end by backprop on the same batches, for comparison (outside every clock)")
    try:
        told = await _script([sys.executable, "-m", "dcnr.demo.reference", str(example.graph), str(npz)])
        exits = tuple((str(one["vnode"]), float(one["accuracy"]), float(one["loss"])) for one in told["exits"])
        return Compared(exits, float(told["seconds"]), int(told["threads"]))
    except (DcnrError, LookupError, ValueError) as error:
        trouble = error.message if isinstance(error, DcnrError) else f"it said something else than what was asked: {error!r}"
        return Compared(trouble=trouble, is_late=isinstance(error, TimedOut))


async def machine() -> dict[str, Any]:
    """What this runs on, as all measurements of the repository say it; nothing where that cannot be told."""
    try:
        return await _script([sys.executable, "-P", str(MACHINE)])
    except (DcnrError, ValueError):
        return {}


async def _lineages(client: AsyncClient, model: str) -> tuple[tuple[VNodeLineage, ...], str]:
    """By the commits, or why not."""
    try:
        return tuple(await audit_lineage(client, model)), ""
    except DcnrError as error:
        return (), error.message


async def _ledger(client: AsyncClient, model: str) -> tuple[LedgerAudit | None, str]:
    """The chain of manifests with its receipts and evidence, or why not."""
    try:
        return await audit_ledger(client, model), ""
    except DcnrError as error:
        return None, error.message


async def _stored(client: AsyncClient, model: str) -> tuple[dict[str, int], dict[str, int]]:
    """By VNode: batches in the newest state that the newest manifest names, and in the newest cleared one. A state without its object is found by
    whoever walks the lineages.
    """
    _, manifest = await client.manifest(model)
    durable = {entry.vnode: _num_batches(entry.working[0]) if entry.working else 0 for entry in manifest.entries}
    return durable, {entry.vnode: _num_batches(entry.cleared) for entry in manifest.entries}


def _num_batches(checkpoint: model_pb2.Checkpoint) -> int:
    return len(IntervalSet.of(*((int(one.first), int(one.end)) for one in checkpoint.lineage.intervals)))


async def ask_lookups(story: Story, pnodes: Sequence[Process]) -> None:
    """Notes what each daemon that runs says of its look-ups in the DHT, its own word; who does not answer keeps what it told before."""
    for process in pnodes:
        if process.alive:
            with contextlib.suppress(DcnrError, TimeoutError):
                async with asyncio.timeout(LAST_WORD_S):
                    told = await asked(process.home, "Status", local_pb2.StatusRequest())
                story.lookups[process.node_id] = int(told.dht_lookups)


async def _script(command: list[str]) -> dict[str, Any]:
    """Runs a script that prints one JSON object on its last line. Raises TimedOut after as long as the whole demo has, DcnrError (``script_failed``)."""
    done = await run_script(command, within_s=WHOLE_LIMIT_S)
    lines = done.out.strip().splitlines()
    if done.code != 0 or not lines:
        raise DcnrError(f"{script_of(command)} failed: {done.err.strip()[-600:]}", code="script_failed")
    result: dict[str, Any] = json.loads(lines[-1])
    return result
