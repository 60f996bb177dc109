"""The routes of one's own machine, on a gateway that its owner began there (`pnode dashboard`): how it is, what it did, pause, resume, finish.

They are for whoever has the local token, which the command prints and the page keeps: a header that no page from elsewhere can send, on a listener that answers
to names of this machine only. Every other gateway says that there is no machine of the reader behind it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Response
from pydantic import BaseModel, ConfigDict, Field

from dcnr.errors import DcnrError, NotFound
from dcnr.ledger_check import JobLedger
from dcnr.v1 import local_pb2
from gateway import bodies
from gateway.access import HERE
from gateway.context import Context, answer
from gateway.errors import RestError
from gateway.schema import JSON, array, holds, message, one_of
from gateway.shapes import Json, shown

MAX_PAUSE_S: Final = 366 * 86_400.0
MAX_LINES: Final = 500
SHOWN_MESSAGES: Final = (local_pb2.StatusResponse.DESCRIPTOR, local_pb2.WhyLine.DESCRIPTOR, local_pb2.Setting.DESCRIPTOR)
LEDGER_WITHIN_S: Final = 4.0
"""What a note waits for the chain of manifests; it goes on being read, and the next note has it."""
_TEXT, _NUMBER, _COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer"}
MACHINE: Final = holds(status=message("StatusResponse"), why=array(message("WhyLine")))
DONE: Final = holds(
    known_since_s=_NUMBER, as_of_s=_NUMBER, contributing_s=_NUMBER, seconds={"type": "object", "additionalProperties": _NUMBER},
    num_learned=_COUNT, num_questions=_COUNT,
)  # fmt: skip
CREDIT: Final = holds(
    audited={"type": "boolean"},
    problem=_TEXT,
    cleared=_COUNT,
    of=_COUNT,
    waiting=_COUNT,
    taken_back=_COUNT,
    passed=_COUNT,
    failed=_COUNT,
)
NOTE: Final = holds(
    pnode=_TEXT, since_s=_NUMBER, until_s=_NUMBER, machine=one_of(DONE, {"type": "null"}), credit=one_of(CREDIT, {"type": "null"}),
    credit_unknown=_TEXT, advice=array(holds(code=_TEXT, reason=_TEXT, change=_TEXT)),
)  # fmt: skip
Token = Annotated[str, Header(alias="X-DCNR-Local-Token", max_length=128, description="As pnode dashboard printed it.")]


@dataclass(frozen=True, slots=True)
class Here:
    """The machine. ``ask`` calls a method of its LocalService (raises NotRunning, Unavailable); ``log`` gives its worker's newest lines, at most so many;
    ``note`` says what it was good for, by the jobs of the chain of manifests, or None and why they are not known.
    """

    token: str = field(repr=False)
    ask: Callable[[str, Any], Awaitable[Any]]
    log: Callable[[int], list[str]]
    note: Callable[[Sequence[JobLedger] | None, str], Json]


class PauseIn(BaseModel):
    """A pause."""

    model_config = ConfigDict(extra="forbid")
    for_s: float = Field(0.0, ge=0, le=MAX_PAUSE_S, description="How long, by the machine's clock; 0: until it is resumed.")


class FinishIn(BaseModel):
    """An end."""

    model_config = ConfigDict(extra="forbid")
    hand_over: bool = Field(True, description="Whether work is handed over first.")


def routes(context: Context) -> APIRouter:
    """The routes, over the machine of ``context`` if there is one."""
    router = bodies.router()
    _reads(router, context)
    done = JSON(holds(within_s=_NUMBER))

    @router.post(f"{HERE}/pause", summary="Your machine: compute nothing for a while", responses=done)
    async def pause(body: PauseIn, token: Token = "") -> Response:
        within = await _machine(context, token).ask("Pause", local_pb2.PauseRequest(for_s=body.for_s))
        return answer({"within_s": within.within_s})

    @router.post(f"{HERE}/resume", summary="Your machine: take work again", responses=JSON(holds(paused={"type": "boolean"})))
    async def resume(token: Token = "") -> Response:
        await _machine(context, token).ask("Resume", local_pb2.ResumeRequest())
        return answer({"paused": False})

    @router.post(f"{HERE}/finish", summary="Your machine: hand everything over, then stop", responses=done)
    async def finish(body: FinishIn, token: Token = "") -> Response:
        within = await _machine(context, token).ask("Stop", local_pb2.StopRequest(hand_over=body.hand_over))
        return answer({"within_s": within.within_s})

    return router


def _reads(router: APIRouter, context: Context) -> None:
    @router.get(HERE, summary="Your machine: how it is and why, and what happened to it", responses=JSON(MACHINE))
    async def get_machine(token: Token = "") -> Response:
        machine = _machine(context, token)
        status, why = await machine.ask("Status", local_pb2.StatusRequest()), await machine.ask("Why", local_pb2.WhyRequest())
        return answer({"status": shown(status), "why": [shown(line) for line in why.lines]})

    @router.get(
        f"{HERE}/settings",
        summary="Your machine: its settings, limits among them",
        responses=JSON(holds(settings=array(message("Setting")))),
    )
    async def get_settings(token: Token = "") -> Response:
        found = await _machine(context, token).ask("Settings", local_pb2.SettingsRequest())
        return answer({"settings": [shown(one) for one in found.settings]})

    @router.get(f"{HERE}/log", summary="Your machine: the newest lines of its worker", responses=JSON(holds(lines=array(_TEXT))))
    async def get_log(token: Token = "") -> Response:
        return answer({"lines": await asyncio.to_thread(_machine(context, token).log, MAX_LINES)})

    @router.get(f"{HERE}/note", summary="Your machine: what it was good for in the last seven days", responses=JSON(NOTE))
    async def get_note(token: Token = "") -> Response:
        machine = _machine(context, token)
        return answer(await asyncio.to_thread(machine.note, *await _ledgers(context)))


async def _ledgers(context: Context) -> tuple[list[JobLedger] | None, str]:
    """The jobs of the chain, or None and why they are not known."""
    try:
        async with asyncio.timeout(LEDGER_WITHIN_S):
            return (await context.views.ledger())[1], ""
    except DcnrError as error:
        return None, error.message
    except TimeoutError:
        return None, "nobody told the chain of manifests in time"


def _machine(context: Context, token: str) -> Here:
    """The machine, for who has its token. Raises NotFound, RestError."""
    machine = context.here
    if machine is None:
        raise NotFound("this gateway is not on your machine", code="no_machine_here", remedy="on your machine: pnode dashboard")
    if not hmac.compare_digest(token.encode(), machine.token.encode()):
        raise RestError(
            "UNAUTHORIZED_KEY", "this needs the local token: open the address that pnode dashboard printed", reason="no_local_token"
        )
    return machine
