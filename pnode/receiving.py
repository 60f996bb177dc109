"""Our end of a Link that we opened: edges of our replicas to the replicas that they ask, statements out, checked tensors in.

A receiver holds at most one unfinished frame per edge and `DECODING` finished ones whose codec takes time to undo; then it stops reading. While it handles
a message at most `AHEAD` others wait and one is being read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from dcnr.errors import DcnrError, RemoteFault
from dcnr.groups import first_cause
from dcnr.ids import ReplicaId
from dcnr.ports import Clock
from dcnr.tensor import Array, TensorAssembler, TensorHeader
from dcnr.v1 import identity_pb2, vnode_pb2
from pnode import frames
from pnode.arrivals import Arrival
from pnode.exchange import Control, Replica, Said, Stream, read_ahead, wait_for_news, write_beat, write_control
from pnode.wire import Heard
from trust.envelope import check_signature
from vnode.events import EdgeDown, EdgeUp, FrameArrived
from vnode.signed_frames import FrameNumber, statement
from vnode.vocabulary import Peer

DECODING: Final = 2
AHEAD: Final = 1


@dataclass(slots=True, eq=False)
class Edge:
    """One edge of a receiving replica over a Link: opened by us, fed by the other side."""

    number: int
    replica: Replica
    index: int
    source: ReplicaId
    source_incarnation: int
    source_key: bytes
    """The worker key that must have signed its frames."""
    delegation: identity_pb2.Envelope
    """Binds that key to its PNode."""
    control: Control | None = None
    up: bool = False
    intake: _Intake | None = None

    def open_message(self) -> vnode_pb2.LinkMessage:
        """The first message of this edge."""
        replica = self.replica
        opening = vnode_pb2.OpenEdge(
            network_id=replica.network_id,
            model=replica.model,
            job_id=replica.job_id,
            source_replica=self.source,
            target_replica=replica.peer.replica,
            target_incarnation=replica.peer.incarnation,
            codecs=("raw", "bf16", "fp16", "int8"),
        )
        return vnode_pb2.LinkMessage(edge=self.number, open=opening)

    def state(self, said: Said) -> None:
        """Sends a statement if the edge is open."""
        if self.up and self.control is not None:
            self.control.put(frames.statement_message(self.number, said))


class _Intake:
    """One frame being received: each chunk is hashed and moved into the tensor as it comes, while the processor's cache holds it."""

    def __init__(
        self, edge: Edge, number: FrameNumber, header: TensorHeader, message: vnode_pb2.FrameHeader, *, proven: bool
    ) -> None:
        self.number, self.header, self._edge, self._proven = number, header, edge, proven
        self.signature, self.step = message.signature, message.step
        self._assembler = TensorAssembler(header)

    def add(self, chunk: memoryview) -> bool:
        """Takes a chunk; True when it was the last one. Raises RemoteFault for a wrong size."""
        self._assembler.add(chunk)
        return self._assembler.missing_bytes == 0

    def check(self) -> None:
        """Raises Corrupt for a wrong digest or signature."""
        self._assembler.finish()
        said = statement(self._source, self._edge.replica.peer.replica, self.number, self.header, self.step)
        check_signature(identity_pb2.DOMAIN_FRAME, said, self._edge.source_key, self.signature)

    def tensor(self) -> Array | Arrival:
        """The decoded values, all finite and of bounded norm; quick for a raw frame, whose memory they are. Raises RemoteFault or Corrupt."""
        array = self._assembler.finite_array()
        if not self._proven:
            return array
        return Arrival(
            array, self._assembler.finish(), self.number, self._source, self._edge.replica.peer, self.step, self.signature,
            self._edge.delegation,
        )  # fmt: skip

    @property
    def _source(self) -> Peer:
        return Peer(self._edge.source, self._edge.source_incarnation)


