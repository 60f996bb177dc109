"""One call of each sibling at a time, from its opening until its last byte is written: the newest ends the older."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from dcnr.errors import Unavailable
from dcnr.ids import ReplicaId

REPLACED: Final = "replaced"
"""The code of what an older call ends with."""


class Turns:
    """Each turn belongs to the task that takes it."""

    def __init__(self) -> None:
        self._newest: dict[ReplicaId, asyncio.Timeout] = {}

    @contextlib.asynccontextmanager
    async def take(self, sibling: ReplicaId) -> AsyncIterator[None]:
        """A call of that sibling. Whatever the task waits for inside ends with Unavailable (``replaced``) when the sibling calls again."""
        older = self._newest.get(sibling)
        if older is not None:
            older.reschedule(asyncio.get_running_loop().time())
        turn = self._newest[sibling] = asyncio.timeout(None)
        try:
            async with turn:
                yield
        except TimeoutError:
            if not turn.expired():
                raise
            raise Unavailable("the same replica asks again", code="replaced") from None
        finally:
            if self._newest.get(sibling) is turn:
                del self._newest[sibling]
