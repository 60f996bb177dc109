"""A model judged on the maintainer's own machine: every exit over one whole split, from the states of one manifest. Imports torch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataservice.batches import eval_indices, num_eval_batches
from dataservice.dataset_manifest import DatasetManifest
from dataservice.datasets import DatasetReader, LocalCache
from dataservice.objects import ObjectClient
from dcnr import limits
from dcnr.graph import dataset_refs, stages_of_graph
from dcnr.ids import Digest
from dcnr.sdk.progress import Progress
from dcnr.specs import Registry
from dcnr.v1 import data_pb2, model_pb2
from vnode.reference import Exit, evaluate_states


async def evaluate(
    graph: model_pb2.ModelGraph, registry: Registry, states: Sequence[bytes], dataset: DatasetManifest, objects: ObjectClient,
    *, use: str, scratch: Path, progress: Progress,
) -> tuple[Exit, ...]:  # fmt: skip
    """Loss and accuracy of every exit over the split that the graph names for ``use``. ``states`` are in topological order. Raises Corrupt, Unavailable."""
    split = dataset_refs(graph)[use].split
    batch_size, samples = int(graph.train.batch_size), dataset.splits[split]

    async def fetch(digest: Digest, path: Path, max_bytes: int) -> None:
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_SHARD, owner=dataset.name, digest=digest)
        await objects.read_file(ref, path, max_bytes=max_bytes)

    cache = LocalCache(scratch / "shards", limits.MAX_OBJECT_BYTES, fetch)
    reader = DatasetReader(dataset, cache.cached)
    wanted, sizes = (
        [shard.digest for field in ("input", "target") for shard in dataset.shards_of(field, split)],
        dataset.shard_sizes(),
    )
    for index, digest in enumerate(wanted):
        progress("shards", index, len(wanted))
        await cache.path(digest, sizes[digest])
    progress("shards", len(wanted), len(wanted))

    def batches(_: str, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        indices = eval_indices(number, samples, batch_size)
        return reader.batch(split, "input", indices), reader.batch(split, "target", indices)

    def work() -> tuple[Exit, ...]:
        stages = stages_of_graph(graph, registry)
        return evaluate_states(stages, registry, states, batches, split, num_eval_batches(samples, batch_size))

    return await asyncio.to_thread(work)
