"""The way to a worker that cannot be dialled: a connection through a relay at which it listens, pinned and proven end to end like any other.

gRPC dials sockets, so the bytes go through a door: a listening socket on loopback that lives as long as the connection. Whoever comes in there meets the
worker's own TLS and its sessions, as at any open data port.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any, Final

from dcnr.client import Orchestrators
from dcnr.errors import DcnrError, Refused, RemoteFault, TimedOut, Unavailable
from dcnr.ids import NodeId, check_node_id
from dcnr.rpc.connection import Connection, Metadata
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.errors import SESSION_CODES, calls_let_go
from dcnr.v1 import membership_pb2, membership_pb2_grpc
from membership.house import in_our_house
from membership.relay_streams import CallStream, first_of, pump
from trust.addresses import join_address

LOOPBACK: Final = "127.0.0.1"
OPEN_S: Final = 6.0
"""A relay that has not opened a connection within this time (dialling it included) is given up; a bit longer than relays wait themselves."""
NUM_RELAYS: Final = 3
"""At so many orchestrators a worker listens."""
NUM_VOLUNTEERS: Final = 2
"""At so many PNodes besides: without any orchestrator it is still reached."""
NEAR_S: Final = 2.0
"""A machine of the same house answers within this time."""
MAX_COMERS: Final = 4
"""Connections through one door at once: gRPC makes one, and another one for its certificate before."""


def in_order(worker_id: str, relays: Sequence[tuple[NodeId, Sequence[str]]]) -> list[tuple[NodeId, Sequence[str]]]:
    """The same order for the worker and whoever looks for it (rendezvous hashing), so that they meet at the first relay. Pure."""
    return sorted(relays, key=lambda relay: hashlib.sha256(f"{worker_id} {relay[0]}".encode()).digest())


def apart_from(
    volunteers: Set[NodeId], relays: Sequence[tuple[NodeId, Sequence[str]]]
) -> tuple[list[tuple[NodeId, Sequence[str]]], list[tuple[NodeId, Sequence[str]]]]:
    """Orchestrators, and PNodes that offer to relay; each in the order given. Pure."""
    return [relay for relay in relays if relay[0] not in volunteers], [relay for relay in relays if relay[0] in volunteers]


async def open_stream(connection: Connection, first: membership_pb2.RelayMessage) -> CallStream:
    """A Relay stream whose first message was answered with `RelayOpened`. Raises the relay's typed error, RemoteFault, Unavailable, TimedOut."""
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(OPEN_S):
            metadata = await connection.fresh_metadata()
            with calls_let_go():
                try:
                    return await _opened(connection, metadata, first)
                except Refused as error:
                    if error.code not in SESSION_CODES:
                        raise
                return await _opened(connection, await connection.renewed(metadata), first)
    except TimeoutError:
        raise TimedOut(f"no Relay stream within {OPEN_S:g} s", code="connect_timeout") from None
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        # gRPC raises it where somebody else closes the channel
        raise Unavailable("the connection to the relay was closed", code="relay_broken") from error


async def _opened(connection: Connection, metadata: Metadata, first: membership_pb2.RelayMessage) -> CallStream:
    stub: Any = membership_pb2_grpc.MembershipServiceStub(connection.channel)
    call = CallStream(stub.Relay(metadata=metadata))
    try:
        await call.write(first)
        answer = await first_of(call, OPEN_S)
        if answer.WhichOneof("kind") != "opened":
            raise RemoteFault("the relay does not say whether it opened the stream", code="bad_message")
    except BaseException:
        call.cancel()
        raise
    return call


