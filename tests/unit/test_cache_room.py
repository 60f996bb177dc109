"""Goal: the cache keeps to its part of the disk: before a byte comes there is room for it, and what gets none is not asked for again at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dataservice.datasets import LocalCache
from dcnr.errors import Corrupt, Refused, Unavailable
from dcnr.ids import Digest, digest_of
from dcnr.limits import MIB
from dcnr.settings import LimitSettings, PNodeSettings
from dcnr.system import SystemClock
from dcnr.v1 import data_pb2, local_pb2
from pnode.budget import Budget
from pnode.cache import ObjectCache, Shards
from pnode.home import Home
from pnode.inputs import Inputs
from pnode.lent import capability_of, limits_of
from pnode.probe import Machine
from pnode.reasons import Journal
from trust.identity import NodeKey
from vnode.vocabulary import TRAIN_LANE

QUOTA = 32 * MIB


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.002)


class Disk:
    """What is fetched, in the order in which it begins, and how much the directory held at the most while it came."""

    def __init__(self, root: Path, *, free_bytes: int | None = None, quota_bytes: int = QUOTA) -> None:
        self.directory, self.began, self.most_bytes = root / "cache", list[Digest](), 0
        self.objects: dict[Digest, bytes] = {}
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.cache = LocalCache(
            self.directory,
            quota_bytes,
            self.fetch,
            free_bytes=None if free_bytes is None else lambda: free_bytes - self.held_bytes(),
        )

    def held_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.directory.iterdir())

    def has(self, number: int, mib: int) -> Digest:
        data = bytes([number]) * (mib * MIB)
        self.objects[digest_of(data)] = data
        return digest_of(data)

    async def fetch(self, digest: Digest, path: Path, max_bytes: int) -> None:
        self.began.append(digest)
        await self.goes_on.wait()
        data = self.objects[digest]
        path.write_bytes(data[:max_bytes])
        self.most_bytes = max(self.most_bytes, self.held_bytes())
        if len(data) > max_bytes:
            raise Corrupt("larger", code="object_too_large")


def test_room_is_made_before_a_file_comes(tmp_path: Path) -> None:
    async def story() -> None:
        disk = Disk(tmp_path)
        shards = [disk.has(number, 12) for number in range(4)]
        for shard in shards:
            await disk.cache.path(shard, 12 * MIB)
        assert disk.most_bytes <= QUOTA
        assert {path.name for path in disk.directory.iterdir()} == set(shards[2:]), "the longest unused have gone"

    asyncio.run(story())


def test_who_may_need_more_than_is_left_beside_what_comes_waits(tmp_path: Path) -> None:
    async def story() -> None:
        disk = Disk(tmp_path)
        disk.goes_on.clear()
        large, unknown, document = disk.has(1, 20), disk.has(2, 1), disk.has(3, 2)
        async with asyncio.TaskGroup() as group:
            group.create_task(disk.cache.path(large, 20 * MIB))
            await until(lambda: disk.began == [large])
            second = group.create_task(disk.cache.path(unknown))
            group.create_task(disk.cache.path(document, 4 * MIB))
            await until(lambda: len(disk.began) == 2)
            await asyncio.wait({second}, timeout=0.02)
            assert sorted(disk.began) == sorted([large, document]), "a document waits for nobody"
            disk.goes_on.set()
        assert disk.began[-1] == unknown
        assert second.result().exists()
        assert disk.most_bytes <= QUOTA

    asyncio.run(story())


def test_what_exceeds_the_quota_or_the_disk_is_told_apart_and_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        disk = Disk(tmp_path / "quota")
        with pytest.raises(Refused, match=r"limits\.disk_mb|alone exceeds") as refused:
            await disk.cache.path(disk.has(1, 40))
        assert refused.value.code == "cache_quota"
        assert disk.most_bytes <= QUOTA
        tight = Disk(tmp_path / "tight", free_bytes=16 * MIB)
        kept, other = tight.has(1, 10), tight.has(2, 14)
        await tight.cache.path(kept, 10 * MIB)
        await tight.cache.path(other, 14 * MIB)
        assert [path.name for path in tight.directory.iterdir()] == [other], "what is cached already goes for what is wanted"
        with pytest.raises(Unavailable) as failed:
            await tight.cache.path(tight.has(3, 20), 20 * MIB)
        assert failed.value.code == "disk_trouble"
        assert tight.most_bytes <= 16 * MIB
        with pytest.raises(Unavailable):
            await Disk(tmp_path / "full", free_bytes=0).cache.path(other, 14 * MIB)
        assert not any(path.name.startswith(".") for place in tmp_path.iterdir() for path in (place / "cache").iterdir())

    asyncio.run(story())


def test_a_shard_above_the_quota_is_read_up_to_it_and_asked_for_no_more_at_once(tmp_path: Path) -> None:
    """A shard of 2 MiB where the cache may have 1 MiB."""
    data = b"s" * (2 * MIB)
    digest = digest_of(data)
    allowed: list[int] = []
    wishes: list[str] = []

    async def read_file(ref: data_pb2.ObjectRef, destination: Path, *, max_bytes: int) -> None:
        allowed.append(max_bytes)
        raise Corrupt("larger", code="object_too_large")

    samples: Any = SimpleNamespace(missing=lambda lane, batch, with_input: [digest], present=lambda digest: None)

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            answered = asyncio.Event()

            async def send(message: local_pb2.ToWorker) -> bool:
                inputs.shard_ready(message.shard_ready.digest, message.shard_ready.error)
                answered.set()
                return True

            objects: Any = SimpleNamespace(read_file=read_file)
            journal = Journal(SystemClock(), NodeKey.generate().node_id, lambda event: None)
            shards = Shards(ObjectCache(objects, tmp_path / "cache", MIB), send=send, journal=journal, group=group)

            def wanted(digests: Any) -> None:
                wishes.extend(digests)
                shards.wanted(local_pb2.ShardsWanted(dataset="d", digests=digests, size_bytes=[len(data)] * len(digests)))

            with ThreadPoolExecutor(1) as executor:
                inputs = Inputs(samples, executor, wanted, with_input=True)
                reading = group.create_task(inputs.ready(TRAIN_LANE, 0))
                await answered.wait()
                for _ in range(10):
                    await asyncio.sleep(0)  # the reader has heard it by then
                assert not reading.done()
                assert "alone exceeds the cache's" in inputs.trouble
                assert wishes == [digest], "it is not asked for again at once"
                reading.cancel()
        assert allowed == [MIB], "no more than the quota"

    asyncio.run(story())


def test_what_is_advertised_is_what_replicas_may_have_of_what_is_free(tmp_path: Path) -> None:
    gib = 1024 * MIB
    settings = PNodeSettings(limits=LimitSettings(disk_mb=20_000, disk_min_free_mb=1_000))
    found = {}
    for free in (5 * gib, 100 * gib):
        machine = Machine(2, 4 * gib, 4 * gib, free, 1.0, "x86_64", "linux")
        allowed = limits_of(settings, machine)
        assert allowed.disk_bytes + allowed.cache_bytes == min(20_000 * MIB, free - 1_000 * MIB)
        found[free] = capability_of(allowed, Budget(allowed), machine, device="cpu", accepts_work=True).disk_bytes
    assert found == {5 * gib: 3090 * MIB, 100 * gib: 15_000 * MIB}


def test_what_each_replica_takes_of_the_disk_is_counted_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.open()
    for folder, data in (
        (home.work / "a.1", b"12345"),
        (home.evidence / "a.1", b"123"),
        (home.evidence / "b.1", b"1"),
        (home.cache, b"1234"),
    ):
        folder.mkdir(exist_ok=True)
        (folder / "file").write_bytes(data)
    (home.evidence / "a.1" / "again").hardlink_to(home.evidence / "a.1" / "file")
    assert home.used_bytes() == {"cache": 4, "audit": 0, "a.1": 8, "b.1": 1}
    home.close()
