"""Questions on their way to the next worker: one stream to each, opened when it is needed or before, reused, closed when it was idle; a broken one says so
at once.

A route remembers whose question went over which stream until its answers have come back over it or its time is up: answers and failures from behind
go back the way the question came, unless the worker behind has a stream of the caller's own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from dcnr import logs
from dcnr.errors import DcnrError, Unavailable
from dcnr.ids import NodeId
from dcnr.ports import Clock
from dcnr.question_strands import Room, Strands
from dcnr.question_wire import Words
from dcnr.rpc.certificates import Certificates
from dcnr.rpc.errors import calls_let_go
from dcnr.v1 import vnode_pb2
from pnode.exchange import Stream
from pnode.infer_streams import InferStream
from pnode.infer_words import Arriving, check_answer, failure_message
from pnode.links import SERVICE, CallStream, Dial, Told
from trust.delegation import VerifiedDelegation

MAX_WAYS: Final = 64
"""Workers to which a stream is open at once."""
MAX_ROUTES: Final = 1024
"""Questions remembered per stream; the oldest give way, and their callers learn of a break by their deadline only."""
MAX_EARLY: Final = 32
"""Of these at most so many when one is opened before any question needs it,"""
EARLY_S: Final = 30.0
"""and at most so many are begun so within this time, whatever becomes of them: who may have machines dialled does not make scanners of them."""
IDLE_S: Final = 60.0
"""A stream without questions is closed after this time."""
REVIEW_S: Final = 1.0
HEARS: Final = frozenset({"answer", "failure"})
INFER: Final = f"/{SERVICE}/Infer"


@dataclass(slots=True, eq=False)
class Route:
    """One question that went on. ``hops`` are those behind, ``awaited`` those of them that have yet to answer; ``back`` says something to who asked."""

    question: bytes
    hops: frozenset[str]
    awaited: set[str]
    until_s: float
    next_vnode: str
    origin: object
    """The stream over which it came."""
    back: Callable[[Words], None]


@dataclass(slots=True, eq=False)
class _Way:
    """One stream to one worker, from dialling to its end."""

    worker: VerifiedDelegation
    opened: asyncio.Future[InferStream]
    used_s: float
    routes: dict[bytes, list[Route]] = field(default_factory=dict)
    num_routes: int = 0
    """Questions that are not answered yet, as far as is known here: answers may take another way back."""
    task: asyncio.Task[None] | None = None

    def remember(self, route: Route) -> None:
        """A further question."""
        if self.num_routes >= MAX_ROUTES:
            self.forget(next(iter(self.routes.values()))[0])
        self.routes.setdefault(route.question, []).append(route)
        self.num_routes += 1

    def forget(self, route: Route) -> None:
        """Nothing more is to come back for it."""
        known = self.routes.pop(route.question, [])
        rest = [one for one in known if one is not route]
        if rest:
            self.routes[route.question] = rest
        self.num_routes -= len(known) - len(rest)

    def find(self, question: bytes, fits: Callable[[Route], bool]) -> Route | None:
        """The newest route of that question that fits: a way may lead through a worker twice."""
        return next((one for one in reversed(self.routes.get(question, [])) if fits(one)), None)


class Ways:
    """All Infer streams that this worker opens."""

    def __init__(self, clock: Clock, dial: Dial, told: Told, certificates: Certificates) -> None:
        self._clock, self._dial, self._told, self._certificates = clock, dial, told, certificates
        self._ways: dict[NodeId, _Way] = {}
        self._room = Room()
        self._early: deque[float] = deque(maxlen=MAX_EARLY)
        """When the last ones were begun that no question needed yet."""
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled: closes what is idle, forgets whose time is up."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                while True:
                    await asyncio.sleep(REVIEW_S)
                    self._review(self._clock.monotonic())
            finally:
                self._group = None

    async def send(self, worker: VerifiedDelegation, words: Words, route: Route) -> None:
        """Queues a question for that worker, over a stream that is open; the caller bounds the time.

        Raises Unavailable (``successor_unreachable``, ``busy``).
        """
        way = self._ways.get(worker.worker_id) or self._open(worker)
        way.used_s = self._clock.monotonic()
        try:
            stream = await asyncio.shield(way.opened)
        except DcnrError as error:
            raise Unavailable(f"{worker.pnode_id[:8]}: {error.message}", code="successor_unreachable") from error
        try:
            stream.say(words)
        except Unavailable as error:
            raise Unavailable(error.message, code="busy" if error.code == "busy" else "successor_unreachable") from error
        way.remember(route)

    def open_early(self, worker: VerifiedDelegation, certificate: bytes) -> None:
        """Questions may soon go on to that worker: its stream is opened now if there is room and few were so of late; one that is open stays for a while.

        ``certificate``: which it is said to show, if anybody knows.
        """
        way, now_s = self._ways.get(worker.worker_id), self._clock.monotonic()
        if way is not None:
            way.used_s = now_s
        elif (
            self._group is not None
            and len(self._ways) < MAX_EARLY
            and (len(self._early) < MAX_EARLY or now_s - self._early[0] >= EARLY_S)
        ):
            self._early.append(now_s)
            self._certificates.told(worker.worker_id, certificate)
            self._open(worker)

    def cancel(self, question: bytes, origin: object) -> None:
        """Nobody waits any more for that question, which came over that stream."""
        for way in self._ways.values():
            route = way.find(question, lambda one: one.origin is origin)
            if route is not None:
                _cancel(way, route)

    def left(self, origin: object) -> None:
        """Nobody waits any more for what came over that stream."""
        for way in self._ways.values():
            for route in [route for some in way.routes.values() for route in some if route.origin is origin]:
                _cancel(way, route)

    def _open(self, worker: VerifiedDelegation) -> _Way:
        if self._group is None or len(self._ways) >= MAX_WAYS:
            raise Unavailable("too many other workers are asked already", code="busy")
        way = _Way(worker, asyncio.get_running_loop().create_future(), self._clock.monotonic())
        self._ways[worker.worker_id] = way
        way.task = self._group.create_task(self._keep(way))
        return way

    async def _keep(self, way: _Way) -> None:
        reason = "the connection broke"
        try:
            await self._session(way)
        except DcnrError as error:
            reason = error.message
            if not isinstance(error, Unavailable):
                self._told("infer_fault", way.worker.pnode_id, f"{error.code}: {error.message}")
            if not way.opened.done():
                way.opened.set_exception(error)
        except Exception as error:  # noqa: BLE001  RPC boundary: what one worker says never ends this one
            reason = logs.told("infer_fault", error, pnode=way.worker.pnode_id)
            self._told("infer_fault", way.worker.pnode_id, reason)
        finally:
            if self._ways.get(way.worker.worker_id) is way:
                del self._ways[way.worker.worker_id]
            if not way.opened.done():
                way.opened.set_exception(Unavailable("the worker ends", code="link_broken"))
            way.opened.exception()  # looked at, also where nobody waits any more
            self._lost(way, reason)

    async def _session(self, way: _Way) -> None:
        worker = way.worker
        connection = await self._dial(worker.worker_id, worker.addresses)
        room = self._room if worker.addresses else Room(0)  # relays have none to spare
        strands = Strands(lambda: self._dial(worker.worker_id, worker.addresses), INFER, self._clock, room)
        stranding = asyncio.create_task(strands.run())
        try:
            call: Any = connection.channel.stream_stream(INFER)(metadata=(*connection.metadata, *strands.begins()))
            try:
                way.opened.set_result(stream := InferStream(_Back(self, way), HEARS))
                with calls_let_go():
                    await stream.run(_Stranded(CallStream(call), strands))
            finally:
                call.cancel()
        finally:
            stranding.cancel()
            await asyncio.wait([stranding])
            await connection.close()

    def _lost(self, way: _Way, reason: str) -> None:
        error = Unavailable(f"{way.worker.pnode_id[:8]}: {reason}", code="successor_unreachable")
        routes, way.routes, way.num_routes = way.routes, {}, 0
        for route in [route for some in routes.values() for route in some]:
            failure = failure_message(route.question, route.next_vnode, way.worker.pnode_id, error)
            route.back(Words(vnode_pb2.InferMessage(failure=failure)))

    def _review(self, now_s: float) -> None:
        for way in list(self._ways.values()):
            for route in [route for some in way.routes.values() for route in some if route.until_s <= now_s]:
                way.forget(route)
            if not way.routes and way.used_s + IDLE_S <= now_s and way.task is not None and way.opened.done():
                del self._ways[way.worker.worker_id]
                way.task.cancel()


class _Stranded:
    """A stream that is opened here, with its strands."""

    def __init__(self, call: Stream, strands: Strands) -> None:
        self._call, self._strands = call, strands

    async def read(self) -> bytes | None:
        """As it comes."""
        data = await self._call.read()
        self._strands.heard()
        return data

    async def write(self, message: bytes) -> None:
        """In parts where that is worth it."""
        await self._strands.write(self._call.write, message)


class _Back:
    """Hears what comes back over one way: an `infer_streams.Listener`."""

    def __init__(self, ways: Ways, way: _Way) -> None:
        self._ways, self._way = ways, way

    def begins(self, stream: InferStream, message: vnode_pb2.InferMessage) -> Arriving | None:
        """An answer for whom it is awaited."""
        answer = message.answer
        if self._way.find(answer.id, lambda one: answer.vnode in one.awaited) is None:
            return None
        return Arriving(answer, check_answer(answer))

    def whole(self, stream: InferStream, arrived: Arriving) -> None:
        """An answer goes back."""
        answer = arrived.message
        assert isinstance(answer, vnode_pb2.InferAnswer)
        route = self._way.find(answer.id, lambda one: answer.vnode in one.awaited)
        if route is None:
            return
        route.awaited.discard(answer.vnode)
        if not route.awaited:
            self._way.forget(route)
        route.back(Words(vnode_pb2.InferMessage(answer=answer), [tensor.encoded() for tensor in arrived.tensors().values()]))

    def broken(self, stream: InferStream, arriving: Arriving, error: DcnrError) -> None:
        """An answer that is not what it said: for who asked it is a failure of that hop."""
        answer = arriving.message
        assert isinstance(answer, vnode_pb2.InferAnswer)
        failure = failure_message(answer.id, answer.vnode, self._way.worker.pnode_id, error)
        self.heard(stream, vnode_pb2.InferMessage(failure=failure))

    def heard(self, stream: InferStream, message: vnode_pb2.InferMessage) -> None:
        """A failure goes back."""
        failure = message.failure
        route = self._way.find(failure.id, lambda one: failure.vnode in one.hops)
        if route is not None:
            self._way.forget(route)
            route.back(Words(vnode_pb2.InferMessage(failure=failure)))


def _cancel(way: _Way, route: Route) -> None:
    way.forget(route)
    try:
        way.opened.result().say(Words(vnode_pb2.InferMessage(cancel=vnode_pb2.InferCancel(id=route.question))))
    except Unavailable:
        return  # its end is noticed where it runs
