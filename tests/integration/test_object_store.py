"""Goal: the in-memory store and the real S3 store cannot be told apart through the port: one suite over both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator

import pytest

from dataservice import keys
from dataservice.memory import MemoryStore
from dataservice.s3 import S3Store
from dcnr import limits
from dcnr.errors import Corrupt, NotFound, Stale
from dcnr.ids import digest_of
from dcnr.ports import ObjectStore

Fresh = Callable[[], str]
RACERS = 16


class TickingClock:
    """Time that moves on by a second with every look."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    def wall(self) -> float:
        return self.monotonic()


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    if request.param == "memory":
        yield MemoryStore(TickingClock(), random.Random(0))
        return
    real = S3Store(request.getfixturevalue("embedded_store"))
    yield real
    real.close()


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def test_what_was_put_is_read_back(store: ObjectStore, fresh_model: Fresh) -> None:
    async def work() -> None:
        key = keys.head(fresh_model())
        for data in (b"", b"x", bytes(range(256)) * 40, b"y" * (9 * limits.MIB)):
            etag = await store.put(key, data)
            read = await store.get(key, max_bytes=len(data))
            info = await store.head(key)
            assert (read.data, read.etag) == (data, etag)
            assert (info.key, info.size_bytes, info.etag) == (key, len(data), etag)
            assert info.last_modified > 1_600_000_000

    run(work())


def test_parts_are_read_by_offset(store: ObjectStore, fresh_model: Fresh) -> None:
    async def work() -> None:
        key = keys.head(fresh_model())
        data = bytes(range(256)) * 8192
        await store.put(key, data)
        for first, num_bytes in ((0, 1), (0, len(data)), (5, 300_000), (len(data) - 2, 2), (len(data) - 2, 99), (len(data), 8)):
            assert await store.get_range(key, first=first, num_bytes=num_bytes) == data[first : first + num_bytes]
        with pytest.raises(NotFound):
            await store.get_range(keys.head(fresh_model()), first=0, num_bytes=1)

    run(work())


def test_absent_objects(store: ObjectStore, fresh_model: Fresh) -> None:
    async def work() -> None:
        key = keys.head(fresh_model())
        with pytest.raises(NotFound):
            await store.get(key, max_bytes=10)
        with pytest.raises(NotFound):
            await store.head(key)
        await store.delete(key)
        await store.put(key, b"x")
        await store.delete(key)
        with pytest.raises(NotFound):
            await store.get(key, max_bytes=10)

    run(work())


def test_larger_than_allowed_is_corrupt(store: ObjectStore, fresh_model: Fresh) -> None:
    async def work() -> None:
        key = keys.head(fresh_model())
        await store.put(key, b"12345")
        with pytest.raises(Corrupt) as caught:
            await store.get(key, max_bytes=4)
        assert caught.value.code == "object_too_large"

    run(work())


def test_list_is_in_order_bounded_and_by_prefix(store: ObjectStore, fresh_model: Fresh) -> None:
    async def work() -> None:
        model = fresh_model()
        names = [f"j{number}" for number in (3, 1, 2, 10)]
        for name in names:
            await store.put(keys.job_request(model, name), name.encode())
        await store.put(keys.job_end(model, "j1"), b"done")
        await store.put(keys.head(model), b"h")
        rows = await store.list(keys.jobs_prefix(model))
        expected = sorted([keys.job_request(model, name) for name in names] + [keys.job_end(model, "j1")])
        assert [row.key for row in rows] == expected
        assert [row.size_bytes for row in rows if row.key == keys.job_request(model, "j10")] == [3]
        assert [row.key for row in await store.list(keys.jobs_prefix(model), max_keys=2)] == expected[:2]
        assert [row.key for row in await store.list(keys.jobs_prefix(model), max_keys=2, after=expected[1])] == expected[2:4]
        assert [row.key for row in await store.list(keys.jobs_prefix(model), after=keys.job_prefix(model, "j2"))] == expected[3:]
        assert await store.list(keys.jobs_prefix(model), after=expected[-1]) == []
        assert await store.list(keys.jobs_prefix(fresh_model())) == []
        info = await store.head(keys.head(model))
        assert list(await store.list(keys.head(model))) == [info]

    run(work())


def test_plan_and_the_desired_states_beneath_it(store: ObjectStore, fresh_model: Fresh) -> None:
    async def work() -> None:
        model, digest, pnode = fresh_model(), digest_of(b"plan"), "ab" * 20
        await store.put(keys.plan(model, digest), b"plan", if_none_match=True)
        await store.put(keys.desired(model, digest, pnode), b"desired", if_none_match=True)
        assert (await store.get(keys.plan(model, digest), max_bytes=9)).data == b"plan"
        assert (await store.get(keys.desired(model, digest, pnode), max_bytes=9)).data == b"desired"
        listed = [row.key for row in await store.list(keys.plan(model, digest))]
        assert listed == [keys.plan(model, digest), keys.desired(model, digest, pnode)]

    run(work())


def test_if_none_match_writes_once(store: ObjectStore, fresh_model: Fresh) -> None:
    async def work() -> None:
        key = keys.head(fresh_model())
        await store.put(key, b"first", if_none_match=True)
        with pytest.raises(Stale) as caught:
            await store.put(key, b"second", if_none_match=True)
        assert caught.value.code == "precondition_failed"
        assert (await store.get(key, max_bytes=9)).data == b"first"
        await store.delete(key)
        await store.put(key, b"third", if_none_match=True)

    run(work())


def test_if_match_writes_over_that_version_only(store: ObjectStore, fresh_model: Fresh) -> None:
    async def work() -> None:
        key = keys.head(fresh_model())
        with pytest.raises(Stale):
            await store.put(key, b"x", if_match='"00"')
        first = await store.put(key, b"1")
        second = await store.put(key, b"2", if_match=first)
        with pytest.raises(Stale) as caught:
            await store.put(key, b"3", if_match=first)
        assert caught.value.code == "precondition_failed"
        assert (await store.get(key, max_bytes=9)).data == b"2"
        assert (await store.head(key)).etag == second != first

    run(work())


def test_of_racing_creations_one_wins(store: ObjectStore, fresh_model: Fresh) -> None:
    async def work() -> None:
        for _ in range(4):
            key = keys.head(fresh_model())
            bodies = [f"writer {number}".encode() for number in range(RACERS)]
            results = await asyncio.gather(*(store.put(key, body, if_none_match=True) for body in bodies), return_exceptions=True)
            won = [body for body, result in zip(bodies, results, strict=True) if isinstance(result, str)]
            assert all(isinstance(result, str | Stale) for result in results)
            assert len(won) == 1
            assert (await store.get(key, max_bytes=99)).data == won[0]

    run(work())


def test_a_counter_by_compare_and_swap_is_exact(store: ObjectStore, fresh_model: Fresh) -> None:
    writers, increments = 6, 5

    async def work() -> None:
        key = keys.head(fresh_model())
        await store.put(key, b"0")

        async def count() -> None:
            done = 0
            while done < increments:
                read = await store.get(key, max_bytes=99)
                try:
                    await store.put(key, str(int(read.data) + 1).encode(), if_match=read.etag)
                except Stale:
                    continue
                done += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(writers):
                tasks.create_task(count())
        assert (await store.get(key, max_bytes=99)).data == str(writers * increments).encode()

    run(work())
