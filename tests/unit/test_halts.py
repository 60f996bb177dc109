"""Goal: a pause takes effect in the time that is told, whatever the worker does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dcnr.system import SystemClock
from pnode.halts import Halts
from pnode.pausing import Pausing
from pnode.supervisor import Supervisor, WorkerOptions
from pnode.telling import Condition


async def _nothing(*_: object) -> None:
    return


def test_a_hand_over_that_does_not_end_delays_no_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stands still does not read that it should hand over."""
    monkeypatch.setattr("pnode.halts.HAND_OVER_S", 0.01)

    async def scenario() -> None:
        told = asyncio.Queue[str]()
        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", os.environ)
        supervisor = Supervisor(options, next_incarnation=lambda: 1, on_up=_nothing, on_message=_nothing, on_down=_nothing)
        condition = Condition(0.0)

        async def never(within_s: float) -> None:
            await asyncio.Event().wait()

        halts = Halts(
            Pausing(tmp_path / "pause", SystemClock()),
            supervisor,
            condition,
            hand_over=never,
            tell=lambda kind, reason: told.put_nowait(kind),
        )
        await halts.pause(0.0)
        running = asyncio.create_task(halts.run())
        async with asyncio.timeout(10):
            assert [await told.get(), await told.get()] == ["paused", "halted"]
        assert supervisor.is_held
        assert not condition.halting
        running.cancel()

    asyncio.run(scenario())