class Door:
    """See the module. ``first`` is the stream for who comes first; further ones are opened when somebody comes."""

    def __init__(self, first: CallStream, further: Callable[[], Awaitable[CallStream]]) -> None:
        self._first: CallStream | None = first
        self._further = further
        self._server: asyncio.Server | None = None
        self._comers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._is_closed = False
        self.trouble: DcnrError | None = None
        """What the relay said of the last connection that it did not open, or that broke."""

    async def open(self) -> str:
        """The address on loopback. Raises Unavailable."""
        try:
            self._server = await asyncio.start_server(self._came, LOOPBACK, 0)
        except OSError as error:
            raise Unavailable(f"no door on loopback: {error.strerror}", code="unreachable") from error
        return join_address(LOOPBACK, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Ends everything that goes through it."""
        self._is_closed = True
        if self._server is not None:
            _close(self._server)
        first, self._first = self._first, None
        if first is not None:
            first.cancel()
        comers = dict(self._comers)
        for task, writer in comers.items():
            task.cancel()
            writer.transport.abort()
        if comers:
            await asyncio.wait(comers)

    def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """In the very step in which somebody came: who came while the door was closed is not left standing there."""
        if self._is_closed or len(self._comers) >= MAX_COMERS:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._carried(reader, writer))
        self._comers[task] = writer
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._comers.pop(task).transport.abort()  # also of a task that was cancelled before it began

    async def _carried(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            stream, self._first = self._first, None
            await pump(stream or await self._further(), reader, writer)
        except DcnrError as error:
            self.trouble = error  # whoever came sees its connection end


def _close(server: asyncio.Server) -> None:
    """Nobody is accepted any more. Whoever was in this very turn gets a transport in the next one, which asyncio refuses, and never closes, where the server
    is closed by then (Python 3.11): so it is closed after that.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(server, asyncio.Server):  # uvloop's own has no such gap
        server.close()
        return
    for listening in server.sockets:
        loop.remove_reader(listening)
    loop.call_soon(server.close)


class RelayDialer:
    """Dials a worker at its own addresses; one that tells none, through relays, those at which it most likely listens first. ``prefer``: before all others;
    ``near``: where machines of its house dial a worker before they go through relays; ``volunteers``: which relays are PNodes.
    """

    def __init__(
        self, dialer: Dialer, relays: Orchestrators, *, prefer: NodeId | None = None, near: Callable[[NodeId], Sequence[str]] = lambda worker_id: (),
        volunteers: Callable[[], Set[NodeId]] = frozenset,
    ) -> None:  # fmt: skip
        self.direct, self._relays, self._prefer, self._near, self._volunteers = dialer, relays, prefer, near, volunteers
        self._failed: set[NodeId] = set()
        """Relays that did not answer when they were last tried: they are tried last."""

    async def connect(self, worker_id: str, addresses: Sequence[str], *, own_connection: bool | None = None) -> Connection:
        """Raises what `Dialer.connect` raises; Unavailable (``no_relay``) where no relay leads to the worker."""
        if addresses:
            return await self.direct.connect(worker_id, addresses, own_connection=own_connection)
        wanted, reasons = check_node_id(worker_id), []
        if near := in_our_house(self._near(wanted)):
            with contextlib.suppress(DcnrError, TimeoutError):  # another house may use the same addresses
                async with asyncio.timeout(NEAR_S):
                    return await self.direct.connect(wanted, near, own_connection=own_connection)
        for relay_id, where in self._ordered(wanted):
            try:
                connection = await self._through(relay_id, where, wanted)
            except DcnrError as error:
                reasons.append(f"relay {relay_id[:8]}: {error.message}")
                if isinstance(error, Unavailable):
                    self._failed.add(relay_id)
            else:
                self._failed.discard(relay_id)
                return connection
        why = "; ".join(reasons) or "no relay is known"
        raise Unavailable(f"worker {wanted[:8]} cannot be dialled, and {why}", code="no_relay")

    def _ordered(self, worker_id: NodeId) -> list[tuple[NodeId, Sequence[str]]]:
        """Twice as many as it listens at, PNodes after orchestrators, and the preferred one; those that failed last."""
        relays, offered = apart_from(self._volunteers(), in_order(worker_id, self._relays.known()))
        self._failed &= {relay_id for relay_id, _ in relays + offered}
        near, far = relays[: 2 * NUM_RELAYS], relays[2 * NUM_RELAYS :]
        tried = near + offered[: 2 * NUM_VOLUNTEERS] + [relay for relay in far if relay[0] == self._prefer]
        return sorted(tried, key=lambda relay: (relay[0] != self._prefer, relay[0] in self._failed))

    async def _through(self, relay_id: NodeId, where: Sequence[str], worker_id: NodeId) -> Connection:
        wish = membership_pb2.RelayMessage(connect=membership_pb2.RelayConnect(worker_id=worker_id))

        async def further() -> CallStream:
            return await open_stream(await self._relays.connection(relay_id, where), wish)

        try:
            async with asyncio.timeout(OPEN_S):
                door = Door(await further(), further)
        except TimeoutError:
            raise TimedOut(f"no connection within {OPEN_S:g} s", code="connect_timeout") from None
        try:
            connection = await self.direct.connect(worker_id, [await door.open()], own_connection=True)
        except BaseException as error:
            await door.close()
            if door.trouble is not None and isinstance(error, Unavailable):
                raise door.trouble from error
            raise
        connection.end_with(door.close)
        return connection
