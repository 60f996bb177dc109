"""The routes of texts, in the form that the usual clients of language models speak: completions, chat completions, models; whole or as server-sent events.

What the form has and this network does not is refused rather than overlooked. Beside the form, ``dcnr`` says what the network knows of a text: version,
exit, passes. Tokens are bytes. A chat becomes one text, a line for each message.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dcnr import limits
from dcnr.errors import DcnrError, InvalidInput, NotFound
from dcnr.texts import Part, parts_of
from dcnr.v1 import orchestrator_pb2
from gateway import bodies
from gateway.context import Context, answer
from gateway.errors import from_typed
from gateway.schema import JSON
from gateway.shapes import Json, shown
from gateway.watching import gone, push

MAX_MESSAGES: Final = 256
DEFAULT_TOKENS: Final = 128
STALLED_S: Final = 10.0
END: Final = b"data: [DONE]\n\n"
_ANY: Final[Json] = {"type": "object"}
ModelName = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9_-]{0,62}$", description="Name of a model.")]
Text = Annotated[str, Field(max_length=limits.MAX_PROMPT_BYTES)]
Stop = Annotated[str, Field(min_length=1, max_length=limits.MAX_STOP_BYTES)]


class StreamOptionsIn(BaseModel):
    """What a stream tells besides."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class WritingIn(BaseModel):
    """What both forms share. Fields that can only have one value here are taken with that value."""

    model_config = ConfigDict(extra="forbid")
    model: str = Field("", pattern="^([a-z0-9][a-z0-9_-]{0,62})?$")
    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptionsIn | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=limits.MAX_STOPS)] | None = None
    seed: int | None = Field(None, ge=0, lt=1 << 64)
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    logit_bias: None = None
    user: str | None = Field(None, max_length=256)
    weights: str = Field("WEIGHTS_SERVED", pattern=f"^({'|'.join(orchestrator_pb2.Weights.keys())})$")
    manifest_digest: str = Field("", max_length=64)
    exit: str = Field("", max_length=63)
    full_depth: bool = False
    deadline_s: float = Field(120.0, gt=0, le=limits.MAX_TEXT_S)
    plain: bool = False


class CompletionIn(WritingIn):
    """A text to be continued."""

    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=1)]
    max_tokens: int = Field(DEFAULT_TOKENS, ge=1, le=limits.MAX_WRITTEN)
    best_of: Literal[1] = 1
    echo: Literal[False] = False
    logprobs: None = None
    suffix: None = None


class PieceIn(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: Text


class MessageIn(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[PieceIn], Field(max_length=MAX_MESSAGES)]
    name: str | None = Field(None, max_length=64)


class ChatIn(WritingIn):
    """A chat to be answered."""

    messages: list[MessageIn] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(None, ge=1, le=limits.MAX_WRITTEN)
    max_completion_tokens: int | None = Field(None, ge=1, le=limits.MAX_WRITTEN)
    logprobs: Literal[False] | None = None


@dataclass(frozen=True, slots=True)
class _Form:
    """How one of the two kinds is told."""

    prefix: str
    kind: str
    chunk_kind: str
    whole: Callable[[str], Json]
    """The text as the form tells it at once, ..."""
    piece: Callable[[str, bool], Json]
    """... and a piece of it, the first or a later one."""


def _message(text: str) -> Json:
    return {"message": {"role": "assistant", "content": text, "refusal": None}}


def _delta(text: str, is_first: bool) -> Json:
    return {"delta": {**({"role": "assistant"} if is_first else {}), "content": text}}


COMPLETION: Final = _Form(
    "cmpl", "text_completion", "text_completion", lambda text: {"text": text}, lambda text, is_first: {"text": text}
)
CHAT: Final = _Form("chatcmpl", "chat.completion", "chat.completion.chunk", _message, _delta)
_STREAMED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The text, or server-sent events.",
        "content": {"application/json": {"schema": _ANY}, "text/event-stream": {"schema": {"type": "string"}}},
    }
}


def routes(context: Context) -> APIRouter:
    """The routes over one network."""
    router = bodies.router()

    @router.post("/v1/completions", summary="Continue a text", responses=_STREAMED)
    async def complete(body: CompletionIn, request: Request) -> Response:
        prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
        return await written(context, COMPLETION, body, _asked(request, body, prompt, body.max_tokens))

    @router.post("/v1/chat/completions", summary="Answer a chat", responses=_STREAMED)
    async def chat(body: ChatIn, request: Request) -> Response:
        wanted = body.max_completion_tokens or body.max_tokens or DEFAULT_TOKENS
        return await written(context, CHAT, body, _asked(request, body, chat_text(body.messages), wanted))

    @router.get("/v1/models", summary="The models of this network", responses=JSON(_ANY))
    async def models() -> Response:
        jobs = await context.views.jobs()
        return answer({"object": "list", "data": [_model(context, name) for name in sorted({job.model for job in jobs})]})

    @router.get("/v1/models/{model}", summary="One of them", responses=JSON(_ANY))
    async def model(model: ModelName) -> Response:
        if not await context.views.jobs(model):
            raise NotFound(f"there is no model {model}", code="no_such_model", remedy="GET /v1/models lists them")
        return answer(_model(context, model))

    return router


