"""Connections to gossip partners, kept for the next exchange while they are in the circle: at most `MAX_PARTNERS` besides those in use, the least recently used
one is closed first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Final

from dcnr.errors import DcnrError, TimedOut
from dcnr.limits import MAX_ADVERTS_PER_EXCHANGE
from dcnr.rpc.connection import Connection, Metadata
from dcnr.rpc.dialer import Dialer
from dcnr.v1 import identity_pb2, membership_pb2, membership_pb2_grpc
from membership.known import Known
from membership.network_time import NetworkTime, Said
from trust.records import VerifiedAdvert

MAX_PARTNERS: Final = 16
EXCHANGE_TIMEOUT_S: Final = 4.0
"""Connecting included."""
PROBE_TIMEOUT_S: Final = 3.0
ENTRIES_AGAIN_S: Final = 60.0
"""A partner is told the same entries again after so long, in case it has let go of them for others' words."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Of an exchange: what all partners of a round are told alike, and what this one is told that we have."""

    same: membership_pb2.ExchangeRequest
    known: Known


class Partners:
    """Makes exchanges; each also tells the partner's clock to ``time``."""

    def __init__(self, dialer: Dialer, time: NetworkTime) -> None:
        self._dialer, self._time = dialer, time
        self._connections: OrderedDict[str, Connection] = OrderedDict()
        self._opening: dict[str, asyncio.Lock] = {}
        self._in_use: Counter[str] = Counter()
        """Calls to a partner that are under way or about to begin."""
        self._introduced: dict[str, Metadata] = {}
        """In which session a partner was last given our advert."""
        self._entries_told: dict[str, tuple[Metadata, float]] = {}
        """In which session, and when, a partner was last told entries."""
        self._reading: dict[str, Metadata] = {}
        """In which session a partner said that it reads what is known briefly."""
        self.observed_address = ""
        """Our address as the last partner saw it."""

    async def exchange(
        self, partner: VerifiedAdvert, asked: Asked, own: identity_pb2.Envelope | None = None
    ) -> membership_pb2.ExchangeResponse:
        """One exchange within `EXCHANGE_TIMEOUT_S`; in the first one of each session our ``own`` advert goes with it: a partner that began anew may know
        nobody whom it could ask. So do entries, and again every `ENTRIES_AGAIN_S`. Raises the partner's error, or Unavailable.
        """
        try:
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S), self._lent(partner) as connection:
                stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
                session = await connection.fresh_metadata()  # before the time is taken
                request = self._request(partner, session, asked, own)
                asked_s = self._time.monotonic()
                response = await connection.call(stub.Exchange, request, EXCHANGE_TIMEOUT_S)
                said = Said(response.time_unix_ms / 1000, asked_s, self._time.monotonic())
        except TimeoutError:
            await self._drop(partner.node_id)
            raise TimedOut(f"no exchange with {partner.node_id} within {EXCHANGE_TIMEOUT_S:g} s") from None
        except DcnrError:
            await self._drop(partner.node_id)
            raise
        if partner.node_id in self._connections:
            self._introduced[partner.node_id] = session
            if request.bootstrap:
                self._entries_told[partner.node_id] = session, asked_s
            if response.reads_briefly:
                self._reading[partner.node_id] = session
        self._time.heard(partner.node_id, said)
        self.observed_address = connection.observed_address
        return response

    def _request(
        self, partner: VerifiedAdvert, session: Metadata, asked: Asked, own: identity_pb2.Envelope | None
    ) -> membership_pb2.ExchangeRequest:
        request = membership_pb2.ExchangeRequest()
        request.CopyFrom(asked.same)
        asked.known.put_into(request, briefly=self._reading.get(partner.node_id) == session)
        before, told_s = self._entries_told.get(partner.node_id, (None, 0.0))
        if before == session and self._time.monotonic() - told_s < ENTRIES_AGAIN_S:
            del request.bootstrap[:]
        if own is not None and self._introduced.get(partner.node_id) != session and own not in request.adverts:
            del request.adverts[MAX_ADVERTS_PER_EXCHANGE - 1 :]
            request.adverts.append(own)
        return request

    async def probe(self, helper: VerifiedAdvert, request: membership_pb2.ProbeRequest) -> membership_pb2.ProbeResponse:
        """What a partner finds out about a third node. Raises the partner's error, or Unavailable."""
        async with self._lent(helper) as connection:
            return await connection.call(
                membership_pb2_grpc.MembershipServiceStub(connection.channel).Probe, request, PROBE_TIMEOUT_S
            )

    async def document(self, partner: VerifiedAdvert, request: membership_pb2.DocumentRequest) -> membership_pb2.DocumentResponse:
        """A partner's answer about the network document. Raises the partner's error, or Unavailable."""
        async with self._lent(partner) as connection:
            stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
            return await connection.call(stub.Document, request, EXCHANGE_TIMEOUT_S)

    async def keep(self, node_ids: Collection[str]) -> None:
        """Closes the connections to all others that nothing goes over: what keeps one alive costs more than a new one now and then."""
        for node_id in [one for one in self._connections if one not in node_ids]:
            if node_id not in self._in_use:
                await self._drop(node_id)

    async def close(self) -> None:
        """Closes all connections."""
        for node_id in list(self._connections):
            await self._drop(node_id)

    @contextlib.asynccontextmanager
    async def _lent(self, partner: VerifiedAdvert) -> AsyncIterator[Connection]:
        """The connection to a partner, which does not make room for others as long as this lasts: many calls at once, as when many nodes died together,
        would end each other.
        """
        self._in_use[partner.node_id] += 1
        try:
            yield await self._connection(partner)
        finally:
            self._in_use[partner.node_id] -= 1
            if not self._in_use[partner.node_id]:
                del self._in_use[partner.node_id]

    async def _connection(self, partner: VerifiedAdvert) -> Connection:
        """The one connection to a partner, however many ask for it at once."""
        lock = self._opening.setdefault(partner.node_id, asyncio.Lock())
        try:
            async with lock:
                return await self._opened(partner)
        finally:
            if not lock.locked():
                self._opening.pop(partner.node_id, None)

    async def _opened(self, partner: VerifiedAdvert) -> Connection:
        connection = self._connections.get(partner.node_id)
        addresses = list(partner.advert.control_addresses)
        if connection is not None and not connection.closed and connection.address in addresses:
            self._connections.move_to_end(partner.node_id)
            return connection
        await self._drop(partner.node_id)
        connection = await self._dialer.connect(partner.node_id, addresses)
        self._connections[partner.node_id] = connection
        await self._make_room()
        return connection

    async def _make_room(self) -> None:
        for node_id in list(self._connections):
            if len(self._connections) <= MAX_PARTNERS:
                return
            if node_id not in self._in_use:
                await self._drop(node_id)

    async def _drop(self, node_id: str) -> None:
        connection = self._connections.pop(node_id, None)
        self._introduced.pop(node_id, None)
        self._entries_told.pop(node_id, None)
        self._reading.pop(node_id, None)
        if connection is not None:
            await connection.close()
