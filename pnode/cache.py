"""Objects on this machine: documents, states and shards by digest, within a quota, each fetched once however many ask."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

from dataservice.datasets import LocalCache
from dataservice.objects import ObjectClient
from dcnr.errors import Corrupt, DcnrError
from dcnr.ids import Digest, check_digest
from dcnr.v1 import data_pb2, local_pb2
from pnode.reasons import Journal

SHARDS_AT_ONCE = 4
SHARDS_PER_WISH = 64
Bring = Callable[[Path, int], Awaitable[None]]
"""Writes the object to the path, at most so many bytes."""


class ObjectCache:
    """`LocalCache` filled through grants."""

    def __init__(
        self, objects: ObjectClient, directory: Path, quota_bytes: int, *, free_bytes: Callable[[], int] | None = None
    ) -> None:
        self._objects = objects
        self._wanted: dict[Digest, list[Bring]] = {}
        self._cache = LocalCache(directory, quota_bytes, self._fetch, free_bytes=free_bytes)

    async def file(self, ref: data_pb2.ObjectRef, max_bytes: int) -> Path:
        """The object as a verified local file. Raises Corrupt, NotFound, Unavailable, Refused (larger than the quota)."""
        return await self._kept(
            ref, lambda destination, room_bytes: self._objects.read_file(ref, destination, max_bytes=room_bytes), max_bytes
        )

    async def given(self, ref: data_pb2.ObjectRef, size_bytes: int, give: Callable[[Path], Awaitable[None]]) -> Path:
        """The same object, of that size, if it is not here yet, by other means than the store. Raises what ``give`` raises, and as `file`."""

        async def bring(destination: Path, room_bytes: int) -> None:
            if size_bytes > room_bytes:
                raise Corrupt(f"{ref.digest} has {size_bytes} bytes, {room_bytes} may come", code="too_large")
            await give(destination)

        return await self._kept(ref, bring, size_bytes)

    async def _kept(self, ref: data_pb2.ObjectRef, bring: Bring, max_bytes: int) -> Path:
        digest = check_digest(ref.digest)
        wanted = self._wanted.setdefault(digest, [])
        wanted.append(bring)
        try:
            return await self._cache.path(digest, max_bytes)
        finally:
            wanted.remove(bring)
            if not wanted:
                self._wanted.pop(digest, None)

    async def _fetch(self, digest: Digest, destination: Path, room_bytes: int) -> None:
        await self._wanted[digest][-1](destination, room_bytes)


class Shards:
    """Brings shards that the worker is about to read, a few at once, and says when each lies in the cache. ``resting``: why this machine begins nothing, or
    empty.
    """

    def __init__(
        self,
        cache: ObjectCache,
        *,
        send: Callable[[local_pb2.ToWorker], Awaitable[bool]],
        journal: Journal,
        group: asyncio.TaskGroup,
        resting: Callable[[], str] = str,
    ) -> None:
        self._cache, self._send, self._journal, self._group, self._resting = cache, send, journal, group, resting
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._limit = asyncio.Semaphore(SHARDS_AT_ONCE)

    def wanted(self, wish: local_pb2.ShardsWanted) -> None:
        """Begins to bring them; those already on their way are not brought twice."""
        for digest, size_bytes in itertools.islice(zip(wish.digests, wish.size_bytes, strict=False), SHARDS_PER_WISH):
            task = self._tasks.get(digest)
            if task is None or task.done():
                self._tasks[digest] = self._group.create_task(self._bring(wish.dataset, digest, size_bytes))

    def worker_down(self) -> None:
        """Nobody waits for them now. On a machine that rests what is on its way ends; else it is there for the next worker, which will ask for the same."""
        if self._resting():
            self.stop()

    def stop(self) -> None:
        """Ends what is on its way."""
        for task in self._tasks.values():
            task.cancel()

    async def _bring(self, dataset: str, digest: str, size_bytes: int) -> None:
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_SHARD, owner=dataset, digest=digest)
        error = ""
        try:
            async with self._limit:
                await self._cache.file(ref, size_bytes)
        except DcnrError as problem:
            error = problem.message
            self._journal.say("shard_waits", dataset, error)
        await self._send(local_pb2.ToWorker(shard_ready=local_pb2.ShardReady(digest=digest, error=error)))
        self._tasks.pop(digest, None)
