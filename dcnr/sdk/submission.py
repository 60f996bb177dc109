"""From a graph to a job that waits for signatures: validation, checkpoint 0 one VNode at a time, manifest 0, the request's figures.

Checkpoint 0 is a function of (stage, seed); it is made on the maintainer's machine, with the memory of the largest VNode, and uploaded under grants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dataservice.dataset_manifest import DatasetManifest
from dataservice.fit import check_fit
from dataservice.objects import ObjectClient
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import InvalidInput, Stale
from dcnr.graph import dataset_refs, graph_digest, graph_to_bytes, num_batches, stages_of_graph
from dcnr.ids import Digest, check_digest, digest_of, job_id_of
from dcnr.sdk.progress import Progress
from dcnr.sdk.signing import Draft
from dcnr.sdk.weights import Array, FirstWeights
from dcnr.specs import Registry
from dcnr.stages import Stage
from dcnr.tempo import check_rate
from dcnr.v1 import data_pb2, model_pb2
from trust.network import NetworkPolicy

UNIT_S: Final = 5.0
"""A unit is about this much work of the slowest stage."""
MAX_UNIT_BATCHES: Final = 256


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a maintainer may choose; the defaults are those of `dcnr.limits`."""

    idempotency_key: str
    """Two submissions with one key are one job."""
    unit_batches: int = 0
    """0: about `UNIT_S` of the slowest stage."""
    lead_batches: int = limits.LEAD_BATCHES
    horizon_s: float = limits.HORIZON_S
    settling_deadline_s: float = limits.SETTLING_DEADLINE_S
    checkpoint_s: float = limits.CHECKPOINT_S
    checkpoint_steps: int = limits.CHECKPOINT_STEPS
    batches_per_s: float = 0.0
    """Sources learn no more on average, and catch up after faults; 0: no limit."""
    expires_after_s: float = 0.0
    """A job still queued then ends as expired; 0: never."""
    from_manifest: str = ""
    """Digest of a manifest to go on from; empty: from checkpoint 0."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a graph amounts to on a staged data set."""

    dataset: DatasetManifest
    num_batches: int
    stages: tuple[Stage, ...]


def planned(graph: model_pb2.ModelGraph, registry: Registry, dataset: DatasetManifest) -> Planned:
    """The graph checked against the registry and the staged data set that it names. Raises InvalidInput."""
    stages = stages_of_graph(graph, registry)
    check_fit(graph, dataset)
    return Planned(dataset, num_batches(graph, dataset.splits[dataset_refs(graph)["train"].split]), stages)


def unit_batches(seconds_per_batch: float) -> int:
    """Batches in a unit of about `UNIT_S` at that speed."""
    if seconds_per_batch <= 0:
        return 16
    return max(1, min(MAX_UNIT_BATCHES, round(UNIT_S / seconds_per_batch)))


def differs_by_estimate(error: Stale, options: JobOptions) -> bool:
    """Whether the job that is there differs only in a unit that nobody chose: the network was measured anew since the first try."""
    return error.code == "job_id_taken" and error.details.get("field") == "unit_batches" and not options.unit_batches


def request_of(
    graph: model_pb2.ModelGraph, plan: Planned, options: JobOptions, *, network_id: str, seconds_per_batch: float, now_wall: float
) -> model_pb2.JobRequest:
    """The request without the digest of manifest 0 (filled in by the signatures), or with that of the manifest to go on from. Raises InvalidInput
    (``bad_tempo``).
    """
    return model_pb2.JobRequest(
        network_id=network_id,
        job_id=job_id_of(graph.name, options.idempotency_key),
        model=graph.name,
        graph_digest=graph_digest(graph),
        initial_manifest_digest=check_digest(options.from_manifest) if options.from_manifest else "",
        dataset_digest=plan.dataset.digest,
        dataset_name=plan.dataset.name,
        num_batches=plan.num_batches,
        unit_batches=options.unit_batches or unit_batches(seconds_per_batch),
        lead_batches=options.lead_batches,
        horizon_s=options.horizon_s,
        settling_deadline_s=options.settling_deadline_s,
        created_unix_ms=int(now_wall * 1000),
        expires_unix_ms=int((now_wall + options.expires_after_s) * 1000) if options.expires_after_s else 0,
        checkpoint_s=options.checkpoint_s,
        checkpoint_steps=options.checkpoint_steps,
        batches_per_s=check_rate(options.batches_per_s),
    )


