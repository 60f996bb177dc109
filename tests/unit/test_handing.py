"""Goal: a replica that leaves knows which of its states is the newest on disk, in whatever order the disk took them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_withdrawn_questions import Maths, primary

from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet


class Disk(Executor):
    """Writes what it was given when it is told to, in any order."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """As `Executor`."""
        future: Future[Any] = Future()
        self.waiting.append(lambda: future.set_result(work(*arguments, **options)))
        return future


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_older_state_that_the_disk_takes_later_is_not_the_newest(tmp_path: Path, order: tuple[int, int]) -> None:
    async def story() -> None:
        with ThreadPoolExecutor(1) as thread:
            host, disk = primary(Maths(), tmp_path, thread), Disk()
            host._executor = disk
            (tmp_path / "snapshots").mkdir()
            tasks = []
            for step in (1, 2):
                data = b"state %d" % step
                info = replace(host.state_info(IntervalSet.span(0, step)), step=step)
                tasks.append(asyncio.create_task(host._store(data, host._chain.close(state=digest_of(data)), info, None)))
                await asyncio.sleep(0)
            for place in order:
                disk.waiting[place]()
                await asyncio.wait((tasks[place],))
            assert host.handing.stored == IntervalSet.span(0, 2)

    asyncio.run(story())
