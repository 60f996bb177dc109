"""Work on the disk, beside the loop: a disk may stand still for as long as it likes, and whoever is told to stop does not wait for it.

The loop's default executor is the disk's. What else blocks, a name server say, has threads of its own: all of the default's may stand in the disk at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dcnr.errors import Unavailable

T = TypeVar("T")


def _nothing(_: object) -> None:
    """For what needs no end."""


async def on_disk(work: Callable[[], T], stopped: asyncio.Event, *, too_late: Callable[[T], None] = _nothing) -> T:
    """The result of ``work``, which blocks. Raises what it raises, and Unavailable once ``stopped`` is set: a result that comes after that goes to
    ``too_late``.
    """
    working = asyncio.get_running_loop().run_in_executor(None, work)
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    finally:
        stopping.cancel()
        if not working.done():
            working.add_done_callback(lambda done: None if done.cancelled() or done.exception() else too_late(done.result()))
    raise Unavailable("it is stopped while the disk stands still", code="disk_trouble")
