"""Passes bytes on between two nodes of which one cannot be dialled: that one listens here over a stream that it opened; whoever wants it connects here.

What is passed on is the TLS of the two ends: the relay can read sizes and times and drop, and can neither read nor alter what they say. Connections are
counted, and their bytes paced, for each of the two PNodes; who wants more hears a typed error.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dcnr import limits
from dcnr.errors import NotFound, Refused, RemoteFault, Unavailable
from dcnr.ports import Clock
from dcnr.v1 import membership_pb2
from membership.relay_streams import MAX_DATA_BYTES, NUMBER_BYTES, RelayStream, ended, first_of, next_data
from trust.rates import Rate, TokenBuckets
from trust.session import Peer, RandomBytes

MAX_LISTENERS: Final = 512
MAX_LISTENERS_OF_A_NODE: Final = 2
"""Workers of one PNode that listen: the one that runs, and the one that follows it; a further one takes the place of the oldest."""
MAX_CONNECTIONS: Final = 256
"""Each holds two of a server's places for calls; a listener holds one."""
MAX_OF_A_NODE: Final = 64
"""Connections of one PNode, to it and from it. What orchestrators of the network call is bounded by `MAX_CONNECTIONS` only."""
MAX_OF_A_PAIR: Final = 16
"""Connections of one PNode to one other: nobody takes alone all that another may have."""
MAX_INCOMING: Final = 16
"""Connections of which a worker that listens has not been told yet."""
OPEN_S: Final = 5.0
"""A worker that does not accept a connection within this time is not there."""
LANE_PARTS: Final = 4
"""Parts that wait in each direction of a connection; then its sender waits."""
ALL_TOGETHER: Final = 8
"""All PNodes together are let through so many times the rate of one."""
ALL: Final = ""


