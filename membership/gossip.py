"""The gossip core: a bounded view of who is here, in which only signed, unexpired adverts enter and the newest of a node wins. Pure.

Adverts, times and requests go in; events and messages come out. Orchestrators that the network document lists are always kept. Of PNodes at most
``max_pnodes`` are kept: when there is one too many, the most crowded public subnet gives up a member (private and loopback addresses count as one subnet
each node, names of hosts as one together), and among those the node with the highest hash under a salt of ours: a random sample of the network that cannot
be steered by how often or how early somebody speaks (after Brahms, Bortnikov et al. 2009). Nodes that left, died or expired are remembered for one advert's
lifetime, so that an old advert, still going round, does not bring them back. That somebody calls a PNode dead is a reason to probe it, never to believe it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dcnr.errors import DcnrError, InvalidInput
from dcnr.ids import NodeId, check_node_id
from dcnr.limits import ADVERT_LIFETIME_S, MAX_ADVERTS_PER_EXCHANGE, MAX_CLOCK_SKEW_S
from dcnr.ports import Random
from dcnr.v1 import identity_pb2, membership_pb2
from membership.circle import Circle
from membership.known import SALT_BYTES, Known, Order
from membership.ring import WHOLE, Stretch
from trust.addresses import ip_of, public_subnet, split_address
from trust.records import VerifiedAdvert, open_advert

MAX_PNODES: Final = 256
KNOWN_AT_ONCE: Final = 32
"""Nodes in what one exchange says is known: the next one speaks of another stretch, so that its size does not grow with the view."""
MAX_GONE: Final = 4096
MAX_FAREWELLS: Final = 64
MAX_SUSPECTS: Final = 64
MAX_SUSPECTS_PER_EXCHANGE: Final = 16
RUMOUR_EXCHANGES: Final = 6
"""A piece of news is pushed in so many exchanges; who missed it pulls it later."""
FIRST_BACK_OFF_S: Final = 2.0
MAX_BACK_OFF_S: Final = 60.0
LEAVING_LIFETIME_S: Final = 10.0
"""A node that goes says so by a last advert that lives at most this long."""
NAMED: Final = "named"
"""The crowd of those that tell the name of a host: names cost nothing."""


class GoneReason(StrEnum):
    """Why a node is not in the view any more. ``crowded_out`` says nothing about the node."""

    EXPIRED = "expired"
    LEFT = "left"
    DEAD = "dead"
    CROWDED_OUT = "crowded_out"


@dataclass(frozen=True, slots=True)
class Joined:
    """A node entered the view."""

    advert: VerifiedAdvert


@dataclass(frozen=True, slots=True)
class Updated:
    """A node's advert was replaced by a newer one."""

    previous: VerifiedAdvert
    advert: VerifiedAdvert


@dataclass(frozen=True, slots=True)
class Gone:
    """A node left the view."""

    advert: VerifiedAdvert
    reason: GoneReason


GossipEvent = Joined | Updated | Gone


@dataclass(frozen=True, slots=True)
class _Trouble:
    failures: int
    until: float  # monotonic


_NO_TROUBLE: Final = _Trouble(0, float("-inf"))


