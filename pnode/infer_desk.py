"""Questions that came to this worker: each is bounded, queued, computed hop by hop, and handed on or answered, by a task of its own that its deadline ends.

Who may ask: orchestrators that the network document lists, each in its own name; and workers of PNodes, on the way of a question that such an orchestrator
began. Consecutive hops of one worker hand tensors over as they are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

from dcnr import limits, logs, tracing
from dcnr.errors import DcnrError, InvariantBroken, Refused, RemoteFault, TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.ports import Clock
from dcnr.question_tensors import tensor_message
from dcnr.question_wire import Words
from dcnr.tensor import EncodedTensor, TensorHeader
from dcnr.tokens import drawing_of
from dcnr.tracing import UNTRACED, Tracer
from dcnr.v1 import vnode_pb2
from pnode.exchange import Stream
from pnode.infer_places import Computed, Place, Session, Wish
from pnode.infer_strands import StrandDesk
from pnode.infer_streams import SOON, InferStream
from pnode.infer_ways import Route, Ways
from pnode.infer_words import Arriving, Made, Travelling, check_request, failure_message
from pnode.links import Told
from trust.delegation import OpenedDelegations, VerifiedDelegation
from trust.session import Peer

MAX_STREAMS: Final = 128
MAX_STREAMS_OF_WORKERS: Final = 96
"""Of these: orchestrators find room, however many workers were told to connect."""
MAX_STREAMS_OF_ONE: Final = 8
"""And of these, whoever it is: one is enough, until others of a connection that broke are noticed."""
MAX_OF_A_WORKER: Final = 48
"""Of `limits.MAX_QUESTIONS`, what may have come through one other worker: orchestrators that ask here first find room."""
MAX_WAITING_BYTES: Final = 4 * limits.MAX_QUESTION_BYTES
"""Tensors of all questions that are not computed yet."""
SHORTEST_S: Final = 0.001
"""Left for the rest of a way at least, as it is told: that time was up is noticed here."""
HEARS: Final = frozenset({"request", "cancel", SOON})
Find = Callable[[str, vnode_pb2.InferHop], Place]
"""Who computes that hop of a model here. Raises NotFound (``not_here``)."""
Ended = Callable[[str, bytes], None]
"""Hears that a caller does not go on with a session."""


@dataclass(frozen=True, slots=True)
class Here:
    """Where this desk is."""

    network_id: str
    pnode_id: str
    worker_id: NodeId
    tracer: Tracer = UNTRACED


@dataclass(slots=True, eq=False)
class _Asked:
    """One question from its first message until it is computed here. ``at`` is the hop that is being worked on, wherever that is."""

    stream: InferStream
    peer: Peer
    request: vnode_pb2.InferRequest
    num_bytes: int
    until_s: float
    arrived: asyncio.Future[dict[str, Travelling]]
    vnode: str
    pnode_id: str
    task: asyncio.Task[None] | None = None


class InferDesk:
    """An `infer_streams.Listener` for all streams that others open to this worker."""

    def __init__(self, here: Here, *, clock: Clock, executor: Executor, find: Find, ways: Ways, told: Told, ended: Ended) -> None:
        self._here, self._clock, self._executor, self._find, self._ways, self._told = here, clock, executor, find, ways, told
        self._delegations = OpenedDelegations(here.network_id, clock)
        self._ended = ended
        self._callers: frozenset[str] = frozenset()
        self._peers: dict[InferStream, Peer] = {}
        self._strands = StrandDesk()
        self._asked: dict[tuple[InferStream, bytes], _Asked] = {}
        self._num_bytes = 0
        """Of all in ``_asked``; and how many of them came through whom:"""
        self._through: Counter[str] = Counter()
        self._group: asyncio.TaskGroup | None = None
        self.num_computed = 0
        """Questions of which a part was computed here."""

    def allow(self, orchestrators: Sequence[str]) -> None:
        """Who may ask from now on."""
        self._callers = frozenset(orchestrators)

    async def run(self) -> None:
        """Works on questions until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None  # what comes from now on is refused: a group that ends takes no task

    async def serve(self, context: Any, peer: Peer) -> None:
        """One stream, or strand of one, until its end. Raises Refused (``not_a_caller``, ``bad_strand``), Unavailable, and what breaks the stream."""
        if await self._strands.strand(context, peer.node_id):
            return
        if peer.pnode_id is None and peer.node_id not in self._callers:
            raise Refused("questions come from orchestrators of the network, or from workers", code="not_a_caller")
        if self._group is None or not self._has_room(peer):
            raise Unavailable("too many Infer streams", code="overloaded")
        with self._strands.stream(context, peer.node_id) as call:
            await self._serve(InferStream(self, HEARS), call, peer)

    async def _serve(self, stream: InferStream, call: Stream, peer: Peer) -> None:
        self._peers[stream] = peer
        try:
            await stream.run(call)
        except DcnrError as error:
            if not isinstance(error, Unavailable):
                self._told("infer_fault", peer.pnode_id or peer.node_id, f"{error.code}: {error.message}")
            raise  # the server's guard gives it its status
        finally:
            del self._peers[stream]
            self._left(peer, stream)

    def _has_room(self, peer: Peer) -> bool:
        of_workers = sum(one.pnode_id is not None for one in self._peers.values())
        return (
            len(self._peers) < MAX_STREAMS
            and (peer.pnode_id is None or of_workers < MAX_STREAMS_OF_WORKERS)
            and sum(one.node_id == peer.node_id for one in self._peers.values()) < MAX_STREAMS_OF_ONE
        )

    # ---- as a stream's listener ---------------------------------------------------------------------------------------------

    def begins(self, stream: InferStream, message: vnode_pb2.InferMessage) -> Arriving | None:
        """A question; one that is not taken is answered with its failure."""
        request, peer = message.request, self._peers[stream]
        try:
            arriving, group = Arriving(request, self._accepted(request, peer, stream)), self._taking()
        except DcnrError as error:
            vnode = request.hops[0].vnode if request.hops else ""
            self._back(stream, request.caller, failure_words(failure_message(request.id, vnode, self._here.pnode_id, error)))
            return None
        asked = _Asked(
            stream, peer, request, arriving.num_bytes, self._clock.monotonic() + request.deadline_s,
            asyncio.get_running_loop().create_future(), request.hops[0].vnode, self._here.pnode_id,
        )  # fmt: skip
        self._asked[stream, request.id] = asked
        self._num_bytes += asked.num_bytes
        self._through[peer.node_id] += 1
        asked.task = group.create_task(self._life(asked))
        asked.task.add_done_callback(lambda done: self._over(asked))
        return arriving

    def whole(self, stream: InferStream, arrived: Arriving) -> None:
        """Its tensors are here."""
        asked = self._asked.get((stream, arrived.id))
        if asked is not None and not asked.arrived.done():
            asked.arrived.set_result(arrived.tensors())

    def broken(self, stream: InferStream, arriving: Arriving, error: DcnrError) -> None:
        """Its tensors are not what was announced."""
        asked = self._asked.get((stream, arriving.id))
        if asked is not None and not asked.arrived.done():
            asked.arrived.set_exception(error)
            asked.arrived.exception()  # looked at, also where its time was up

    def heard(self, stream: InferStream, message: vnode_pb2.InferMessage) -> None:
        """Nobody waits for a question, or goes on with a session, any more; or questions may soon go on to others."""
        if message.WhichOneof("kind") is None:
            self._soon(self._peers[stream], message.soon)
            return
        question = message.cancel.id
        self._ended(self._peers[stream].node_id, question)
        stream.forget(question)
        asked = self._asked.get((stream, question))
        if asked is not None:
            self._cancel(asked)
        self._ways.cancel(question, stream)

    def _soon(self, peer: Peer, neighbours: Sequence[vnode_pb2.InferNeighbour]) -> None:
        """Connections to them are opened, where somebody says so who is an orchestrator still, and their delegations hold."""
        if peer.pnode_id is not None or peer.node_id not in self._callers:
            return
        for neighbour in neighbours[: limits.MAX_NEIGHBOURS]:
            try:
                worker = self._delegations.open(neighbour.delegation)
            except DcnrError:
                continue
            if worker.worker_id != self._here.worker_id:
                self._ways.open_early(worker, neighbour.certificate)

    def _accepted(self, request: vnode_pb2.InferRequest, peer: Peer, stream: InferStream) -> dict[str, TensorHeader]:
        """The headers of its tensors. Raises Unavailable (``busy``), Refused (``not_a_caller``), NotFound (``not_here``), RemoteFault."""
        if len(self._asked) >= limits.MAX_QUESTIONS or (
            peer.pnode_id is not None and self._through[peer.node_id] >= MAX_OF_A_WORKER
        ):
            raise Unavailable(f"{len(self._asked)} questions wait here already", code="busy")
        headers = check_request(request, self._here.network_id)
        if request.caller not in self._callers or (peer.pnode_id is None and request.caller != peer.node_id):
            raise Refused("a question in the name of somebody else", code="not_a_caller")
        if (stream, request.id) in self._asked:
            raise RemoteFault("this question is being answered already", code="bad_question")
        num_bytes = sum(header.encoded_bytes for header in headers.values())
        if self._num_bytes + num_bytes > MAX_WAITING_BYTES:
            raise Unavailable(f"more than {MAX_WAITING_BYTES} bytes of questions wait here", code="busy")
        self._find(request.model, request.hops[0]).asking.check(headers)
        return headers

    def _taking(self) -> asyncio.TaskGroup:
        if self._group is None:
            raise Unavailable("this worker ends", code="not_here")
        return self._group

    # ---- one question -------------------------------------------------------------------------------------------------------

    async def _life(self, asked: _Asked) -> None:
        request = asked.request
        try:
            with self._here.tracer.span("question", request.traceparent, model=request.model, pnode=self._here.pnode_id):
                async with asyncio.timeout(asked.until_s - self._clock.monotonic()):
                    await self._work(asked, await asked.arrived)
        except TimeoutError:
            self._failed(asked, TimedOut("its time was up", code="deadline_exceeded"))
        except DcnrError as error:
            self._failed(asked, error)
        except Exception as error:  # noqa: BLE001  VNode boundary: who asked gets an answer, and the worker lives
            self._told("infer_fault", asked.vnode, logs.told("infer_fault", error, vnode=asked.vnode))
            self._failed(asked, InvariantBroken("internal error", code="internal"))

    def _cancel(self, asked: _Asked) -> None:
        self._over(asked)
        if asked.task is not None:
            asked.task.cancel()

    def _over(self, asked: _Asked) -> None:
        """Its place is free. Called also for a task that was cancelled before it began."""
        if self._asked.get((asked.stream, asked.request.id)) is asked:
            asked.stream.forget(asked.request.id)
            del self._asked[asked.stream, asked.request.id]
            self._num_bytes -= asked.num_bytes
            self._through[asked.peer.node_id] -= 1
            if not self._through[asked.peer.node_id]:
                del self._through[asked.peer.node_id]

    async def _work(self, asked: _Asked, tensors: dict[str, Travelling]) -> None:
        """Computes the hops that are here, and hands the rest on."""
        request = asked.request
        timings, ready_s = list(request.timings), self._clock.monotonic()
        for number, hop in enumerate(request.hops):
            if number:
                worker = self._worker_of(asked, hop)
                if worker.worker_id != self._here.worker_id:
                    await self._hand_on(asked, number, worker, tensors, timings)
                    return
            place = self._find(request.model, hop)
            reads = place.asking.reads
            inputs = [_brought(tensors, name) for name in reads.names[hop.vnode]]
            with self._here.tracer.span("compute", vnode=hop.vnode) as span:
                computed = await place.compute(
                    inputs, Wish(hop.answers, hop.draft, hop.last, _session_of(request), drawing_of(hop.drawing))
                )
                waited_s = max(0.0, computed.began_s - ready_s)
                span.note(step=computed.step, waited_s=waited_s, computed_s=computed.seconds)
            self.num_computed += not number
            timings.append(
                vnode_pb2.InferTiming(
                    vnode=hop.vnode, pnode_id=self._here.pnode_id, step=computed.step, waited_s=waited_s, computed_s=computed.seconds,
                    drafted=computed.drafted,
                    kept=computed.kept,
                )
            )  # fmt: skip
            if hop.answers:
                await self._answer(asked, hop, computed, timings)
            rest = reads.needed([one.vnode for one in request.hops[number + 1 :]])
            tensors = {**tensors, hop.vnode: Made(hop.vnode, computed.output, hop.codec or "raw")}
            tensors = {name: tensor for name, tensor in tensors.items() if name in rest}
            ready_s = self._clock.monotonic()

    def _worker_of(self, asked: _Asked, hop: vnode_pb2.InferHop) -> VerifiedDelegation:
        asked.vnode, asked.pnode_id = hop.vnode, ""
        try:
            worker = self._delegations.open(hop.delegation)
        except DcnrError as error:
            raise Unavailable(f"its delegation does not hold: {error.message}", code="successor_unreachable") from error
        asked.pnode_id = worker.pnode_id
        return worker

    async def _answer(
        self, asked: _Asked, hop: vnode_pb2.InferHop, computed: Computed, timings: list[vnode_pb2.InferTiming]
    ) -> None:
        encoded = await self._encoded([Made(hop.vnode, computed.readout)])
        answer = vnode_pb2.InferAnswer(
            id=asked.request.id, vnode=hop.vnode, replica=hop.replica, state_digest=hop.state_digest, step=computed.step,
            tensors=[tensor_message(hop.vnode, encoded[0].header)], timings=timings,
        )  # fmt: skip
        self._back(asked.stream, asked.request.caller, Words(vnode_pb2.InferMessage(answer=answer), encoded))

    async def _hand_on(
        self, asked: _Asked, number: int, worker: VerifiedDelegation, tensors: Mapping[str, Travelling], timings: list[vnode_pb2.InferTiming]
    ) -> None:  # fmt: skip
        request, hops = asked.request, asked.request.hops[number:]
        encoded = await self._encoded(list(tensors.values()))
        onward = vnode_pb2.InferRequest(
            id=request.id, network_id=request.network_id, model=request.model, caller=request.caller, hops=hops,
            tensors=[tensor_message(name, tensor.header) for name, tensor in zip(tensors, encoded, strict=True)],
            deadline_s=max(SHORTEST_S, asked.until_s - self._clock.monotonic()), timings=timings, traceparent=tracing.current(),
            session=request.session, offset=request.offset,
        )  # fmt: skip
        stream, caller = asked.stream, request.caller
        route = Route(
            request.id, frozenset(hop.vnode for hop in hops), {hop.vnode for hop in hops if hop.answers}, asked.until_s, hops[0].vnode,
            stream, lambda words: self._back(stream, caller, words),
        )  # fmt: skip
        await self._ways.send(worker, Words(vnode_pb2.InferMessage(request=onward), encoded), route)

    async def _encoded(self, tensors: Sequence[Travelling]) -> list[EncodedTensor]:
        """As they travel. Raises RemoteFault (``bad_shape``) for more than a question may bring."""
        if all(one.is_quick for one in tensors):
            encoded = [one.encoded() for one in tensors]
        else:
            encoded = await asyncio.get_running_loop().run_in_executor(self._executor, lambda: [one.encoded() for one in tensors])
        if sum(one.header.decoded_bytes for one in encoded) > limits.MAX_QUESTION_BYTES:
            raise RemoteFault(f"the outputs have more than {limits.MAX_QUESTION_BYTES} bytes: ask fewer samples", code="bad_shape")
        return encoded

    # ---- back to who asked --------------------------------------------------------------------------------------------------

    def _failed(self, asked: _Asked, error: DcnrError) -> None:
        failure = failure_message(asked.request.id, asked.vnode, asked.pnode_id, error)
        self._back(asked.stream, asked.request.caller, failure_words(failure))

    def _back(self, stream: InferStream, caller: str, words: Words) -> None:
        """To the caller's own stream if it has one here, else to where the question came from; dropped where neither is open."""
        own = [one for one, peer in self._peers.items() if peer.node_id == caller]
        for one in [*reversed(own), stream]:
            try:
                one.say(words)
            except Unavailable:
                continue
            return

    def _left(self, peer: Peer, stream: InferStream) -> None:
        """A caller without any stream here waits for nothing any more; what another worker brought may still be answered elsewhere."""
        if peer.pnode_id is not None or any(one.node_id == peer.node_id for one in self._peers.values()):
            return
        self._ways.left(stream)
        for asked in [asked for asked in self._asked.values() if asked.stream is stream]:
            self._cancel(asked)


def _session_of(request: vnode_pb2.InferRequest) -> Session | None:
    return Session(request.caller, request.session, request.offset) if request.session else None


def _brought(tensors: Mapping[str, Travelling], name: str) -> Travelling:
    tensor = tensors.get(name)
    if tensor is None:
        raise RemoteFault(f"{name!r:.80} did not come, and no hop before computes it", code="bad_question")
    return tensor


def failure_words(failure: vnode_pb2.InferFailure) -> Words:
    """To be said."""
    return Words(vnode_pb2.InferMessage(failure=failure))
