"""Goal: a pipeline whose first stage drafts writes the very text that it writes token by token, in fewer passes; wrong wishes are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from infer_rig import CONTEXT, NUM_TOKENS, Line, Served, allow, line, plain_text, samples, seat, served, served_text
from worker_rig import DaemonEnd, worker

from dcnr.v1 import vnode_pb2
from orchestrator.generation import Generation, Pass, Wanted
from trust.identity import NodeKey

PROMPT = b"the quick brown fox jumps over"


async def brought(asking: Line, key: NodeKey, one: Served, end: DaemonEnd, asked: Pass) -> tuple[bytes, np.ndarray]:
    """One pass through the worker."""
    hops = [one.hop("head", end), one.hop("tail", end, answers=True)]
    hops[0].draft, hops[1].last = asked.draft, asked.last
    question = await asking.ask(key.node_id, hops, {"head": np.frombuffer(asked.window, np.uint8)[None]})
    logits = await asking.answer(question, "tail")
    return asking.heard[question].answers["tail"].timings[0].drafted, logits[0]


def test_drafts_of_the_first_stage_save_passes_and_change_no_token(tmp_path: Path) -> None:
    one, key = served_text(tmp_path), NodeKey.generate()

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            await allow(key, end)
            await seat(end, one, "head", "tail")
            async with line(key, end) as asking:
                generation, text = Generation(Wanted(PROMPT, NUM_TOKENS), CONTEXT), b""
                while not generation.finish_reason:
                    text += generation.take(*await brought(asking, key, one, end, generation.ask()))
        assert generation.num_close == 0
        assert text == plain_text(one, PROMPT)
        assert generation.num_accepted > 0
        assert generation.num_passes < NUM_TOKENS

    asyncio.run(scenario())


def test_wishes_that_a_hop_cannot_fulfil_are_refused(tmp_path: Path) -> None:
    one, other, key = served_text(tmp_path), served(tmp_path), NodeKey.generate()

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            await allow(key, end)
            await seat(end, one, "head", "tail")
            await seat(end, other, "a")
            async with line(key, end) as asking:

                async def code_of(hops: list[vnode_pb2.InferHop], inputs: dict[str, np.ndarray]) -> str:
                    return str((await asking.failure(await asking.ask(key.node_id, hops, inputs))).code)

                text = np.zeros((1, 4), np.uint8)

                def hops(temperature: float = 0.0, **wishes: int) -> list[vnode_pb2.InferHop]:
                    made = [one.hop("head", end), one.hop("tail", end, answers=True)]
                    made[0].drawing.temperature = temperature
                    for name, value in wishes.items():
                        setattr(made[0], name, value)
                    return made

                assert await code_of(hops(draft=17), {"head": text}) == "bad_question"
                assert await code_of(hops(draft=2, temperature=11.0), {"head": text}) == "bad_question"
                assert await code_of(hops(draft=2, temperature=float("nan")), {"head": text}) == "bad_question"
                assert await code_of(hops(draft=4), {"head": np.repeat(text, 2, axis=0)}) == "bad_question"
                assert await code_of(hops(draft=4), {"head": np.zeros((1, CONTEXT), np.uint8)}) == "bad_shape"
                late = hops()
                late[1].draft = 1
                assert await code_of(late, {"head": text}) == "bad_question"
                images = [other.hop("a", end, answers=True)]
                images[0].draft = 1
                assert await code_of(images, {"a": samples()}) == "bad_question"
                images[0].draft, images[0].last = 0, 1
                assert await code_of(images, {"a": samples()}) == "bad_question"

    asyncio.run(scenario())
