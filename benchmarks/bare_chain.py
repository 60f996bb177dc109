"""The bytes of an answer over bare TCP: one process per machine takes a message, waits as long as a stage computes, and sends the next one on.

The peer of `benchmarks.serving_links`: what such a chain takes is the doing of the links and of TCP, what an answer takes beyond it is ours. Nothing is
encrypted, checked or decoded. A message is its length and as many bytes; one of no length is a sign of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.machine import ROOT

PORT: Final = 7791
STARTED_S: Final = 20.0
ANSWERED_S: Final = 30.0
ENDED_S: Final = 10.0
ROOM_BYTES: Final = 1 << 20
_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Carried:
    """What an answer brings over its links, how long each stage computes, and after how long a silent connection says something; None: never."""

    asked_bytes: int
    activation_bytes: int
    readout_bytes: int
    computed_s: float
    beat_s: float | None


@dataclass(frozen=True, slots=True)
class Stage:
    """One process: where it listens, who comes next, and what it sends there after so long."""

    host: str
    onward: str
    num_bytes: int
    computed_s: float
    beat_s: float | None


async def times_s(addresses: Sequence[str], prefixes: Sequence[Sequence[str]], carried: Carried, count: int) -> list[float]:
    """Seconds of so many answers, one after the other, of a chain over all machines but the last, which is this process's own."""
    *hosts, here = addresses
    sizes = [carried.activation_bytes] * (len(hosts) - 1) + [carried.readout_bytes]
    stages = [
        Stage(host, onward, num_bytes, carried.computed_s, carried.beat_s)
        for host, onward, num_bytes in zip(hosts, [*hosts[1:], here], sizes, strict=True)
    ]
    answers: asyncio.Queue[None] = asyncio.Queue()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while await _arrived(reader):
                answers.put_nowait(None)

    took_s = []
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(await asyncio.start_server(hear, here, PORT, limit=ROOM_BYTES))
        for stage, prefix in zip(stages, prefixes[:-1], strict=True):
            await stack.enter_async_context(_running(stage, prefix))
        _, writer = await asyncio.open_connection(hosts[0], PORT)
        async with _saying(writer, carried.beat_s) as line:
            for _ in range(count):
                began = time.monotonic()
                line.say(carried.asked_bytes)
                async with asyncio.timeout(ANSWERED_S):
                    await answers.get()
                took_s.append(time.monotonic() - began)
    return took_s


async def stand(stage: Stage) -> None:
    """One stage, until who comes before it ends."""
    over = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.closing(writer):
                _, onward = await asyncio.open_connection(stage.onward, PORT)
                async with _saying(onward, stage.beat_s) as line:
                    while await _arrived(reader):
                        await asyncio.sleep(stage.computed_s)
                        line.say(stage.num_bytes)
        finally:
            over.set()

    async with await asyncio.start_server(hear, stage.host, PORT, limit=ROOM_BYTES):
        print("ready", flush=True)
        await over.wait()


class _Line:
    """What goes out over one connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._news = asyncio.Event()

    def say(self, num_bytes: int) -> None:
        """A message."""
        self._writer.write(_LENGTH.pack(num_bytes) + bytes(num_bytes))
        self._news.set()

    async def beat(self, beat_s: float | None) -> None:
        """Signs of life while nothing else is said."""
        while True:
            try:
                async with asyncio.timeout(beat_s):
                    await self._news.wait()
                self._news.clear()
            except TimeoutError:
                self._writer.write(_LENGTH.pack(0))


@asynccontextmanager
async def _saying(writer: asyncio.StreamWriter, beat_s: float | None) -> AsyncIterator[_Line]:
    line = _Line(writer)
    beating = asyncio.create_task(line.beat(beat_s))
    try:
        yield line
    finally:
        beating.cancel()
        writer.close()
        await asyncio.wait([beating])


@asynccontextmanager
async def _running(stage: Stage, prefix: Sequence[str]) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *prefix, sys.executable, "-m", "benchmarks.bare_chain", json.dumps(asdict(stage)), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(STARTED_S):
            await process.stdout.readline()
        yield
        async with asyncio.timeout(ENDED_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _arrived(reader: asyncio.StreamReader) -> bool:
    """The next message is here; False: the other side has ended."""
    num_bytes = 0
    try:
        while not num_bytes:
            (num_bytes,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            await reader.readexactly(num_bytes)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


if __name__ == "__main__":
    asyncio.run(stand(Stage(**json.loads(sys.argv[1]))))
