"""Reading data sets by batch number: shards are cached by digest, verified before use, and mapped into memory.

`LocalCache` holds verified copies within a quota; `DatasetReader` turns sample numbers into arrays. Neither knows where shards come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataservice.dataset_manifest import DatasetManifest, FieldSpec, ShardRef
from dataservice.tidying import tidied
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, InvalidInput, NotFound, Refused, Unavailable, disk_trouble
from dcnr.ids import Digest, check_digest

MAX_OPEN_SHARDS: Final = 16
SMALL_BYTES: Final = 8 * limits.MIB
"""What is at most so large comes without waiting for what is on its way already: documents, of which a few come at once."""
TOO_LARGE: Final = frozenset(("object_too_large", "too_large"))
Fetch = Callable[[Digest, Path, int], Awaitable[object]]
"""Writes the object with that digest to the path, at most so many bytes. Raises Corrupt with a code of `TOO_LARGE` for one that has more."""


class DatasetReader:
    """Arrays of a data set by sample number. ``shard_path`` gives the verified file of a digest; safe for several threads."""

    def __init__(self, manifest: DatasetManifest, shard_path: Callable[[Digest], Path], *, max_open: int = MAX_OPEN_SHARDS) -> None:
        self.manifest = manifest
        self._shard_path, self._max_open = shard_path, max_open
        self._open: OrderedDict[tuple[Digest, FieldSpec], NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def shards_for(self, split: str, field: str, indices: NDArray[np.int64]) -> tuple[Digest, ...]:
        """The shards that `batch` will read: make them present first."""
        shards = self.manifest.shards_of(field, split)
        return tuple(dict.fromkeys(shards[place].digest for place in np.unique(self._places(shards, indices)).tolist()))

    def batch(self, split: str, field: str, indices: NDArray[np.int64]) -> NDArray[Any]:
        """The samples in that order, decoded, batch first.

        Raises InvalidInput (unknown field, sample out of range), NotFound from ``shard_path``, Corrupt naming a shard of a wrong size or with a
        target outside its classes.
        """
        spec, shards = self.manifest.fields.get(field), self.manifest.shards_of(field, split)
        assert spec is not None
        places = self._places(shards, indices)
        stored = np.empty((len(indices), *spec.shape), dtype=spec.stored)
        for place in np.unique(places).tolist():
            chosen = places == place
            stored[chosen] = self._shard(shards[place], spec)[indices[chosen] - shards[place].first]
        decoded = decode(stored, spec)
        if spec.num_classes and decoded.size and not (int(decoded.min()) >= 0 and int(decoded.max()) < spec.num_classes):
            names = ", ".join(shards[place].digest for place in np.unique(places).tolist())
            raise Corrupt(f"{field} holds a class outside 0…{spec.num_classes - 1} in shard {names}", code="bad_shard", shard=names)
        return decoded

    def _places(self, shards: Sequence[ShardRef], indices: NDArray[np.int64]) -> NDArray[np.int64]:
        end = shards[-1].first + shards[-1].count
        if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < end):
            raise InvalidInput(f"sample numbers must be in 0…{end - 1}", code="no_such_sample")
        firsts = np.fromiter((shard.first for shard in shards), dtype=np.int64, count=len(shards))
        return np.searchsorted(firsts, indices, side="right").astype(np.int64) - 1

    def _shard(self, ref: ShardRef, spec: FieldSpec) -> NDArray[Any]:
        key = (ref.digest, spec)  # equal bytes may be shards of different fields
        with self._lock:
            if (opened := self._open.get(key)) is None:
                path = self._shard_path(ref.digest)
                if path.stat().st_size != ref.count * spec.stored_bytes_per_sample:
                    raise Corrupt(f"shard {ref.digest} does not have the size of its samples", code="bad_shard", shard=ref.digest)
                opened = self._open[key] = np.memmap(path, dtype=spec.stored, mode="r", shape=(ref.count, *spec.shape))
                if len(self._open) > self._max_open:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            return opened


def decode(stored: NDArray[Any], spec: FieldSpec) -> NDArray[Any]:
    """Stored values as readers get them."""
    if spec.scale == 1.0 and spec.offset == 0.0:
        return stored.astype(spec.dtype, copy=False)
    return stored.astype(np.float32) * np.float32(spec.scale) + np.float32(spec.offset)


class LocalCache:
    """Files by digest in one directory, at most ``quota_bytes`` of them, those on their way included, the longest unused going first.

    ``free_bytes``: what the disk has for further files; where that is less than they may have, others go for it.

    A file is verified when it is first used by this process; a damaged one is fetched again. Callers of the same digest share one
    fetch. Files that others have mapped stay readable after their removal. The disk is asked in threads: one that stands still holds no loop up.
    """

    def __init__(self, directory: Path, quota_bytes: int, fetch: Fetch, *, free_bytes: Callable[[], int] | None = None) -> None:
        self._directory, self._quota_bytes, self._fetch = directory, quota_bytes, fetch
        self._free_bytes = free_bytes or (lambda: quota_bytes)
        self._coming_bytes, self._came = 0, asyncio.Condition()
        self._locks: dict[Digest, asyncio.Lock] = {}
        """Of files that are being brought, looked at or removed."""
        self._waiting: Counter[Digest] = Counter()
        self._evicting = asyncio.Lock()
        self._verified: OrderedDict[Digest, None] = OrderedDict()
        """In the order of their use."""
        directory.mkdir(parents=True, exist_ok=True)

    async def path(self, digest: Digest, max_bytes: int = limits.MAX_OBJECT_BYTES) -> Path:
        """The verified file of at most ``max_bytes``. Raises Corrupt naming the digest if what is fetched is something else, Refused if it exceeds the quota,
        Unavailable (``disk_trouble``) where the disk does not bear it.
        """
        path = self._directory / check_digest(digest)
        try:
            if not await self._used(digest, path):
                await self._brought(digest, path, max_bytes)
        except OSError as error:
            raise disk_trouble("the cache cannot be used", error) from error
        return path

    def cached(self, digest: Digest) -> Path:
        """The file, if `path` has verified it before: for readers in other threads. Raises NotFound."""
        path = self._directory / check_digest(digest)
        if digest not in self._verified or not path.exists():
            raise NotFound(f"shard {digest} is not in the cache", code="shard_not_cached", shard=digest)
        return path

    async def _brought(self, digest: Digest, path: Path, max_bytes: int) -> None:
        """Once, however many ask."""
        async with self._locked(digest):
            if not await self._used(digest, path):
                await self._obtain(digest, path, max_bytes)

    @contextlib.asynccontextmanager
    async def _locked(self, digest: Digest) -> AsyncIterator[None]:
        """Nobody else has to do with that file meanwhile."""
        self._waiting[digest] += 1
        try:
            async with self._locks.setdefault(digest, asyncio.Lock()):
                yield
        finally:
            self._waiting[digest] -= 1
            if not self._waiting[digest]:
                del self._waiting[digest], self._locks[digest]

    async def _obtain(self, digest: Digest, path: Path, max_bytes: int) -> None:
        if not await asyncio.to_thread(_matches, path, digest):
            self._verified.pop(digest, None)
            fetched = path.with_name(f".{digest}.{secrets.token_hex(6)}")
            async with self._room(digest, max_bytes) as room_bytes:
                try:
                    await self._bring(digest, fetched, max_bytes, room_bytes)
                    reached("cache.fetched")
                    await asyncio.to_thread(fetched.replace, path)
                    reached("cache.renamed")
                finally:
                    await tidied(partial(_remove, fetched))
        await asyncio.to_thread(_use, path)
        self._verified[digest] = None
        self._verified.move_to_end(digest)
        await self._evict(self._quota_bytes, keep=digest)

    async def _bring(self, digest: Digest, fetched: Path, max_bytes: int, room_bytes: int) -> None:
        try:
            await self._fetch(digest, fetched, room_bytes)
        except Corrupt as error:
            if error.code in TOO_LARGE and room_bytes < max_bytes:
                raise self._too_large(digest, room_bytes) from error
            raise
        if (await asyncio.to_thread(fetched.stat)).st_size > room_bytes:
            raise self._too_large(digest, room_bytes)
        if not await asyncio.to_thread(_matches, fetched, digest):
            raise Corrupt(f"shard {digest} arrived with another digest", code="wrong_digest", shard=digest)

    def _too_large(self, digest: Digest, room_bytes: int) -> DcnrError:
        if room_bytes < self._quota_bytes:
            return Unavailable(
                f"{digest} has more than the {room_bytes} bytes that the disk has for it", code="disk_trouble",
                remedy="free disk space, or lower limits.disk_min_free_mb",
            )  # fmt: skip
        return Refused(
            f"{digest} alone exceeds the cache's {self._quota_bytes} bytes",
            code="cache_quota",
            remedy="raise limits.disk_mb: the cache has its part of it",
        )

    @contextlib.asynccontextmanager
    async def _room(self, digest: Digest, max_bytes: int) -> AsyncIterator[int]:
        """Bytes that may come now, at most ``max_bytes``; others go for them. Who may need more than there is beside what is on its way waits for that."""
        wanted = min(max_bytes, self._quota_bytes)
        if wanted <= SMALL_BYTES:
            yield wanted
            return
        async with self._came:
            while self._coming_bytes and wanted > await self._left_bytes():
                await self._came.wait()
            room_bytes = min(wanted, await self._left_bytes())
            if room_bytes <= 0:
                raise Unavailable(
                    f"the disk has no room for {digest}",
                    code="disk_trouble",
                    remedy="free disk space, or lower limits.disk_min_free_mb",
                )
            await self._evict(await self._left_bytes() - room_bytes, keep=digest)
            self._coming_bytes += room_bytes
        try:
            yield room_bytes
        finally:
            self._coming_bytes -= room_bytes
            async with self._came:
                self._came.notify_all()

    async def _left_bytes(self) -> int:
        """For files, those that are here included, beside what is on its way."""
        there = await asyncio.to_thread(lambda: sum(one.st_size for one in self._files().values()) + self._free_bytes())
        return min(self._quota_bytes, there) - self._coming_bytes

    def _files(self) -> dict[str, os.stat_result]:
        found: dict[str, os.stat_result] = {}
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                if not path.name.startswith("."):
                    found[path.name] = path.stat()
        return found

    async def _used(self, digest: Digest, path: Path) -> bool:
        """Whether this process has verified it and it is still there: then it is what was used last."""
        if digest not in self._verified or not await asyncio.to_thread(_is_there, path) or digest not in self._verified:
            return False
        self._verified.move_to_end(digest)
        return True

    async def _evict(self, bound_bytes: int, *, keep: Digest) -> None:
        """Left-overs of earlier runs go first, by time of last use, then files of this run in the order of their use. What is being brought or looked at
        stays: whoever does that evicts, too, when it is done.
        """
        async with self._evicting:
            files = await asyncio.to_thread(self._files)
            total = sum(status.st_size for status in files.values())
            order = sorted((name for name in files if name not in self._verified), key=lambda name: (files[name].st_mtime, name))
            for digest in map(Digest, [*order, *self._verified]):
                if total <= bound_bytes:
                    return
                if digest in files and digest != keep and digest not in self._locks:
                    async with self._locked(digest):
                        self._verified.pop(digest, None)
                        await asyncio.to_thread((self._directory / digest).unlink, missing_ok=True)
                    total -= files[digest].st_size


def _use(path: Path) -> None:
    """It is there, and counts as used now."""
    path.stat()
    with contextlib.suppress(OSError):  # only the order in which a later life removes files suffers
        os.utime(path)


def _is_there(path: Path) -> bool:
    """Then it counts as used now."""
    try:
        _use(path)
    except FileNotFoundError:
        return False
    return True


def _remove(path: Path) -> None:
    """Where the disk lets it: a disk that refuses has been told by what was written there."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _matches(path: Path, digest: Digest) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except FileNotFoundError:
        return False
