"""Goal: so many texts are written at once, and who stops reading holds its place no longer than its own deadline."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from dcnr.errors import Unavailable
from dcnr.v1 import orchestrator_pb2
from orchestrator.generating import DEFAULT_DEADLINE_S, MAX_AT_ONCE, Generating

LOGITS = np.zeros((1, 1, 256), np.float32)


class Pipeline:
    """Answers every pass with the same token; also the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def context(self, runtime: object, question: object) -> int:
        return 16

    def session(self, runtime: object, question: object) -> Any:
        return None

    async def forward(self, *args: object, **kwargs: object) -> orchestrator_pb2.ForwardResponse:
        output = orchestrator_pb2.NamedTensor(dtype="float32", shape=LOGITS.shape, data=LOGITS.tobytes())
        return orchestrator_pb2.ForwardResponse(output=output, manifest_digest="m")


def test_who_stops_reading_holds_its_place_until_its_deadline() -> None:
    pipeline: Any = Pipeline()
    generating = Generating(pipeline, pipeline, lambda count: bytes(count))
    request = orchestrator_pb2.GenerateRequest(prompt=b"a", max_tokens=4, plain=True)
    runtime: Any = None

    async def scenario() -> None:
        texts = [generating.generate(runtime, request) for _ in range(MAX_AT_ONCE)]
        for text in texts:
            assert not (await anext(text)).finish_reason
        with pytest.raises(Unavailable) as busy:
            await anext(generating.generate(runtime, request))
        assert busy.value.code == "busy"
        pipeline.now_s = DEFAULT_DEADLINE_S
        whole = [part async for part in generating.generate(runtime, request)]
        assert (len(whole), whole[-1].finish_reason) == (4, "length")
        for text in texts:
            generator: Any = text
            await generator.aclose()
        assert generating._running == {}

    asyncio.run(scenario())
