"""Questions to the model: who may ask how much, what is answered from here and what the head's holder has to answer, and which answers are compared.

A few answers, and those of whom the caller wants more than one, are asked again over machines and owners that had no part in the first.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from dcnr.errors import DcnrError, NotFound, Refused, TimedOut, Unavailable
from dcnr.ports import Random
from dcnr.v1 import orchestrator_pb2
from orchestrator.answered import Answered, alike, response
from orchestrator.answering import BUSY_RETRY_S, Answering
from orchestrator.candidates import Workers, live_tables, served_tables
from orchestrator.figures import Figures
from orchestrator.infer_streams import InferStreams
from orchestrator.questions import Question, context_of, deadline_of, question_of, version_of
from orchestrator.routing import Avoid, Table, find_way
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.text_session import Kept, TextSession
from orchestrator.view import JobFacts
from vnode.costs import session_bytes

MAX_IN_FLIGHT: Final = 64
"""Questions at once; more are told to come again."""
STRANGERS_AT_ONCE: Final = 32
"""Callers that are held to a rate leave the other places to those that are not."""
CHECKED: Final = 0.02
"""Share of the answers that are asked again over other machines."""
CHECKS_AT_ONCE: Final = 2
TABLES_S: Final = 0.1
"""Who serves what is put together anew this often, from beats that are older anyway; who has died since shows by its stream."""


class Others(Protocol):
    """Other orchestrators: `orchestrator.holders.Holders`."""

    async def ask(
        self, node_id: str, request: orchestrator_pb2.ForwardRequest, timeout_s: float
    ) -> orchestrator_pb2.ForwardResponse:
        """That one's answer. Raises typed errors."""
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...


