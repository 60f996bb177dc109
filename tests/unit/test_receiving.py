"""Goal: a receiver reads ahead of what it handles, by no more than is said, and what came before a Link broke is handled as if it had not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dcnr.errors import DcnrError, Unavailable
from dcnr.ids import ReplicaId
from dcnr.specs import TensorSpec
from dcnr.system import SystemClock
from dcnr.tensor import chunks, encode
from dcnr.v1 import identity_pb2, vnode_pb2
from pnode.exchange import Stream
from pnode.frames import Expected, header_message
from pnode.receiving import AHEAD, DECODING, Edge, ReceivingExchange
from pnode.spool import Frame
from pnode.wire import frame_bytes
from trust.envelope import sign_apart
from trust.identity import NodeKey
from vnode import events as ev
from vnode.signed_frames import FrameNumber, statement
from vnode.vocabulary import TRAIN_LANE, Mode, Peer

LONG_S = 60.0
ROWS, WIDTH = 4, 16
KEY = NodeKey.generate()
SOURCE, TARGET = Peer(ReplicaId("a.1"), 3), Peer(ReplicaId("b.1"), 5)


@dataclass
class Receiver:
    """A hosted replica that keeps its events."""

    peer: Peer = TARGET
    network_id: str = "7" * 40
    model: str = "m"
    job_id: str = "j"
    events: list[ev.Event] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def post(self, event: ev.Event) -> None:
        self.events.append(event)
        self.news.set()

    def expected(self, edge: int) -> Expected:
        return Expected(TensorSpec("float32", (WIDTH,)), ROWS, ("raw", "int8"))


class Scripted:
    """A stream with these messages; then it breaks with ``error`` or, without one, stays silent. It counts what was taken."""

    def __init__(self, messages: list[bytes], error: DcnrError | None = None) -> None:
        self._left, self._error = messages, error
        self.taken = 0

    async def read(self) -> bytes | None:
        if self.taken < len(self._left):
            self.taken += 1
            return self._left[self.taken - 1]
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()
        return None

    async def write(self, message: bytes) -> None:
        await asyncio.sleep(0)


class Held(ThreadPoolExecutor):
    """Decodes when the test says so."""

    def __init__(self) -> None:
        super().__init__(DECODING)
        self.free = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        def when_free() -> Any:
            assert self.free.wait(LONG_S)
            return fn(*args, **kwargs)

        return super().submit(when_free)


def opened() -> bytes:
    return vnode_pb2.LinkMessage(edge=1, opened=vnode_pb2.EdgeOpened(source_incarnation=SOURCE.incarnation)).SerializeToString()


def frame(batch: int, codec: str) -> bytes:
    """A frame in one message."""
    encoded = encode(np.full((ROWS, WIDTH), batch, np.float32), codec)
    number = FrameNumber(TRAIN_LANE, batch, Mode.TRAIN)
    signature = sign_apart(identity_pb2.DOMAIN_FRAME, statement(SOURCE, TARGET.replica, number, encoded.header, 0), KEY)
    return frame_bytes(1, header_message(number, Frame(encoded, 0), signature), next(chunks(encoded)))


def arrived(replica: Receiver) -> list[int]:
    return [event.batch for event in replica.events if isinstance(event, ev.FrameArrived)]


def run(stream: Stream, scenario: Callable[[asyncio.Future[None], Receiver, Held], Coroutine[Any, Any, None]]) -> None:
    """An exchange over that stream, with one edge."""

    async def whole() -> None:
        replica: Any = Receiver()
        with Held() as executor:
            exchange = ReceivingExchange(SystemClock(), executor, lambda *_: None)
            exchange.open(Edge(1, replica, 0, SOURCE.replica, SOURCE.incarnation, KEY.public_der, identity_pb2.Envelope()))
            running = asyncio.ensure_future(exchange.run(stream))
            try:
                async with asyncio.timeout(LONG_S):
                    await scenario(running, replica, executor)
            finally:
                executor.free.set()
                running.cancel()
                await asyncio.wait({running})

    asyncio.run(whole())


async def all_has_been_done() -> None:
    """Nothing more happens until something comes from outside the event loop."""
    for _ in range(100):
        await asyncio.sleep(0)


def test_what_came_before_the_link_broke_is_handled_before_that() -> None:
    coded = [frame(batch, "int8") for batch in range(DECODING + 1)]
    stream = Scripted([opened(), *coded, frame(len(coded), "raw")], Unavailable("broken", code="link_broken"))

    async def scenario(running: asyncio.Future[None], replica: Receiver, executor: Held) -> None:
        await all_has_been_done()
        assert not running.done()
        executor.free.set()
        with pytest.raises(Unavailable):
            await running
        assert len(coded) in arrived(replica)
        assert isinstance(replica.events[-1], ev.EdgeDown)

    run(stream, scenario)


def test_the_next_message_is_taken_while_one_is_handled_and_no_more_than_that() -> None:
    stream = Scripted([opened(), *(frame(batch, "int8") for batch in range(12))])
    held = 1 + DECODING + 1
    """The opening, the frames that are being decoded, and the one that waits for that."""

    async def scenario(running: asyncio.Future[None], replica: Receiver, executor: Held) -> None:
        await all_has_been_done()
        assert stream.taken == held + AHEAD + 1
        executor.free.set()
        while len(arrived(replica)) < 12:
            replica.news.clear()
            await replica.news.wait()
        assert sorted(arrived(replica)) == list(range(12))

    run(stream, scenario)
