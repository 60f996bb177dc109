"""Goal: a stream that carried tensors lately says something empty now and then, so that TCP stays quick, and only for a while; and what waits while
a message is written goes out as one, to whoever takes several.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from dcnr import limits
from dcnr.errors import Unavailable
from dcnr.question_outbox import MAX_UNSENT, MOST_BYTES, TAKES_SEVERAL, Outbox
from dcnr.question_wire import Chunk, Words, read_messages
from dcnr.tensor import encode
from dcnr.v1 import vnode_pb2
from pnode.infer_streams import InferStream

WITHIN_S = 60.0
NOBODY: Any = None


class Other:
    """The other side: silent; what it was told can be waited for."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes | None:
        await asyncio.Event().wait()
        return None

    async def write(self, message: bytes) -> None:
        self.told.put_nowait(message)


def words(num_values: int) -> Words:
    request = vnode_pb2.InferMessage(answer=vnode_pb2.InferAnswer(id=bytes(16)))
    return Words(request, [encode(np.zeros(num_values, np.float32), "raw")])


def test_after_tensors_it_says_something_empty_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WARM_BEAT_S", 0.01)
    monkeypatch.setattr(limits, "WARM_BEATS", 3)

    async def story() -> None:
        other = Other()
        stream = InferStream(NOBODY, frozenset())
        running = asyncio.create_task(stream.run(other))
        async with asyncio.timeout(WITHIN_S):
            assert await other.told.get() == TAKES_SEVERAL
            for num_values, beats in ((limits.WARM_BYTES, 3), (10, 0), (limits.WARM_BYTES, 3), (10, 0)):
                stream.say(words(num_values))
                told = [await other.told.get() for _ in range(2 + beats)]
                assert [bool(message) for message in told] == [True, True, *[False] * beats]
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(story())


async def told(outbox: Outbox, *said: Words) -> list[list[bytes]]:
    """The messages of each write: the question of each."""
    writes: asyncio.Queue[list[bytes]] = asyncio.Queue()

    async def write(data: bytes) -> None:
        assert len(data) < MOST_BYTES + 1000
        writes.put_nowait([one.id if isinstance(one, Chunk) else one.answer.id for one in read_messages(data)])

    for words in said:
        outbox.say(words)
    running, missing, found = asyncio.create_task(outbox.run(write)), sum(len(list(words.pieces())) for words in said), []
    async with asyncio.timeout(WITHIN_S):
        await writes.get()  # how a stream begins
        while missing:
            found.append(await writes.get())
            missing -= len(found[-1])
    running.cancel()
    await asyncio.wait([running])
    return found


def test_what_waits_goes_as_one_message_to_who_takes_several() -> None:
    one = words(10)
    question = one.question

    async def story(*, is_joining: bool) -> list[list[bytes]]:
        outbox = Outbox()
        outbox.is_joining = is_joining
        return await told(outbox, one, one)

    assert asyncio.run(story(is_joining=True)) == [[question] * 4]
    assert asyncio.run(story(is_joining=False)) == [[question]] * 4


def test_a_message_of_several_is_bounded() -> None:
    async def story() -> list[list[bytes]]:
        outbox = Outbox()
        outbox.is_joining = True
        return await told(outbox, *[words(limits.MAX_CHUNK_BYTES // 4) for _ in range(3)], *[Words(words(1).message)] * 300)

    assert [len(write) for write in asyncio.run(story())] == [3, 2, 256, 45]


def test_who_takes_too_little_is_told_no_more() -> None:
    outbox = Outbox()
    for _ in range(MAX_UNSENT):
        outbox.say(Words(words(1).message))
    with pytest.raises(Unavailable) as error:
        outbox.say(Words(words(1).message))
    assert error.value.code == "busy"
