"""Goal: a gateway reads each manifest of a chain once, however often and by however many it is asked, and does not read a chain that is too long again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from test_ledger_audit import HOLDER, OTHER, PNODE, POLICY, World
from test_receipts import Orchestrator

from dcnr.errors import DcnrError, Refused
from dcnr.ledger_check import accounts_of, read_ledgers
from dcnr.receipts import prove, receipt_of
from dcnr.v1 import data_pb2, identity_pb2, model_pb2
from gateway import ledgers
from gateway.ledgers import MAX_CHAIN
from gateway.views import LEDGER_S, MAX_KEPT, Views
from trust.envelope import parse, parse_envelope, seal

LATER_S = LEDGER_S + 1.0
MANIFEST = data_pb2.OBJECT_KIND_MANIFEST


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Gateway:
    """What is read where a chain of so many manifests lies under the head."""

    def __init__(self, num_manifests: int) -> None:
        self.world, self.clock = World().train(), Hand()
        self.asked = Orchestrator(self.world)
        self.views = Views(cast(Any, self.asked), lambda: POLICY, self.clock)
        self.grow(num_manifests - 5)

    def opened(self, digest: str) -> model_pb2.Manifest:
        return parse(model_pb2.Manifest, parse_envelope(self.world.objects[MANIFEST, "", digest]).payload)

    def grow(self, count: int) -> None:
        """So many manifests more."""
        newest = self.opened(self.world.newest)
        for _ in range(count):
            newest = self.world.manifest(newest, self.world.newest)
            self.world.newest = self.world.envelope(MANIFEST, seal(identity_pb2.DOMAIN_MANIFEST, newest, HOLDER))

    async def reads(self, ask: Callable[[], Awaitable[object]]) -> int:
        """How many objects are read for the answer."""
        self.clock.now += LATER_S
        before = self.asked.num_read
        await ask()
        return self.asked.num_read - before

    async def refused(self) -> None:
        with pytest.raises(Refused) as caught:
            await self.views.ledger()
        assert caught.value.code == "ledger_too_long"


def test_a_chain_is_read_once_and_then_only_what_is_new() -> None:
    async def story() -> None:
        here = Gateway(MAX_KEPT + 44)
        assert await here.reads(here.views.ledger) == MAX_KEPT + 44
        assert await here.reads(here.views.ledger) == 0
        here.grow(3)
        assert await here.reads(here.views.ledger) == 3

        async def read(digest: str) -> model_pb2.Manifest:
            return here.opened(digest)

        anew = await read_ledgers(here.world.newest, read)
        assert await here.views.ledger() == (here.world.newest, anew, accounts_of(anew))

    asyncio.run(story())


def test_an_orchestrator_that_is_behind_takes_nothing_back_and_another_chain_is_read_anew() -> None:
    async def story() -> None:
        here = Gateway(20)
        old = here.world.newest
        here.grow(2)
        newest = here.world.newest
        await here.views.ledger()
        here.world.newest = old
        assert await here.reads(here.views.ledger) == 1, "what that one names"
        assert (await here.views.ledger())[0] == newest
        here.grow(1)
        other = here.world.manifest(here.opened(old), old, state="f" * 64)
        here.world.newest = here.world.envelope(MANIFEST, seal(identity_pb2.DOMAIN_MANIFEST, other, HOLDER))
        await here.reads(here.views.ledger)
        assert (await here.views.ledger())[0] == here.world.newest

    asyncio.run(story())


def test_a_chain_that_is_too_long_is_refused_from_memory_until_the_head_moves() -> None:
    async def story() -> None:
        here = Gateway(MAX_CHAIN + 100)
        assert await here.reads(here.refused) == MAX_CHAIN
        assert await here.reads(here.refused) == 0
        here.grow(1)
        assert await here.reads(here.refused) == 1
        assert await here.reads(here.refused) == 0

    asyncio.run(story())


def test_a_chain_that_grows_too_long_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MAX_CHAIN", 20)

    async def story() -> None:
        here = Gateway(20)
        assert await here.reads(here.views.ledger) == 20
        here.grow(1)
        assert [await here.reads(here.refused), await here.reads(here.refused)] == [1, 0]

    asyncio.run(story())


def test_what_breaks_off_changes_nothing_that_is_known() -> None:
    async def story() -> None:
        here = Gateway(20)
        await here.views.ledger()
        here.grow(3)
        missing = here.opened(here.world.newest).parent_digest
        data = here.world.objects.pop((MANIFEST, "", missing))
        with pytest.raises((DcnrError, KeyError)):
            await here.reads(here.views.ledger)
        here.world.objects[MANIFEST, "", missing] = data
        assert await here.reads(here.views.ledger) == 2, "the newest one is here already"

    asyncio.run(story())


def test_receipts_of_many_are_made_of_manifests_that_are_read_once() -> None:
    async def story() -> None:
        here = Gateway(MAX_KEPT + 44)
        await here.views.ledger()
        first = await here.views.receipt(PNODE.node_id)
        assert await here.reads(lambda: here.views.receipt(PNODE.node_id)) == 1, "the job's request"
        here.grow(1)
        assert await here.reads(lambda: here.views.receipt(PNODE.node_id)) == 2
        assert prove(receipt_of(first)).account == prove(receipt_of(await here.views.receipt(PNODE.node_id))).account
        with pytest.raises(DcnrError):
            await here.views.receipt(OTHER.node_id)

    asyncio.run(story())
