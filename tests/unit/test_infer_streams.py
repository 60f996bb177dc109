"""Goal: a stream that carried tensors lately says something empty now and then, so that TCP stays quick, and only for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from dcnr import limits
from dcnr.tensor import encode
from dcnr.v1 import vnode_pb2
from pnode.infer_streams import InferStream, Words

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
        stream = InferStream(other, NOBODY, frozenset())
        running = asyncio.create_task(stream.run())
        async with asyncio.timeout(WITHIN_S):
            for num_values, beats in ((limits.WARM_BYTES, 3), (10, 0), (limits.WARM_BYTES, 3), (10, 0)):
                stream.say(words(num_values))
                told = [await other.told.get() for _ in range(2 + beats)]
                assert [bool(message) for message in told] == [True, True, *[False] * beats]
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(story())
