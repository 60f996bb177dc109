"""Goal: a frame can be sent before the disk has it, none leaves memory before that, and a slow or full disk holds up or loses no more than it must."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcnr.errors import NotFound
from dcnr.intervals import IntervalSet
from dcnr.limits import MIB
from pnode.outbox import BACKLOG_BYTES, HOT_FRAMES, MAX_BACKLOG, QUICK_BYTES, WORTH_BYTES, Outbox
from pnode.spool import Frame, Spool
from vnode.vocabulary import TRAIN_LANE, Lane

LONG_S = 60.0
SMALL = MIB // 4096
"""Rows of 4 KiB in a tensor that is digested at once."""
LARGE = QUICK_BYTES // 4096 + 1
"""Rows in one that is not."""
FULL = BACKLOG_BYTES // MIB
"""Small frames that may wait for the disk."""


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


class HeldFrom(Spool):
    """A spool whose disk takes the frames before a batch at once, and the others when the test says so."""

    def __init__(self, directory: Path, *, batch: int) -> None:
        super().__init__(directory, max_bytes=64 * MIB)
        self.batch, self.writes = batch, threading.Event()

    def put(self, lane: Lane, batch: int, frame: Frame) -> None:
        assert batch < self.batch or self.writes.wait(LONG_S)
        super().put(lane, batch, frame)


class CountedExecutor(ThreadPoolExecutor):
    """Counts the ways to another thread."""

    ways = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.ways += 1
        return super().submit(fn, *args, **kwargs)


def run(
    tmp_path: Path,
    scenario: Callable[[Outbox, HeldSpool], Coroutine[Any, Any, None]],
    *,
    max_bytes: int = 64 * MIB,
    executor: ThreadPoolExecutor | None = None,
    codec: str = "raw",
) -> None:
    async def whole() -> None:
        spool = HeldSpool(tmp_path, max_bytes=max_bytes)
        with executor or ThreadPoolExecutor(2) as threads:
            outbox = Outbox(spool, threads, lambda: codec, hot_bytes=1)
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


@pytest.mark.parametrize(("rows", "full"), [(SMALL, FULL), (LARGE, MAX_BACKLOG)])
def test_a_frame_can_be_sent_before_the_disk_has_it_and_stays_until_then(tmp_path: Path, rows: int, full: int) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        for batch in range(full):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch, rows), batch)
        frames = [await outbox.frame(TRAIN_LANE, batch) for batch in range(full)]
        waiting = asyncio.ensure_future(outbox.keep(TRAIN_LANE, full, tensor(full, rows), full))
        await asyncio.sleep(0)
        assert spool.num_bytes == 0
        assert not waiting.done()
        assert all(outbox.tensor(TRAIN_LANE, batch) is not None for batch in range(full))
        spool.writes.set()
        await waiting
        await until(lambda: spool.num_bytes == (full + 1) * rows * 4096)
        await until(lambda: outbox.tensor(TRAIN_LANE, 0) is None)
        assert outbox.newest(TRAIN_LANE, 0) is None
        for batch, frame in enumerate(frames):
            again = await outbox.frame(TRAIN_LANE, batch)
            assert (again.encoded.header, again.step) == (frame.encoded.header, batch)

    run(tmp_path, scenario)


def test_what_waits_for_the_disk_pushes_out_nothing_that_is_still_to_be_sent(tmp_path: Path) -> None:
    """A successor's window is as large as what stays in memory, and the next frame is made behind it: what it pushed out came back from the disk."""

    async def scenario() -> None:
        rows, window = WORTH_BYTES // 4096, 3
        spool = HeldFrom(tmp_path, batch=window + 1)
        with ThreadPoolExecutor(2) as threads:
            outbox = Outbox(spool, threads, lambda: "raw", hot_bytes=window * WORTH_BYTES)
            try:
                for batch in range(window + 2):
                    await outbox.keep(TRAIN_LANE, batch, tensor(batch, rows), 0)
                await until(lambda: outbox.newest(TRAIN_LANE, 0) is None)
                assert spool.num_bytes == (window + 1) * WORTH_BYTES
                assert all(outbox.newest(TRAIN_LANE, batch) is not None for batch in range(1, window + 2))
            finally:
                spool.writes.set()
                outbox.close()

    asyncio.run(asyncio.wait_for(scenario(), LONG_S))


