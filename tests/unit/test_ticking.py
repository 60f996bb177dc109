"""Goal: a replica's core is woken at the moment that it names and not before, only for the newest one, and hears of network time whenever that moved; where
nothing happens, nobody looks whether something did.
"""

from __future__ import annotations

import asyncio

from dcnr.system import SystemClock
from pnode.ticking import TICK_S, Ticking
from pnode.worker import NetworkClock
from simulation.control_clock import SimClock
from simulation.control_loop import ProcessLoop
from simulation.kernel import Kernel, Process
from vnode.due import NetworkTime
from vnode.events import Event, Tick
from vnode.replica_config import STATEMENT_GAP_S


class Watched:
    """A ticking on virtual time: when it looked at the clock, and when it ticked."""

    def __init__(self) -> None:
        self.kernel, self.errors, self.ticks_s, self.num_looks = Kernel(1), list[BaseException](), list[float](), 0
        self.process = Process(self.kernel, "worker")
        self.loop, self._clock = ProcessLoop(self.kernel, self.process, self.errors.append), SimClock(self.kernel, 0.0, 500.0)
        self.ticking = Ticking(self, self._posted)
        self.loop.spawn(self.ticking.run())

    def monotonic(self) -> float:
        self.num_looks += 1
        return self._clock.monotonic()

    def wall(self) -> float:
        return self._clock.wall()

    def _posted(self, event: Event) -> None:
        if isinstance(event, Tick):
            self.ticks_s.append(event.now_s)

    def ticks(self, for_s: float) -> list[float]:
        """Those of the next seconds."""
        before = len(self.ticks_s)
        self.kernel.run_until(self.kernel.now_s + for_s, lambda: False)
        assert not self.errors
        return self.ticks_s[before:]

    async def stir(self) -> None:
        self.ticking.stirred()


def test_who_has_nothing_to_do_is_woken_for_its_ticks_alone() -> None:
    watched = Watched()
    watched.ticks(1.0)
    watched.num_looks = 0
    ticks = watched.ticks(100.0)
    assert abs(len(ticks) - 100.0 / TICK_S) <= 1
    assert watched.num_looks <= len(ticks) + 1
    watched.loop.bury()


def test_it_ticks_once_when_nothing_has_happened_for_a_gap_and_for_all_that_did_together() -> None:
    watched = Watched()
    watched.ticks(1.1 * TICK_S)
    began_s = watched.kernel.now_s
    for _ in range(3):
        watched.loop.spawn(watched.stir())
        assert watched.ticks(STATEMENT_GAP_S / 2) == []
    [tick_s] = watched.ticks(STATEMENT_GAP_S)
    assert began_s + 2 * STATEMENT_GAP_S <= tick_s + 1e-9
    assert watched.ticks(0.9 * TICK_S - STATEMENT_GAP_S) == [], "that one counts"
    watched.loop.bury()


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
