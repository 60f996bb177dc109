"""Links over gRPC: one stream to each worker that feeds us, opened by us and opened again after every break; one stream from each that we feed.

Reconnecting waits `RETRY_MIN_S` to `RETRY_MAX_S` with jitter. A broken stream takes all its edges down at once and is reported with `lost`.
One that had no edge up is reported as not reached: the other side ends a Link that it has no use for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Set
from concurrent.futures import Executor
from typing import Any, Final, Protocol

import grpc

from dcnr.errors import DcnrError, Unavailable
from dcnr.ids import NodeId, ReplicaId
from dcnr.ports import Clock, Random
from dcnr.rpc.errors import calls_let_go
from pnode.exchange import Replica, Said, Stream
from pnode.receiving import Edge, ReceivingExchange
from pnode.sending import SendingExchange
from trust.delegation import VerifiedDelegation
from trust.identity import NodeKey

SERVICE: Final = "dcnr.v1.VNodeService"
RETRY_MIN_S: Final = 0.2
RETRY_MAX_S: Final = 5.0
STEADY_S: Final = 10.0
"""A Link that lived so long starts anew with the shortest wait."""
REOPEN_S: Final = 0.5
"""Before asking again for an edge that the other side refused."""
MAX_LINKS: Final = 256
MAX_LINKS_OF_STRANGERS: Final = 128
"""Of these: PNodes that a plan here names find room, however many others connect."""
MAX_LINKS_OF_ONE: Final = 4
"""And of these, whoever it is: one is enough, until those that broke are noticed."""

Lost = Callable[[ReplicaId, str, bool], None]
Told = Callable[[str, str, str], None]
"""(kind, subject, reason) of something that people should know."""


class Connection(Protocol):
    """An authenticated channel to one worker, with the metadata that each call carries."""

    @property
    def channel(self) -> Any: ...
    @property
    def metadata(self) -> Any: ...
    async def close(self) -> None: ...


Dial = Callable[[NodeId, Sequence[str]], Awaitable[Connection]]


class PeerLinks:
    """All Links that this worker opens: the hub's `Peers`."""

    def __init__(self, clock: Clock, rng: Random, executor: Executor, dial: Dial, lost: Lost, told: Told) -> None:
        self._clock, self._rng, self._executor = clock, rng, executor
        self._dial, self._lost, self._told = dial, lost, told
        self._links: dict[NodeId, PeerLink] = {}
        self._group: asyncio.TaskGroup | None = None

    def open(self, replica: Replica, index: int, source: ReplicaId, worker: VerifiedDelegation) -> PeerEdge:
        """An edge over the Link to that worker, kept open until closed."""
        link = self._links.get(worker.worker_id)
        if link is None:
            link = PeerLink(self._clock, self._rng, self._executor, self._dial, self._lost, self._told, worker)
            self._links[worker.worker_id] = link
            if self._group is not None:
                self._group.create_task(self._run(link))
        return link.open(replica, index, source)

    def renew(self, worker: VerifiedDelegation) -> None:
        """Uses the newest addresses of a worker from the next attempt on."""
        link = self._links.get(worker.worker_id)
        if link is not None:
            link.worker = worker

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for link in self._links.values():
                group.create_task(self._run(link))
            await asyncio.Event().wait()

    async def _run(self, link: PeerLink) -> None:
        await link.run()
        if self._links.get(link.worker.worker_id) is link:
            del self._links[link.worker.worker_id]


class PeerEdge:
    """One edge over a Link, whatever happens to the stream: the hub's `Opened`."""

    def __init__(self, link: PeerLink, edge: Edge) -> None:
        self._link, self._edge = link, edge

    @property
    def up(self) -> bool:
        """Whether it is open now."""
        return self._edge.up

    def state(self, said: Said) -> None:
        """Says something to the sender, if the edge is open."""
        self._edge.state(said)

    def close(self, code: str) -> None:
        """Ends it for good."""
        self._link.close(self._edge, code)


