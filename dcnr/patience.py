"""How long bulk may be under way: a time of its own, and more with every byte that moves. Who carries steadily is never out of time, whatever the size; who
moves next to nothing holds nobody for as long as a whole state may take.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from dcnr import limits

Moved = Callable[[int, float], None]
"""So many bytes went or came, and our own pace has them wait for so many seconds."""
SLOWEST_PACED_BYTES_S: Final = limits.SLOWEST_BYTES_S * limits.UPLINK_SHARE / 2
"""What a line of `limits.SLOWEST_BYTES_S` leaves to anchors, deltas and donated states where checkpoints leave it too (`pnode.line`)."""


@contextlib.asynccontextmanager
async def patience(base_s: float) -> AsyncIterator[Moved]:
    """``base_s``, and more with what is told as moved: its time at `limits.SLOWEST_BYTES_S`, and what our own pace has it wait. Raises TimeoutError."""
    is_over = False
    try:
        async with asyncio.timeout(base_s) as limit:

            def moved(num_bytes: int, wait_s: float) -> None:
                if not is_over and not limit.expired():
                    limit.reschedule((limit.when() or 0.0) + num_bytes / limits.SLOWEST_BYTES_S + wait_s)

            yield moved
    finally:
        is_over = True


def paced_s(num_bytes: int) -> float:
    """What the pace of the other side, which we do not know, may have so many bytes wait."""
    return num_bytes / SLOWEST_PACED_BYTES_S
