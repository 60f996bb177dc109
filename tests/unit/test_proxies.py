"""Goal: places for passing bytes stay open to others, whoever holds some, and a passage that hardly moves ends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from dcnr import limits
from dcnr.errors import Unavailable
from orchestrator import proxies
from orchestrator.proxies import PER_CALLER, ROOMS, SLOWEST_BYTES_S, Lane, Passage, Proxies

MOST = 1000


@pytest.mark.parametrize("lane", list(Lane))
def test_one_subnet_leaves_a_place_to_another_and_lanes_are_apart(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "WAIT_S", 0.05)

    async def story() -> None:
        places = Proxies()
        async with AsyncExitStack() as held:
            for number in range(ROOMS[lane].per_subnet):
                await held.enter_async_context(places.passing(lane, f"key{number}", "there", MOST))
            with pytest.raises(Unavailable):
                await held.enter_async_context(places.passing(lane, "another", "there", MOST))
            for other in set(Lane) - {lane}:
                async with places.passing(other, "another", "there", MOST):
                    pass
            async with places.passing(lane, "honest", "elsewhere", MOST):
                pass
        async with places.passing(lane, "another", "there", MOST):
            pass
        assert not +places._taken
        assert not places._callers
        assert not places._subnets

    asyncio.run(story())


def test_a_caller_has_its_part_of_a_lane_and_who_waits_comes_when_a_place_is_free() -> None:
    async def story() -> None:
        places, came = Proxies(), asyncio.Event()

        async def wait() -> None:
            async with places.passing(Lane.OTHER, "honest", "there", MOST):
                came.set()

        async with asyncio.TaskGroup() as group:
            async with places.passing(Lane.OTHER, "x", "there", MOST):
                group.create_task(wait())
                await asyncio.sleep(0)
                assert not came.is_set()
            await came.wait()
        async with AsyncExitStack() as held:
            for _ in range(PER_CALLER):
                await held.enter_async_context(places.passing(Lane.READ, "x", "there", MOST))
            with pytest.raises(Unavailable):
                await held.enter_async_context(places.passing(Lane.READ, "x", "there", MOST))

    asyncio.run(story())


def test_bytes_gain_the_time_they_take_and_never_more_than_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        now_s = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
        limit = asyncio.Timeout(None)
        monkeypatch.setattr(limit, "reschedule", lambda when: setattr(limit, "_when", when))
        passage = Passage(limit, 50 * SLOWEST_BYTES_S)
        assert limit.when() == 110.0
        now_s = 105.0
        passage.moved(1)
        assert limit.when() == pytest.approx(110.0, abs=1e-3), "a byte buys no time"
        passage.moved(3 * SLOWEST_BYTES_S)
        assert limit.when() == pytest.approx(113.0, abs=1e-3)
        passage.moved(600 * SLOWEST_BYTES_S)
        assert limit.when() == 115.0
        passage.ours(10_000 * SLOWEST_BYTES_S)
        assert limit.when() == 100.0 + limits.BULK_TIMEOUT_S + 50.0, "a whole passage has its bound, by its size"

    asyncio.run(story())