class PeerLink:
    """One stream to one worker as long as it has edges."""

    def __init__(
        self, clock: Clock, rng: Random, executor: Executor, dial: Dial, lost: Lost, told: Told, worker: VerifiedDelegation
    ) -> None:
        self.worker = worker
        self._clock, self._rng, self._executor, self._dial, self._lost, self._told = clock, rng, executor, dial, lost, told
        self._edges: dict[int, Edge] = {}
        self._next_number = 1
        self._exchange: ReceivingExchange | None = None
        self._changed = asyncio.Event()

    def open(self, replica: Replica, index: int, source: ReplicaId) -> PeerEdge:
        """Adds an edge."""
        worker = self.worker
        edge = Edge(self._next_number, replica, index, source, worker.incarnation, worker.worker_public_der, worker.envelope)
        self._next_number += 1
        self._edges[edge.number] = edge
        self._changed.set()
        if self._exchange is not None:
            self._exchange.open(edge)
        return PeerEdge(self, edge)

    def close(self, edge: Edge, code: str) -> None:
        """Removes an edge; without any the Link ends."""
        self._edges.pop(edge.number, None)
        self._changed.set()
        if self._exchange is not None:
            self._exchange.close(edge, code)

    async def run(self) -> None:
        """Until no edge is left."""
        wait_s = RETRY_MIN_S
        while self._edges:
            begun = self._clock.monotonic()
            broken = await self._session()
            if not self._edges:
                return
            for edge in list(self._edges.values()):
                self._lost(edge.source, self.worker.pnode_id, broken)
            wait_s = wait_after(wait_s, self._clock.monotonic() - begun, was_up=broken)
            await asyncio.sleep(wait_s * self._rng.uniform(0.5, 1.0))

    async def _session(self) -> bool:
        """One stream from dialling to its end. True if an edge had been up."""
        exchange = ReceivingExchange(self._clock, self._executor, self._refused)
        try:
            connection = await self._dial(self.worker.worker_id, self.worker.addresses)
            try:
                call: Any = connection.channel.stream_stream(f"/{SERVICE}/Link")(metadata=connection.metadata)
                for edge in self._edges.values():
                    exchange.open(edge)
                self._exchange = exchange
                with calls_let_go():
                    await self._until_unused(exchange, CallStream(call))
                call.cancel()
            finally:
                await connection.close()
        except DcnrError as error:
            if not isinstance(error, Unavailable):
                self._told("link_fault", self.worker.pnode_id, f"{error.code}: {error.message}")
        finally:
            self._exchange = None
        return exchange.was_up

    async def _until_unused(self, exchange: ReceivingExchange, stream: Stream) -> None:
        session = asyncio.ensure_future(exchange.run(stream))
        try:
            while self._edges and not session.done():
                self._changed.clear()
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait({session, changed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
            if session.done():
                session.result()
        finally:
            session.cancel()
            await asyncio.wait({session})

    def _refused(self, edge: Edge, code: str) -> None:
        """The other side ended an edge: ask again in a while, under a new number."""
        self._lost(edge.source, self.worker.pnode_id, False)
        asyncio.get_running_loop().call_later(REOPEN_S * self._rng.uniform(0.5, 1.5), self._reopen, edge)

    def _reopen(self, edge: Edge) -> None:
        if self._edges.get(edge.number) is not edge or (self._exchange is not None and self._exchange.holds(edge)):
            return
        del self._edges[edge.number]
        edge.number = self._next_number
        self._next_number += 1
        self._edges[edge.number] = edge
        if self._exchange is not None:
            self._exchange.open(edge)


def wait_after(wait_s: float, lasted_s: float, *, was_up: bool) -> float:
    """After a Link that lasted so long, with ``wait_s`` before it: the shortest where an edge of it was up; dialling in vain may take as long. Pure."""
    return RETRY_MIN_S if was_up and lasted_s > STEADY_S else min(RETRY_MAX_S, 2 * wait_s)


class LinkService:
    """Serves the Links of the workers that we feed; ``peer`` names the PNode behind a call's session or raises Refused; ``planned``: PNodes of
    replicas that the plans here have as successors.
    """

    def __init__(
        self, clock: Clock, key: NodeKey, find: Callable[[str], Replica], peer: Callable[[Any], str], told: Told,
        planned: Callable[[], Set[str]] = frozenset,
    ) -> None:  # fmt: skip
        self._clock, self._key, self._find, self._peer, self._told, self._planned = clock, key, find, peer, told, planned
        self._open: Counter[str] = Counter()
        """Links, by PNode."""

    async def serve(self, requests: Any, context: Any) -> None:
        """One stream until its end; a peer that breaks the protocol loses the stream."""
        pnode_id = self._peer(context)
        if not self._has_room(pnode_id):
            raise Unavailable("too many links", code="overloaded")
        self._open[pnode_id] += 1
        try:
            await SendingExchange(self._clock, self._key, self._find, pnode_id).run(CallStream(context))
        except DcnrError as error:
            if not isinstance(error, Unavailable):
                self._told("link_fault", pnode_id, f"{error.code}: {error.message}")
            raise  # the server's guard gives it its status
        finally:
            self._open[pnode_id] -= 1
            if not self._open[pnode_id]:
                del self._open[pnode_id]

    def _has_room(self, pnode_id: str) -> bool:
        planned = self._planned()
        of_strangers = sum(number for one, number in self._open.items() if one not in planned)
        return (
            self._open.total() < MAX_LINKS
            and (pnode_id in planned or of_strangers < MAX_LINKS_OF_STRANGERS)
            and self._open[pnode_id] < MAX_LINKS_OF_ONE
        )


class CallStream:
    """A gRPC call, or a servicer's context, as a `Stream`."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        """The next message, None at the end. Raises Unavailable."""
        try:
            message = await self._call.read()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise Unavailable("the link broke", code="link_broken") from error
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
            return None
        result: bytes = message
        return result

    async def write(self, message: bytes) -> None:
        """Waits while the other side takes nothing. Raises Unavailable."""
        try:
            await self._call.write(message)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise Unavailable("the link broke", code="link_broken") from error
