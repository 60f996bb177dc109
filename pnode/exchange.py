"""What both ends of a Link share, without gRPC: the stream, the replica behind it, and a queue in which only the newest statements wait."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from dcnr.errors import DcnrError, TimedOut
from dcnr.v1 import vnode_pb2
from pnode import frames
from pnode.frames import Expected
from pnode.outbox import Outbox
from pnode.wire import Heard, read_message
from vnode.events import Event, SendAck, SendDurable, SendNeed, SendWindow
from vnode.vocabulary import Lane, Mode, Peer

BEAT_S: Final = 1.0
"""A Link without other news carries an empty message this often."""
SILENCE_S: Final = 5.0
"""A Link without any message for so long is broken."""

Said = SendNeed | SendWindow | SendAck | SendDurable


class Stream(Protocol):
    """One open bidirectional stream of LinkMessages, as bytes (`pnode.wire`)."""

    async def read(self) -> bytes | None:
        """The next message, None at the end. Raises Unavailable."""
        ...

    async def write(self, message: bytes) -> None:
        """Waits while the other side takes nothing. Raises Unavailable."""
        ...


class Way(Protocol):
    """How a replica reaches one successor's replica: handed to it by `Replica.attach`."""

    def send(self, lane: Lane, batch: int, mode: Mode) -> None:
        """Queues a frame; answered by FrameSent or FrameMissing."""
        ...

    def close(self, code: str) -> None:
        """Tells the other side that the edge is over, with the reason."""
        ...


class Replica(Protocol):
    """A hosted replica as the data plane sees it."""

    @property
    def peer(self) -> Peer: ...
    @property
    def network_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def outbox(self) -> Outbox: ...

    def post(self, event: Event) -> None:
        """Takes an event, in order, without waiting."""
        ...

    def expected(self, edge: int) -> Expected:
        """What may arrive over an edge."""
        ...

    def attach(self, target: Peer, pnode_id: str, way: Way) -> int:
        """A new link to a successor's replica. Raises Stale (older incarnation), Refused (no successor, or not from there)."""
        ...

    def detach(self, link: int) -> None:
        """That link is gone."""
        ...

    def carried(self, num_bytes: int, seconds: float) -> None:
        """So much went out over a Link to another machine in so much time."""
        ...


class Control:
    """Messages other than frames, first come first out; a statement not yet written is replaced by a newer one of its kind."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, str | None, bytes], vnode_pb2.LinkMessage] = {}
        self.news = asyncio.Event()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def put(self, message: vnode_pb2.LinkMessage) -> None:
        """Queues it. At most five kinds per edge and lane can wait."""
        kind = message.WhichOneof("kind")
        lane = (
            message.need.lane if kind == "need" else message.window.lane if kind == "window" else vnode_pb2.Lane()
        ).SerializeToString()
        key = (message.edge, kind, lane)
        older = self._waiting.get(key)
        if older is not None and kind == "need":
            message = vnode_pb2.LinkMessage(edge=message.edge, need=frames.merged_need(older.need, message.need))
        self._waiting[key] = message
        self.news.set()

    def drop(self, edge: int) -> bool:
        """Forgets what waits of an edge that has ended; True if the other side has never heard of it: its opening still waited."""
        dropped = [key for key in self._waiting if key[0] == edge]
        for key in dropped:
            del self._waiting[key]
        return any(kind == "open" for _, kind, _ in dropped)

    def take(self) -> vnode_pb2.LinkMessage | None:
        """The oldest waiting message."""
        for key in self._waiting:
            return self._waiting.pop(key)
        return None


async def read_alive(stream: Stream) -> Heard | None:
    """The next message. Raises TimedOut when the other side is silent for `SILENCE_S`, Corrupt for bytes that are no message."""
    try:
        async with asyncio.timeout(SILENCE_S):
            data = await stream.read()
    except TimeoutError as error:
        raise TimedOut(f"no sign of life for {SILENCE_S:g} s", code="silent") from error
    return None if data is None else read_message(data)


async def read_ahead(stream: Stream, ahead: asyncio.Queue[Heard | DcnrError | None]) -> None:
    """Puts each message there as it comes, so that the next is fetched while one is handled; last the end, or what went wrong."""
    last: DcnrError | None = None
    try:
        while (heard := await read_alive(stream)) is not None:
            await ahead.put(heard)
    except DcnrError as error:
        last = error
    await ahead.put(last)


async def write_control(stream: Stream, control: Control) -> None:
    """Writes all that waits."""
    while (message := control.take()) is not None:
        await stream.write(message.SerializeToString())


async def write_beat(stream: Stream) -> None:
    """A sign of life."""
    await stream.write(b"")


async def wait_for_news(news: asyncio.Event) -> bool:
    """True when there is news, False after `BEAT_S` without any."""
    try:
        async with asyncio.timeout(BEAT_S):
            await news.wait()
    except TimeoutError:
        return False
    news.clear()
    return True