class Asking:
    """One per process. ``random_bytes`` name questions; ``rng`` draws candidates and samples."""

    def __init__(
        self, shared: Shared, *, streams: InferStreams, workers: Workers, rng: Random, holders: Others, checked: float = CHECKED
    ) -> None:
        self._shared, self._workers, self._rng, self._holders, self._checked = shared, workers, rng, holders, checked
        self.figures = Figures()
        self._streams = streams
        self._answering = Answering(shared, streams=streams, workers=workers, rng=rng, figures=self.figures)
        self._checks: set[asyncio.Task[None]] = set()
        self._known: dict[tuple[str, bool], tuple[ModelRuntime, float, list[Table]]] = {}
        """By model, and whether its live weights are meant."""

    async def forward(
        self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest, *, may_pass_on: bool, places: int = MAX_IN_FLIGHT,
        session: TextSession | None = None,
    ) -> orchestrator_pb2.ForwardResponse:  # fmt: skip
        """The answer. ``may_pass_on``: an orchestrator that reaches too little asks the head's holder, once. ``places``: more questions on their way are
        too many for this caller. ``session``: the text whose next pass it is.

        Raises InvalidInput, NotFound (``not_trained``), Unavailable (``busy``, ``no_server``, ``depth_unavailable``, ``version_not_served``,
        ``answers_differ``), TimedOut (``deadline_exceeded``).
        """
        began, figures = self._shared.clock.monotonic(), self.figures
        if figures.num_in_flight >= places:
            figures.failed("busy")
            raise Unavailable(
                f"{figures.num_in_flight} questions are on their way already", code="busy", retry_after_s=BUSY_RETRY_S,
                remedy="ask again a little later, or another orchestrator",
            )  # fmt: skip
        figures.num_questions += 1
        figures.num_in_flight += 1
        try:
            async with asyncio.timeout(deadline_of(request)):
                response = await self._forward(runtime, request, began, may_pass_on, session)
        except TimeoutError:
            figures.failed("deadline_exceeded")
            raise TimedOut("the question was not answered in time", code="deadline_exceeded", remedy="give it more time") from None
        except DcnrError as error:
            figures.failed(error.code)
            raise
        finally:
            figures.num_in_flight -= 1
        figures.answered(response.total_s, degraded=response.degraded)
        return response

    def context(self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest) -> int:
        """How many tokens the model reads at once. Raises what `forward` raises where nobody answers, InvalidInput (``not_text``)."""
        tables = self._tables(runtime, request)
        if not tables and runtime.view is None:
            raise self._nobody(runtime, request)
        return context_of(_job_of(runtime, tables[0] if tables else None))

    def session(self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest) -> TextSession | None:
        """For a text that these weights write; None where a stage keeps nothing, since it does not work place by place or its weights change.

        Raises InvalidInput.
        """
        tables = self._tables(runtime, request)
        if request.weights == orchestrator_pb2.WEIGHTS_LIVE or not tables:
            return None
        needed = tables[0].requires(request.exit or tables[0].stages[-1].id)
        stages = [stage for stage in tables[0].stages if stage.id in needed]
        return TextSession() if all(session_bytes(stage, self._shared.registry) is not None for stage in stages) else None

    def let_go(self, kept: Kept | None) -> None:
        """Nobody goes on from that: stages need not wait until it is idle."""
        if kept is not None:
            self._streams.cancel(kept.session, kept.way.pnodes)

    async def run(self) -> None:
        """Keeps the streams to workers, until cancelled."""
        await self._streams.run()

    async def close(self) -> None:
        """Ends the comparisons that are on their way, and the connections to other orchestrators."""
        for task in self._checks:
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)
        await self._holders.close()

    async def _forward(
        self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest, began: float, may_pass_on: bool, session: TextSession | None
    ) -> orchestrator_pb2.ForwardResponse:  # fmt: skip
        tables = self._tables(runtime, request)
        if may_pass_on and not runtime.is_holder and self._reaches_too_little(tables, request):
            head = runtime.head
            if head is not None and head.holder and head.holder != self._shared.key.node_id:
                return await self._holders.ask(head.holder, request, deadline_of(request))
        if not tables:
            raise self._nobody(runtime, request)
        question = question_of(request, _job_of(runtime, tables[0]))
        if question.num_ways > 1:
            found, agreeing = await self._agreed(runtime, request, question)
        else:
            found, agreeing = await self._answered(runtime, request, question, Avoid(), session), 1
            self._maybe_check(runtime, request, question, found)
        total_s = self._shared.clock.monotonic() - began
        return response(runtime.model, question.exit, found, num_agreeing=agreeing, total_s=total_s)

    def _tables(self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest) -> list[Table]:
        only, is_live = version_of(request), request.weights == orchestrator_pb2.WEIGHTS_LIVE
        known, now = self._known.get((runtime.model, is_live)), self._shared.clock.monotonic()
        if known is None or known[0] is not runtime or now - known[1] > TABLES_S or not known[2]:
            tables = live_tables(runtime, self._workers) if is_live else served_tables(runtime, self._workers)
            known = self._known[runtime.model, is_live] = (runtime, now, tables)
        return [table for table in known[2] if only in ("", table.manifest_digest)]

    def _reaches_too_little(self, tables: list[Table], request: orchestrator_pb2.ForwardRequest) -> bool:
        way = find_way(tables, request.exit, self._rng, self._answering.load()) if tables else None
        return way is None or bool(way.missing)

    def _nobody(self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest) -> DcnrError:
        head = runtime.head
        if request.weights == orchestrator_pb2.WEIGHTS_NAMED:
            return Unavailable(
                "that version is not served",
                code="version_not_served",
                remedy="leave the manifest out: the newest served one answers",
            )
        if request.weights == orchestrator_pb2.WEIGHTS_LIVE:
            return Unavailable("nothing trains now", code="no_server", remedy="ask the served weights", retry_after_s=5.0)
        newest = head.manifest_digest if head is not None else ""
        newest = runtime.serving.following(newest) or newest
        why = runtime.serving.versions.why_not(newest)
        if not newest or why:
            return NotFound(
                f"{runtime.model} has no version that can be served: {why or 'it has no manifest yet'}", code="not_trained",
                remedy="wait for its first checkpoints: dcnr job watch",
            )  # fmt: skip
        return Unavailable(
            "no PNode serves the model now",
            code="no_server",
            retry_after_s=5.0,
            remedy="ask again in a few seconds; see: orchestrator status",
        )

    async def _answered(
        self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest, question: Question, avoid: Avoid, session: TextSession | None = None
    ) -> Answered:  # fmt: skip
        tables = partial(self._tables, runtime, request)
        if session is None:
            return await self._answering.answered(runtime.model, tables, question, avoid)
        first = session.goes_on(question, tables())
        found = await self._answering.answered(runtime.model, tables, session.asks(question), avoid, first)
        replays, left = session.num_replays, first[1] if first is not None else None
        self.let_go(session.answered(question, left, found))
        self.figures.num_replays += session.num_replays - replays
        self.figures.num_continued += left is not None and session.num_replays == replays
        return found

    # Several ways

    async def _agreed(
        self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest, question: Question
    ) -> tuple[Answered, int]:
        """As many answers as are asked for, over ways that share no PNode and no known owner, all alike."""
        found: list[Answered] = []
        avoid = Avoid()
        for _ in range(question.num_ways):
            try:
                found.append(await self._answered(runtime, _same_version(request, found), _same_exit(question, found), avoid))
            except Unavailable as error:
                if not found:
                    raise
                raise Unavailable(
                    f"only {len(found)} of {question.num_ways} independent ways are there: {error.message}", code="too_few_ways",
                    remedy="ask for fewer, or later", retry_after_s=5.0,
                ) from error  # fmt: skip
            avoid = _apart(avoid, found[-1], self._shared)
        self.figures.num_compared += 1
        if any(not alike(found[0], other, question.codec) for other in found[1:]):
            self._differ(runtime, found)
            raise Unavailable(
                "independent ways gave different answers", code="answers_differ", retry_after_s=5.0,
                remedy="ask again; the network's events name who took part",
            )  # fmt: skip
        first = found[0]
        return Answered(first.way, first.answer, sum(item.num_ways for item in found)), len(found)

    def _maybe_check(
        self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest, question: Question, found: Answered
    ) -> None:
        """Now and then, where not everybody who took part is trusted: the same question to others, after the caller has the answer."""
        if (
            request.weights == orchestrator_pb2.WEIGHTS_LIVE
            or len(self._checks) >= CHECKS_AT_ONCE
            or self._rng.random() >= self._checked
        ):
            return
        if all(self._shared.trusts(pnode_id) for pnode_id in found.way.pnodes):
            return
        task = asyncio.create_task(self._check(runtime, request, question, found))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(
        self, runtime: ModelRuntime, request: orchestrator_pb2.ForwardRequest, question: Question, found: Answered
    ) -> None:
        avoid = _apart(Avoid(), found, self._shared)
        try:
            async with asyncio.timeout(question.deadline_s):
                other = await self._answered(runtime, _same_version(request, [found]), _same_exit(question, [found]), avoid)
        except (DcnrError, TimeoutError):
            return  # nobody else is there to compare with
        self.figures.num_compared += 1
        if not alike(found, other, question.codec):
            self._differ(runtime, [found, other])

    def _differ(self, runtime: ModelRuntime, found: list[Answered]) -> None:
        self.figures.num_differing += 1
        self._shared.history.say(
            "answers_differ", runtime.model, "independent ways gave different answers to one question: one of them is wrong",
            version=found[0].way.table.manifest_digest, exit=found[0].way.exit,
            **{f"way_{number}": " ".join(sorted(item.way.pnodes)) for number, item in enumerate(found, 1)},
        )  # fmt: skip