def test_what_is_dropped_before_the_disk_has_it_is_gone(tmp_path: Path) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        for batch in range(FULL):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch), 0)
        await asyncio.sleep(0)  # the first is being written now
        for batch in range(FULL - 1):
            outbox.drop(TRAIN_LANE, one(batch))
        spool.writes.set()
        for batch in range(FULL, 2 * FULL):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch), 0)
        await until(lambda: spool.num_bytes == (FULL + 1) * SMALL * 4096)
        for batch in range(FULL - 1):
            with pytest.raises(NotFound):
                await outbox.frame(TRAIN_LANE, batch)

    run(tmp_path, scenario)


def test_a_full_disk_keeps_nobody_waiting_and_is_counted(tmp_path: Path) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        spool.writes.set()
        for batch in range(4 * FULL):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch), 0)
            assert (await outbox.frame(TRAIN_LANE, batch)).step == 0
        await until(lambda: outbox.not_kept == {"spool_full": 4 * FULL - 2})

    run(tmp_path, scenario, max_bytes=2 * SMALL * 4096)


def test_small_frames_go_to_the_disk_together_and_a_few_do_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        spool.writes.set()
        monkeypatch.setattr("pnode.outbox.WAIT_S", LONG_S)
        worth = WORTH_BYTES // (SMALL * 4096)
        for batch in range(worth):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch), 0)
            await asyncio.sleep(0)
        await until(lambda: spool.num_bytes == worth * SMALL * 4096)
        assert executor.ways == 1
        monkeypatch.setattr("pnode.outbox.WAIT_S", 0.0)
        await outbox.keep(TRAIN_LANE, worth, tensor(worth), 0)
        await until(lambda: spool.num_bytes == (worth + 1) * SMALL * 4096)

    executor = CountedExecutor(1)
    run(tmp_path, scenario, executor=executor)


@pytest.mark.parametrize("rows", [1, 3 * SMALL])
def test_the_backlog_is_bounded_for_tiny_and_for_large_frames(tmp_path: Path, rows: int) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        most = min(HOT_FRAMES, max(3, -(-BACKLOG_BYTES // (rows * 4096))))
        for batch in range(most):
            await outbox.keep(TRAIN_LANE, batch, tensor(batch, rows), 0)
        waiting = asyncio.ensure_future(outbox.keep(TRAIN_LANE, most, tensor(most, rows), 0))
        await asyncio.sleep(0)
        assert not waiting.done()
        spool.writes.set()
        await waiting
        await until(lambda: spool.num_bytes == (most + 1) * rows * 4096)

    run(tmp_path, scenario)


def test_an_evaluation_travels_as_it_is_whatever_codec_training_uses(tmp_path: Path) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        spool.writes.set()
        for lane in (TRAIN_LANE, Lane("validation", 3), Lane("test", 0)):
            await outbox.keep(lane, 0, tensor(1), 0)
            codec = (await outbox.frame(lane, 0)).encoded.header.codec
            assert codec == ("int8" if lane.is_train else "raw"), lane

    run(tmp_path, scenario, codec="int8")


@pytest.mark.parametrize("rows", [SMALL // 2, LARGE])
def test_an_output_that_cannot_travel_is_counted_and_holds_nobody_up(tmp_path: Path, rows: int) -> None:
    async def scenario(outbox: Outbox, spool: HeldSpool) -> None:
        spool.writes.set()
        await outbox.keep(TRAIN_LANE, 0, np.zeros((rows, 1024), np.complex64), 0)
        await until(lambda: bool(outbox.not_kept))
        assert outbox.not_kept == {"bad_tensor": 1}
        await outbox.keep(TRAIN_LANE, 1, tensor(1), 0)
        assert (await outbox.frame(TRAIN_LANE, 1)).step == 0
        with pytest.raises(NotFound):
            await outbox.frame(TRAIN_LANE, 0)

    run(tmp_path, scenario)
