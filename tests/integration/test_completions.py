"""Goal: the usual client of language models writes with this network: whole texts, streams, chats; and hears plainly what cannot be had.

HTTP, gateway, orchestrator's questions and worker are real; between gateway and orchestrator stands no wire, which other tests have.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking_rig import CLOCK, MANIFEST, MODEL, Town, town
from infer_rig import NUM_TOKENS, plain_text, served_text
from worker_rig import workers

from dcnr.settings import GatewaySettings
from dcnr.v1 import orchestrator_pb2
from gateway.keys import FILE, KeyFile
from gateway.server import address_of, bound, serve_gateway
from orchestrator.generating import Generating

PROMPT = "the quick brown fox jumps over"
CHAT = b"user: the quick brown\nassistant:"


class Near:
    """The orchestrator of a town, without a wire."""

    def __init__(self, here: Town) -> None:
        self._here, self._generating = here, Generating(here.asking, CLOCK, secrets.token_bytes)
        self.key_id = ""

    async def stream(self, stub: Any, method: str, request: Any, *, timeout_s: float) -> AsyncIterator[Any]:
        assert method == "Generate"
        assert request.on_behalf == self.key_id, "the network is told which key asks"
        async for part in self._generating.generate(self._here.runtime, request):
            yield part

    async def call(self, stub: Any, method: str, request: Any, **how: Any) -> Any:
        assert method == "ListJobs"
        return orchestrator_pb2.ListJobsResponse(jobs=[orchestrator_pb2.JobView(model=MODEL, job_id="one")])


@contextlib.asynccontextmanager
async def gateway(here: Town, home: Path) -> AsyncIterator[tuple[str, str]]:
    """Its URL and a key."""
    home.mkdir()
    made, key = KeyFile(home / FILE).add(
        "test", "client", expires=CLOCK.wall() + 3600, signed=False, now_wall=CLOCK.wall(), rng=secrets.token_bytes
    )
    listening, near = bound("127.0.0.1:0"), Near(here)
    near.key_id = made.id
    orchestrators: Any = near
    running = asyncio.create_task(
        serve_gateway(GatewaySettings(), listening, orchestrators, policy=lambda: here.shared.policy, clock=CLOCK, home=home)
    )
    try:
        yield f"http://{address_of(listening)}/v1", key
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        listening.close()


def test_the_usual_client_writes_with_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import openai  # with hundreds of models, which every test process would make where this module is only collected

    one = served_text(tmp_path)
    wanted, answered = plain_text(one, PROMPT.encode()).decode(), plain_text(one, CHAT).decode()
    greedy: Any = {"model": MODEL, "temperature": 0, "max_tokens": NUM_TOKENS}

    async def scenario() -> None:
        async with (
            town(one, monkeypatch) as here,
            workers(tmp_path, 1) as (only,),
            gateway(here, tmp_path / "gateway") as (url, key),
        ):
            await here.seat(only, "head", "tail")
            async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
                assert [model.id for model in (await client.models.list()).data] == [MODEL]
                assert (await client.models.retrieve(MODEL)).id == MODEL
                whole = await client.completions.create(prompt=PROMPT, **greedy)
                assert whole.choices[0].text == wanted
                assert whole.choices[0].finish_reason == "length"
                assert whole.usage is not None
                assert whole.usage.completion_tokens == NUM_TOKENS
                known: Any = whole.model_dump()["dcnr"]
                assert (known["manifest_digest"], known["exit"], known["degraded"]) == (MANIFEST, "tail", False)

                pieces = [piece async for piece in await client.completions.create(prompt=PROMPT, stream=True, **greedy)]
                assert "".join(piece.choices[0].text for piece in pieces) == wanted
                assert 1 < len(pieces) < NUM_TOKENS
                assert pieces[-1].choices[0].finish_reason == "length"

                messages: Any = [{"role": "user", "content": "the quick brown"}]
                chat = await client.chat.completions.create(messages=messages, **greedy)
                assert chat.choices[0].message.content == answered
                options: Any = {"include_usage": True}
                streamed = await client.chat.completions.create(messages=messages, stream=True, stream_options=options, **greedy)
                chunks = [chunk async for chunk in streamed]
                assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answered
                assert chunks[-1].usage is not None

                stopped = await client.completions.create(prompt=PROMPT, stop=[wanted[10:13]], **greedy)
                assert stopped.choices[0].text == wanted[: wanted.index(wanted[10:13])]
                assert stopped.choices[0].finish_reason == "stop"
                with pytest.raises(openai.BadRequestError):
                    await client.completions.create(prompt=PROMPT, n=2, **greedy)
                with pytest.raises(openai.BadRequestError):
                    await client.completions.create(prompt="", **greedy)
                with pytest.raises(openai.BadRequestError):
                    await client.completions.create(prompt="", stream=True, **greedy)
            async with openai.AsyncOpenAI(base_url=url, api_key="nobody's", max_retries=0) as stranger:
                with pytest.raises(openai.AuthenticationError):
                    await stranger.completions.create(prompt=PROMPT, **greedy)

    asyncio.run(scenario())


def test_who_goes_away_ends_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served_text(tmp_path)

    async def scenario() -> None:
        async with (
            town(one, monkeypatch) as here,
            workers(tmp_path, 1) as (only,),
            gateway(here, tmp_path / "gateway") as (url, key),
        ):
            await here.seat(only, "head", "tail")
            wish = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4096, "stream": True, "plain": True}
            async with (
                httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as client,
                client.stream("POST", f"{url}/completions", json=wish) as response,
            ):
                assert response.status_code == 200
                await anext(response.aiter_bytes())
            asked, last = -1, 0
            async with asyncio.timeout(60):
                while here.asking.figures.num_in_flight or asked != last:  # no further question is asked
                    asked, last = last, here.asking.figures.num_questions
                    await asyncio.sleep(0.2)
            assert last < 4096

    asyncio.run(scenario())
