"""Goal: what is cancelled ends, also where what it waited for comes in that very turn: a daemon whose streams went on would never end."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dcnr.ids import NodeId
from dcnr.system import SystemClock
from dcnr.v1 import orchestrator_pb2
from pnode.control import ControlStreams
from pnode.halts import Halts
from pnode.pausing import Pausing
from pnode.supervisor import Supervisor, WorkerOptions
from pnode.telling import Condition

WITHIN_S = 30.0
NODE = NodeId("1" * 40)


async def ends(running: asyncio.Task[None]) -> None:
    """Ends it in any case."""
    done, _ = await asyncio.wait([running], timeout=1.0)
    running.cancel()
    await asyncio.wait([running], timeout=WITHIN_S)
    assert done, "it went on"


class Line:
    """A control stream of which nothing comes; what is written is taken when the test says so."""

    def __init__(self) -> None:
        self.writes: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def write(self, message: orchestrator_pb2.PNodeMessage) -> None:
        taken = asyncio.get_running_loop().create_future()
        self.writes.put_nowait(taken)
        await taken

    async def read(self) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        pass


def test_streams_end_though_what_they_write_is_taken_just_then() -> None:
    async def story() -> None:
        line = Line()

        async def nothing(*_: object, **__: object) -> Any:
            return ()

        method = SimpleNamespace(stream_stream=lambda *_, **__: lambda **__: line, unary_unary=lambda *_, **__: None)
        method.unary_stream = method.stream_unary = method.unary_unary
        connection = SimpleNamespace(channel=method, address="127.0.0.1:1", fresh_metadata=nothing, close=nothing)

        async def connect(*_: object, **__: object) -> Any:
            return connection

        dialer: Any = SimpleNamespace(connect=connect)
        streams = ControlStreams(
            dialer, lambda: [(NODE, ("127.0.0.1:1",))], hello=orchestrator_pb2.Hello, beat=lambda _: orchestrator_pb2.Beat(),
            on_message=nothing, holders=list, clock=SystemClock(), rng=random.Random(1),
        )  # fmt: skip
        running = asyncio.create_task(streams.run())
        taken = await asyncio.wait_for(line.writes.get(), WITHIN_S)
        taken.set_result(None)
        running.cancel()
        await ends(running)

    asyncio.run(story())


def test_who_carries_pauses_out_ends_though_one_begins_just_then(tmp_path: Path) -> None:
    async def story() -> None:
        async def nothing(*_: object) -> None:
            return

        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", os.environ)
        supervisor = Supervisor(options, next_incarnation=lambda: 1, on_up=nothing, on_message=nothing, on_down=nothing)
        halts = Halts(
            Pausing(tmp_path / "pause", SystemClock()), supervisor, Condition(0.0), hand_over=nothing, tell=lambda *_: None
        )
        running = asyncio.create_task(halts.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it waits
        pausing = asyncio.create_task(halts.pause(0.0))
        await asyncio.sleep(0)  # what it waits for is there, and it is about to hear of it
        running.cancel()
        await ends(running)
        await pausing

    asyncio.run(story())
