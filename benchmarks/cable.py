"""A TCP way over loopback that can be cut: what is sent meanwhile waits, as on a line that loses every packet, and arrives late when it is whole again."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final

BLOCK_BYTES: Final = 65_536


class Cable:
    """Leads to ``host:port``. Use as an async context manager; nothing is refused and nothing is closed by a cut."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._joined: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Its own end on loopback."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def in_use(self) -> bool:
        """Whether a connection goes over it now."""
        return bool(self._joined)

    def cut(self) -> None:
        """Nothing arrives any more, in either direction."""
        self._whole.clear()

    def mend(self) -> None:
        """What was sent meanwhile arrives."""
        self._whole.set()

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._joined:
            task.cancel()
        await asyncio.gather(*self._joined, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._joined.add(task)
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.CancelledError):
            await self._whole.wait()
            other_reader, other_writer = await asyncio.open_connection(self._host, self._port)
            with contextlib.closing(other_writer):
                await asyncio.gather(self._carry(reader, other_writer), self._carry(other_reader, writer))
        self._joined.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(BLOCK_BYTES):
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
        await self._whole.wait()
        writer.write_eof()