class Lane:
    """One direction of a connection inside the relay: bounded, and over as soon as either end says so."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._over = False
        self._news = asyncio.Event()

    async def put(self, data: bytes) -> None:
        """Waits for room. Raises Unavailable (``relay_broken``) when it is over."""
        while len(self._parts) >= LANE_PARTS and not self._over:
            self._news.clear()
            await self._news.wait()
        if self._over:
            raise Unavailable("the other end of the connection is gone", code="relay_broken")
        self._parts.append(data)
        self._news.set()

    async def get(self) -> bytes | None:
        """The next part; None when it is over and nothing is left."""
        while not self._parts and not self._over:
            self._news.clear()
            await self._news.wait()
        data = self._parts.popleft() if self._parts else None
        self._news.set()
        return data

    def end(self) -> None:
        """Nothing more is put; what waits may still be taken."""
        self._over = True
        self._news.set()

    def drop(self) -> None:
        """Nothing more is taken."""
        self._parts.clear()
        self.end()


@dataclass(slots=True, eq=False)
class _Listener:
    peer: Peer
    incoming: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(MAX_INCOMING))
    replaced: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Connection:
    """From the moment when somebody wants it. ``names``: the PNodes whose rates its bytes count for."""

    worker_id: str
    names: tuple[str, ...]
    there: Lane = field(default_factory=Lane)
    back: Lane = field(default_factory=Lane)
    accepted: asyncio.Event = field(default_factory=asyncio.Event)


class RelayDesk:
    """``may_use`` says who may listen and connect; ``is_orchestrator`` who is not counted; ``bytes_s``: of one PNode at most so many bytes per second go
    through, both directions of all its connections together, and of all ``together`` times as many; ``max_listeners`` and ``max_connections`` at once.
    """

    def __init__(
        self, clock: Clock, random_bytes: RandomBytes, *, may_use: Callable[[Peer], bool], is_orchestrator: Callable[[str], bool], bytes_s: float,
        together: int = ALL_TOGETHER, max_listeners: int = MAX_LISTENERS, max_connections: int = MAX_CONNECTIONS,
    ) -> None:  # fmt: skip
        self._clock, self._random_bytes, self._may_use, self._is_orchestrator = clock, random_bytes, may_use, is_orchestrator
        self._max_listeners, self._max_connections = max_listeners, max_connections
        self._over = asyncio.Event()
        self._rates, self._whole = (
            TokenBuckets(Rate(rate, max(rate, 4.0 * MAX_DATA_BYTES))) for rate in (bytes_s, together * bytes_s)
        )
        self._listeners: dict[str, _Listener] = {}
        self._connections: dict[bytes, _Connection] = {}
        self._counts: Counter[str] = Counter()

    @property
    def num_listeners(self) -> int:
        """Workers that listen here."""
        return len(self._listeners)

    @property
    def num_connections(self) -> int:
        """Wanted or open."""
        return len(self._connections)

    def end_all(self) -> None:
        """Ends everything that goes through now; what comes later is served."""
        over, self._over = self._over, asyncio.Event()
        over.set()

    async def serve(self, stream: RelayStream, peer: Peer) -> None:
        """One stream until its end. Raises Refused, NotFound, Unavailable, TimedOut, RemoteFault: the caller hears it."""
        if not self._may_use(peer):
            raise Refused("this relay passes on for nodes that it knows", code="unknown_node")
        first = await first_of(stream, limits.CALL_TIMEOUT_S)
        match first.WhichOneof("kind"):
            case "listen":
                await self._listen(stream, peer)
            case "connect":
                await self._connect(stream, peer, first.connect.worker_id)
            case "accept":
                await self._accept(stream, peer, first.accept.number)
            case _:
                raise RemoteFault("a Relay stream begins with listen, connect or accept", code="bad_message")

    async def _listen(self, stream: RelayStream, peer: Peer) -> None:
        if peer.pnode_id is None:
            raise Refused("only a worker listens at a relay", code="not_a_worker")
        self._make_room(peer)
        if len(self._listeners) >= self._max_listeners:
            raise Unavailable("too many workers listen here already", code="overloaded")
        listener = self._listeners[peer.node_id] = _Listener(peer)
        works = (_until_over(stream), _tell(stream, listener), _flag(listener.replaced), _flag(self._over))
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._listeners.get(peer.node_id) is listener:
                del self._listeners[peer.node_id]
            await ended(*tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    def _make_room(self, peer: Peer) -> None:
        """A worker has one stream here, and a PNode few workers: the newest."""
        own = [
            worker_id
            for worker_id, one in self._listeners.items()
            if one.peer.pnode_id == peer.pnode_id and worker_id != peer.node_id
        ]
        for worker_id in (peer.node_id, *own[: max(0, len(own) + 1 - MAX_LISTENERS_OF_A_NODE)]):
            older = self._listeners.pop(worker_id, None)
            if older is not None:
                older.replaced.set()

    async def _connect(self, stream: RelayStream, peer: Peer, worker_id: str) -> None:
        listener = self._listeners.get(worker_id)
        if listener is None:
            raise NotFound("no such worker listens here", code="not_listening")
        caller, called = _name_of(peer), _name_of(listener.peer)
        names = tuple(name for name in (caller, called) if not self._is_orchestrator(name))
        pair = f"{caller} {called}"
        most = {} if self._is_orchestrator(caller) else {caller: MAX_OF_A_NODE, called: MAX_OF_A_NODE, pair: MAX_OF_A_PAIR}
        if len(self._connections) >= self._max_connections or any(self._counts[name] >= number for name, number in most.items()):
            raise Unavailable("too many connections are passed on already", code="too_many_connections")
        number, connection = self._random_bytes(NUMBER_BYTES), _Connection(worker_id, names)
        try:
            listener.incoming.put_nowait(number)
        except asyncio.QueueFull:
            raise Unavailable("the worker does not take its connections", code="not_accepted") from None
        self._connections[number] = connection
        self._counts.update(most.keys())
        try:
            try:
                async with asyncio.timeout(OPEN_S):
                    await connection.accepted.wait()
            except TimeoutError:
                raise Unavailable(f"the worker took no connection within {OPEN_S:g} s", code="not_accepted") from None
            await self._carry(stream, connection.back, connection.there, names)
        finally:
            connection.there.end()
            connection.back.drop()
            del self._connections[number]
            self._counts -= Counter(most.keys())  # keeps what is above zero

    async def _accept(self, stream: RelayStream, peer: Peer, number: bytes) -> None:
        connection = self._connections.get(number)
        if connection is None or connection.worker_id != peer.node_id or connection.accepted.is_set():
            raise NotFound("no such connection waits for this worker", code="no_such_connection")
        connection.accepted.set()
        try:
            await self._carry(stream, connection.there, connection.back, connection.names)
        finally:
            connection.back.end()
            connection.there.drop()

    async def _carry(self, stream: RelayStream, incoming: Lane, outgoing: Lane, names: tuple[str, ...]) -> None:
        """One end of a connection: what comes is put, what waits is said. Over when the other end has said its last, or this one is gone."""
        await stream.write(membership_pb2.RelayMessage(opened=membership_pb2.RelayOpened()))
        works = (self._take(stream, outgoing, names), _give(stream, incoming), _flag(self._over))
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await ended(*tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _take(self, stream: RelayStream, outgoing: Lane, names: tuple[str, ...]) -> None:
        while (data := await next_data(stream)) is not None:
            for name in names:
                await self._paced(self._rates, name, len(data))
            await self._paced(self._whole, ALL, len(data))
            await outgoing.put(data)

    async def _paced(self, rates: TokenBuckets, name: str, num_bytes: int) -> None:
        """Until that rate lets so many bytes through."""
        while True:
            wait_s = rates.wait_s(name, self._clock.monotonic(), cost=num_bytes)
            if not wait_s:
                return
            await asyncio.sleep(wait_s)


async def _give(stream: RelayStream, incoming: Lane) -> None:
    while (data := await incoming.get()) is not None:
        await stream.write(membership_pb2.RelayMessage(data=data))


async def _tell(stream: RelayStream, listener: _Listener) -> None:
    await stream.write(membership_pb2.RelayMessage(opened=membership_pb2.RelayOpened()))
    while True:
        number = await listener.incoming.get()
        await stream.write(membership_pb2.RelayMessage(incoming=membership_pb2.RelayIncoming(number=number)))


async def _until_over(stream: RelayStream) -> None:
    if await stream.read() is not None:
        raise RemoteFault("who listens says nothing more over that stream", code="bad_message")


async def _flag(event: asyncio.Event) -> None:
    await event.wait()


def _name_of(peer: Peer) -> str:
    return peer.pnode_id or peer.node_id
