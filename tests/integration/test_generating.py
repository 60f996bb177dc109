"""Goal: texts written through real workers are those of one process, with drafts and without, also when a worker dies in the middle; wrong wishes are said."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking_rig import CLOCK, MODEL, Town, refusal, town
from infer_rig import CONTEXT, NUM_TOKENS, plain_text, served, served_text
from worker_rig import workers

from dcnr.errors import InvalidInput
from dcnr.v1 import orchestrator_pb2
from orchestrator.generating import Generating

PROMPT = b"the quick brown fox jumps over"


async def written(here: Town, **wishes: Any) -> list[orchestrator_pb2.GenerateResponse]:
    generating = Generating(here.asking, CLOCK, secrets.token_bytes)
    request = orchestrator_pb2.GenerateRequest(**{"model": MODEL, "prompt": PROMPT, "max_tokens": NUM_TOKENS, **wishes})
    return [part async for part in generating.generate(here.runtime, request)]


def text_of(parts: list[orchestrator_pb2.GenerateResponse]) -> bytes:
    return b"".join(part.text for part in parts)


def test_a_text_is_that_of_one_process_and_a_killed_worker_costs_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served_text(tmp_path)

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 2) as (first, second):
            await here.seat(first, "head", "tail")
            await here.seat(second, "tail")
            wanted = plain_text(one, PROMPT)
            drafted, plain = await written(here), await written(here, plain=True)
            assert text_of(drafted) == text_of(plain) == wanted
            assert len(plain) == NUM_TOKENS
            assert len(drafted) < NUM_TOKENS
            assert [part.finish_reason for part in drafted[-2:]] == ["", "length"]
            assert (drafted[-1].num_tokens, drafted[-1].num_prompt_tokens, drafted[-1].num_passes) == (
                NUM_TOKENS,
                len(PROMPT),
                len(drafted),
            )
            drawn = await written(here, temperature=0.8, top_p=0.9, seed=7)
            assert text_of(drawn) == text_of(await written(here, temperature=0.8, top_p=0.9, seed=7, plain=True))
            assert text_of(drawn) != text_of(await written(here, temperature=0.8, top_p=0.9, seed=8))
            stopped = await written(here, stop=[wanted[10:13]])
            assert (text_of(stopped), stopped[-1].finish_reason) == (wanted[: wanted.index(wanted[10:13])], "stop")

            generating = Generating(here.asking, CLOCK, secrets.token_bytes)
            request = orchestrator_pb2.GenerateRequest(model=MODEL, prompt=PROMPT, max_tokens=NUM_TOKENS, plain=True)
            parts = []
            async for part in generating.generate(here.runtime, request):
                parts.append(part)
                if len(parts) == 3:
                    second.process.kill()
            assert text_of(parts) == wanted

    asyncio.run(scenario())


def test_what_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served_text(tmp_path)

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 1) as (only,):
            await here.seat(only, "head", "tail")
            for wishes, code in (
                ({"prompt": b""}, "bad_generation"), ({"max_tokens": 0}, "bad_generation"), ({"temperature": -1.0}, "bad_generation"),
                ({"top_p": 2.0}, "bad_generation"), ({"stop": [b"x"] * 5}, "bad_generation"), ({"deadline_s": 1e6}, "bad_deadline"),
                ({"exit": "nowhere"}, "no_such_exit"),
            ):  # fmt: skip
                error = await refusal(lambda wishes=wishes: written(here, **wishes))
                assert (type(error), error.code) == (InvalidInput, code)
            text = np.zeros((1, 4), np.uint8)
            for asked, draft in ((np.repeat(text, 2, axis=0), 2), (text, 17), (np.zeros((1, CONTEXT), np.uint8), 1)):
                assert (await refusal(lambda asked=asked, draft=draft: here.ask(asked, draft=draft))).code == "bad_draft"
            late = await refusal(lambda: written(here, deadline_s=1e-9))
            assert late.code == "deadline_exceeded"

    asyncio.run(scenario())


def test_a_model_of_something_else_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(tmp_path)

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 1) as (only,):
            await here.seat(only, "a", "b", "c")
            assert (await refusal(lambda: written(here))).code == "not_text"

    asyncio.run(scenario())
