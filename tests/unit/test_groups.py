"""A task that is asked to end does end, whatever fails in the same turn."""

from __future__ import annotations

import asyncio

import pytest

from dcnr.errors import Refused
from dcnr.groups import first_cause, heed_cancellation


async def _fails_when(told: asyncio.Event) -> None:
    await told.wait()
    raise ValueError("a child fails")


async def _keeps_trying(told: asyncio.Event, turns: list[int]) -> None:
    while len(turns) < 3:
        turns.append(len(turns))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_fails_when(told))
        except* ValueError:
            heed_cancellation()


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


def test_a_task_that_nobody_ends_goes_on() -> None:
    async def story() -> None:
        heed_cancellation()

    asyncio.run(story())


def test_a_typed_error_stands_for_its_group() -> None:
    nested = ExceptionGroup("outer", [ValueError("first"), ExceptionGroup("inner", [KeyError("second"), Refused("no")])])
    assert isinstance(first_cause(nested), Refused)
    assert isinstance(first_cause(ExceptionGroup("outer", [ValueError("first"), KeyError("second")])), ValueError)
