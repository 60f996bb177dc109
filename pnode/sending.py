"""Our end of a Link that a receiver opened: its statements in, our frames out, one at a time and never ahead of a statement for long.

At most `FRAMES_AHEAD` encoded frames wait in memory besides the one being written; frames beyond that are numbers only. A receiver that
stops reading costs no more: what it has not taken is dropped with its edge, and it opens no further ones once `MAX_EDGES` answers wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from dcnr.errors import Corrupt, DcnrError, NotFound, RemoteFault, Unavailable
from dcnr.groups import first_cause
from dcnr.ids import check_replica_id
from dcnr.ports import Clock
from dcnr.tensor import chunks
from dcnr.v1 import identity_pb2, vnode_pb2
from pnode import frames
from pnode.exchange import BEAT_S, Control, Replica, Stream, read_alive, wait_for_news, write_beat, write_control
from pnode.spool import Frame
from pnode.wire import chunk_bytes, frame_bytes
from trust.envelope import sign_apart
from trust.identity import NodeKey
from vnode.events import AckHeard, DurableHeard, Event, FrameMissing, FrameSent, NeedHeard, WindowHeard
from vnode.signed_frames import FrameNumber, statement
from vnode.vocabulary import Lane, Mode, Peer

FRAMES_AHEAD: Final = 2
MAX_EDGES: Final = 1024
UNUSED_S: Final = 10.0
"""A Link that has no edge for so long ends: its place is somebody's who has a use for it."""


@dataclass(slots=True, eq=False)
class _Job:
    link: _RemoteLink
    number: FrameNumber
    loaded: asyncio.Task[Frame | None] | None = None

    def newest(self) -> asyncio.Future[Frame] | None:
        """The frame where it is in memory anyway."""
        return self.link.replica.outbox.newest(self.number.lane, self.number.batch)


@dataclass(slots=True, eq=False)
class _RemoteLink:
    """A successor's edge to one of our replicas: a `Way`."""

    exchange: SendingExchange
    edge: int
    replica: Replica
    target: Peer
    number: int = -1
    open: bool = True

    def send(self, lane: Lane, batch: int, mode: Mode) -> None:
        self.exchange.enqueue(_Job(self, FrameNumber(lane, batch, mode)))

    def close(self, code: str) -> None:
        self.exchange.end(self, code)


