"""Goal: where a strand breaks with a part its stream ends at once, also an orchestrator's; and a process has a bounded number of strands."""

from __future__ import annotations

import asyncio
from typing import Any

from test_company import WITHIN_S, Silent

from dcnr.errors import Unavailable
from dcnr.question_strands import PART_BYTES, Room, Strands
from dcnr.system import SystemClock
from orchestrator.infer_streams import InferStream


def test_an_orchestrator_hears_at_once_of_a_stream_whose_strand_broke() -> None:
    class Broken(Strands):
        async def write(self, whole: Any, message: bytes) -> None:
            raise Unavailable("a strand of the stream broke", code="link_broken")

    async def story() -> None:
        unused: Any = None
        worker: Any = Silent()
        stream = InferStream("p", worker, SystemClock(), Broken(unused, "", SystemClock(), Room(0)))
        async with asyncio.timeout(WITHIN_S):
            await stream.run()
        assert stream.ended

    asyncio.run(story())


def test_what_is_small_or_empty_goes_whole() -> None:
    async def story() -> None:
        unused: Any = None
        strands = Strands(unused, "", SystemClock(), Room())
        strands._open = dict.fromkeys(range(1, 8))
        said: list[bytes] = []

        async def whole(message: bytes) -> None:
            said.append(message)

        small = bytes(2 * PART_BYTES - 1)
        await strands.write(whole, b"")
        await strands.write(whole, small)
        assert said == [b"", small]

    asyncio.run(story())


def test_all_streams_together_have_so_many() -> None:
    async def story() -> None:
        dialled, gate = 0, asyncio.Event()

        async def dial() -> Any:
            nonlocal dialled
            dialled += 1
            await gate.wait()
            raise Unavailable("nobody is there", code="unreachable")

        room = Room(2)
        strands = Strands(dial, "", SystemClock(), room)
        strands._wanted.set()
        running = asyncio.create_task(strands.run())
        async with asyncio.timeout(WITHIN_S):
            while room.free:  # noqa: ASYNC110  of tasks that have no event for it
                await asyncio.sleep(0)
        gate.set()
        await running
        assert (dialled, room.free) == (2, 2)

    asyncio.run(story())
