"""Serves gossip: Join for newcomers, Exchange and Probe for proven nodes; each bounded in size and in rate, per id and per subnet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dcnr.errors import DcnrError, InvalidInput, NotFound, Refused, Unavailable
from dcnr.limits import CONNECT_TIMEOUT_S, KIB, MAX_ADVERTS_PER_EXCHANGE, MAX_BOOTSTRAP_ENTRIES
from dcnr.ports import Clock, Random
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.guard import caller_of, peer_of
from dcnr.v1 import identity_pb2, membership_pb2, membership_pb2_grpc
from membership.bootstrap import Entry
from membership.gossip import View
from membership.known import NOTHING, Known
from membership.network_time import NetworkTime
from membership.reach_desk import ReachDesk
from membership.relay_desk import RelayDesk
from membership.relay_streams import CallStream
from trust.in_force import InForce
from trust.rates import Rate, TokenBuckets
from trust.records import VerifiedAdvert

PROBE_TIMEOUT_S: Final = 2.0
MAX_PROBES_AT_ONCE: Final = 16
MAX_PROBES_PER_SUBNET: Final = 8
"""Of those, for callers of one subnet: the others find a place."""
JOIN_RATE: Final = Rate(per_s=20.0, burst=200.0)
"""Per subnet: many machines of one house may start at once."""
EXCHANGE_RATE: Final = Rate(per_s=5.0, burst=60.0)
SUBNET_EXCHANGE_RATE: Final = Rate(per_s=100.0, burst=600.0)
"""Besides, since ids cost nothing. A node hears one or two exchanges a second, however large the network; an orchestrator fifty of ten thousand nodes."""
PROBE_RATE: Final = Rate(per_s=1.0, burst=20.0)
SUBNET_PROBE_RATE: Final = Rate(per_s=5.0, burst=100.0)
"""Besides; whoever dies is probed by each once, over three helpers of many."""
DOCUMENT_RATE: Final = Rate(per_s=1.0, burst=30.0)
"""Per subnet, since ids cost nothing; a large chain counts for as many as it has pieces of `DOCUMENT_PIECE_BYTES`, since reading it takes as much longer."""
DOCUMENT_PIECE_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Gossip:
    """What the service works on: the node's view and policy, and where to give what it hears."""

    view: View
    network: InForce
    take: Callable[[Iterable[identity_pb2.Envelope]], None]
    hear_of: Callable[[Iterable[str], str], None]
    entries: Callable[[], list[Entry]]
    suspect: Callable[[Sequence[membership_pb2.KnownNode]], None]