@dataclass(slots=True)
class SendingExchange:
    """Our end of a Link that a receiver opened; ``peer_pnode`` is whose session it is."""

    clock: Clock
    key: NodeKey
    find: Callable[[str], Replica]
    """The hosted replica of that name. Raises NotFound."""
    peer_pnode: str
    _links: dict[int, _RemoteLink] = field(default_factory=dict)
    _control: Control = field(default_factory=Control)
    _jobs: dict[tuple[int, FrameNumber], _Job] = field(default_factory=dict)
    _group: asyncio.TaskGroup | None = None

    async def run(self, stream: Stream) -> None:
        """Until the stream ends, has no edge for `UNUSED_S` (Unavailable) or the peer breaks the protocol; then all its links are down."""
        used_s = self.clock.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                writer = group.create_task(self._write(stream, group))
                while (heard := await read_alive(stream)) is not None:
                    self._heard(heard.message)
                    used_s = self._used(used_s)
                writer.cancel()
                for job in self._jobs.values():
                    if job.loaded is not None:
                        job.loaded.cancel()
        except BaseExceptionGroup as errors:
            raise first_cause(errors) from errors
        finally:
            self._group = None
            for link in list(self._links.values()):
                self._forget(link)

    def _used(self, before_s: float) -> float:
        """When there was an edge last. Raises Unavailable (``unused_link``)."""
        now_s = self.clock.monotonic()
        if not self._links and now_s - before_s > UNUSED_S:
            raise Unavailable("this link has no edge", code="unused_link")
        return now_s if self._links else before_s

    def enqueue(self, job: _Job) -> None:
        """Queues a frame, once; its bytes are loaded when its turn is near."""
        if job.link.open and self._group is not None:
            self._jobs.setdefault((job.link.edge, job.number), job)
            self._load_ahead(self._group)
            self._control.news.set()

    def end(self, link: _RemoteLink, code: str) -> None:
        """Our replica ends an edge."""
        if link.open:
            self._forget(link)
            self._control.put(vnode_pb2.LinkMessage(edge=link.edge, closed=vnode_pb2.EdgeClosed(code=code)))

    def _forget(self, link: _RemoteLink) -> None:
        self._links.pop(link.edge, None)
        self._control.drop(link.edge)
        for key in [key for key, job in self._jobs.items() if job.link is link and job.loaded is None]:
            del self._jobs[key]
        if link.open:
            link.open = False
            link.replica.detach(link.number)

    def _load_ahead(self, group: asyncio.TaskGroup) -> None:
        for job in islice(self._jobs.values(), FRAMES_AHEAD):
            if job.loaded is None and job.newest() is None:
                job.loaded = group.create_task(_load(job))

    async def _write(self, stream: Stream, group: asyncio.TaskGroup) -> None:
        while True:
            await write_control(stream, self._control)
            if self._jobs:
                job = self._jobs.pop(next(iter(self._jobs)))
                frame = job.loaded or job.newest() or group.create_task(_load(job))
                self._load_ahead(group)
                try:
                    await _beat_until(stream, frame)
                finally:
                    if isinstance(frame, asyncio.Task):
                        frame.cancel()
                await self._write_frame(stream, job, frame.result())
            elif not await wait_for_news(self._control.news):
                await write_beat(stream)

    async def _write_frame(self, stream: Stream, job: _Job, frame: Frame | None) -> None:
        link, number = job.link, job.number
        if not link.open:
            return
        if frame is None:
            link.replica.post(FrameMissing(self.clock.monotonic(), number.lane, number.batch))
            return
        said = statement(link.replica.peer, link.target.replica, number, frame.encoded.header, frame.step)
        signature = sign_apart(identity_pb2.DOMAIN_FRAME, said, self.key)
        pieces = list(chunks(frame.encoded)) or [memoryview(b"")]
        begun = self.clock.monotonic()
        await stream.write(frame_bytes(link.edge, frames.header_message(number, frame, signature), pieces[0]))
        for piece in pieces[1:]:
            await write_control(stream, self._control)
            if not link.open:
                return
            await stream.write(chunk_bytes(link.edge, piece))
        now = self.clock.monotonic()
        link.replica.carried(len(frame.encoded.payload), now - begun)
        if link.open:
            link.replica.post(FrameSent(now, link.number, number.lane, number.batch))

    def _heard(self, message: vnode_pb2.LinkMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "open":
            self._open(message.edge, message.open)
            return
        link = self._links.get(message.edge)
        if link is None or kind is None:
            return  # a sign of life, or of an edge that has ended
        event = None if kind == "closed" else heard_event(self.clock.monotonic(), link.number, message)
        if event is None:
            self._forget(link)
        else:
            link.replica.post(event)

    def _open(self, edge: int, opening: vnode_pb2.OpenEdge) -> None:
        if edge in self._links or len(self._links) >= MAX_EDGES or len(self._control) >= MAX_EDGES:
            raise RemoteFault(f"edge {edge} is open already, or too many are", code="bad_edge")
        try:
            replica = self.find(opening.source_replica)
            for mine, theirs in (
                (replica.network_id, opening.network_id),
                (replica.model, opening.model),
                (replica.job_id, opening.job_id),
            ):
                if mine != theirs:
                    raise NotFound("another network, model or job", code="wrong_job")
            target = Peer(check_replica_id(opening.target_replica), opening.target_incarnation)
            link = _RemoteLink(self, edge, replica, target)
            self._links[edge] = link
            link.number = replica.attach(target, self.peer_pnode, link)
        except DcnrError as error:
            self._links.pop(edge, None)
            closed = vnode_pb2.EdgeClosed(code=error.code, message=error.message[:200])
            self._control.put(vnode_pb2.LinkMessage(edge=edge, closed=closed))
            return
        self._control.put(
            vnode_pb2.LinkMessage(edge=edge, opened=vnode_pb2.EdgeOpened(source_incarnation=replica.peer.incarnation))
        )


def heard_event(now_s: float, link: int, message: vnode_pb2.LinkMessage) -> Event:
    """What a receiver stated, checked. Raises RemoteFault or Corrupt."""
    match message.WhichOneof("kind"):
        case "need":
            need = message.need
            wanted, asked, evicted = (frames.intervals_of(part) for part in (need.wanted, need.forward_only, need.evicted))
            return NeedHeard(now_s, link, need.sequence, frames.lane_of(need.lane), wanted, asked, evicted)
        case "window":
            window = message.window
            return WindowHeard(now_s, link, window.sequence, frames.lane_of(window.lane), frames.number_of(window.end, "window"))
        case "ack":
            ack = message.ack
            floor, learned = frames.number_of(ack.floor, "floor"), frames.number_of(ack.num_learned, "count")
            return AckHeard(now_s, link, ack.sequence, learned, floor, frames.vnode_name(ack.floor_vnode))
        case "durable":
            return DurableHeard(now_s, link, frames.intervals_of(message.durable.batches))
        case kind:
            raise RemoteFault(f"a receiver does not say {kind}", code="bad_message")


async def _beat_until(stream: Stream, done: asyncio.Future[Any]) -> None:
    """Returns when it is done. A slow disk must not look like a dead sender: until then signs of life go out."""
    while not done.done():
        await asyncio.wait({done}, timeout=BEAT_S)
        if not done.done():
            await write_beat(stream)


async def _load(job: _Job) -> Frame | None:
    try:
        return await job.link.replica.outbox.frame(job.number.lane, job.number.batch)
    except (NotFound, Corrupt):
        return None
