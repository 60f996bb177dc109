"""Goal: an answer that another orchestrator passes back and that says nothing of tokens ends a text with an error of that one's, not of ours."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.errors import RemoteFault
from dcnr.system import SystemClock
from dcnr.v1 import orchestrator_pb2
from orchestrator.generating import Generating


@pytest.mark.parametrize(
    ("dtype", "shape", "num_bytes"),
    [
        ("int32", (1, 1, 256), 1024), ("float32", (1, 256), 1024), ("float32", (2, 1, 256), 2048), ("float32", (1, 1, 300), 1200),
        ("float32", (1, 1, 1), 4), ("float32", (1, 256, 1), 1024), ("float32", (1, 1, 256), 1020), ("float32", (1, 1, 256), 0),
        ("float32", (1, 2, 256), 2048),
    ],
)  # fmt: skip
def test_what_says_nothing_of_tokens_is_a_fault_of_who_answered(dtype: str, shape: tuple[int, ...], num_bytes: int) -> None:
    scores = b"\x00\x00\x80\xff" * (num_bytes // 4)
    output = orchestrator_pb2.NamedTensor(dtype=dtype, shape=shape, data=scores[:-4] + bytes(4) if scores else b"")

    async def forward(*asked: Any, **how: Any) -> orchestrator_pb2.ForwardResponse:
        return orchestrator_pb2.ForwardResponse(output=output, manifest_digest="m")

    asking: Any = SimpleNamespace(context=lambda *asked: 16, session=lambda *asked: None, forward=forward)
    runtime: Any = None
    request = orchestrator_pb2.GenerateRequest(prompt=b"a", max_tokens=4, plain=True)

    async def written() -> None:
        async for _ in Generating(asking, SystemClock(), bytes).generate(runtime, request):
            pass

    with pytest.raises(RemoteFault) as caught:
        asyncio.run(written())
    assert caught.value.code == "bad_answer"
