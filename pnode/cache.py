"""Objects on this machine: documents, states and shards by digest, within a quota, each fetched once however many ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dataservice.datasets import LocalCache
from dataservice.objects import ObjectClient
from dcnr import limits
from dcnr.errors import DcnrError
from dcnr.ids import Digest, check_digest
from dcnr.v1 import data_pb2, local_pb2
from pnode.reasons import Journal

SHARDS_AT_ONCE = 4
SHARDS_PER_WISH = 64


class ObjectCache:
    """`LocalCache` filled through grants."""

    def __init__(self, objects: ObjectClient, directory: Path, quota_bytes: int) -> None:
        self._objects = objects
        self._wanted: dict[Digest, list[Callable[[Path], Awaitable[None]]]] = {}
        self._cache = LocalCache(directory, quota_bytes, self._fetch)

    async def file(self, ref: data_pb2.ObjectRef, max_bytes: int) -> Path:
        """The object as a verified local file. Raises Corrupt, NotFound, Unavailable, Refused (larger than the quota)."""
        return await self._kept(ref, lambda destination: self._objects.read_file(ref, destination, max_bytes=max_bytes))

    async def given(self, ref: data_pb2.ObjectRef, give: Callable[[Path], Awaitable[None]]) -> Path:
        """The same object, if it is not here yet, by other means than the store. Raises what ``give`` raises, and Corrupt."""
        return await self._kept(ref, give)

    async def _kept(self, ref: data_pb2.ObjectRef, bring: Callable[[Path], Awaitable[None]]) -> Path:
        digest = check_digest(ref.digest)
        wanted = self._wanted.setdefault(digest, [])
        wanted.append(bring)
        try:
            return await self._cache.path(digest)
        finally:
            wanted.remove(bring)
            if not wanted:
                self._wanted.pop(digest, None)

    async def _fetch(self, digest: Digest, destination: Path) -> None:
        await self._wanted[digest][-1](destination)


class Shards:
    """Brings shards that the worker is about to read, a few at once, and says when each lies in the cache."""

    def __init__(
        self,
        cache: ObjectCache,
        *,
        send: Callable[[local_pb2.ToWorker], Awaitable[bool]],
        journal: Journal,
        group: asyncio.TaskGroup,
    ) -> None:
        self._cache, self._send, self._journal, self._group = cache, send, journal, group
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._limit = asyncio.Semaphore(SHARDS_AT_ONCE)

    def wanted(self, wish: local_pb2.ShardsWanted) -> None:
        """Begins to bring them; those already on their way are not brought twice."""
        for digest in wish.digests[:SHARDS_PER_WISH]:
            task = self._tasks.get(digest)
            if task is None or task.done():
                self._tasks[digest] = self._group.create_task(self._bring(wish.dataset, digest))

    def stop(self) -> None:
        """Ends what is on its way."""
        for task in self._tasks.values():
            task.cancel()

    async def _bring(self, dataset: str, digest: str) -> None:
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_SHARD, owner=dataset, digest=digest)
        error = ""
        try:
            async with self._limit:
                await self._cache.file(ref, limits.MAX_OBJECT_BYTES)
        except DcnrError as problem:
            error = problem.message
            self._journal.say("shard_waits", dataset, error)
        await self._send(local_pb2.ToWorker(shard_ready=local_pb2.ShardReady(digest=digest, error=error)))
        self._tasks.pop(digest, None)
