"""Goal: a frame can be sent before the disk has it, none leaves memory before that, and a slow or full disk holds up or loses no more than it must."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcnr.errors import NotFound
from dcnr.intervals import IntervalSet
from dcnr.limits import MIB
from pnode.outbox import MAX_BACKLOG, QUICK_BYTES, Outbox
from pnode.spool import Frame, Spool
from vnode.vocabulary import TRAIN_LANE, Lane

LONG_S = 60.0
SMALL = QUICK_BYTES // 4096
"""Rows of 4 KiB in a tensor that is digested at once; one more is not."""


class HeldSpool(Spool):
    """A spool whose disk writes when the test says so."""

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        super().__init__(directory, max_bytes=max_bytes)
        self.writes = threading.Event()

    def put(self, lane: Lane, batch: int, frame: Frame) -> None:
        assert self.writes.wait(LONG_S)
        super().put(lane, batch, frame)


def tensor(batch: int, rows: int = SMALL) -> np.ndarray[Any, Any]:
    return np.full((rows, 1024), batch, np.float32)


def one(batch: int) -> IntervalSet:
    return IntervalSet.of((batch, batch + 1))


def run(tmp_path: Path, scenario: Callable[[Outbox, HeldSpool], Coroutine[Any, Any, None]], *, max_bytes: int = 64 * MIB) -> None:
    async def whole() -> None:
        spool = HeldSpool(tmp_path, max_bytes=max_bytes)
        with ThreadPoolExecutor(2) as executor:
            outbox = Outbox(spool, executor, lambda: "raw", hot_bytes=1)
            try:
                async with asyncio.timeout(LONG_S):
                    await scenario(outbox, spool)
            finally:
                spool.writes.set()
                outbox.close()

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the spool has no event for it
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("rows", [SMALL, SMALL + 1])
def test_a_frame_can_be_sent_before_the_disk_has_it_and_stays_until_then(tmp_path: Path, rows: int) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        for batch in range(MAX_BACKLOG):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch, rows), batch)
        frames = [await outbox.frame(TRAIN_LANE, batch) for batch in range(MAX_BACKLOG)]
        waiting = asyncio.ensure_future(outbox.keep(TRAIN_LANE, MAX_BACKLOG, tensor(MAX_BACKLOG, rows), MAX_BACKLOG))
        await asyncio.sleep(0)
        assert spool.num_bytes == 0
        assert not waiting.done()
        assert all(outbox.tensor(TRAIN_LANE, batch) is not None for batch in range(MAX_BACKLOG))
        spool.writes.set()
        await waiting
        await until(lambda: spool.num_bytes == (MAX_BACKLOG + 1) * rows * 4096)
        await until(lambda: outbox.tensor(TRAIN_LANE, 0) is None)
        assert outbox.newest(TRAIN_LANE, 0) is None
        for batch, frame in enumerate(frames):
            again = await outbox.frame(TRAIN_LANE, batch)
            assert (again.encoded.header, again.step) == (frame.encoded.header, batch)

    run(tmp_path, scenario)


def test_what_is_dropped_before_the_disk_has_it_is_gone(tmp_path: Path) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        for batch in range(MAX_BACKLOG):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch), 0)
        await asyncio.sleep(0)  # the first is being written now
        for batch in range(MAX_BACKLOG - 1):
            outbox.drop(TRAIN_LANE, one(batch))
        spool.writes.set()
        for batch in range(MAX_BACKLOG, 2 * MAX_BACKLOG):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch), 0)
        await until(lambda: spool.num_bytes == (MAX_BACKLOG + 1) * SMALL * 4096)
        for batch in range(MAX_BACKLOG - 1):
            with pytest.raises(NotFound):
                await outbox.frame(TRAIN_LANE, batch)

    run(tmp_path, scenario)


def test_a_full_disk_keeps_nobody_waiting_and_is_counted(tmp_path: Path) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        spool.writes.set()
        for batch in range(4 * MAX_BACKLOG):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch), 0)
            assert (await outbox.frame(TRAIN_LANE, batch)).step == 0
        await until(lambda: outbox.not_kept == {"spool_full": 4 * MAX_BACKLOG - 2})

    run(tmp_path, scenario, max_bytes=2 * SMALL * 4096)
