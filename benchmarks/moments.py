"""PNodes that tell when each of their VNodes learns, and the longest times between: by the files of `chaos.watched`, as views come too seldom for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.network import LocalPNode
from chaos import watched
from chaos.pulse import Pulse

POLL_S: Final = 0.02


def telling(name: str, memory_mb: int, directory: Path) -> LocalPNode:
    """A PNode of one core whose worker touches a file of ``directory``, which is there, after each batch that it has learned."""
    return LocalPNode(name, 1.0, memory_mb, (watched.FLAG, str(directory)), program=watched.PROGRAM)


@asynccontextmanager
async def heard(directory: Path) -> AsyncIterator[Pulse]:
    """Takes in the moments while it lasts."""
    pulse = Pulse()

    async def listen() -> None:
        while True:
            await asyncio.to_thread(pulse.look, directory)
            await asyncio.sleep(POLL_S)

    listening = asyncio.ensure_future(listen())
    try:
        yield pulse
    finally:
        listening.cancel()
        await asyncio.wait({listening})


def longest_s(pulse: Pulse, vnodes: Sequence[str], from_s: float, to_s: float) -> float | None:
    """The longest time between two such monotonic moments in which one of the VNodes learned nothing; None where one was never heard."""
    ahead_s = time.time() - time.monotonic()
    return pulse.stillness_s(vnodes, from_s + ahead_s, to_s + ahead_s)
