"""Batches of the data set by number: inputs for sources, targets for every objective, read off the event loop; missing shards are asked for and awaited."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from dcnr.errors import Unavailable
from dcnr.ids import Digest
from dcnr.tensor import Array
from vnode.vocabulary import Lane

SHARD_WAIT_S: Final = 60.0
"""How long a read waits for shards before it fails (and is asked for again by the core)."""
EVALUATION_WAIT_S: Final = 0.5
"""The same for a computation of an evaluation: training waits behind it."""
ASK_AGAIN_S: Final = 5.0
MAX_KEPT_TARGETS: Final = 64
MAX_TROUBLE: Final = 300
AHEAD_BATCHES: Final = 64
"""Shards are asked for this many batches before they are read."""
ASK_EVERY_BATCHES: Final = 16


class Samples(Protocol):
    """A staged data set in a cache directory. Methods block and may be called from any thread."""

    def read_input(self, lane: Lane, batch: int) -> Array:
        """The input of a batch. Raises NotFound, Corrupt or Unavailable for shards that are not whole in the cache."""
        ...

    def read_target(self, lane: Lane, batch: int) -> Array:
        """The target of a batch. Raises like `read_input`."""
        ...

    def missing(self, lane: Lane, batch: int, *, with_input: bool) -> Sequence[Digest]:
        """Digests of the shards that reading this batch still lacks."""
        ...

    def present(self, digest: Digest) -> None:
        """That shard is whole in the cache."""
        ...


class Inputs:
    """The reads of one replica. ``wanted`` tells the daemon which shards to fetch, soonest first.

    ``evaluations``: batches by lane (see `ReplicaConfig`); their shards are fetched as soon as training has begun, while somebody who can give them
    is still there.
    """

    def __init__(
        self, samples: Samples, executor: Executor, wanted: Callable[[Sequence[str]], None], *, with_input: bool,
        evaluations: Mapping[str, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._samples, self._executor, self._wanted, self._with_input = samples, executor, wanted, with_input
        self._targets: OrderedDict[tuple[Lane, int], Array] = OrderedDict()
        self._news = asyncio.Event()
        self._failed: dict[str, str] = {}
        self._asked_s: dict[str, float] = {}
        self._ahead = dict(evaluations)

    async def read(self, lane: Lane, batch: int) -> Array:
        """The input of a batch; its target is read along and kept for `target`. Raises Unavailable, Corrupt, NotFound."""
        await self.ready(lane, batch)
        found, target = await asyncio.get_running_loop().run_in_executor(self._executor, self._read_both, lane, batch)
        self._targets[lane, batch] = target
        while len(self._targets) > MAX_KEPT_TARGETS:
            self._targets.popitem(last=False)
        return found

    def target(self, lane: Lane, batch: int) -> Callable[[], Array]:
        """Gives the target of a batch that is `ready`, on whatever thread it is called: it is small, a hop to another thread costs more."""
        kept = self._targets.pop((lane, batch), None)
        return partial(self._samples.read_target, lane, batch) if kept is None else lambda: kept

    async def ready(self, lane: Lane, batch: int, within_s: float = SHARD_WAIT_S) -> None:
        """Returns once the shards of this batch are in the cache. Raises Unavailable (``shards_missing``)."""
        missing = self._samples.missing(lane, batch, with_input=self._with_input)
        if not missing:
            self._ask_ahead()
            if batch % ASK_EVERY_BATCHES == 0:
                self._ask(self._samples.missing(lane, batch + AHEAD_BATCHES, with_input=self._with_input))
            return
        try:
            async with asyncio.timeout(within_s):
                while missing:
                    self._news.clear()  # before asking: the answer may come at once
                    self._ask(missing)
                    await self._news_or_pause()
                    missing = self._samples.missing(lane, batch, with_input=self._with_input)
        except TimeoutError:
            why = "; ".join(sorted({self._failed[digest] for digest in missing if digest in self._failed}))
            raise Unavailable(f"{len(missing)} shards are missing: {why or 'not here yet'}", code="shards_missing") from None

    def shard_ready(self, digest: str, error: str) -> None:
        """The daemon's answer."""
        self._failed.pop(digest, None)
        if error:
            self._failed[digest] = error
            self._asked_s[digest] = asyncio.get_running_loop().time()  # at once it would come to the same
        else:
            self._asked_s.pop(digest, None)
            self._samples.present(Digest(digest))
        self._news.set()

    @property
    def trouble(self) -> str:
        """Why shards cannot be had at the moment; empty if all is well."""
        return "; ".join(sorted(set(self._failed.values())))[:MAX_TROUBLE]

    def _ask_ahead(self) -> None:
        """Once: the shards of all evaluations."""
        while self._ahead:
            split, count = self._ahead.popitem()
            lane = Lane(split, 0)
            wanted = (
                digest for batch in range(count) for digest in self._samples.missing(lane, batch, with_input=self._with_input)
            )
            self._ask(list(dict.fromkeys(wanted)))

    def _read_both(self, lane: Lane, batch: int) -> tuple[Array, Array]:
        return self._samples.read_input(lane, batch), self._samples.read_target(lane, batch)

    def _ask(self, digests: Sequence[Digest]) -> None:
        """Asks the daemon, once within `ASK_AGAIN_S` for each shard."""
        now_s = asyncio.get_running_loop().time()
        due = [digest for digest in digests if now_s - self._asked_s.get(digest, float("-inf")) >= ASK_AGAIN_S]
        if due:
            self._asked_s.update(dict.fromkeys(due, now_s))
            self._wanted(due)

    async def _news_or_pause(self) -> None:
        try:
            async with asyncio.timeout(ASK_AGAIN_S):
                await self._news.wait()
        except TimeoutError:
            return
