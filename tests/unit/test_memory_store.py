"""Goal: each fault of the in-memory store does to the object and to the caller what the real thing does."""

from __future__ import annotations

import asyncio
import random

import pytest

from dataservice import keys
from dataservice.memory import Fault, MemoryStore, Operation, PlannedFaults, RandomFaults
from dcnr.errors import DcnrError, NotFound, Stale, TimedOut, Unavailable

KEY = keys.head("m")


class Clock:
    now = 5.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def store_with(*plan: tuple[Operation, str, Fault]) -> MemoryStore:
    store = MemoryStore(Clock(), random.Random(0))
    asyncio.run(store.put(KEY, b"old"))
    store.faults = PlannedFaults(list(plan))
    return store


@pytest.mark.parametrize(
    ("fault", "error", "code", "landed"),
    [
        (Fault.CONFLICT, Stale, "conflict", False),
        (Fault.PRECONDITION, Stale, "precondition_failed", True),
        (Fault.UNAVAILABLE, Unavailable, "store_unavailable", False),
        (Fault.DENIED, Unavailable, "store_denied", False),
        (Fault.TIMEOUT_BEFORE, TimedOut, "store_timeout", False),
        (Fault.TIMEOUT_AFTER, TimedOut, "store_timeout", True),
        (Fault.TORN, TimedOut, "store_timeout", False),
    ],
)
def test_a_faulty_put(fault: Fault, error: type[DcnrError], code: str, landed: bool) -> None:
    store = store_with((Operation.PUT, KEY, fault))
    etag = asyncio.run(store.head(KEY)).etag
    with pytest.raises(error) as caught:
        asyncio.run(store.put(KEY, b"new", if_match=etag))
    assert caught.value.code == code
    assert store.peek(KEY) == (b"new" if landed else b"old")
    asyncio.run(store.put(KEY, b"newer"))  # planned faults are used once


def test_a_stale_read_shows_the_version_before() -> None:
    store = store_with()
    asyncio.run(store.put(KEY, b"new"))
    store.faults = PlannedFaults([(Operation.GET, KEY, Fault.STALE_READ), (Operation.LIST, "", Fault.STALE_READ)])
    assert asyncio.run(store.get(KEY, max_bytes=9)).data == b"old"
    assert asyncio.run(store.list("models/"))[0].etag != asyncio.run(store.head(KEY)).etag
    assert asyncio.run(store.get(KEY, max_bytes=9)).data == b"new"
    asyncio.run(store.put(keys.graph("0" * 64), b"x"))
    store.faults = PlannedFaults([(Operation.GET, "graph", Fault.STALE_READ)])
    with pytest.raises(NotFound):
        asyncio.run(store.get(keys.graph("0" * 64), max_bytes=9))


def test_random_faults_repeat_with_their_seed_and_keep_to_their_prefix() -> None:
    def outcomes(seed: int) -> list[str]:
        store = MemoryStore(
            Clock(), random.Random(seed), faults=RandomFaults({Fault.UNAVAILABLE: 0.3, Fault.TIMEOUT_AFTER: 0.3}, "models/")
        )
        seen: list[str] = []
        for number in range(200):
            try:
                asyncio.run(store.put(KEY if number % 2 else keys.probe("x"), b""))
                seen.append(f"ok {number % 2}")
            except Unavailable as error:
                seen.append(f"{error.code} {number % 2}")
        return seen

    assert outcomes(1) == outcomes(1) != outcomes(2)
    assert {"ok 1", "store_unavailable 1", "store_timeout 1", "ok 0"} == set(outcomes(1))
