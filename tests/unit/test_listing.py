"""Goal: a prefix of the store is listed to its end, however many objects lie below it, with calls of bounded length; so no number of jobs hides one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from dataservice import keys, listing
from dataservice.memory import MemoryStore
from dcnr.ports import ObjectInfo
from dcnr.system import SystemClock
from orchestrator.jobbook import JobBook
from orchestrator.view import ViewLoader
from trust.identity import NodeKey
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

MAINTAINER = NodeKey.generate()
POLICY = verify_chain([create_document(MAINTAINER, name="n", now_wall=1.0, orchestrator_ids=[MAINTAINER.node_id])])


class Counting(MemoryStore):
    """Remembers how long its listings were."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), random.Random(0))
        self.lengths: list[int] = []

    async def list(self, prefix: str, *, max_keys: int = 1000, after: str = "") -> Sequence[ObjectInfo]:
        rows = await super().list(prefix, max_keys=max_keys, after=after)
        self.lengths.append(len(rows))
        return rows


async def stored(store: MemoryStore, jobs: Sequence[str]) -> list[str]:
    """Requests that no maintainer signed: a book knows each, with what is wrong with it."""
    for job in jobs:
        await store.put(keys.job_request("m", job), b"nobody's")
    return [keys.job_request("m", job) for job in jobs]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 11])
def test_every_object_is_listed_once_in_order(count: int) -> None:
    async def work() -> None:
        store = Counting()
        expected = await stored(store, [f"job-{number:02}" for number in range(count)])
        await store.put(keys.head("m"), b"beside it")
        assert [row.key for row in await listing.all_below(store, keys.jobs_prefix("m"), at_once=4)] == expected
        assert max(store.lengths) <= 4

    asyncio.run(work())


def test_no_number_of_jobs_hides_one() -> None:
    async def work() -> None:
        store = Counting()
        book = JobBook("m", store, lambda: POLICY, ViewLoader(store, lambda: POLICY, default_registry(), SystemClock()))
        jobs = [f"job-{number:05}" for number in range(listing.AT_ONCE + 1)]
        await stored(store, jobs)
        await book.refresh()
        assert sorted(book.records) == jobs
        assert all(record.problem for record in book.records.values())

    asyncio.run(work())