def _model(context: Context, name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": context.views.policy.network_id}


def chat_text(messages: Iterable[MessageIn]) -> str:
    """A chat as the text that the model continues."""
    lines = [
        f"{one.role}: {one.content if isinstance(one.content, str) else ''.join(piece.text for piece in one.content)}"
        for one in messages
    ]
    return "\n".join([*lines, "assistant:"])


def request_of(body: WritingIn, prompt: str, max_tokens: int) -> orchestrator_pb2.GenerateRequest:
    """The wish as it travels. Raises InvalidInput."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    data = prompt.encode("utf-8", "replace")
    if not data:
        raise InvalidInput("a text begins with something: the prompt is empty", code="bad_generation")
    return orchestrator_pb2.GenerateRequest(
        model=body.model, prompt=data, max_tokens=max_tokens, temperature=body.temperature, top_p=body.top_p, seed=body.seed,
        stop=[stop.encode("utf-8", "replace") for stop in stops], weights=orchestrator_pb2.Weights.Value(body.weights),
        manifest_digest=body.manifest_digest, exit=body.exit, full_depth=body.full_depth, deadline_s=body.deadline_s, plain=body.plain,
    )  # fmt: skip


def _asked(request: Request, body: WritingIn, prompt: str, max_tokens: int) -> orchestrator_pb2.GenerateRequest:
    """The wish in the name of the caller's key."""
    asked = request_of(body, prompt, max_tokens)
    asked.on_behalf = request.state.key.id
    return asked


async def written(context: Context, form: _Form, body: WritingIn, request: orchestrator_pb2.GenerateRequest) -> Response:
    """The whole text, or its parts as they come. Raises what asking raises, and RemoteFault for a text that is never whole."""
    parts = parts_of(context.views.generate(request))
    head = {"id": f"{form.prefix}-{secrets.token_hex(12)}", "created": int(context.clock.wall())}
    if body.stream:
        first = await anext(parts)  # what is wrong with the wish is an answer with its status, and no stream
        wants_usage = body.stream_options is not None and body.stream_options.include_usage
        return TextStream(_events(form, head, first, parts, wants_usage=wants_usage))
    found = [part async for part in parts]
    last = found[-1]
    choice = _choice(form.whole("".join(part.text for part in found)), last)
    told = {**head, "object": form.kind, "model": last.said.model, "choices": [choice], "usage": _usage(last), "dcnr": _known(last)}
    return answer(told)


async def _events(form: _Form, head: Json, first: Part, rest: AsyncIterator[Part], *, wants_usage: bool) -> AsyncIterator[bytes]:
    part, is_first = first, True
    try:
        while True:
            told = {**head, "object": form.chunk_kind, "model": part.said.model}
            piece = _choice(form.piece(part.text, is_first), part)
            yield _event({**told, "choices": [piece], **({"dcnr": _known(part)} if part.finish_reason else {})})
            if part.finish_reason:
                if wants_usage:
                    yield _event({**told, "choices": [], "usage": _usage(part)})
                break
            part, is_first = await anext(rest), False
    except DcnrError as error:
        yield _event(from_typed(error).body())
    yield END


def _choice(content: Json, part: Part) -> Json:
    return {"index": 0, **content, "logprobs": None, "finish_reason": part.finish_reason or None}


def _event(content: Json) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"


def _usage(part: Part) -> Json:
    said = part.said
    total = said.num_prompt_tokens + said.num_tokens
    return {"prompt_tokens": said.num_prompt_tokens, "completion_tokens": said.num_tokens, "total_tokens": total}


def _known(part: Part) -> Json:
    """All that the network says of the text, without the text."""
    made = shown(part.said)
    return {
        name: value
        for name, value in made.items()
        if name not in ("text", "finish_reason", "model", "num_prompt_tokens", "num_tokens")
    }


class TextStream(Response):
    """Server-sent events to one client; one that goes away, or reads too little, ends the text."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends until the text ends."""
        listening = asyncio.create_task(gone(receive))
        writing = asyncio.create_task(self._write(send))
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await asyncio.wait({listening, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                await writing
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            scope["state"]["abort"]()
            await asyncio.wait({listening}, timeout=STALLED_S)
        finally:
            for task in (listening, writing):
                task.cancel()
            await asyncio.gather(listening, writing, return_exceptions=True)

    async def _write(self, send: Any) -> None:
        async for event in self._events:
            await push(send, event)
