"""Streams to workers over which questions go out and answers come in: one per worker, opened on first use and closed when nothing was asked for a while.

A stream that breaks tells everybody who waits for that worker at once: a killed process costs no timeout. Workers hear to whom questions will or may go on, so
that all connections of a way are opened side by side, and those that may be needed next before they are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, Protocol

import grpc
import structlog

from dcnr import limits, logs
from dcnr.errors import DcnrError, Unavailable
from dcnr.groups import first_cause
from dcnr.ports import Clock
from dcnr.question_outbox import Outbox
from dcnr.question_strands import Room, Strands
from dcnr.question_wire import Chunk, Heard, Words, read_messages
from dcnr.rpc.connection import Connection
from dcnr.rpc.errors import calls_let_go
from dcnr.v1 import vnode_pb2
from orchestrator.company import Company, Fits
from trust.delegation import VerifiedDelegation

DIAL_S: Final = 4.0
"""A dial takes seven round trips; one over a link of 200 ms that loses a packet has to fit. Who is late meanwhile is not waited for alone (`answering`)."""
RELAYED_DIAL_S: Final = 10.0
"""For a worker that is reached through a relay only."""
IDLE_S: Final = 60.0
TIDY_S: Final = 5.0
SAID_S: Final = 20.0
"""So long a worker that was told of another one keeps its connection surely (`pnode.infer_ways.IDLE_S`): it is not told again."""
MAX_SAID: Final = 256
MAX_STREAMS: Final = 512
MAX_EARLY: Final = 256
"""Of these at most so many when some are opened before any question needs them."""
INFER: Final = "/dcnr.v1.VNodeService/Infer"
_log = structlog.get_logger("orchestrator")

Dial = Callable[[str, Sequence[str]], Awaitable[Connection]]


class Listener(Protocol):
    """Who waits for the answer to one question."""

    def heard(self, pnode_id: str, message: Heard) -> None:
        """An answer, one of its chunks or a failure, from that worker."""
        ...

    def lost(self, pnode_id: str, reason: str) -> None:
        """The stream to that worker broke."""
        ...


class InferStream:
    """To one worker."""

    def __init__(self, pnode_id: str, connection: Connection, clock: Clock, strands: Strands) -> None:
        self._strands = strands
        self.pnode_id, self.used_at, self.ended = pnode_id, clock.monotonic(), False
        self._connection, self._clock = connection, clock
        self._outbox = Outbox()
        self._listeners: dict[bytes, Listener] = {}
        self._said: dict[str, float] = {}
        """By worker to which questions go on from there: when it was last told, or one did."""
        self._company: Company[Words] = Company()
        self._later: asyncio.TimerHandle | None = None

    @property
    def is_used(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._listeners)

    def listen(self, question: bytes, listener: Listener) -> None:
        """From now on that listener hears of that question. Raises Unavailable where the stream is over."""
        if self.ended:
            raise Unavailable("the stream to the worker broke", code="stream_broken")
        self._listeners[question] = listener

    def forget(self, question: bytes) -> None:
        """Nobody waits for it any more."""
        self._listeners.pop(question, None)
        self.used_at = self._clock.monotonic()
        self._send(self._company.over(question, self.used_at))

    def ask(self, words: Words, fits: Fits | None) -> None:
        """A question, which waits for company where `Company` says so; None: it has none. Raises Unavailable (``busy``) where too much is unsent."""
        if fits is None:
            self._outbox.say(words)
        else:
            self._outbox.check_room(words)
            self._send(self._company.enters(words.question, words, fits, self._clock.monotonic()))

    @property
    def certificate(self) -> bytes:
        """Which the worker showed."""
        return self._connection.certificate

    def goes_on(self, neighbours: Sequence[tuple[VerifiedDelegation, bytes]], now: float) -> None:
        """Questions go on from there to these workers, who are said to show such certificates: it is told of those that it may not be connected to."""
        new = [
            (worker, certificate) for worker, certificate in neighbours if now - self._said.get(worker.worker_id, -SAID_S) >= SAID_S
        ]
        self._said |= {worker.worker_id: now for worker, _ in neighbours}
        while len(self._said) > MAX_SAID:
            del self._said[next(iter(self._said))]
        for first in range(0, len(new), limits.MAX_NEIGHBOURS):
            soon = [
                vnode_pb2.InferNeighbour(delegation=worker.envelope, certificate=certificate)
                for worker, certificate in new[first : first + limits.MAX_NEIGHBOURS]
            ]
            with contextlib.suppress(Unavailable):  # each opens it when it is needed, too
                self._outbox.say(Words(vnode_pb2.InferMessage(soon=soon)))

    def waited(self, seconds: float) -> None:
        """So long a question that was asked here has waited at its stages."""
        self._company.waited(seconds)

    def cancel(self, question: bytes) -> None:
        """Tells the worker that nobody waits, or goes on with that session, if there is room to say so."""
        if self._company.holds(question):
            return  # it knows nothing of it, and will not: `forget` follows
        with contextlib.suppress(Unavailable):
            self._outbox.say(Words(vnode_pb2.InferMessage(cancel=vnode_pb2.InferCancel(id=question))))

    async def close(self) -> None:
        """Ends it: its connection goes, and with it the call."""
        self.ended = True
        await self._connection.close()

    async def run(self) -> None:
        """Sends and hears until the stream ends; never raises what the worker did."""
        reason = "the worker ended the stream"
        try:
            with calls_let_go():
                await self._both_ways()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, DcnrError) as error:
            reason = str(getattr(error, "details", lambda: "")() if isinstance(error, grpc.aio.AioRpcError) else error)
        except Exception as error:  # noqa: BLE001  RPC boundary: what one worker says never ends this process
            reason = logs.told("infer_stream_failed", error, pnode=self.pnode_id)
        finally:
            self.ended = True
            if self._later is not None:
                self._later.cancel()
            for listener in list(self._listeners.values()):
                listener.lost(self.pnode_id, reason or "the stream broke")
            self._listeners.clear()
            await self._connection.close()

    async def _both_ways(self) -> None:
        """Until the call ends. Raises what ends it."""
        metadata = await self._connection.fresh_metadata()
        channel: Any = self._connection.channel
        call = channel.stream_stream(INFER)(metadata=(*metadata, *self._strands.begins()))
        try:
            async with asyncio.TaskGroup() as group:
                besides = [group.create_task(work) for work in (self._write(call), self._strands.run())]
                await self._read(call)
                for task in besides:
                    task.cancel()
        except BaseExceptionGroup as failed:
            raise first_cause(failed) from None
        finally:
            call.cancel()

    async def _read(self, call: Any) -> None:
        while (data := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
            self._strands.heard()
            for message in read_messages(data):
                self._heard(message)

    async def _write(self, call: Any) -> None:
        """Raises Unavailable where a strand broke."""
        with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):  # the reading side says why
            await self._outbox.run(lambda message: self._strands.write(call.write, message))

    def _send(self, together: Sequence[Words]) -> None:
        """Sends these, and sees to it that those that still wait go in time."""
        for words in together:
            try:
                self._outbox.say(words)
            except Unavailable as error:
                failure = vnode_pb2.InferFailure(id=words.question, code=error.code, message=error.message)
                self._heard(vnode_pb2.InferMessage(failure=failure))
        due_s = self._company.due_s
        if due_s is None and self._later is not None:
            self._later.cancel()
            self._later = None
        elif due_s is not None and self._later is None and not self.ended:
            self._later = asyncio.get_running_loop().call_later(max(0.0, due_s - self._clock.monotonic()), self._due)

    def _due(self) -> None:
        self._later = None
        self._send(self._company.due(self._clock.monotonic()))

    def _heard(self, message: Heard) -> None:
        if isinstance(message, Chunk):
            question = message.id
        else:
            kind = message.WhichOneof("kind")
            if kind is None:  # a sign of life, or how the worker begins
                self._outbox.is_joining |= message.takes_several
            if kind not in ("answer", "failure"):
                return
            question = getattr(message, kind).id
        listener = self._listeners.get(question)
        if listener is not None:
            listener.heard(self.pnode_id, message)


class InferStreams:
    """All streams of this process. `run` owns them."""

    def __init__(self, dial: Dial, clock: Clock) -> None:
        self._dial, self._clock, self._room = dial, clock, Room()
        self._streams: dict[str, InferStream] = {}
        self._opening: dict[str, asyncio.Future[InferStream]] = {}
        """By worker that is being dialled: whoever needs it waits for the one dial, and it goes on where nobody does any more."""
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Keeps the streams until cancelled; closes those that nobody uses."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                while True:
                    await asyncio.sleep(TIDY_S)
                    await self._tidy(self._clock.monotonic())
            finally:
                self._group = None  # a group that ends takes no task

    async def _tidy(self, now: float) -> None:
        for worker_id, stream in list(self._streams.items()):
            if not stream.is_used and now - stream.used_at > IDLE_S:
                del self._streams[worker_id]
                await stream.close()

    def open_one(self, worker: VerifiedDelegation) -> InferStream | None:
        """The stream to that worker, if it is open already."""
        found = self._streams.get(worker.worker_id)
        return found if found is not None and not found.ended else None

    def cancel(self, session: bytes, pnode_ids: Collection[str]) -> None:
        """Tells those of them to whom a stream is open that nobody goes on with that session."""
        for stream in self._streams.values():
            if stream.pnode_id in pnode_ids and not stream.ended:
                stream.cancel(session)

    def goes_on(self, worker: VerifiedDelegation, others: Sequence[VerifiedDelegation]) -> None:
        """Questions go on from there to the others: it opens connections to them, if it has none; nothing where no stream to it is open."""
        stream = self.open_one(worker)
        if stream is not None:
            shown = [(other, found.certificate if (found := self.open_one(other)) else b"") for other in others]
            stream.goes_on(shown, self._clock.monotonic())

    def open_early(self, plan: Sequence[tuple[VerifiedDelegation, Sequence[VerifiedDelegation]]]) -> None:
        """Opens the stream to the first of each, and has it connect to those to whom it may hand questions on, in the background and as far as it goes."""
        if self._group is not None:
            self._group.create_task(self._open_early(plan))

    async def _open_early(self, plan: Sequence[tuple[VerifiedDelegation, Sequence[VerifiedDelegation]]]) -> None:
        opening = [found for worker, _ in plan if self.open_one(worker) is None and (found := self._early(worker)) is not None]
        if opening:
            await asyncio.wait(opening)
        now = self._clock.monotonic()
        for worker, others in plan:
            stream = self.open_one(worker)
            if stream is not None:
                stream.used_at = now
                self.goes_on(worker, others)

    def _early(self, worker: VerifiedDelegation) -> asyncio.Future[InferStream] | None:
        known = self._opening.get(worker.worker_id)
        if known is None and self._group is not None and len(self._streams) + len(self._opening) < MAX_EARLY:
            known = self._begun(worker)
        return known

    async def opened(self, worker: VerifiedDelegation) -> InferStream:
        """The stream to that worker. Raises Unavailable (``unreachable``, ``too_many_streams``), Refused, RemoteFault."""
        found = self.open_one(worker)
        if found is not None:
            return found
        return await asyncio.shield(self._opening.get(worker.worker_id) or self._begun(worker))

    def _begun(self, worker: VerifiedDelegation) -> asyncio.Future[InferStream]:
        if self._group is None or len(self._streams) + len(self._opening) >= MAX_STREAMS:
            raise Unavailable("too many workers are asked at once", code="too_many_streams")
        opening = self._opening[worker.worker_id] = asyncio.get_running_loop().create_future()
        task = self._group.create_task(self._keep(worker, opening))
        task.add_done_callback(
            lambda _: self._no_longer(worker.worker_id, opening)
        )  # also of a task that was cancelled before it began
        return opening

    def _no_longer(self, worker_id: str, opening: asyncio.Future[InferStream]) -> None:
        if self._opening.get(worker_id) is opening:
            del self._opening[worker_id]
        if not opening.done():
            opening.set_exception(Unavailable("this orchestrator ends", code="unreachable"))
        opening.exception()  # looked at, also where nobody waits any more

    async def _keep(self, worker: VerifiedDelegation, opening: asyncio.Future[InferStream]) -> None:
        """From the dial to the stream's end; never raises what the worker did."""
        try:
            stream = await self._dialled(worker)
        except Exception as error:  # noqa: BLE001  told to whoever waits: what one worker does never ends the others' streams
            opening.set_exception(error)
            return
        self._streams[worker.worker_id] = stream
        opening.set_result(stream)
        self._no_longer(worker.worker_id, opening)
        await stream.run()
        if self._streams.get(worker.worker_id) is stream:
            del self._streams[worker.worker_id]

    async def _dialled(self, worker: VerifiedDelegation) -> InferStream:
        within_s = DIAL_S if worker.addresses else RELAYED_DIAL_S
        room = self._room if worker.addresses else Room(0)  # relays have none to spare
        strands = Strands(lambda: self._dial(worker.worker_id, worker.addresses), INFER, self._clock, room)
        try:
            async with asyncio.timeout(within_s):
                return InferStream(worker.pnode_id, await self._dial(worker.worker_id, worker.addresses), self._clock, strands)
        except TimeoutError:
            raise Unavailable(f"the worker does not answer within {within_s:g} s", code="unreachable") from None
