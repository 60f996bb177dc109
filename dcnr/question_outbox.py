"""What waits to be said over one Infer stream, either end of it: bounded, in order, and as few messages as the other side takes.

Nobody waits for company: what waits while a message is being written goes out as the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from dcnr import limits
from dcnr.errors import Unavailable
from dcnr.question_wire import MAX_SEVERAL, Piece, Words, joined, size_of
from dcnr.v1 import vnode_pb2

MAX_UNSENT_BYTES: Final = 4 * limits.MAX_QUESTION_BYTES
MAX_UNSENT: Final = 1024
MOST_BYTES: Final = 2 * limits.MAX_CHUNK_BYTES
"""Of a message that is several: a question and its first chunk always fit."""
TAKES_SEVERAL: Final = vnode_pb2.InferMessage(takes_several=True).SerializeToString()
"""Begins a stream."""
SIGN_OF_LIFE: Final = vnode_pb2.InferMessage().SerializeToString()
"""Keeps a connection that just carried tensors from beginning slowly with the next ones (`limits.WARM_BEAT_S`)."""


class Outbox:
    """``is_joining``: whether the other side takes several messages as one."""

    def __init__(self) -> None:
        self.is_joining = False
        self._unsent: deque[Words] = deque()
        self._unsent_bytes = 0
        self._beats = 0
        self._news = asyncio.Event()

    def check_room(self, words: Words) -> None:
        """Raises Unavailable (``busy``): the other side takes too little for this to be queued now."""
        if self._unsent and (self._unsent_bytes + words.num_bytes > MAX_UNSENT_BYTES or len(self._unsent) >= MAX_UNSENT):
            raise Unavailable("the other side takes too little", code="busy")

    def say(self, words: Words) -> None:
        """Queues something whole. Raises as `check_room`."""
        self.check_room(words)
        self._unsent.append(words)
        self._unsent_bytes += words.num_bytes
        self._news.set()

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Says what is queued, until cancelled. Raises what ``write`` does."""
        await write(TAKES_SEVERAL)
        while True:
            if not await self._has_news(limits.WARM_BEAT_S if self._beats else None):
                self._beats -= 1
                await write(SIGN_OF_LIFE)
            while self._unsent:
                for message in self._messages():
                    await write(message)

    def _messages(self) -> Iterator[bytes]:
        """All that waits, what comes meanwhile included."""
        pieces: list[Piece] = []
        num_bytes = 0
        for piece in self._pieces():
            size = size_of(piece)
            if pieces and (not self.is_joining or num_bytes + size > MOST_BYTES or len(pieces) >= MAX_SEVERAL):
                yield joined(pieces)
                pieces, num_bytes = [], 0
            pieces.append(piece)
            num_bytes += size
        if pieces:
            yield joined(pieces)

    def _pieces(self) -> Iterator[Piece]:
        while self._unsent:
            words = self._unsent[0]
            yield from words.pieces()
            self._unsent.popleft()
            self._unsent_bytes -= words.num_bytes
            if words.num_bytes > limits.WARM_BYTES:
                self._beats = limits.WARM_BEATS

    async def _has_news(self, within_s: float | None) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True
