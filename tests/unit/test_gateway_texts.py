"""Goal: a text that breaks off, or never ends, is told as an error: no half of it passes for the whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.errors import RemoteFault
from dcnr.limits import MAX_WRITTEN
from dcnr.v1 import orchestrator_pb2
from gateway.completions import _parts


def told(num_parts: int) -> Any:
    """A network that says so many parts, none of which is the last."""

    async def generate(request: orchestrator_pb2.GenerateRequest) -> AsyncIterator[orchestrator_pb2.GenerateResponse]:
        for _ in range(num_parts):
            yield orchestrator_pb2.GenerateResponse(text=b"x")

    return SimpleNamespace(views=SimpleNamespace(generate=generate))


@pytest.mark.parametrize("num_parts", [0, 3, MAX_WRITTEN + 100])
def test_a_text_without_an_end_is_an_error(num_parts: int) -> None:
    heard: list[str] = []

    async def read() -> None:
        async for part in _parts(told(num_parts), orchestrator_pb2.GenerateRequest()):
            heard.append(part.text)

    with pytest.raises(RemoteFault, match="no end"):
        asyncio.run(read())
    assert len(heard) == min(num_parts, MAX_WRITTEN)
