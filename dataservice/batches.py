"""Which samples make up batch number n: a pure function of (seed, pass, number), the same on every machine and every numpy.

A pass permutes the shards and the samples within each shard, so that a batch reads one or two shards. The permutations come from the raw
output of the counter-based Philox generator (Salmon et al. 2011), keyed by SHA-256 of (purpose, seed, pass, shard), and a stable sort:
numpy promises the stream of its bit generators, not that of its shuffles.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dcnr import limits
from dcnr.errors import InvalidInput

Indices = NDArray[np.int64]
KEPT_ORDERS: Final = 8
"""Shard permutations kept in memory: consecutive batches need the same one or two."""
KEPT_SAMPLES: Final = 2 * limits.MAX_SHARD_SAMPLES
"""Of all those together, unless a batch alone needs more."""


def permutation(num: int, *key: object) -> Indices:
    """A permutation of 0…num − 1 that depends on ``key`` alone."""
    seed = hashlib.sha256("/".join(map(str, ("dcnr", *key))).encode()).digest()
    raw = np.random.Philox(key=int.from_bytes(seed[:16], "big")).random_raw(num)
    return np.argsort(raw, kind="stable").astype(np.int64, copy=False)


class BatchIndex:
    """The batches of a job over one split: ``passes`` × ⌊samples / batch_size⌋ of them; each pass leaves out its remainder."""

    def __init__(self, seed: int, shard_counts: Sequence[int], batch_size: int, passes: int) -> None:
        if not shard_counts or min(shard_counts) < 1 or batch_size < 1 or passes < 1:
            raise InvalidInput("a batch index needs samples, a batch size and a number of passes", code="bad_batch_index")
        self._seed, self._counts, self._batch_size = seed, tuple(shard_counts), batch_size
        self._firsts = np.concatenate([[0], np.cumsum(self._counts)]).astype(np.int64)
        self.num_samples = int(self._firsts[-1])
        self.batches_per_pass = self.num_samples // batch_size
        self.num_batches = passes * self.batches_per_pass
        if self.num_batches == 0:
            raise InvalidInput(
                f"{self.num_samples} samples do not fill one batch of {batch_size}",
                code="bad_batch_index",
                remedy="use a smaller batch",
            )
        self._pass: tuple[int, Indices, Indices] | None = None
        self._orders: OrderedDict[tuple[int, int], Indices] = OrderedDict()

    def indices(self, batch: int) -> Indices:
        """Sample numbers of one batch within the split. Raises InvalidInput outside 0…num_batches − 1."""
        if not 0 <= batch < self.num_batches:
            raise InvalidInput(f"batch {batch} is not in 0…{self.num_batches - 1}", code="no_such_batch")
        passed, number = divmod(batch, self.batches_per_pass)
        shards, ends = self._shards_of_pass(passed)
        start, stop = number * self._batch_size, (number + 1) * self._batch_size
        parts: list[Indices] = []
        place = int(np.searchsorted(ends, start, side="right"))
        while start < stop:
            shard, end = int(shards[place]), int(ends[place])
            begin = end - self._counts[shard]
            order = self._order(passed, shard)
            parts.append(self._firsts[shard] + order[start - begin : min(stop, end) - begin])
            start, place = min(stop, end), place + 1
        return np.concatenate(parts)

    def _shards_of_pass(self, passed: int) -> tuple[Indices, Indices]:
        if self._pass is None or self._pass[0] != passed:
            shards = permutation(len(self._counts), "shards", self._seed, passed)
            self._pass = (passed, shards, np.cumsum(np.asarray(self._counts, dtype=np.int64)[shards]))
        return self._pass[1], self._pass[2]

    def _order(self, passed: int, shard: int) -> Indices:
        key = (passed, shard)
        if (order := self._orders.get(key)) is None:
            order = self._orders[key] = permutation(self._counts[shard], "samples", self._seed, passed, shard)
            while len(self._orders) > KEPT_ORDERS or (
                len(self._orders) > 1 and sum(map(len, self._orders.values())) > KEPT_SAMPLES
            ):
                self._orders.popitem(last=False)
        self._orders.move_to_end(key)
        return order


def num_eval_batches(num_samples: int, batch_size: int) -> int:
    """Evaluation reads every sample: the last batch may be smaller."""
    return -(-num_samples // batch_size)


def eval_indices(batch: int, num_samples: int, batch_size: int) -> Indices:
    """Samples of an evaluation batch, in stored order. Raises InvalidInput outside the split."""
    if not 0 <= batch < num_eval_batches(num_samples, batch_size):
        raise InvalidInput(f"evaluation batch {batch} is outside the split", code="no_such_batch")
    return np.arange(batch * batch_size, min((batch + 1) * batch_size, num_samples), dtype=np.int64)
