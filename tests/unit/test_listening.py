"""Goal: no relay is given up for good, whatever ends a stream to it; opening one has a limit and typed errors; a relay that refuses makes room for another, and
gets its place back later and later.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import membership.relays
from dcnr.errors import DcnrError, Refused, RemoteFault, TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.system import SystemClock
from dcnr.v1 import membership_pb2
from membership.relays import NUM_RELAYS, in_order, open_stream
from pnode.listening import REFUSED_MAX_S, REFUSED_S, Listening

WORKER = NodeId("1" * 40)
RELAYS = in_order(WORKER, [(NodeId(digit * 40), ("h:1",)) for digit in "2345"])
LISTEN = membership_pb2.RelayMessage(listen=membership_pb2.RelayListen())
SECONDS = 20.0


async def asked(connection: Callable[[NodeId], Awaitable[Any]], enough: asyncio.Event, num_known: int) -> None:
    """A worker listens at those relays, to which it is connected that way, until it is enough."""

    async def connect(relay_id: NodeId, where: object) -> Any:
        return await connection(relay_id)

    relays: Any = SimpleNamespace(known=lambda: RELAYS[:num_known], connection=connect)
    listener = Listening(WORKER, 1, relays, SystemClock(), random.Random(1), lambda *_: None, lambda: None)
    listener.want(True)
    running = asyncio.ensure_future(listener.run())
    try:
        async with asyncio.timeout(SECONDS):
            await enough.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_relay_whose_channel_somebody_closed_is_asked_again() -> None:
    async def story() -> None:
        times, again = list[NodeId](), asyncio.Event()

        async def connection(relay_id: NodeId) -> Any:
            times.append(relay_id)
            if len(times) > 1:
                again.set()
            raise asyncio.CancelledError  # as gRPC does in whoever waits for a call

        await asked(connection, again, 1)

    asyncio.run(story())


@pytest.mark.parametrize(
    "refusal",
    [Refused("no", code="not_a_relay"), RemoteFault("no", code="unimplemented"), Unavailable("no", code="overloaded")],
    ids=lambda error: error.code,
)
def test_a_relay_that_refuses_makes_room_for_the_next_one(refusal: DcnrError) -> None:
    async def story() -> None:
        next_one = asyncio.Event()

        async def connection(relay_id: NodeId) -> Any:
            if relay_id == RELAYS[NUM_RELAYS][0]:
                next_one.set()
            raise refusal

        await asked(connection, next_one, NUM_RELAYS + 1)

    asyncio.run(story())


def test_a_relay_that_refuses_again_and_again_gets_its_place_back_later_and_later() -> None:
    """Else the worker would leave a relay that takes it each minute, for one that does not."""
    bad = RELAYS[0][0]

    async def story() -> None:
        now_s, times = 0.0, list[float]()

        async def connect(relay_id: NodeId, where: object) -> Any:
            if relay_id == bad:
                times.append(now_s)
                raise Refused("no", code="not_a_relay")
            await asyncio.Event().wait()

        relays: Any = SimpleNamespace(known=lambda: RELAYS, connection=connect)
        clock: Any = SimpleNamespace(monotonic=lambda: now_s)
        listener = Listening(WORKER, 1, relays, clock, random.Random(1), lambda *_: None, lambda: None)
        running = asyncio.ensure_future(listener.run())
        while now_s < 4 * REFUSED_MAX_S:
            listener.want(True)
            for _ in range(9):  # turns of the loop until it has looked, asked and heard
                await asyncio.sleep(0)
            now_s += REFUSED_S / 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert pauses[:6] == [REFUSED_S * 2**number for number in range(6)]
        assert set(pauses[6:]) == {REFUSED_MAX_S}

    asyncio.run(story())


def test_a_closed_channel_and_a_silent_relay_are_typed_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership.relays, "OPEN_S", 0.05)

    async def closed() -> Any:
        raise asyncio.CancelledError

    async def story() -> None:
        broken: Any = SimpleNamespace(fresh_metadata=closed)
        with pytest.raises(Unavailable) as error:
            await open_stream(broken, LISTEN)
        assert error.value.code == "relay_broken"
        silent: Any = SimpleNamespace(fresh_metadata=asyncio.Event().wait)
        with pytest.raises(TimedOut) as late:
            await open_stream(silent, LISTEN)
        assert late.value.code == "connect_timeout"
        cancelled = asyncio.ensure_future(open_stream(silent, LISTEN))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(story())