def _same_version(request: orchestrator_pb2.ForwardRequest, found: list[Answered]) -> orchestrator_pb2.ForwardRequest:
    """The request, held to the version that has answered already."""
    if not found:
        return request
    same = orchestrator_pb2.ForwardRequest()
    same.CopyFrom(request)
    same.weights, same.manifest_digest = orchestrator_pb2.WEIGHTS_NAMED, found[0].way.table.manifest_digest
    return same


def _same_exit(question: Question, found: list[Answered]) -> Question:
    """The question, held to the depth that has answered already."""
    return replace(question, exit=found[0].way.exit, full_depth=True) if found else question


def _apart(avoid: Avoid, found: Answered, shared: Shared) -> Avoid:
    """Away from everybody who took part, and from their owners; where all machines are one host, owners say nothing."""
    owners = {hop.owner for hop in found.way.hops} - {""} if not shared.policy.single_host else set()
    return Avoid({*avoid.banned, *found.way.pnodes}, {*avoid.owners, *owners})


def _job_of(runtime: ModelRuntime, table: Table | None) -> JobFacts:
    version = runtime.serving.versions.get(table.manifest_digest) if table is not None else None
    job = version.job if version is not None else runtime.view.job if runtime.view is not None else None
    if job is None:
        raise Refused("the model's graph is not known here", code="no_graph")
    return job
