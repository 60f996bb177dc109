"""Goal: a replica's core is woken at the moment that it names and not before, only for the newest one, and hears of network time whenever that moved."""

from __future__ import annotations

import asyncio

from dcnr.system import SystemClock
from pnode.ticking import Ticking
from pnode.worker import NetworkClock
from vnode.due import NetworkTime
from vnode.events import Event, Tick


async def until(posted: asyncio.Queue[Event], kind: type[Event]) -> Event:
    async with asyncio.timeout(10.0):
        while not isinstance(event := await posted.get(), kind):
            pass
    return event


def test_it_wakes_at_the_newest_moment_that_was_named_and_not_before() -> None:
    async def scenario() -> None:
        clock, posted = SystemClock(), asyncio.Queue[Event]()
        ticking = Ticking(clock, posted.put_nowait)  # never runs: nothing else ticks
        at_s = clock.monotonic() + 0.03
        ticking.wake(clock.monotonic() + 0.01)
        ticking.wake(at_s)
        tick = await until(posted, Tick)
        assert tick.now_s >= at_s
        assert clock.monotonic() >= at_s - 0.001
        ticking.wake(0.0)
        assert (await until(posted, Tick)).now_s >= at_s, "what is due already is looked at at once"

    asyncio.run(scenario())


def test_network_time_is_told_at_the_start_and_where_it_moved() -> None:
    async def scenario() -> None:
        clock, posted = NetworkClock(SystemClock()), asyncio.Queue[Event]()
        running = asyncio.create_task(Ticking(clock, posted.put_nowait).run())
        first = await until(posted, NetworkTime)
        clock.offset_s = 30.0
        second = await until(posted, NetworkTime)
        running.cancel()
        assert isinstance(first, NetworkTime)
        assert isinstance(second, NetworkTime)
        assert 29.9 < second.ahead_s - first.ahead_s < 30.1

    asyncio.run(scenario())
