"""Texts as they are written: one question to the pipeline per pass, until a stop, the wanted length, or the deadline.

One version writes the whole text while it is served; when it gives way to a newer one the text goes on with that, and its parts say so. Stages may keep
keys and values between two passes (`orchestrator.text_session`), and what they lose is made again from the text: a machine that dies in the middle costs
the delay of one question asked another way.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from typing import Final

import numpy as np

from dcnr import limits
from dcnr.codecs import NUMPY_DTYPES
from dcnr.errors import InvalidInput, RemoteFault, TimedOut, Unavailable
from dcnr.ports import Clock
from dcnr.tokens import Logits
from dcnr.v1 import orchestrator_pb2
from orchestrator.asking import MAX_IN_FLIGHT, Asking
from orchestrator.generation import Generation, Pass, Wanted
from orchestrator.questions import NUM_TOKENS, READOUT_DTYPE
from orchestrator.runtime import ModelRuntime
from trust.session import RandomBytes

DEFAULT_DEADLINE_S: Final = 120.0
PLACES_PER_TEXT: Final = 2
"""Of the places that a caller has for questions: half as many texts are written at once, and more are told to come again. A caller that reads no further
holds its place until its own deadline."""
PER_SUBNET: Final = 8
"""Texts of one subnet; keys cost nothing."""
SEED_BYTES: Final = 8


class Generating:
    """One per process. ``random_bytes`` draws seeds that nobody named."""

    def __init__(self, asking: Asking, clock: Clock, random_bytes: RandomBytes) -> None:
        self._asking, self._clock, self._random_bytes = asking, clock, random_bytes
        self._running: dict[object, tuple[float, str | None]] = {}
        """By text, when its time is up, and the subnet of a caller that is bounded."""

    async def generate(
        self, runtime: ModelRuntime, request: orchestrator_pb2.GenerateRequest, *, places: int = MAX_IN_FLIGHT, subnet: str | None = None
    ) -> AsyncGenerator[orchestrator_pb2.GenerateResponse, None]:  # fmt: skip
        """The parts of the text; the last one says why it ends. ``places``: as for `Asking.forward`, which the first pass asks. ``subnet``: of a caller that
        leaves places to other subnets.

        Raises what `Asking.forward` raises, Unavailable (``busy``), InvalidInput (``bad_generation``, ``not_text``).
        """
        now_s = self._clock.monotonic()
        until_s = now_s + _deadline_of(request)
        self._check_place(now_s, places // PLACES_PER_TEXT, subnet)
        text = object()
        self._running[text] = (until_s, subnet)
        try:
            seed = request.seed if request.HasField("seed") else int.from_bytes(self._random_bytes(SEED_BYTES), "big")
            writer = _Writer(self._asking, self._clock, runtime, request, seed, until_s, places)
            try:
                while not writer.generation.finish_reason:
                    yield await writer.part()
            finally:
                writer.close()
        finally:
            del self._running[text]

    def _check_place(self, now_s: float, texts: int, subnet: str | None) -> None:
        running = [whose for ends_s, whose in self._running.values() if ends_s > now_s]
        theirs = running.count(subnet) if subnet is not None else 0
        if len(running) >= texts or theirs >= PER_SUBNET:
            raise Unavailable(
                f"{len(running)} texts are being written already, {theirs} of them for this subnet", code="busy", retry_after_s=1.0,
                remedy="ask again a little later, or another orchestrator",
            )  # fmt: skip


class _Writer:
    """One text. ``version`` is the manifest that has written so far."""

    def __init__(
        self, asking: Asking, clock: Clock, runtime: ModelRuntime, request: orchestrator_pb2.GenerateRequest, seed: int, until_s: float, places: int,
    ) -> None:  # fmt: skip
        self._asking, self._clock, self._runtime, self._request = asking, clock, runtime, request
        self._seed, self._until_s, self._places, self._version = seed, until_s, places, ""
        self.generation = Generation(_wanted(request, seed), asking.context(runtime, self._question()))
        self._session = asking.session(runtime, self._question())

    def close(self) -> None:
        """No pass follows."""
        if self._session is not None:
            self._asking.let_go(self._session.kept)

    async def part(self) -> orchestrator_pb2.GenerateResponse:
        """The next pass, and what it adds."""
        asked = self.generation.ask()
        try:
            answer = await self._answer(asked)
        except Unavailable as error:
            if error.code != "version_not_served" or not self._version:
                raise
            self._version = ""  # it gave way to a newer one
            answer = await self._answer(asked)
        if answer.weights != orchestrator_pb2.WEIGHTS_LIVE:
            self._version = answer.manifest_digest
        text = self.generation.take(answer.drafted, _logits(answer))
        part = _part(answer, text, self.generation, len(self._request.prompt), self._seed)
        if self._session is not None:
            part.num_replays, part.num_kept = self._session.num_replays, self._session.num_kept
        return part

    async def _answer(self, asked: Pass) -> orchestrator_pb2.ForwardResponse:
        question = self._question()
        question.inputs.add(dtype="uint8", shape=[1, len(asked.window)], data=asked.window)
        question.draft, question.last = asked.draft, asked.last
        question.drawing.CopyFrom(asked.drawing.message())
        question.deadline_s = min(limits.MAX_QUESTION_S, self._until_s - self._clock.monotonic())
        if question.deadline_s <= 0:
            raise TimedOut(
                "the text was not written in time", code="deadline_exceeded", remedy="give it more time, or ask for fewer tokens"
            )
        places, self._places = (
            self._places,
            MAX_IN_FLIGHT,
        )  # what has begun is finished: its place among texts bounds it from then on
        return await self._asking.forward(self._runtime, question, may_pass_on=True, places=places, session=self._session)

    def _question(self) -> orchestrator_pb2.ForwardRequest:
        request = self._request
        question = orchestrator_pb2.ForwardRequest(
            model=request.model, weights=request.weights, manifest_digest=request.manifest_digest, exit=request.exit, full_depth=request.full_depth,
            exact=True,  # a text may not depend on how its passes are cut
        )  # fmt: skip
        if self._version:
            question.weights, question.manifest_digest = orchestrator_pb2.WEIGHTS_NAMED, self._version
        return question


def _deadline_of(request: orchestrator_pb2.GenerateRequest) -> float:
    deadline_s = request.deadline_s or DEFAULT_DEADLINE_S
    if not 0.0 < deadline_s <= limits.MAX_TEXT_S:
        raise InvalidInput(f"a deadline is above 0 and at most {limits.MAX_TEXT_S:g} s", code="bad_deadline")
    return deadline_s


def _wanted(request: orchestrator_pb2.GenerateRequest, seed: int) -> Wanted:
    return Wanted(
        prompt=request.prompt, max_tokens=int(request.max_tokens), temperature=request.temperature, top_p=request.top_p or 1.0, seed=seed,
        stop=tuple(request.stop), draft=0 if request.plain else limits.MAX_DRAFT,
    )  # fmt: skip


def _logits(answer: orchestrator_pb2.ForwardResponse) -> Logits:
    """[places, tokens] of the one sequence that was asked. Raises RemoteFault."""
    output = answer.output
    shape = tuple(int(length) for length in output.shape)
    dtype = NUMPY_DTYPES[READOUT_DTYPE]
    is_sequence = len(shape) == 3 and (shape[0], shape[2]) == (1, NUM_TOKENS)
    if output.dtype != READOUT_DTYPE or not is_sequence or len(output.data) != math.prod(shape) * dtype.itemsize:
        raise RemoteFault(f"an answer of {output.dtype[:16]} {list(shape[:8])} says nothing of tokens", code="bad_answer")
    logits: Logits = np.frombuffer(output.data, dtype).reshape(shape)[0]
    return logits


def _part(
    answer: orchestrator_pb2.ForwardResponse, text: bytes, generation: Generation, num_prompt_tokens: int, seed: int
) -> orchestrator_pb2.GenerateResponse:
    return orchestrator_pb2.GenerateResponse(
        text=text, finish_reason=generation.finish_reason, model=answer.model, manifest_digest=answer.manifest_digest, weights=answer.weights,
        exit=answer.exit, deepest=answer.deepest, degraded=answer.degraded, degraded_reason=answer.degraded_reason, stages=answer.stages,
        seed=seed, num_prompt_tokens=num_prompt_tokens, num_tokens=generation.num_tokens, num_passes=generation.num_passes,
        num_drafted=generation.num_drafted, num_accepted=generation.num_accepted, num_close=generation.num_close,
    )  # fmt: skip
