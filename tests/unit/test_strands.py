"""Goal: messages come together from their parts or are refused; where a strand breaks with a part its stream ends at once, also an orchestrator's; and a
process has a bounded number of strands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from test_company import WITHIN_S, Silent

from dcnr import limits
from dcnr.errors import DcnrError, Unavailable
from dcnr.question_strands import MAX_STRANDS, PART_BYTES, Room, Strands
from dcnr.system import SystemClock
from dcnr.v1 import vnode_pb2
from orchestrator.infer_streams import InferStream
from pnode.exchange import Stream
from pnode.infer_strands import _InParts, _Stream


def test_an_orchestrator_hears_at_once_of_a_stream_whose_strand_broke() -> None:
    class Broken(Strands):
        async def write(self, whole: Any, message: bytes) -> None:
            raise Unavailable("a strand of the stream broke", code="link_broken")

    async def story() -> None:
        unused: Any = None
        worker: Any = Silent()
        stream = InferStream("p", worker, SystemClock(), Broken(unused, "", SystemClock(), Room(0)))
        async with asyncio.timeout(WITHIN_S):
            await stream.run()
        assert stream.ended

    asyncio.run(story())


class Said:
    """A stream over which these messages come, and then nothing."""

    def __init__(self, *messages: vnode_pb2.InferMessage) -> None:
        self._messages = [message.SerializeToString() for message in messages]

    async def read(self) -> bytes | None:
        return self._messages.pop(0) if self._messages else None

    async def write(self, message: bytes) -> None:
        raise AssertionError("nothing goes back")


def part(data: bytes, *strands: int) -> vnode_pb2.InferMessage:
    return vnode_pb2.InferMessage(part=vnode_pb2.InferPart(strands=strands, data=data))


EMPTY = vnode_pb2.InferMessage()


def read(first: vnode_pb2.InferMessage, *over_strands: Sequence[vnode_pb2.InferMessage]) -> bytes | None:
    """The message whose first part this is, where these come over strands 1, 2, ..."""
    strands: dict[int, Stream] = {number: Said(*messages) for number, messages in enumerate(over_strands, 1)}
    return asyncio.run(_InParts(Said(first), _Stream(strands)).read())


def test_parts_come_together_in_the_order_that_the_first_one_names() -> None:
    assert read(part(b"a", 2, 1), [EMPTY, part(b"c")], [part(b"b")]) == b"abc"
    assert read(EMPTY) == b""


@pytest.mark.parametrize(
    ("code", "first", "over_strand"),
    [
        ("link_broken", part(b"a", 1), []),
        ("link_broken", part(b"a", 2), [part(b"b")]),
        ("bad_message", part(b"a"), [part(b"b")]),
        ("bad_message", part(b"a", 1, 1), [part(b"b"), part(b"c")]),
        ("bad_message", part(b"a", *range(1, MAX_STRANDS + 2)), [part(b"b")]),
        ("bad_message", part(b"a", 1), [vnode_pb2.InferMessage(takes_several=True)]),
        ("bad_message", part(b"a", 1), [part(bytes(8))]),
    ],
)
def test_what_is_no_message_in_parts_is_refused(
    code: str, first: vnode_pb2.InferMessage, over_strand: list[vnode_pb2.InferMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_MESSAGE_BYTES", 8)
    with pytest.raises(DcnrError) as refused:
        read(first, over_strand)
    assert refused.value.code == code


def test_what_is_small_or_empty_goes_whole() -> None:
    async def story() -> None:
        unused: Any = None
        strands = Strands(unused, "", SystemClock(), Room())
        strands._open = dict.fromkeys(range(1, 8))
        said: list[bytes] = []

        async def whole(message: bytes) -> None:
            said.append(message)

        small = bytes(2 * PART_BYTES - 1)
        await strands.write(whole, b"")
        await strands.write(whole, small)
        assert said == [b"", small]

    asyncio.run(story())


def test_all_streams_together_have_so_many() -> None:
    async def story() -> None:
        dialled, gate = 0, asyncio.Event()

        async def dial() -> Any:
            nonlocal dialled
            dialled += 1
            await gate.wait()
            raise Unavailable("nobody is there", code="unreachable")

        room = Room(1)
        streams = [Strands(dial, "", SystemClock(), room) for _ in range(3)]
        for strands in streams:
            strands._wanted.set()
        running = [asyncio.ensure_future(strands.run()) for strands in streams]
        async with asyncio.timeout(WITHIN_S):
            while room.free or any(strands._wanted.is_set() or strands._num_kept for strands in streams[1:]):  # noqa: ASYNC110  of tasks without events
                await asyncio.sleep(0)
            assert dialled == 1
            gate.set()
            while not room.free:  # noqa: ASYNC110  the same
                await asyncio.sleep(0)
        assert (dialled, room.free) == (1, 1), "one that cannot be had is enough"
        for task in running:
            task.cancel()
        await asyncio.wait(running)

    asyncio.run(story())


def test_a_worker_that_takes_a_strand_and_says_nothing_costs_no_room_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute:
        """A connection and its call, over which nothing ever comes."""

        metadata: tuple[Any, ...] = ()
        is_over = False

        @property
        def channel(self) -> Any:
            return self

        def stream_stream(self, _: str) -> Any:
            return lambda metadata: self

        async def read(self) -> bytes:
            return await asyncio.Future()

        def cancel(self) -> None:
            self.is_over = True

        async def close(self) -> None:
            assert self.is_over

    async def dial() -> Any:
        return Mute()

    async def story() -> None:
        room = Room(1)
        strands = Strands(dial, "", SystemClock(), room)
        strands._wanted.set()
        running = asyncio.ensure_future(strands.run())
        async with asyncio.timeout(WITHIN_S):
            while strands._wanted.is_set() or strands._num_kept or not room.free:  # noqa: ASYNC110  of tasks without events
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])

    monkeypatch.setattr(limits, "CALL_TIMEOUT_S", 0.01)
    asyncio.run(story())