class View:
    """Who is here, as one node knows it. Wall times are network time; ``salt`` must be unpredictable to others."""

    def __init__(
        self,
        own_id: str,
        network_id: str,
        *,
        is_orchestrator: Callable[[str], bool],
        salt: bytes,
        max_pnodes: int = MAX_PNODES,
    ) -> None:
        self._own_id, self._network_id, self._is_orchestrator = own_id, network_id, is_orchestrator
        self._salt, self._max_pnodes = salt, max_pnodes
        self._adverts: dict[str, VerifiedAdvert] = {}
        self._gone: OrderedDict[str, tuple[Order, float]] = OrderedDict()
        self._rumours: OrderedDict[str, int] = OrderedDict()
        self._farewells: OrderedDict[str, tuple[VerifiedAdvert, int]] = OrderedDict()
        self._suspects: OrderedDict[str, tuple[Order, int]] = OrderedDict()
        self._trouble: dict[str, _Trouble] = {}
        self.circle, self._num_told = Circle(), 0
        self.own: VerifiedAdvert | None = None
        self._own_exchanges = 0
        self.own_seen: Order = (0, 0)
        """Highest order under which an advert of our own came back to us: after a lost disk it may be above ours."""
        self.num_refused: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._adverts)

    # Reading

    def find(self, node_id: str, now_wall: float) -> VerifiedAdvert | None:
        """The newest advert of a node, our own among them, if it has not expired."""
        advert = self.own if node_id == self._own_id else self._adverts.get(node_id)
        return advert if advert is not None and advert.expires_wall > now_wall else None

    def gone(self, node_id: str) -> Order | None:
        """The order of the last advert of a node that left, died or expired lately; None for one that is here or was never heard of."""
        known = self._gone.get(node_id)
        return known[0] if known is not None else None

    def members(self) -> list[VerifiedAdvert]:
        """All other nodes, by id."""
        return [self._adverts[node_id] for node_id in sorted(self._adverts)]

    def known(self, rng: Random, count: int = 1) -> list[Known]:
        """What ``count`` exchanges of a round say that we have, each on another stretch of the ring of ids; also of nodes that are gone, so that nobody sends
        their adverts again. A full view has room for one more in the first of them, so that its sample goes on being drawn, and for none in the others: what
        was crowded out would be given, verified and crowded out again each time.
        """
        orders = {node_id: order for node_id, (order, _) in list(self._gone.items())[-MAX_SUSPECTS:]}
        orders.update((a.node_id, a.order) for a in [*self._adverts.values(), *([self.own] if self.own else [])])
        room = self._max_pnodes - sum(not a.is_orchestrator for a in self._adverts.values())
        rooms = [max(room, 1 if number == 0 else 0) for number in range(count)]
        ids = sorted(orders)
        if len(ids) <= KNOWN_AT_ONCE:
            return [Known(orders, WHOLE, room, self._next_salt()) for room in rooms]
        [at] = rng.sample(range(len(ids)), 1)
        told = []
        for room in rooms:
            ids, at = ids[at:] + ids[:at], KNOWN_AT_ONCE
            stretch = Stretch(ids[0], ids[KNOWN_AT_ONCE])
            told.append(Known({node_id: orders[node_id] for node_id in ids[:KNOWN_AT_ONCE]}, stretch, room, self._next_salt()))
        return told

    # Taking in

    def set_own(self, envelope: identity_pb2.Envelope, now_wall: float) -> VerifiedAdvert:
        """Our own advert from now on; news for others. Raises InvalidInput if it is not ours or not newer."""
        return self.set_own_verified(open_advert(envelope, network_id=self._network_id, now_wall=now_wall))

    def set_own_verified(self, advert: VerifiedAdvert) -> VerifiedAdvert:
        """As `set_own`."""
        if advert.node_id != self._own_id or (self.own is not None and advert.order <= self.own.order):
            raise InvalidInput("the own advert is not newer", code="bad_advert")
        self.own, self._own_exchanges = advert, RUMOUR_EXCHANGES
        return advert

    def offer_all(self, envelopes: Iterable[identity_pb2.Envelope], now_wall: float) -> list[GossipEvent]:
        """Takes in the first `MAX_ADVERTS_PER_EXCHANGE` of a message; what is not believed is counted by reason."""
        events: list[GossipEvent] = []
        for _, envelope in zip(range(MAX_ADVERTS_PER_EXCHANGE), envelopes, strict=False):
            events += self.offer(envelope, now_wall)
        return events

    def offer(self, envelope: identity_pb2.Envelope, now_wall: float) -> list[GossipEvent]:
        """Takes in one advert if it is valid and newer than what is known of its node."""
        try:
            known = self._peek(envelope)
            if known is not None and known.envelope == envelope:
                return []  # before the signature: hearing the same again costs no verification
            advert = open_advert(envelope, network_id=self._network_id, now_wall=now_wall)
        except DcnrError as error:
            self.num_refused[error.code] += 1
            return []
        return self.believe(advert, now_wall)

    def believe(self, advert: VerifiedAdvert, now_wall: float) -> list[GossipEvent]:
        """Takes in a verified advert if it is newer than what is known of its node, and evicts one that is too many."""
        node_id = advert.node_id
        if node_id == self._own_id:
            self.own_seen = max(self.own_seen, advert.order)
            return []
        if advert.is_orchestrator and not self._is_orchestrator(node_id):
            self.num_refused["orchestrator_not_listed"] += 1
            return []
        previous, gone = self._adverts.get(node_id), self._gone.get(node_id)
        if (previous is not None and advert.order <= previous.order) or (gone is not None and advert.order <= gone[0]):
            return []
        if _is_farewell(advert):
            return self._farewell(advert, previous, now_wall)
        self._gone.pop(node_id, None)
        self._suspects.pop(node_id, None)
        self._trouble.pop(node_id, None)
        self._adverts[node_id] = advert
        evicted = self._evict(now_wall)
        if node_id not in self._adverts:
            return []  # it was itself the one too many
        if previous is None or not _only_renewed(previous, advert):
            self._rumours[node_id] = RUMOUR_EXCHANGES
        return [Joined(advert) if previous is None else Updated(previous, advert), *evicted]

    def expire(self, now_wall: float) -> list[GossipEvent]:
        """Drops what has expired."""
        events: list[GossipEvent] = []
        for advert in [a for a in self._adverts.values() if a.expires_wall <= now_wall]:
            events.append(self._remove(advert, GoneReason.EXPIRED, now_wall))
        for node_id in [node_id for node_id, (advert, _) in self._farewells.items() if advert.expires_wall <= now_wall]:
            del self._farewells[node_id]
        while self._gone and next(iter(self._gone.values()))[1] <= now_wall:
            self._gone.popitem(last=False)
        return events

    def bury(self, node_id: str, order: Order, now_wall: float) -> list[GossipEvent]:
        """Drops a PNode that a probe found dead in the life of that advert; any newer advert brings it back. Others hear of the suspicion.

        Orchestrators stay until their adverts expire: who forgets where they were does not find them when they are back.
        """
        advert = self._adverts.get(node_id)
        if advert is None or advert.is_orchestrator or advert.order > order:
            return []
        self._suspects[node_id] = (advert.order, RUMOUR_EXCHANGES)
        if len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        return [self._remove(advert, GoneReason.DEAD, now_wall)]

    def reconsider(self, now_wall: float) -> list[GossipEvent]:
        """Drops orchestrators that a newer network document does not list any more."""
        unlisted = [a for a in self._adverts.values() if a.is_orchestrator and not self._is_orchestrator(a.node_id)]
        return [self._remove(advert, GoneReason.LEFT, now_wall) for advert in unlisted]

    # Exchanging

    def partners(self, rng: Random, count: int, now: float) -> list[VerifiedAdvert]:
        """Up to ``count`` nodes to exchange with (`Circle`), without those that failed lately (``now``: monotonic); if all did, any."""
        with_address = [a for a in self.members() if a.advert.control_addresses]
        willing = [a for a in with_address if self._trouble.get(a.node_id, _NO_TROUBLE).until <= now] or with_address
        again = [node_id for node_id, trouble in self._trouble.items() if trouble.until <= now]
        return self.circle.partners(rng, willing, again, count, now)

    def failed(self, node_id: str, now: float) -> None:
        """An exchange with the node failed: it is left alone for a time that doubles."""
        failures = self._trouble.get(node_id, _NO_TROUBLE).failures + 1
        if node_id in self._adverts:
            self._trouble[node_id] = _Trouble(failures, now + min(FIRST_BACK_OFF_S * 2.0 ** min(failures - 1, 16), MAX_BACK_OFF_S))

    def answered(self, node_id: str) -> None:
        """An exchange with the node worked."""
        self._trouble.pop(node_id, None)

    def in_trouble(self) -> list[str]:
        """Nodes whose last exchange with us failed."""
        return sorted(self._trouble)

    def suspected(self, named: Sequence[membership_pb2.KnownNode]) -> list[VerifiedAdvert]:
        """Those of the PNodes that somebody calls dead of which we know nothing newer: to be probed, not to be believed."""
        found = [(self._adverts.get(item.node_id), (item.incarnation, item.sequence)) for item in named[:MAX_SUSPECTS_PER_EXCHANGE]]
        return [advert for advert, order in found if advert is not None and not advert.is_orchestrator and advert.order <= order]

    def suspects(self) -> list[membership_pb2.KnownNode]:
        """PNodes found dead lately, for whoever asks: that uses nothing up, else a stranger who asks often would keep it from all others."""
        return [
            membership_pb2.KnownNode(node_id=node_id, incarnation=order[0], sequence=order[1])
            for node_id, (order, _) in list(self._suspects.items())[-MAX_SUSPECTS_PER_EXCHANGE:]
        ]

    def push_suspects(self) -> list[membership_pb2.KnownNode]:
        """As `suspects`, for exchanges of our own: each is told in a few."""
        told = self.suspects()
        for node_id in [item.node_id for item in told]:
            order, left = self._suspects[node_id]
            self._suspects[node_id] = (order, left - 1)
            if left <= 1:
                del self._suspects[node_id]
        return told

    def news(self, limit: int = MAX_ADVERTS_PER_EXCHANGE) -> list[identity_pb2.Envelope]:
        """What to push in an exchange: our own advert while that is new, then what we learned lately. Who lacks anything else asks for it (`known`)."""
        own = [self.own.envelope] if self.own and self._own_exchanges else []
        self._own_exchanges -= len(own)
        for node_id, (advert, left) in list(self._farewells.items())[: limit - len(own)]:
            own.append(advert.envelope)
            self._farewells[node_id] = (advert, left - 1)
            if left <= 1:
                del self._farewells[node_id]
        chosen = list(self._rumours)[: limit - len(own)]
        for node_id in chosen:
            self._rumours[node_id] -= 1
            if self._rumours[node_id] <= 0:
                del self._rumours[node_id]
        return own + [self._adverts[node_id].envelope for node_id in chosen]

    def news_for(
        self, known: Known, rng: Random, now_wall: float, limit: int = MAX_ADVERTS_PER_EXCHANGE
    ) -> list[identity_pb2.Envelope]:
        """What somebody who has ``known`` lacks of that stretch: orchestrators first, then our own advert, then others at random; of PNodes that are unknown
        there no more than there is room for, drawn at random from all.
        """
        adverts = [a for a in self.members() if a.expires_wall > now_wall]
        if self.own is not None and self.own.expires_wall > now_wall:
            adverts.insert(0, self.own)
        theirs = {a.node_id: known.order_of(a.node_id) for a in adverts if a.node_id in known.stretch}
        lacking = [a for a in adverts if a.node_id in theirs and (theirs[a.node_id] or (-1, -1)) < a.order]
        unknown = [a.node_id for a in lacking if theirs[a.node_id] is None and not a.is_orchestrator]
        too_many = max(0, len(unknown) - known.room) if known.room is not None else 0
        left_out = set(rng.sample(unknown, too_many))
        lacking = [a for a in lacking if a.node_id not in left_out]
        first = [a for a in lacking if a.is_orchestrator] + [a for a in lacking if a is self.own and not a.is_orchestrator]
        rest = [a for a in lacking if not a.is_orchestrator and a is not self.own]
        return [a.envelope for a in (first + rng.sample(rest, len(rest)))[:limit]]

    def check(self) -> None:
        """Asserts the invariants; for tests."""
        assert self._own_id not in self._adverts
        assert sum(not a.is_orchestrator for a in self._adverts.values()) <= self._max_pnodes
        assert all(self._is_orchestrator(a.node_id) for a in self._adverts.values() if a.is_orchestrator)
        assert set(self._rumours) <= set(self._adverts) >= set(self._trouble)
        assert not set(self._gone) & set(self._adverts)
        assert len(self._gone) <= MAX_GONE

    def _farewell(self, advert: VerifiedAdvert, previous: VerifiedAdvert | None, now_wall: float) -> list[GossipEvent]:
        """A node goes: it is dropped at once, and its good-bye is passed on while it lives."""
        self._farewells[advert.node_id] = (advert, RUMOUR_EXCHANGES)
        if len(self._farewells) > MAX_FAREWELLS:
            self._farewells.popitem(last=False)
        self._note_gone(advert, now_wall)
        return [self._remove(advert, GoneReason.LEFT, now_wall)] if previous is not None else []

    def _peek(self, envelope: identity_pb2.Envelope) -> VerifiedAdvert | None:
        """The advert that we have from the key which the envelope names, whether or not that key signed it."""
        if len(envelope.signatures) != 1:
            return None
        node_id = hashlib.sha256(envelope.signatures[0].public_key).hexdigest()[:40]
        return self.own if node_id == self._own_id else self._adverts.get(node_id)

    def _evict(self, now_wall: float) -> list[Gone]:
        pnodes = [a for a in self._adverts.values() if not a.is_orchestrator]
        if len(pnodes) <= self._max_pnodes:
            return []
        crowds = {a.node_id: _crowd_of(a) for a in pnodes}
        sizes = Counter(crowds.values())
        largest = max(sizes.values())
        victim = max((a for a in pnodes if sizes[crowds[a.node_id]] == largest), key=lambda a: self._rank(a.node_id))
        return [self._remove(victim, GoneReason.CROWDED_OUT, now_wall)]

    def _remove(self, advert: VerifiedAdvert, reason: GoneReason, now_wall: float) -> Gone:
        node_id = advert.node_id
        del self._adverts[node_id]
        self._rumours.pop(node_id, None)
        self._trouble.pop(node_id, None)
        if reason is not GoneReason.CROWDED_OUT:
            self._note_gone(advert, now_wall)
        return Gone(advert, reason)

    def _note_gone(self, advert: VerifiedAdvert, now_wall: float) -> None:
        self._gone[advert.node_id] = (advert.order, now_wall + ADVERT_LIFETIME_S + MAX_CLOCK_SKEW_S)
        self._gone.move_to_end(advert.node_id)
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)

    def _next_salt(self) -> bytes:
        self._num_told += 1
        return hashlib.blake2b(str(self._num_told).encode(), key=self._salt, digest_size=SALT_BYTES).digest()

    def _rank(self, node_id: str) -> bytes:
        return hashlib.sha256(self._salt + bytes.fromhex(check_node_id(node_id))).digest()


def _is_farewell(advert: VerifiedAdvert) -> bool:
    return advert.advert.expires_unix_ms - advert.advert.issued_unix_ms <= LEAVING_LIFETIME_S * 1000


def _only_renewed(previous: VerifiedAdvert, advert: VerifiedAdvert) -> bool:
    """Whether it says what the one before said, for longer. That is no news: who exchanges gets it in time, and to push it would cost more than all else."""
    renewed = membership_pb2.Advert()
    renewed.CopyFrom(previous.advert)
    for name in ("sequence", "issued_unix_ms", "expires_unix_ms"):
        setattr(renewed, name, getattr(advert.advert, name))
    return renewed == advert.advert


def _crowd_of(advert: VerifiedAdvert) -> str:
    """The public subnet that a node's first address lies in, or those that tell a name; elsewhere every node is a crowd of its own."""
    addresses = advert.advert.control_addresses
    if addresses and ip_of(split_address(addresses[0])[0]) is None:
        return NAMED
    return public_subnet(addresses[0] if addresses else "") or NodeId(advert.node_id)
