"""Goal: over a cable that is cut nothing arrives, nothing is refused, and what was sent meanwhile arrives when it is whole again."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.cable import Cable

SILENCE_S = 0.2


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_what_is_sent_over_a_cut_cable_arrives_late() -> None:
    async def work() -> None:
        async with (
            await asyncio.start_server(echo, "127.0.0.1", 0) as server,
            Cable("127.0.0.1", server.sockets[0].getsockname()[1]) as cable,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", cable.port)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            cable.cut()
            writer.write(b"b")
            later_reader, later_writer = await asyncio.open_connection("127.0.0.1", cable.port)
            later_writer.write(b"c")
            for one in (reader, later_reader):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(one.readexactly(1), SILENCE_S)
            cable.mend()
            assert [await reader.readexactly(1), await later_reader.readexactly(1)] == [b"b", b"c"]
            for end in (writer, later_writer):
                end.close()
                await end.wait_closed()

    asyncio.run(asyncio.wait_for(work(), 20.0))
