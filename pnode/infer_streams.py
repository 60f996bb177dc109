"""One Infer stream, either end of it: whole questions and answers in and out, one after the other, each bounded before memory is taken for it.

What is sent waits in memory, `MAX_UNSENT_BYTES` of it at most; the reader never waits for the writer, so two workers that answer each other cannot
block each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dcnr import limits
from dcnr.errors import DcnrError, RemoteFault, Unavailable
from dcnr.tensor import EncodedTensor, chunks
from dcnr.v1 import vnode_pb2
from pnode.exchange import Stream
from pnode.infer_words import Arriving, read_infer

MAX_UNSENT_BYTES: Final = 4 * limits.MAX_QUESTION_BYTES
MAX_ARRIVING_BYTES: Final = 4 * limits.MAX_QUESTION_BYTES
SIGN_OF_LIFE: Final = vnode_pb2.InferMessage().SerializeToString()
"""Keeps a connection that just carried tensors from beginning slowly with the next ones (`limits.WARM_BEAT_S`)."""


@dataclass(frozen=True, slots=True)
class Words:
    """Something whole to be said: a message, and the tensors that it announces."""

    message: vnode_pb2.InferMessage
    tensors: Sequence[EncodedTensor] = ()

    @property
    def num_bytes(self) -> int:
        """Of the tensors."""
        return sum(len(tensor.payload) for tensor in self.tensors)


class Listener(Protocol):
    """Who hears what comes over a stream."""

    def begins(self, stream: InferStream, message: vnode_pb2.InferMessage) -> Arriving | None:
        """A request or an answer whose tensors follow; None where nobody wants them."""
        ...

    def whole(self, stream: InferStream, arrived: Arriving) -> None:
        """All of its tensors are here."""
        ...

    def broken(self, stream: InferStream, arriving: Arriving, error: DcnrError) -> None:
        """Its tensors are not what was announced: no more of it will come."""
        ...

    def heard(self, stream: InferStream, message: vnode_pb2.InferMessage) -> None:
        """A failure, or that nobody waits any more."""
        ...


class InferStream:
    """Runs from `run` to the end of the stream. ``hears``: the kinds of messages that the other side may send besides chunks."""

    def __init__(self, stream: Stream, listener: Listener, hears: frozenset[str]) -> None:
        self._stream, self._listener, self._hears = stream, listener, hears
        self._arriving: dict[bytes, Arriving] = {}
        self._unsent: deque[Words] = deque()
        self._unsent_bytes = 0
        self._news = asyncio.Event()
        self.is_open = True

    def say(self, words: Words) -> None:
        """Queues something whole. Raises Unavailable: the stream has ended (``link_broken``), or the other side takes too little (``busy``)."""
        if not self.is_open:
            raise Unavailable("the stream has ended", code="link_broken")
        if self._unsent and self._unsent_bytes + words.num_bytes > MAX_UNSENT_BYTES:
            raise Unavailable("the other side takes too little", code="busy")
        self._unsent.append(words)
        self._unsent_bytes += words.num_bytes
        self._news.set()

    async def run(self) -> None:
        """Until the stream ends. Raises Unavailable where it breaks, RemoteFault and Corrupt where the other side breaks the protocol."""
        reading, writing = asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_open = False
            for task in (reading, writing):
                if not task.done():
                    task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            self._arriving.clear()
        for task in (reading, writing):
            with contextlib.suppress(asyncio.CancelledError):
                task.result()

    def forget(self, question: bytes) -> None:
        """What is still to come of it is not wanted."""
        self._arriving.pop(question, None)

    async def _read(self) -> None:
        while (data := await self._stream.read()) is not None:
            self._heard(read_infer(data))

    def _heard(self, message: vnode_pb2.InferMessage) -> None:
        kind = message.WhichOneof("kind")
        match kind:
            case None:
                return  # a sign of life
            case "chunk":
                self._chunk(message.chunk)
            case _ if kind not in self._hears:
                raise RemoteFault(f"this side of an Infer stream does not say {kind}", code="bad_message")
            case "request" | "answer":
                arriving = self._listener.begins(self, message)
                if arriving is not None:
                    self._keep(arriving)
            case _:
                self._listener.heard(self, message)

    def _keep(self, arriving: Arriving) -> None:
        """Whoever begins more than may arrive at once hears it; what began before goes on."""
        if sum(one.num_bytes for one in self._arriving.values()) + arriving.num_bytes > MAX_ARRIVING_BYTES:
            self._listener.broken(self, arriving, Unavailable("too much begins at once on this stream", code="busy"))
        else:
            self._arriving[arriving.id] = arriving

    def _chunk(self, message: vnode_pb2.InferChunk) -> None:
        arriving = self._arriving.get(message.id)
        if arriving is None:
            return  # of a question that was refused, or of an answer that nobody waits for
        try:
            arriving.add(message.chunk)
        except DcnrError as error:
            del self._arriving[message.id]
            self._listener.broken(self, arriving, error)
            return
        if arriving.is_whole:
            del self._arriving[message.id]
            self._listener.whole(self, arriving)

    async def _write(self) -> None:
        beats = 0
        while True:
            if not await self._has_news(limits.WARM_BEAT_S if beats else None):
                beats -= 1
                await self._stream.write(SIGN_OF_LIFE)
            while self._unsent:
                words = self._unsent[0]
                await self._stream.write(words.message.SerializeToString())
                question = getattr(words.message, words.message.WhichOneof("kind") or "").id
                for tensor in words.tensors:
                    for chunk in chunks(tensor):
                        part = vnode_pb2.InferChunk(id=question, chunk=bytes(chunk))
                        await self._stream.write(vnode_pb2.InferMessage(chunk=part).SerializeToString())
                self._unsent.popleft()
                self._unsent_bytes -= words.num_bytes
                if words.num_bytes > limits.WARM_BYTES:
                    beats = limits.WARM_BEATS

    async def _has_news(self, within_s: float | None) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True
