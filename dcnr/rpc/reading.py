"""How the only message of a call is read: what comes at once is read at once, and what comes slowly takes one of few places, for a bounded time.

A call costs its caller nothing, and of a message that was announced the server holds whatever has come. So who sends half of one, a thousand times, would
hold as much memory as it likes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from grpc import aio

from dcnr import limits
from dcnr.errors import InvalidInput, TimedOut, Unavailable

AT_ONCE_S: Final = 0.5
"""A message that has not come within this time, and as much again in which this process was not kept from looking, comes slowly."""
MAX_SLOW: Final = 16
"""Messages of `limits.MAX_MESSAGE_BYTES` at most that come slowly, of all callers together."""
MAX_SLOW_PER_SUBNET: Final = 4
SESSION_READ_S: Final = limits.CALL_TIMEOUT_S + limits.MAX_MESSAGE_BYTES / limits.SLOWEST_BYTES_S
"""For the message of a caller with a session; who has none gets `limits.CALL_TIMEOUT_S`."""


class Reading:
    """Of one server, in its loop."""

    def __init__(self) -> None:
        self._slow: Counter[str] = Counter()

    async def message(self, context: Any, subnet: str, within_s: float) -> Any:
        """The first message of a call, as its deserialiser made it. Raises TimedOut, Unavailable (``slow_messages``: no place is free), InvalidInput."""
        limit = asyncio.timeout(None)
        late = _Late(self._slow, subnet, within_s, limit)
        try:
            async with limit:
                message = await context.read()
        except TimeoutError:
            if late.has_place:
                raise TimedOut("the message took too long", code="message_timeout") from None
            raise Unavailable("too many messages come slowly", code="slow_messages") from None
        finally:
            late.over()
        if message is aio.EOF:  # type: ignore[attr-defined]  # not in the stubs
            raise InvalidInput("there is no message", code="malformed_message", remedy="send what the contract says")
        return message


class _Late:
    """Looks after one message for as long as it has not come."""

    def __init__(self, slow: Counter[str], subnet: str, within_s: float, limit: asyncio.Timeout) -> None:
        self._slow, self._subnet, self._limit, self._loop = slow, subnet, limit, asyncio.get_running_loop()
        self._until_s, self.has_place = self._loop.time() + within_s, False
        self._timer = self._loop.call_later(AT_ONCE_S, self._again)

    def over(self) -> None:
        """It has come, or comes no more."""
        self._timer.cancel()
        if self.has_place:
            self._slow[self._subnet] -= 1
            if not self._slow[self._subnet]:
                del self._slow[self._subnet]

    def _again(self) -> None:
        """Where this process stood still meanwhile, the message may have come long ago."""
        self._timer = self._loop.call_later(AT_ONCE_S, self._is_slow)

    def _is_slow(self) -> None:
        self.has_place = self._slow.total() < MAX_SLOW and self._slow[self._subnet] < MAX_SLOW_PER_SUBNET
        if self.has_place:
            self._slow[self._subnet] += 1
        self._limit.reschedule(self._until_s if self.has_place else self._loop.time())
