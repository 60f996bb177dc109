"""How a worker that nobody can dial is reached: it opens a stream to a few relays, and takes over streams of its own the connections that others want.

What comes in that way is handed to the worker's own data server, on loopback: TLS, sessions, bounds and answers are those of an open port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Final

from dcnr import logs
from dcnr.client import Orchestrators
from dcnr.errors import DcnrError, RemoteFault, Unavailable
from dcnr.ids import NodeId
from dcnr.ports import Clock, Random
from dcnr.rpc.connection import Connection
from dcnr.v1 import membership_pb2
from membership.relay_streams import NUMBER_BYTES, pump
from membership.relays import LOOPBACK, NUM_RELAYS, NUM_VOLUNTEERS, OPEN_S, apart_from, in_order, open_stream
from pnode.links import Told

REVIEW_S: Final = 1.0
RETRY_MIN_S: Final = 0.2
RETRY_MAX_S: Final = 5.0
REFUSED_S: Final = 60.0
"""A relay that refuses is chosen after all others for so long; if it refuses again, for twice as long, up to `REFUSED_MAX_S`."""
REFUSED_MAX_S: Final = 3600.0
MAX_TAKEN: Final = 128
"""Connections at once, over all orchestrators,"""
MAX_OF_VOLUNTEERS: Final = 32
"""and over all PNodes: a stranger that announces more takes no place from them."""


class Listening:
    """One per worker. ``relays`` knows those that pass on, of which ``volunteers`` are PNodes; ``host`` and ``port``: of the data server, from this machine."""

    def __init__(
        self,
        worker_id: NodeId,
        port: int,
        relays: Orchestrators,
        clock: Clock,
        rng: Random,
        told: Told,
        changed: Callable[[], None],
        *,
        host: str = LOOPBACK,
        volunteers: Callable[[], Set[NodeId]] = frozenset,
    ) -> None:
        self._volunteers = volunteers
        self._worker_id, self._host, self._port, self._relays = worker_id, host, port, relays
        self._clock, self._rng, self._told, self._changed = clock, rng, told, changed
        self._wanted = False
        self._open: set[NodeId] = set()
        self._refused: dict[NodeId, tuple[float, float]] = {}
        """Until when a relay is chosen after all others, and for how long that is. Forgotten when it opens a stream."""
        self._streams: dict[NodeId, asyncio.Task[None]] = {}
        self._taken: Counter[bool] = Counter()
        """Connections that are open, by whether they come through volunteers."""
        self._news = asyncio.Event()

    @property
    def at(self) -> list[str]:
        """Relays at which connections may come in now."""
        return sorted(self._open)

    def want(self, wanted: bool) -> None:
        """Whether to listen. Called again whenever other relays are known."""
        self._wanted = wanted
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._review(group)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REVIEW_S):
                        await self._news.wait()
                self._news.clear()

    def _review(self, group: asyncio.TaskGroup) -> None:
        relays, offered = apart_from(self._volunteers(), in_order(self._worker_id, self._relays.known()))
        self._refused = {relay_id: self._refused[relay_id] for relay_id, _ in relays + offered if relay_id in self._refused}
        offered = [relay for relay in offered if not self._is_refused(relay[0])]
        chosen = (self._first(relays, NUM_RELAYS) | self._first(offered, NUM_VOLUNTEERS)) if self._wanted else set[NodeId]()
        for relay_id in [relay_id for relay_id, task in self._streams.items() if relay_id not in chosen or task.done()]:
            self._streams.pop(relay_id).cancel()
        for relay_id in sorted(chosen - self._streams.keys()):
            self._streams[relay_id] = group.create_task(self._keep(relay_id, group))

    def _first(self, relays: Sequence[tuple[NodeId, Sequence[str]]], count: int) -> set[NodeId]:
        """So many of them, those that refuse after all others."""
        return set(sorted((relay_id for relay_id, _ in relays), key=self._is_refused)[:count])

    async def _keep(self, relay_id: NodeId, group: asyncio.TaskGroup) -> None:
        """Asks again and again; a PNode rests after whatever ended its stream: its addresses are what a stranger says."""
        wait_s = RETRY_MIN_S
        while True:
            try:
                await self._listen(relay_id, group)
            except DcnrError as error:
                if not isinstance(error, Unavailable) or error.code == "overloaded" or relay_id in self._volunteers():
                    self._refuses(relay_id, f"{error.code}: {error.message}")
            except Exception as error:  # noqa: BLE001  RPC boundary: what one relay says never ends this worker
                self._refuses(relay_id, logs.told("relay_failed", error, relay=relay_id))
            else:
                if relay_id in self._volunteers():
                    self._refuses(relay_id, "it ended the stream")
            finally:
                if relay_id in self._open:
                    wait_s = RETRY_MIN_S
                    self._open.discard(relay_id)
                    self._changed()
            await asyncio.sleep(wait_s * self._rng.uniform(0.5, 1.0))
            wait_s = min(RETRY_MAX_S, 2 * wait_s)

    def _refuses(self, relay_id: NodeId, why: str) -> None:
        self._told("relay_refused", relay_id, why)
        if not self._is_refused(relay_id):
            _, before_s = self._refused.get(relay_id, (0.0, REFUSED_S / 2))
            pause_s = min(REFUSED_MAX_S, 2 * before_s)
            self._refused[relay_id] = self._clock.monotonic() + pause_s, pause_s
            self._news.set()

    def _is_refused(self, relay_id: NodeId) -> bool:
        return relay_id in self._refused and self._clock.monotonic() < self._refused[relay_id][0]

    async def _listen(self, relay_id: NodeId, group: asyncio.TaskGroup) -> None:
        """One stream until its end. Raises what the relay says."""
        connection = await self._relays.connection(relay_id, self._addresses_of(relay_id))
        stream = await open_stream(connection, membership_pb2.RelayMessage(listen=membership_pb2.RelayListen()))
        try:
            self._open.add(relay_id)
            self._refused.pop(relay_id, None)
            self._changed()
            while (message := await stream.read()) is not None:
                if message.WhichOneof("kind") != "incoming" or len(message.incoming.number) != NUMBER_BYTES:
                    raise RemoteFault("a relay tells a worker of connections only", code="bad_message")
                is_volunteer = relay_id in self._volunteers()
                if self._taken[is_volunteer] < (MAX_OF_VOLUNTEERS if is_volunteer else MAX_TAKEN):
                    group.create_task(self._take(connection, message.incoming.number, is_volunteer=is_volunteer))
        finally:
            stream.cancel()

    async def _take(self, connection: Connection, number: bytes, *, is_volunteer: bool) -> None:
        """One connection from its acceptance to its end; what goes wrong with it is nobody else's trouble."""
        self._taken[is_volunteer] += 1
        try:
            stream = await open_stream(connection, membership_pb2.RelayMessage(accept=membership_pb2.RelayAccept(number=number)))
            try:
                async with asyncio.timeout(OPEN_S):
                    reader, writer = await asyncio.open_connection(self._host, self._port)
            except BaseException:
                stream.cancel()
                raise
            await pump(stream, reader, writer)
        except (DcnrError, OSError):
            return  # the relay or the other end is gone
        except Exception as error:  # noqa: BLE001  RPC boundary: what comes through a relay never ends this worker
            self._told("relay_refused", connection.peer_id, logs.told("relay_failed", error, relay=connection.peer_id))
        finally:
            self._taken[is_volunteer] -= 1

    def _addresses_of(self, relay_id: NodeId) -> list[str]:
        return [address for known, where in self._relays.known() if known == relay_id for address in where]
