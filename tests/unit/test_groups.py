"""A task that is asked to end does end, whatever fails in the same turn."""

from __future__ import annotations

import asyncio

import pytest

from dcnr.errors import Refused
from dcnr.groups import apart, first_cause


async def _fails_when(told: asyncio.Event) -> None:
    await told.wait()
    raise ValueError("a child fails")


async def _group(told: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails_when(told))


async def _keeps_trying(told: asyncio.Event, turns: list[int]) -> None:
    while len(turns) < 3:
        turns.append(len(turns))
        try:
            await apart(_group(told))
        except* ValueError:
            pass


def test_a_loop_ends_though_a_child_fails_in_the_turn_of_the_cancellation() -> None:
    async def story() -> None:
        told, turns = asyncio.Event(), list[int]()
        task = asyncio.create_task(_keeps_trying(told, turns))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        told.set()
        await asyncio.sleep(0)  # the child has failed; its group hears of it in this turn
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert turns == [0]

    asyncio.run(story())


def test_a_loop_that_nobody_ends_goes_on_after_an_error() -> None:
    async def story() -> None:
        told, turns = asyncio.Event(), list[int]()
        told.set()
        await asyncio.wait_for(_keeps_trying(told, turns), 10)
        assert turns == [0, 1, 2]

    asyncio.run(story())


def test_what_was_begun_has_ended_when_a_cancellation_comes_back() -> None:
    async def story() -> None:
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.set()

        task = asyncio.create_task(apart(work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert ended.is_set()

    asyncio.run(story())


def test_a_typed_error_stands_for_its_group() -> None:
    nested = ExceptionGroup("outer", [ValueError("first"), ExceptionGroup("inner", [KeyError("second"), Refused("no")])])
    assert isinstance(first_cause(nested), Refused)
    assert isinstance(first_cause(ExceptionGroup("outer", [ValueError("first"), KeyError("second")])), ValueError)