class MembershipServicer(membership_pb2_grpc.MembershipServiceServicer):
    """`dcnr.v1.MembershipService`."""

    def __init__(self, gossip: Gossip, *, dialer: Dialer, clock: Clock, time: NetworkTime, rng: Random) -> None:
        self._gossip, self._dialer, self._clock, self._time, self._rng = gossip, dialer, clock, time, rng
        self._joins, self._documents = TokenBuckets(JOIN_RATE), TokenBuckets(DOCUMENT_RATE)
        self._exchanges, self._subnet_exchanges = TokenBuckets(EXCHANGE_RATE), TokenBuckets(SUBNET_EXCHANGE_RATE)
        self._probes, self._subnet_probes = TokenBuckets(PROBE_RATE), TokenBuckets(SUBNET_PROBE_RATE)
        self._probing: Counter[str] = Counter()
        """Probes under way by the subnet of their callers."""
        self.relay: RelayDesk | None = None
        """Passes bytes on between others; None: this node does not."""
        self.reach: ReachDesk | None = None
        """Dials those who ask for it; None: this node does not."""

    async def Join(self, request: membership_pb2.JoinRequest, context: Any) -> membership_pb2.JoinResponse:
        """Introduces a newcomer: document, history and adverts, orchestrators first."""
        caller, policy = caller_of(context), self._gossip.network.policy
        self._limit(self._joins, caller.subnet)
        if request.network_id and request.network_id != policy.network_id:
            raise Refused(
                f"this node belongs to network {policy.network_id}, not to {request.network_id[:64]}",
                code="wrong_network",
                remedy="pass a node of the wanted network, or the right --network-id",
                wanted=request.network_id[:64],
                got=policy.network_id,
            )
        if request.HasField("advert"):
            self._gossip.take([request.advert])
        return membership_pb2.JoinResponse(
            network_document=policy.envelope,
            document_history=policy.history[:-1],
            adverts=self._gossip.view.news_for(NOTHING, self._rng, self._time.wall()),
            observed_address=caller.address,
            time_unix_ms=int(self._clock.wall() * 1000),
        )

    async def Exchange(self, request: membership_pb2.ExchangeRequest, context: Any) -> membership_pb2.ExchangeResponse:
        """Takes the caller's news and answers with what it lacks."""
        self._limit(self._exchanges, peer_of(context).node_id)
        self._limit(self._subnet_exchanges, caller_of(context).subnet)
        if len(request.adverts) > MAX_ADVERTS_PER_EXCHANGE or len(request.bootstrap) > MAX_BOOTSTRAP_ENTRIES:
            raise InvalidInput("more adverts or entries than an exchange may hold", code="exchange_too_large")
        lacking = self._gossip.view.news_for(Known.told(request), self._rng, self._time.wall())
        self._gossip.take(request.adverts)
        self._gossip.hear_of(request.bootstrap, caller_of(context).subnet)
        self._gossip.suspect(request.suspects)
        # Who does not speak briefly begins a session, and may have none.
        tells_entries = bool(request.bootstrap) or not request.HasField("known_briefly")
        return membership_pb2.ExchangeResponse(
            adverts=lacking,
            suspects=self._gossip.view.suspects(),
            bootstrap=[str(entry) for entry in self._gossip.entries()] if tells_entries else [],
            time_unix_ms=int(self._clock.wall() * 1000),
            document_version=self._gossip.network.version,
            reads_briefly=True,
        )

    async def Document(self, request: membership_pb2.DocumentRequest, context: Any) -> membership_pb2.DocumentResponse:
        """Takes the caller's network document where it is newer, and gives ours where that is. Raises what `trust.in_force.InForce.take` does."""
        peer_of(context)
        pieces = 1.0 + sum(len(envelope.payload) for envelope in request.history) / DOCUMENT_PIECE_BYTES
        self._limit(self._documents, caller_of(context).subnet, cost=min(DOCUMENT_RATE.burst, pieces))
        network = self._gossip.network
        network.take(request.history, now_wall=self._time.wall())
        history = network.policy.history if network.version > request.version else ()
        return membership_pb2.DocumentResponse(version=network.version, history=history)

    async def Probe(self, request: membership_pb2.ProbeRequest, context: Any) -> membership_pb2.ProbeResponse:
        """Tries to reach a third node at the addresses known here, never at ones that the caller names. Of one that is gone from here, it says so."""
        subnet = caller_of(context).subnet
        self._limit(self._probes, peer_of(context).node_id)
        self._limit(self._subnet_probes, subnet)
        advert = self._gossip.view.find(request.node_id, self._time.wall())
        if advert is None:
            gone = self._gossip.view.gone(request.node_id)
            if gone is None:
                raise NotFound("the node is not known here", code="unknown_node")
            return membership_pb2.ProbeResponse(reachable=False, incarnation=gone[0])
        if self._probing.total() >= MAX_PROBES_AT_ONCE or self._probing[subnet] >= MAX_PROBES_PER_SUBNET:
            raise Unavailable("too many probes at once", code="overloaded")
        self._probing[subnet] += 1
        try:
            return await self._probe(advert)
        finally:
            self._probing[subnet] -= 1
            if not self._probing[subnet]:
                del self._probing[subnet]

    async def Relay(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # a stream handler may write itself
        """See `membership.relay_desk`."""
        if self.relay is None:
            raise Refused("this node passes nothing on", code="not_a_relay", remedy="ask an orchestrator")
        await self.relay.serve(CallStream(context), peer_of(context))

    async def Reach(self, request: membership_pb2.ReachRequest, context: Any) -> membership_pb2.ReachResponse:
        """See `membership.reach_desk`."""
        if self.reach is None:
            raise Refused("this node tests nobody", code="not_a_tester", remedy="ask an orchestrator")
        return await self.reach.serve(request, peer_of(context), caller_of(context))

    async def _probe(self, advert: VerifiedAdvert) -> membership_pb2.ProbeResponse:
        asked_at = self._clock.monotonic()
        answer = membership_pb2.ProbeResponse(incarnation=advert.order[0])
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                connection = await self._dialer.connect(advert.node_id, advert.advert.control_addresses, own_connection=True)
        except (TimeoutError, DcnrError):
            return answer
        answer.reachable, answer.round_trip_s = True, self._clock.monotonic() - asked_at
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.close()
        return answer

    def _limit(self, buckets: TokenBuckets, name: str, *, cost: float = 1.0) -> None:
        wait_s = buckets.wait_s(name, self._clock.monotonic(), cost=cost)
        if wait_s:
            raise Unavailable("too many requests from there", code="rate_limited", retry_after_s=wait_s)
