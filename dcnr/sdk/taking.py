"""Takes the released weights of a model home, as files or judged on this machine: of the manifest that is named, else of the one in force."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from dataservice.released import released
from dcnr.errors import Corrupt
from dcnr.export import Export, check_free, weights_of_state, write_export
from dcnr.graph import dataset_refs, stages_of_graph
from dcnr.ids import Digest
from dcnr.sdk.progress import Progress
from dcnr.sdk.releasing import released_of
from dcnr.stored import StoredDocuments

if TYPE_CHECKING:
    from dataservice.dataset_manifest import DatasetManifest
    from dcnr.sdk.client import AsyncClient
    from dcnr.v1 import data_pb2, model_pb2
    from vnode.reference import Exit


async def export(client: AsyncClient, model: str, directory: Path, *, manifest: str, progress: Progress) -> tuple[Digest, Export]:
    """Writes them; the manifest's digest and what was written. Raises Corrupt, NotFound, Unavailable, and what `write_export` raises."""
    check_free(directory)
    digest, content = await _chosen(client, model, manifest)
    graph, checkpoints = await client.graph(content.graph_digest), released(content)
    stages = stages_of_graph(graph, client.registry)
    if {stage.id for stage in stages} != set(checkpoints):
        raise Corrupt("the manifest does not name every VNode with weights", code="incomplete_manifest")
    weights = {}
    progress("states", 0, len(stages))
    for number, stage in enumerate(stages, 1):
        data = await client.state(model, checkpoints[stage.id])
        weights[stage.id] = await asyncio.to_thread(weights_of_state, data, stage, client.registry, checkpoints[stage.id])
        progress("states", number, len(stages))
    return digest, await asyncio.to_thread(write_export, directory, graph, client.registry, weights, manifest_digest=digest)


async def judge(client: AsyncClient, model: str, *, use: str, manifest: str, progress: Progress) -> tuple[Digest, tuple[Exit, ...]]:
    """Every exit over the split named for ``use``, of the job's own data; the manifest's digest and the results. Raises Corrupt, NotFound, Unavailable."""
    from dcnr.sdk.evaluation import evaluate  # torch

    digest, content = await _chosen(client, model, manifest)
    graph, checkpoints = await client.graph(content.graph_digest), released(content)
    states = [await client.state(model, checkpoints[stage.id]) for stage in stages_of_graph(graph, client.registry)]
    dataset = await _dataset(client, model, content, dataset_refs(graph)[use].name)
    return digest, await evaluate(
        graph, client.registry, states, dataset, client.objects, use=use, scratch=client.scratch, progress=progress
    )


async def _dataset(client: AsyncClient, model: str, manifest: model_pb2.Manifest, name: str) -> DatasetManifest:
    """The data that the manifest's job was signed for; of manifest 0, which is of no job, those staged last under the name."""
    if not manifest.job_id:
        return await client.dataset(name)

    async def read(ref: data_pb2.ObjectRef, path: Path, max_bytes: int) -> None:
        await client.objects.read_file(ref, path, max_bytes=max_bytes)

    request = await StoredDocuments(read, client.policy, model, client.scratch).request(manifest.job_id)
    return await client.dataset(request.dataset_name, request.dataset_digest)


async def _chosen(client: AsyncClient, model: str, manifest: str) -> tuple[Digest, model_pb2.Manifest]:
    """That one, else the one that maintainers released, else the newest."""
    if not manifest:
        answer = await client.model(model)
        manifest = (
            released_of(client.policy, model, answer.release if answer.HasField("release") else None).manifest
            or answer.manifest_digest
        )
    return await client.manifest(model, manifest)
