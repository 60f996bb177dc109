"""Removes drafts where work ends, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

TIDY_S: Final = 1.0


async def tidied(work: Callable[[], None]) -> None:
    """In a thread: a disk that stands still holds up no loop, and nobody for longer than `TIDY_S`; what is left then is done when the disk goes on."""
    await asyncio.wait((asyncio.get_running_loop().run_in_executor(None, work),), timeout=TIDY_S)
