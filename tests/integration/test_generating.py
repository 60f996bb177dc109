"""Goal: texts written through real workers are those of one process, with drafts and without, also when a worker dies in the middle; wrong wishes are said."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking_rig import CLOCK, MODEL, Town, refusal, town
from infer_rig import CONTEXT, NUM_TOKENS, lend, line, plain_text, seat, served, served_text
from worker_rig import workers

from dcnr.errors import InvalidInput
from dcnr.graph import stages_of_graph
from dcnr.v1 import local_pb2, orchestrator_pb2, vnode_pb2
from orchestrator.generating import Generating
from orchestrator.trying import Try
from trust.identity import NodeKey
from vnode.costs import session_bytes
from vnode.registry import default_registry

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
            await here.seat(first, "head")
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
            windows = [min(CONTEXT, len(PROMPT) + number) - 1 for number in range(NUM_TOKENS)]
            assert (plain[-1].num_replays, drafted[-1].num_replays) == (0, 0)
            assert 0 < drafted[-1].num_kept < plain[-1].num_kept < sum(windows)
            assert plain[1].num_kept == CONTEXT // 2 + len(PROMPT) % (CONTEXT // 2), "each pass but the first brings one place"
            drawn = await written(here, temperature=0.8, top_p=0.9, seed=7)
            assert text_of(drawn) == text_of(await written(here, temperature=0.8, top_p=0.9, seed=7, plain=True))
            assert text_of(drawn) != text_of(await written(here, temperature=0.8, top_p=0.9, seed=8))
            alone = await written(here, temperature=0.8, top_p=0.9, seed=7, exit="head")
            assert 0 < alone[-1].num_drafted == alone[-1].num_accepted, (
                "the stage that drafts draws as the one that writes, here itself"
            )
            stopped = await written(here, stop=[wanted[10:13]])
            assert (text_of(stopped), stopped[-1].finish_reason) == (wanted[: wanted.index(wanted[10:13])], "stop")
            for end in (first, second):
                await end.until(lambda end=end: not any(report.num_sessions for report in end.seats.values()))

            generating = Generating(here.asking, CLOCK, secrets.token_bytes)
            request = orchestrator_pb2.GenerateRequest(
                model=MODEL, prompt=PROMPT, max_tokens=NUM_TOKENS, plain=True, full_depth=True
            )
            parts = []
            async for part in generating.generate(here.runtime, request):
                parts.append(part)
                if len(parts) == 3:
                    await here.seat(first, "head", "tail")
                    second.process.kill()
            assert text_of(parts) == wanted
            assert [stage.pnode_id for stage in parts[2].stages] == [first.pnode_id, second.pnode_id]
            assert [stage.pnode_id for stage in parts[-1].stages] == [first.pnode_id, first.pnode_id]
            assert [parts[2].num_replays, parts[-1].num_replays] == [0, 1]
            await lend(first, 0)
            uncached = await written(here, full_depth=True)
            assert (text_of(uncached), uncached[-1].num_kept, uncached[-1].num_replays) == (wanted, 0, 0)

    asyncio.run(scenario())


def test_what_is_kept_of_a_text_is_the_callers_own_and_never_more_than_is_lent(tmp_path: Path) -> None:
    one = served_text(tmp_path)
    mine, other = NodeKey.generate(), NodeKey.generate()
    text = np.frombuffer(PROMPT, np.uint8)[None]

    async def scenario() -> None:
        async with workers(tmp_path, 1) as (end,):
            await seat(end, one, "head", "tail")
            callers = local_pb2.WorkerCallers(orchestrators=[mine.node_id, other.node_id])
            await end.pipe.send(local_pb2.ToWorker(callers=callers))
            hops = [one.hop("head", end), one.hop("tail", end, answers=True)]
            async with line(mine, end) as asking, line(other, end) as stranger:

                async def asked(places: Any, session: bytes, offset: int) -> Any:
                    question = await asking.ask(mine.node_id, hops, {"head": places}, session=session, offset=offset)
                    return await asking.answer(question, "tail")

                async def refused(by: Any, key: NodeKey, places: Any, session: bytes, offset: int) -> str:
                    question = await by.ask(key.node_id, hops, {"head": places}, session=session, offset=offset)
                    return str((await by.failure(question)).code)

                whole = await asked(text[:, :CONTEXT], b"", 0)
                begun, rest = await asked(text[:, :9], b"s" * 16, 0), await asked(text[:, 9:CONTEXT], b"s" * 16, 9)
                assert np.allclose(np.concatenate([begun, rest], axis=1), whole, atol=1e-4)
                again = await asked(text[:, 4:8], b"s" * 16, 4)
                assert np.allclose(again, whole[:, 4:8], atol=1e-4)

                for places, session, offset, code in (
                    (text[:, :1], b"s" * 16, 9, "no_cache"),
                    (text[:, :1], b"t" * 16, 1, "no_cache"),
                    (text[:, : CONTEXT - 3], b"s" * 16, 4, "bad_shape"),
                    (np.repeat(text[:, :2], 2, axis=0), b"s" * 16, 4, "bad_shape"),
                    (np.zeros((1, 2), np.float32), b"s" * 16, 4, "bad_shape"),
                    (text[:, :1], b"s" * 5, 1, "bad_question"),
                    (text[:, :1], b"", 1, "bad_question"),
                ):
                    assert await refused(asking, mine, places, session, offset) == code
                assert await refused(stranger, other, text[:, :1], b"s" * 16, 4) == "no_cache"
                assert np.allclose(await asked(text[:, 4:5], b"s" * 16, 4), whole[:, 4:5], atol=1e-4)
                await asking.say(vnode_pb2.InferMessage(cancel=vnode_pb2.InferCancel(id=b"s" * 16)))
                assert await refused(asking, mine, text[:, 4:5], b"s" * 16, 4) == "no_cache"

                stages = stages_of_graph(one.graph, default_registry())
                await lend(end, 3 * sum(session_bytes(stage, default_registry()) or 0 for stage in stages))
                many = [number.to_bytes(16, "big") for number in range(20)]
                for session in many:
                    await asked(text[:, :4], session, 0)
                await end.until(lambda: {report.num_sessions for report in end.seats.values()} == {3})
                found = []
                for session in many:
                    question = await asking.ask(mine.node_id, hops, {"head": text[:, 4:8]}, session=session, offset=4)
                    found.append(await asking.outcome(question))
                kept = [one.values["tail"] for one in found if one.values]
                assert len(kept) <= 3
                assert all(np.allclose(one, whole[:, 4:8], atol=1e-4) for one in kept)
                assert {failure.code for one in found for failure in one.failures} == {"no_cache"}
                await lend(end, 0)
                await end.until(lambda: not any(report.num_sessions for report in end.seats.values()))
                assert await refused(asking, mine, text[:, 4:8], many[0], 4) == "no_cache"

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


def swapped(tensor: vnode_pb2.InferTensor) -> None:
    tensor.shape[1], tensor.shape[2] = tensor.shape[2], tensor.shape[1]


def other_dtype(tensor: vnode_pb2.InferTensor) -> None:
    tensor.dtype = "int32"


@pytest.mark.parametrize("lie", [swapped, other_dtype])
def test_a_last_seat_that_answers_with_what_its_exit_cannot_give_fails_its_way_and_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Callable[[vnode_pb2.InferTensor], None]
) -> None:
    """As many samples as were asked, and bytes that bear their digest: only the graph says that it is none."""
    one, liars, heard = served_text(tmp_path), list[str](), Try.heard

    def lied(this: Try, pnode_id: str, message: Any) -> None:
        """Whoever answers first lies from then on."""
        if isinstance(message, vnode_pb2.InferMessage) and message.HasField("answer"):
            if not liars:
                liars.append(pnode_id)
            if pnode_id in liars:
                lie(message.answer.tensors[0])
        heard(this, pnode_id, message)

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 2) as (first, second):
            monkeypatch.setattr(Try, "heard", lied)
            await here.seat(first, "head", "tail")
            await here.seat(second, "head", "tail")
            parts = await written(here, full_depth=True)
            assert text_of(parts) == plain_text(one, PROMPT)
            assert [{part.stages[-1].pnode_id for part in parts}] == [{first.pnode_id, second.pnode_id} - set(liars)]
            asked = np.frombuffer(PROMPT[:CONTEXT], np.uint8)[None]
            answers = [await here.ask(asked, full_depth=True) for _ in range(5)]
            assert {tuple(answer.output.shape) for answer in answers} == {(1, CONTEXT, 256)}

    asyncio.run(scenario())


def test_a_model_of_something_else_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(tmp_path)

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 1) as (only,):
            await here.seat(only, "a", "b", "c")
            assert (await refusal(lambda: written(here))).code == "not_text"

    asyncio.run(scenario())
