"""Goal: each fault of the proxy in front of the real store is met as it says, and the store's adapter makes a typed error or the right answer of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest
from store_proxy import Fault, StoreProxy, Trouble, store_proxy

from dataservice import keys
from dataservice.probe import probe_store
from dataservice.s3 import S3Store, StoreAddress, make_bucket
from dcnr.errors import DcnrError, NotFound, Refused, Stale, TimedOut, Unavailable

PUT, GET = frozenset({"PUT"}), frozenset({"GET"})


@pytest.fixture
def proxy() -> Iterator[StoreProxy]:
    with store_proxy() as made:
        yield made


@pytest.fixture
def store(proxy: StoreProxy, embedded_store: StoreAddress) -> Iterator[S3Store]:
    made = S3Store(replace(embedded_store, endpoint=proxy.at(embedded_store.endpoint)), timeout_s=5.0)
    yield made
    made.close()


def test_without_trouble_it_is_the_store(proxy: StoreProxy, store: S3Store, fresh_model: Callable[[], str]) -> None:
    async def story() -> None:
        key = keys.head(fresh_model())
        etag = await store.put(key, b"one", if_none_match=True)
        with pytest.raises(Stale):
            await store.put(key, b"two", if_none_match=True)
        second = await store.put(key, b"two", if_match=etag)
        assert (await store.get(key, max_bytes=16)).data == b"two"
        assert (await store.head(key)).etag == second
        assert [row.key for row in await store.list(key)] == [key]
        await store.delete(key)
        with pytest.raises(NotFound):
            await store.get(key, max_bytes=16)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("trouble", "error", "code", "written"),
    [
        (Trouble(Fault.REFUSE, PUT, status=503), Unavailable, "store_unavailable", False),
        (Trouble(Fault.REFUSE, PUT, status=409, word="ConditionalRequestConflict"), Stale, "conflict", False),
        (Trouble(Fault.REFUSE, PUT, status=412, word="PreconditionFailed"), Stale, "precondition_failed", False),
        (Trouble(Fault.REFUSE, PUT, status=507, word="InsufficientStorage"), Unavailable, "store_full", False),
        (Trouble(Fault.REFUSE, PUT, status=403, word="QuotaExceeded"), Unavailable, "store_full", False),
        (Trouble(Fault.REFUSE, PUT, status=403, word="RequestTimeTooSkewed"), Unavailable, "store_denied", False),
        (Trouble(Fault.REFUSE, PUT, status=401, word="InvalidAccessKeyId"), Unavailable, "store_denied", False),
        (Trouble(Fault.CUT, PUT, num_bytes=1), Unavailable, "", False),
        (Trouble(Fault.DROP, PUT), Unavailable, "", False),
        (Trouble(Fault.LOSE_ANSWER, PUT), Unavailable, "", True),
        (Trouble(Fault.TWICE, PUT), Stale, "precondition_failed", True),
    ],
    ids=lambda value: f"{value.fault.name}-{value.status}" if isinstance(value, Trouble) else None,
)
def test_writes_in_trouble(
    proxy: StoreProxy, store: S3Store, fresh_model: Callable[[], str], trouble: Trouble, error: type[DcnrError], code: str, written: bool
) -> None:  # fmt: skip
    async def story() -> None:
        key = keys.head(fresh_model())
        met = proxy.meet(replace(trouble, prefix=key, times=1, met=0))
        with pytest.raises(error) as caught:
            await store.put(key, b"body", if_none_match=True)
        assert not code or caught.value.code == code
        assert met.met == 1
        try:
            assert (await store.get(key, max_bytes=16)).data == b"body"
            assert written
        except NotFound:
            assert not written

    asyncio.run(story())


def test_it_knows_who_came_by(proxy: StoreProxy, store: S3Store, fresh_model: Callable[[], str]) -> None:
    proxy.visitors = set()
    asyncio.run(store.put(keys.head(fresh_model()), b"one"))
    assert proxy.visitors == {os.getpid()}


def test_reads_in_trouble(proxy: StoreProxy, store: S3Store, fresh_model: Callable[[], str]) -> None:
    async def story() -> None:
        key = keys.head(fresh_model())
        first = await store.put(key, b"first")
        await store.put(key, b"second")
        proxy.meet(Trouble(Fault.STALE, GET, key, times=1))
        found = await store.get(key, max_bytes=16)
        assert (found.data, found.etag) == (b"first", first)
        proxy.meet(Trouble(Fault.CUT, GET, key, times=1, num_bytes=2))
        with pytest.raises(Unavailable):
            await store.get(key, max_bytes=16)
        late = proxy.meet(Trouble(Fault.DELAY, GET, key, times=1, seconds=0.5))
        assert (await store.get(key, max_bytes=16)).data == b"second"
        assert late.met == 1
        proxy.meet(Trouble(Fault.HANG, GET, key))
        waiting = S3Store(store.address, timeout_s=0.5)
        with pytest.raises(TimedOut):
            await waiting.get(key, max_bytes=16)
        waiting.close()
        proxy.heal()
        assert (await store.get(key, max_bytes=16)).data == b"second"

    asyncio.run(story())


def test_a_store_that_denies_a_read_says_nothing_of_the_object(
    proxy: StoreProxy, store: S3Store, fresh_model: Callable[[], str]
) -> None:
    """Whatever is asked for: the next answer counts, and nobody may take the first one for a judgement."""

    async def story() -> None:
        key = keys.head(fresh_model())
        await store.put(key, b"body")
        reads: dict[str, Callable[[], Awaitable[object]]] = {
            "GET": lambda: store.get(key, max_bytes=16),
            "range": lambda: store.get_range(key, first=0, num_bytes=2),
            "HEAD": lambda: store.head(key),
            "LIST": lambda: store.list(key),
            "DELETE": lambda: store.delete(key),
        }
        for name, read in reads.items():
            denied = proxy.meet(Trouble(Fault.REFUSE, times=1, status=403, word="AccessDenied"))
            with pytest.raises(Unavailable) as caught:
                await read()
            assert (caught.value.code, denied.met) == ("store_denied", 1), name
            assert "credentials" in caught.value.remedy
            await read()

    asyncio.run(story())


def test_credentials_that_open_nothing_are_refused_where_a_store_is_tried_out(proxy: StoreProxy, store: S3Store) -> None:
    """Who begins with them would only wait for ever; who has begun waits."""
    proxy.meet(Trouble(Fault.REFUSE, status=403, word="InvalidAccessKeyId"))
    with pytest.raises(Refused) as caught:
        asyncio.run(probe_store(store))
    assert caught.value.code == "store_denied"
    with pytest.raises(Refused) as caught:
        make_bucket(store.address)
    assert caught.value.code == "store_denied"