async def prepare(
    graph: model_pb2.ModelGraph, plan: Planned, request: model_pb2.JobRequest, registry: Registry, objects: ObjectClient,
    *, scratch: Path, progress: Progress, weights: FirstWeights | None = None,
) -> Draft:  # fmt: skip
    """Uploads the graph and, unless the job goes on from a manifest, checkpoint 0 of every VNode; the draft to be signed.

    ``weights`` replace what the seed gives. Raises InvalidInput (``weights_do_not_fit``).
    """
    unknown = sorted(set(weights or {}) - {stage.id for stage in plan.stages})
    if unknown or (weights and request.initial_manifest_digest):
        why = f"no VNode with weights is named {unknown[0]!r}" if unknown else "a job that goes on from a manifest has its weights"
        raise InvalidInput(why, code="weights_do_not_fit")
    data = graph_to_bytes(graph)
    await objects.write_bytes(
        data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_GRAPH, digest=request.graph_digest), data, directory=scratch
    )
    reached("graph.stored")
    if request.initial_manifest_digest:
        return Draft(graph=data, request=request, manifest_0=None)
    checkpoints: list[model_pb2.Checkpoint] = []
    for index, stage in enumerate(plan.stages):
        progress("checkpoint 0", index, len(plan.stages))
        checkpoints.append(await _checkpoint_0(stage, graph, plan, registry, objects, scratch, (weights or {}).get(stage.id, {})))
    progress("checkpoint 0", len(plan.stages), len(plan.stages))
    entries = [
        model_pb2.ManifestEntry(vnode=checkpoint.vnode, working=[checkpoint], cleared=checkpoint)
        for checkpoint in sorted(checkpoints, key=lambda checkpoint: checkpoint.vnode)
    ]
    manifest = model_pb2.Manifest(
        network_id=request.network_id, model=graph.name, number=0, entries=entries, audits="none", graph_digest=request.graph_digest
    )
    return Draft(graph=data, request=request, manifest_0=manifest)


async def store_manifest(draft: Draft, policy: NetworkPolicy, objects: ObjectClient, *, scratch: Path) -> None:
    """Manifest 0 is in the store, if the draft has one with all its signatures: before, its digest is not known, and nothing is stored."""
    what, _ = draft.missing(policy)
    if what == "manifest" or draft.manifest is None or draft.manifest_digest is None:
        return
    ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_MANIFEST, model=draft.request.model, digest=draft.manifest_digest)
    await objects.write_bytes(ref, draft.manifest.SerializeToString(deterministic=True), directory=scratch)
    reached("manifest0.stored")


async def _checkpoint_0(
    stage: Stage, graph: model_pb2.ModelGraph, plan: Planned, registry: Registry, objects: ObjectClient, scratch: Path,
    given: Mapping[str, Array],
) -> model_pb2.Checkpoint:  # fmt: skip
    """Makes, stores and forgets the first state of one VNode."""
    path = scratch / f"{stage.id}.safetensors"
    try:
        size_bytes, digest = await asyncio.to_thread(_write_state, path, stage, graph, plan.num_batches, registry, given)
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=graph.name, owner=stage.id, digest=digest)
        await objects.write_file(ref, path, size_bytes=size_bytes, sha256=digest)
        reached("checkpoint0.stored")
    finally:
        path.unlink(missing_ok=True)
    return model_pb2.Checkpoint(vnode=stage.id, digest=digest, size_bytes=size_bytes)


def _write_state(
    path: Path, stage: Stage, graph: model_pb2.ModelGraph, batches: int, registry: Registry, given: Mapping[str, Array]
) -> tuple[int, Digest]:
    from vnode.torch_trial import tried_state  # torch: only here, only while checkpoint 0 is made

    data = tried_state(
        stage, registry, seed=int(graph.train.seed), model=graph.name, graph=graph_digest(graph), num_batches=batches, given=given
    )
    path.write_bytes(data)
    reached("checkpoint0.made")
    return len(data), digest_of(data)
