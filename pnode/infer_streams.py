"""One Infer stream, either end of it: whole questions and answers in and out, one after the other, each bounded before memory is taken for it.

What is sent waits in memory, bounded (`dcnr.question_outbox`); the reader never waits for the writer, so two workers that answer each other cannot block
each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol

from dcnr import limits
from dcnr.errors import DcnrError, RemoteFault, Unavailable
from dcnr.question_outbox import Outbox
from dcnr.question_wire import Chunk, Words, read_messages
from dcnr.v1 import vnode_pb2
from pnode.exchange import Stream
from pnode.infer_words import Arriving

MAX_ARRIVING_BYTES: Final = 4 * limits.MAX_QUESTION_BYTES
SOON: Final = "soon"


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
        """A failure, that nobody waits any more, or to whom questions may soon go on."""
        ...


class InferStream:
    """Runs from `run` to the end of the stream. ``hears``: the kinds of messages that the other side may send besides chunks; what it says of `SOON`
    without being one who may is ignored, as older nodes do.
    """

    def __init__(self, listener: Listener, hears: frozenset[str]) -> None:
        self._listener, self._hears = listener, hears
        self._arriving: dict[bytes, Arriving] = {}
        self._outbox = Outbox()
        self.is_open = True

    def say(self, words: Words) -> None:
        """Queues something whole. Raises Unavailable: the stream has ended (``link_broken``), or the other side takes too little (``busy``)."""
        if not self.is_open:
            raise Unavailable("the stream has ended", code="link_broken")
        self._outbox.say(words)

    async def run(self, stream: Stream) -> None:
        """Until the stream ends, which is not kept. Raises Unavailable where it breaks, RemoteFault and Corrupt where the other side breaks the protocol."""
        reading, writing = (asyncio.ensure_future(work) for work in (self._read(stream), self._outbox.run(stream.write)))
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

    async def _read(self, stream: Stream) -> None:
        while (data := await stream.read()) is not None:
            for message in read_messages(data):
                if isinstance(message, Chunk):
                    self._chunk(message)
                else:
                    self._heard(message)

    def _heard(self, message: vnode_pb2.InferMessage) -> None:
        kind = message.WhichOneof("kind")
        match kind:
            case None:  # a sign of life, or how the other side begins
                self._outbox.is_joining |= message.takes_several
                if message.soon and SOON in self._hears:
                    self._listener.heard(self, message)
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

    def _chunk(self, message: Chunk) -> None:
        arriving = self._arriving.get(message.id)
        if arriving is None:
            return  # of a question that was refused, or of an answer that nobody waits for
        try:
            arriving.add(message.payload)
        except DcnrError as error:
            del self._arriving[message.id]
            self._listener.broken(self, arriving, error)
            return
        if arriving.is_whole:
            del self._arriving[message.id]
            self._listener.whole(self, arriving)
