"""Goal: so many texts are written at once, who stops reading holds its place no longer than its own deadline, and strangers leave places to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from dcnr.errors import Unavailable
from dcnr.v1 import orchestrator_pb2
from orchestrator.asking import MAX_IN_FLIGHT, STRANGERS_AT_ONCE
from orchestrator.generating import DEFAULT_DEADLINE_S, PER_SUBNET, PLACES_PER_TEXT, Generating

LOGITS = np.zeros((1, 1, 256), np.float32)


class Pipeline:
    """Answers every pass with the same token; also the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.places: list[object] = []

    def monotonic(self) -> float:
        return self.now_s

    def context(self, runtime: object, question: object) -> int:
        return 16

    def session(self, runtime: object, question: object) -> Any:
        return None

    async def forward(self, *args: object, **kwargs: object) -> orchestrator_pb2.ForwardResponse:
        self.places.append(kwargs["places"])
        output = orchestrator_pb2.NamedTensor(dtype="float32", shape=LOGITS.shape, data=LOGITS.tobytes())
        return orchestrator_pb2.ForwardResponse(output=output, manifest_digest="m")


async def is_busy(text: AsyncIterator[orchestrator_pb2.GenerateResponse]) -> bool:
    """Whether it finds no place; else it has begun."""
    try:
        await anext(text)
    except Unavailable as error:
        return error.code == "busy"
    return False


def test_who_stops_reading_holds_its_place_until_its_deadline() -> None:
    pipeline: Any = Pipeline()
    generating = Generating(pipeline, pipeline, lambda count: bytes(count))
    request = orchestrator_pb2.GenerateRequest(prompt=b"a", max_tokens=4, plain=True)
    runtime: Any = None

    async def scenario() -> None:
        texts = [generating.generate(runtime, request) for _ in range(MAX_IN_FLIGHT // PLACES_PER_TEXT)]
        for text in texts:
            assert not (await anext(text)).finish_reason
        assert await is_busy(generating.generate(runtime, request))
        pipeline.now_s = DEFAULT_DEADLINE_S
        whole = [part async for part in generating.generate(runtime, request)]
        assert (len(whole), whole[-1].finish_reason) == (4, "length")
        for text in texts:
            generator: Any = text
            await generator.aclose()
        assert generating._running == {}

    asyncio.run(scenario())


def test_texts_of_strangers_leave_places_to_other_subnets_and_to_those_who_are_listed() -> None:
    pipeline: Any = Pipeline()
    generating = Generating(pipeline, pipeline, lambda count: bytes(count))
    request = orchestrator_pb2.GenerateRequest(prompt=b"a", max_tokens=4, plain=True)
    runtime: Any = None
    texts: list[Any] = []

    def begun(subnet: str | None, places: int) -> AsyncIterator[orchestrator_pb2.GenerateResponse]:
        texts.append(generating.generate(runtime, request, places=places, subnet=subnet))
        return texts[-1]

    async def scenario() -> None:
        for subnet in ("one", "two"):
            for _ in range(PER_SUBNET):
                assert not await is_busy(begun(subnet, STRANGERS_AT_ONCE))
            assert await is_busy(begun(subnet, STRANGERS_AT_ONCE))
        assert set(pipeline.places) == {STRANGERS_AT_ONCE}, "none of them begins with what is kept from strangers"
        await anext(texts[0])
        assert pipeline.places[-1] == MAX_IN_FLIGHT, "what has begun is not broken off for want of a place"
        assert await is_busy(begun("three", STRANGERS_AT_ONCE)), "all places of strangers are taken"
        for _ in range((MAX_IN_FLIGHT - STRANGERS_AT_ONCE) // PLACES_PER_TEXT):
            assert not await is_busy(begun(None, MAX_IN_FLIGHT))
        assert await is_busy(begun(None, MAX_IN_FLIGHT))
        for text in texts:
            await text.aclose()
        assert not await is_busy(begun("one", STRANGERS_AT_ONCE))
        await texts[-1].aclose()

    asyncio.run(scenario())
