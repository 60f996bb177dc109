"""Goal: a text that breaks off, or never ends, is told as an error by the SDK and by the gateway; its characters are whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.errors import RemoteFault
from dcnr.limits import MAX_WRITTEN
from dcnr.sdk.client import AsyncClient
from dcnr.texts import Part, parts_of
from dcnr.v1 import orchestrator_pb2
from gateway.completions import COMPLETION, CompletionIn, written


class Told:
    """A network that says these pieces, the last of them with a finish reason where ``has_end``."""

    def __init__(self, pieces: Sequence[bytes], *, has_end: bool) -> None:
        self.pieces, self.has_end, self.is_closed = pieces, has_end, False

    async def generate(self, *_: Any, **__: Any) -> AsyncGenerator[orchestrator_pb2.GenerateResponse, None]:
        try:
            for index, piece in enumerate(self.pieces):
                is_last = self.has_end and index == len(self.pieces) - 1
                yield orchestrator_pb2.GenerateResponse(text=piece, finish_reason="stop" if is_last else "")
        finally:
            self.is_closed = True

    async def through_the_sdk(self, heard: list[Part]) -> None:
        client = object.__new__(AsyncClient)
        client.orchestrators = SimpleNamespace(stream=self.generate)  # type: ignore[assignment]
        async for part in client.generate("x"):
            heard.append(part)

    async def through_the_gateway(self) -> Any:
        context: Any = SimpleNamespace(views=self, clock=SimpleNamespace(wall=lambda: 0.0))
        return await written(context, COMPLETION, CompletionIn(prompt="x"), orchestrator_pb2.GenerateRequest())


@pytest.mark.parametrize("num_parts", [0, 3, MAX_WRITTEN + 100])
def test_a_text_without_an_end_is_an_error(num_parts: int) -> None:
    network = Told([b"x"] * num_parts, has_end=False)
    heard: list[Part] = []
    with pytest.raises(RemoteFault, match="no end"):
        asyncio.run(network.through_the_sdk(heard))
    assert len(heard) == min(num_parts, MAX_WRITTEN)
    assert network.is_closed
    with pytest.raises(RemoteFault, match="no end"):
        asyncio.run(network.through_the_gateway())


def test_a_character_in_two_pieces_comes_whole_and_a_broken_one_is_marked() -> None:
    network = Told(["ä".encode()[:1], "ä".encode()[1:], b"\xff", b"!"], has_end=True)
    heard: list[Part] = []
    asyncio.run(network.through_the_sdk(heard))
    assert [part.text for part in heard] == ["", "ä", "\ufffd", "!"]
    assert [part.finish_reason for part in heard] == ["", "", "", "stop"]
    assert "ä\ufffd!" in asyncio.run(network.through_the_gateway()).body.decode()


def test_who_stops_listening_ends_the_text() -> None:
    network = Told([b"a", b"b"], has_end=True)

    async def first() -> str:
        parts = parts_of(network.generate())
        text = (await anext(parts)).text
        await parts.aclose()
        return text

    assert asyncio.run(first()) == "a"
    assert network.is_closed
