"""Goal: whoever asks for what nobody knows costs the store one look in a while, sees what was there before the question, and decides nothing by asking."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from dataservice import keys
from dataservice.memory import Fault, MemoryStore, Operation, PlannedFaults
from dcnr.errors import NotFound, Unavailable
from dcnr.ports import ObjectInfo, StoredObject
from dcnr.system import SystemClock
from orchestrator import jobbook
from orchestrator.jobbook import MISSING_LOOKS, JobBook
from orchestrator.looks import Looks
from orchestrator.view import ViewLoader
from trust.identity import NodeKey
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

MAINTAINER = NodeKey.generate()
POLICY = verify_chain([create_document(MAINTAINER, name="n", now_wall=1.0, orchestrator_ids=[MAINTAINER.node_id])])


class Counting(MemoryStore):
    """Counts its listings, and finds no object whose job has ``lost`` in its name."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), random.Random(0))
        self.num_listed = self.num_at_once = self.most_at_once = 0
        self.is_asked = asyncio.Event()

    async def list(self, prefix: str, *, max_keys: int = 1000, after: str = "") -> Sequence[ObjectInfo]:
        self.num_listed += 1
        self.num_at_once += 1
        self.is_asked.set()
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await asyncio.sleep(0)
        rows = await super().list(prefix, max_keys=max_keys, after=after)
        self.num_at_once -= 1
        return rows

    async def get(self, key: str, *, max_bytes: int) -> StoredObject:
        if "lost" in key:
            raise NotFound("not there yet", code="no_such_object")
        return await super().get(key, max_bytes=max_bytes)


def book_over(store: MemoryStore) -> JobBook:
    return JobBook("m", store, lambda: POLICY, ViewLoader(store, lambda: POLICY, default_registry(), SystemClock()))


def test_many_who_ask_for_unknown_jobs_share_looks_and_see_what_was_there_before() -> None:
    async def work() -> None:
        store = Counting()
        book = book_over(store)
        asking = [asyncio.create_task(book.look()) for _ in range(50)]
        await store.is_asked.wait()
        await store.put(keys.job_request("m", "new"), b"nobody's")
        await asyncio.gather(*asking, *(book.look() for _ in range(50)))
        assert (sorted(book.records), store.num_listed) == (["new"], 2)

    asyncio.run(work())


def test_a_look_and_a_refresh_never_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobbook, "LOOK_S", 0.0)

    async def work() -> None:
        store = Counting()
        book = book_over(store)
        await asyncio.gather(book.refresh(), *(book.look() for _ in range(3)), book.refresh())
        assert (store.num_listed, store.most_at_once) == (3, 1)

    asyncio.run(work())


def test_no_number_of_questions_makes_a_job_one_that_can_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobbook, "LOOK_S", 0.0)

    async def work() -> None:
        store = Counting()
        await store.put(keys.job_request("m", "lost"), b"its maintainers'")
        book = book_over(store)
        for _ in range(2 * MISSING_LOOKS):
            await book.look()
        for _ in range(MISSING_LOOKS - 1):
            await book.refresh()
        assert not book.records, "a read may be stale"
        await book.refresh()
        assert book.records["lost"].problem

    asyncio.run(work())


def test_who_goes_away_ends_nobody_elses_look_and_an_error_is_everybodys() -> None:
    async def work() -> None:
        store = Counting()
        store.faults = PlannedFaults([(Operation.LIST, "", Fault.UNAVAILABLE)])
        book = book_over(store)
        first, *others = [asyncio.create_task(book.look()) for _ in range(5)]
        await store.is_asked.wait()
        first.cancel()
        ended = await asyncio.gather(first, *others, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError)
        assert [type(one) for one in ended[1:]] == [Unavailable] * 4
        assert store.num_listed == 1

    asyncio.run(work())


def test_a_look_that_hangs_is_the_only_one() -> None:
    async def work() -> None:
        begun = 0

        async def look() -> None:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()

        looks = Looks(look)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await looks.anew()
        assert begun == 1

    asyncio.run(work())
