"""Batches of a staged data set out of a cache directory; a shard counts as present only after the daemon has verified it for this replica."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dataservice.batches import BatchIndex, eval_indices, num_eval_batches
from dataservice.dataset_manifest import MAX_MANIFEST_BYTES, parse_manifest
from dataservice.datasets import DatasetReader
from dcnr.errors import Corrupt, NotFound
from dcnr.graph import dataset_refs
from dcnr.ids import Digest
from dcnr.tensor import Array
from dcnr.v1 import model_pb2
from vnode.vocabulary import Lane

INPUT_FIELD: Final = "input"
TARGET_FIELD: Final = "target"
RECENT_NEEDS: Final = 256
RECENT_BATCHES: Final = 8
"""Batches whose sample numbers are kept: input and target are read apart."""


class StagedSamples:
    """The splits that a graph names, by lane: ``train``, ``validation`` and ``test``. Safe for several threads."""

    def __init__(self, manifest: Path, directory: Path, graph: model_pb2.ModelGraph) -> None:
        if manifest.stat().st_size > MAX_MANIFEST_BYTES:
            raise Corrupt("the data set manifest is too large", code="bad_dataset_manifest")
        parsed = parse_manifest(manifest.read_bytes())
        self.dataset = parsed.name
        self._directory, self._batch_size = directory, int(graph.train.batch_size)
        self._sizes = parsed.shard_sizes()
        self._splits = {use: ref.split for use, ref in dataset_refs(graph).items()}
        self._counts = dict(parsed.splits)
        self._reader = DatasetReader(parsed, self._path)
        self._present: set[Digest] = set()
        self._absent = {
            (use, field): {shard.digest for shard in parsed.shards_of(field, split)}
            for use, split in self._splits.items()
            for field in (INPUT_FIELD, TARGET_FIELD)
        }
        self._lock = threading.Lock()
        self._needs: OrderedDict[tuple[Lane, int, str], tuple[Digest, ...]] = OrderedDict()
        self._recent: OrderedDict[tuple[Lane, int], NDArray[np.int64]] = OrderedDict()
        split = self._splits["train"]
        self._index = BatchIndex(int(graph.train.seed), parsed.shard_counts(split), self._batch_size, int(graph.train.passes))

    @property
    def num_batches(self) -> int:
        """N of the job: batches of the train lane."""
        return self._index.num_batches

    def eval_batches(self) -> dict[str, int]:
        """Batches of the validation and test lanes."""
        return {use: num_eval_batches(self._counts[self._splits[use]], self._batch_size) for use in ("validation", "test")}

    def read_input(self, lane: Lane, batch: int) -> Array:
        """The input of a batch. Raises NotFound, Corrupt."""
        return self._read(lane, batch, INPUT_FIELD)

    def read_target(self, lane: Lane, batch: int) -> Array:
        """The target of a batch. Raises NotFound, Corrupt."""
        return self._read(lane, batch, TARGET_FIELD)

    def missing(self, lane: Lane, batch: int, *, with_input: bool) -> Sequence[Digest]:
        """Shards of this batch that are not known to be present; none for a batch outside the lane."""
        fields = (INPUT_FIELD, TARGET_FIELD) if with_input else (TARGET_FIELD,)
        if not any(self._absent[lane.split, field] for field in fields):
            return ()
        if not 0 <= batch < (self.num_batches if lane.is_train else self.eval_batches().get(lane.split, 0)):
            return ()
        return [digest for field in fields for digest in self._needed(lane, batch, field) if digest not in self._present]

    def sizes(self, digests: Iterable[str]) -> dict[str, int]:
        """Bytes of each of these shards, in their order."""
        return {digest: self._sizes[Digest(digest)] for digest in digests}

    def present(self, digest: Digest) -> None:
        """The daemon has verified this shard."""
        self._present.add(digest)
        for absent in self._absent.values():
            absent.discard(digest)

    def _needed(self, lane: Lane, batch: int, field: str) -> tuple[Digest, ...]:
        key = (lane, batch, field)
        with self._lock:
            found = self._needs.get(key)
        if found is None:
            found = self._reader.shards_for(self._splits[lane.split], field, self._indices(lane, batch))
            with self._lock:
                self._needs[key] = found
                if len(self._needs) > RECENT_NEEDS:
                    self._needs.popitem(last=False)
        return found

    def _read(self, lane: Lane, batch: int, field: str) -> Array:
        indices = self._indices(lane, batch)
        split = self._splits[lane.split]
        try:
            return self._reader.batch(split, field, indices)
        except (NotFound, OSError) as error:  # the cache made room meanwhile: asked for again
            gone = self._reader.shards_for(split, field, indices)
            self._present.difference_update(gone)
            self._absent[lane.split, field].update(gone)
            raise NotFound("a shard has left the cache", code="shard_not_cached") from error

    def _indices(self, lane: Lane, batch: int) -> NDArray[np.int64]:
        if not lane.is_train:
            return eval_indices(batch, self._counts[self._splits[lane.split]], self._batch_size)
        with self._lock:
            found = self._recent.get((lane, batch))
            if found is None:
                found = self._recent[lane, batch] = self._index.indices(batch)
                if len(self._recent) > RECENT_BATCHES:
                    self._recent.popitem(last=False)
            return found

    def _path(self, digest: Digest) -> Path:
        path = self._directory / digest
        if not path.exists():
            raise NotFound(f"shard {digest} is not in the cache", code="shard_not_cached", shard=digest)
        return path