class ReceivingExchange:
    """Our end of a Link that we opened: ``closed`` is called with an edge and its reason when the other side refuses or ends it."""

    def __init__(self, clock: Clock, executor: Executor, closed: Callable[[Edge, str], None]) -> None:
        self._clock, self._executor, self._closed = clock, executor, closed
        self._edges: dict[int, Edge] = {}
        self._control = Control()
        self._decoding = asyncio.Semaphore(DECODING)
        self.was_up = False
        """Whether any edge has been."""

    def open(self, edge: Edge) -> None:
        """Asks for an edge."""
        edge.control = self._control
        self._edges[edge.number] = edge
        self._control.put(edge.open_message())

    def holds(self, edge: Edge) -> bool:
        """Whether this edge is open here, or asked for."""
        return self._edges.get(edge.number) is edge

    def close(self, edge: Edge, code: str) -> None:
        """Ends an edge from our side."""
        if self._edges.pop(edge.number, None) is not None and not self._control.drop(edge.number):
            self._control.put(vnode_pb2.LinkMessage(edge=edge.number, closed=vnode_pb2.EdgeClosed(code=code)))
        self._down(edge)

    async def run(self, stream: Stream) -> None:
        """Until the stream ends or the peer breaks the protocol (RemoteFault, Corrupt, Unavailable); then all edges are down."""
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(stream))
                ahead: asyncio.Queue[Heard | DcnrError | None] = asyncio.Queue(AHEAD)
                group.create_task(read_ahead(stream, ahead))
                while (heard := await ahead.get()) is not None:
                    if isinstance(heard, DcnrError):
                        raise heard
                    await self._heard(heard, group)
                writer.cancel()
        except BaseExceptionGroup as errors:
            raise first_cause(errors) from errors
        finally:
            for edge in list(self._edges.values()):
                self._down(edge)

    def _down(self, edge: Edge) -> None:
        edge.intake, edge.control = None, None
        if edge.up:
            edge.up = False
            edge.replica.post(EdgeDown(self._clock.monotonic(), edge.index, edge.source))

    async def _write(self, stream: Stream) -> None:
        while True:
            if not await wait_for_news(self._control.news):
                await write_beat(stream)
            await write_control(stream, self._control)

    async def _heard(self, heard: Heard, group: asyncio.TaskGroup) -> None:
        message, chunk = heard
        edge = self._edges.get(message.edge)
        if edge is None:
            return  # of an edge that we closed, or a sign of life
        match message.WhichOneof("kind"):
            case "opened":
                self._opened(edge, message.opened.source_incarnation)
            case "closed":
                del self._edges[edge.number]
                self._control.drop(edge.number)
                self._down(edge)
                self._closed(edge, frames.check_reason(message.closed))
            case "frame":
                if edge.intake is not None or not edge.up:
                    raise RemoteFault("a frame before the last one ended", code="bad_frame")
                expected = edge.replica.expected(edge.index)
                number, header = frames.header_of(message.frame, expected)
                edge.intake = _Intake(edge, number, header, message.frame, proven=expected.proven and number.lane.is_train)
                await self._add(edge, edge.intake, chunk, group)
            case "chunk":
                if edge.intake is None:
                    raise RemoteFault("a chunk without a frame", code="bad_frame")
                await self._add(edge, edge.intake, chunk, group)
            case "offer" | None:
                pass
            case kind:
                raise RemoteFault(f"a sender does not say {kind}", code="bad_message")

    def _opened(self, edge: Edge, incarnation: int) -> None:
        if edge.up or incarnation != edge.source_incarnation:
            raise RemoteFault(f"incarnation {incarnation} answered for {edge.source_incarnation}", code="stale_incarnation")
        edge.up = self.was_up = True
        edge.replica.post(EdgeUp(self._clock.monotonic(), edge.index, Peer(edge.source, incarnation)))

    async def _add(self, edge: Edge, intake: _Intake, chunk: memoryview, group: asyncio.TaskGroup) -> None:
        if not intake.add(chunk):
            return
        edge.intake = None
        intake.check()
        if intake.header.codec == "raw":
            self._arrived(edge, intake.number, intake.tensor())
        else:
            await self._decoding.acquire()
            group.create_task(self._decode(edge, intake))

    async def _decode(self, edge: Edge, intake: _Intake) -> None:
        try:
            array = await asyncio.get_running_loop().run_in_executor(self._executor, intake.tensor)
        finally:
            self._decoding.release()
        self._arrived(edge, intake.number, array)

    def _arrived(self, edge: Edge, number: FrameNumber, tensor: Array | Arrival) -> None:
        if edge.up:
            edge.replica.post(FrameArrived(self._clock.monotonic(), edge.index, number.lane, number.batch, tensor))
