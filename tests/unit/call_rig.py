"""A call over which messages come, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

END: Any = aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


class GivenCall:
    """What gRPC gives for a stream: these messages, then its end, or what they raise."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages

    async def read(self) -> Any:
        """The next message."""
        return await anext(self._messages, END)

    def cancel(self) -> None:
        """Nobody reads on."""
