"""Goal: a seat that is dropped leaves the memory at once: the next state is loaded into the room that it had."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any
from weakref import ref

from infer_rig import samples, served
from worker_rig import MODEL

from dcnr.system import SystemClock
from dcnr.v1 import local_pb2
from pnode.infer_places import Session, Wish
from pnode.infer_words import Made
from pnode.pace import Pace
from pnode.seats import Seats
from vnode.registry import default_registry
from vnode.torch_compute import TorchCompute

WITHIN_S = 60.0


def test_nobody_holds_the_state_of_a_seat_that_was_dropped(tmp_path: Path) -> None:
    """Without a search for garbage: an idle worker may never make one, and the daemon counts the memory as free."""
    one, clock = served(tmp_path), SystemClock()
    computes: list[ref[TorchCompute]] = []

    def compute(*given: Any, **named: Any) -> TorchCompute:
        made = TorchCompute(*given, **named)
        computes.append(ref(made))
        return made

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group, asyncio.timeout(WITHIN_S):
            news = asyncio.Event()
            seats = Seats(
                default_registry(), compute=compute, device="cpu", clock=clock, pace=Pace(clock, time.process_time), news=news.set, group=group
            )  # fmt: skip
            seats.ordered(one.seat("a"))
            await news.wait()
            asked = [Made("input", samples())]
            seat = seats.find(MODEL, "a", one.digest("a"))
            answered = await asyncio.gather(*(seat.compute(asked, Wish(answers=True)) for _ in range(2)))
            assert all(found.readout is not None for found in answered)
            await seat.compute(asked, Wish(session=Session("caller", b"text", 0)))
            del seat
            seats.ordered(local_pb2.HostSeat(model=MODEL, vnode="a", state_digest=one.digest("a")))
            while computes[0]() is not None:  # noqa: ASYNC110  the thread lets go of it a moment later
                await asyncio.sleep(0.002)
            seats.close()

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
