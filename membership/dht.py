"""The DHT directory over UDP: kademlia's wire protocol and routing table, with our own rules on who and what is believed.

The only module that imports kademlia, rpcudp and their msgpack. Against kademlia 2.2.3 alone: requests fail after one second and silence is
remembered for all look-ups; a contact enters the table only after its address has echoed its id, within bounds per subnet; records are kept and given
out by `membership.dht_storage`; a newcomer gets the records that it should keep; no datagram exceeds `MAX_DATAGRAM_BYTES`; whatever is malformed,
unasked for or too frequent is counted by reason and otherwise ignored. No state is pickled and nothing is logged per datagram.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import umsgpack  # type: ignore[import-untyped]
from kademlia.node import Node
from kademlia.protocol import KademliaProtocol
from kademlia.routing import RoutingTable
from rpcudp.protocol import RPCProtocol

from dcnr.limits import DHT_REQUEST_TIMEOUT_S
from dcnr.ports import Clock, Random
from membership.dht_directory import DirectoryNode
from membership.dht_lookup import WIDTH
from membership.dht_peers import (
    MAX_TRACKED_ADDRESSES,
    Address,
    Contact,
    ContactReader,
    DeadPeers,
    RateLimiter,
    RoundTrip,
    is_near,
    subnet_of,
    usable_host,
)  # fmt: skip
from membership.dht_storage import RecordStore
from membership.dht_walk import REPLICATION, Reply
from membership.directory import KEY_BYTES

MAX_DATAGRAM_BYTES: Final = 2048
MAX_OUTSTANDING: Final = 4096
MAX_ECHOES: Final = 256
"""Pings under way to strangers who have asked us something."""
MAX_HANDED_OVER: Final = 64
HANDING_OVER: Final = 3
"""So many of the closest keepers of a record hand it to a newcomer: one may be dead without anybody knowing."""
MAX_PER_SUBNET_IN_BUCKET: Final = 2
MAX_PER_SUBNET_IN_TABLE: Final = 3
LATE_TIMER_S: Final = 0.25
"""A time-out that fires this much late says that we were stalled ourselves."""
STORE_COST: Final = 2.0

_FAILED: Final[Reply] = (False, None)
_ARITY: Final = {"stun": 0, "ping": 1, "find_node": 2, "find_value": 2, "store": 3}


class _Table(RoutingTable):  # type: ignore[misc]
    """kademlia's buckets, with exact neighbours, bounds per subnet, and old contacts kept as long as they answer."""

    def get_bucket_for(self, node: Any) -> int:
        """Upper ends belong to their bucket (kademlia splits so, but looks one bucket too far)."""
        return next(i for i, bucket in enumerate(self.buckets) if node.long_id <= bucket.range[1])

    def contacts(self) -> Iterator[Contact]:
        """All contacts, bucket by bucket, least recently seen first."""
        for bucket in self.buckets:
            yield from bucket.nodes.values()

    def accepts(self, contact: Contact, *, limited: bool) -> bool:
        """Whether the contact may enter: not under another's id, and within the bounds per subnet if ``limited``."""
        bucket = self.buckets[self.get_bucket_for(contact)]
        held: Contact | None = bucket.nodes.get(contact.id) or bucket.replacement_nodes.get(contact.id)
        if contact.id == self.node.id or held is not None:
            return bool(held is not None and held.address == contact.address)
        if not limited:
            return True
        in_bucket = sum(c.subnet == contact.subnet for c in (*bucket.nodes.values(), *bucket.replacement_nodes.values()))
        waiting = (c for b in self.buckets for c in b.replacement_nodes.values())
        in_table = sum(c.subnet == contact.subnet for c in (*self.contacts(), *waiting))
        return bool(in_bucket < MAX_PER_SUBNET_IN_BUCKET and in_table < MAX_PER_SUBNET_IN_TABLE)

    def insert(self, contact: Contact) -> Contact | None:
        """Inserts; a full bucket splits where kademlia splits it, else the contact waits as a replacement and the one to probe is returned."""
        while True:
            index = self.get_bucket_for(contact)
            bucket = self.buckets[index]
            if bucket.add_node(contact):
                return None
            if not bucket.has_in_range(self.node) and bucket.depth() % 5 == 0:
                probe: Contact = bucket.head()
                return probe
            self.split_bucket(index)


@dataclass(slots=True)
class _Pending:
    future: asyncio.Future[Reply]
    timer: asyncio.TimerHandle
    contact: Contact
    method: str
    sent_at: float
    late: bool = False


class DhtProtocol(KademliaProtocol):  # type: ignore[misc]
    """One UDP socket: answers others' requests and carries our own (a `membership.dht_walk.Transport`)."""

    def __init__(self, own_id: bytes, store: RecordStore, *, clock: Clock, rng: Random, single_host: bool, version: int) -> None:
        RPCProtocol.__init__(self, DHT_REQUEST_TIMEOUT_S)
        self.source_node, self.storage = Node(own_id), store
        self.router: _Table = _Table(self, WIDTH, self.source_node)
        self.rejected: Counter[str] = Counter()
        self.num_timeouts = self.num_stored = 0
        self.dead = DeadPeers()
        self.lost = asyncio.Event()
        self._own_id, self._clock, self._rng, self._single_host = own_id, clock, rng, single_host
        self._version = version
        self._reader = ContactReader(single_host=single_host, version=version)
        self._limiter = RateLimiter(single_host=single_host)
        self._round_trip = RoundTrip()
        self._bound: OrderedDict[Address, bytes] = OrderedDict()
        self._echoing: set[Address] = set()
        self._outstanding: dict[bytes, _Pending] = {}
        self._heard_at = float("-inf")
        self._closed = False

    # Transport

    @property
    def patience_s(self) -> float:
        """When one of our requests counts as stalled."""
        return self._round_trip.patience_s

    def is_bound(self, contact: Contact) -> bool:
        """True if this address has echoed this id."""
        return self._bound.get(contact.address) == contact.id

    def contacts_in(self, answer: object, teller: Contact) -> list[Contact]:
        """Contacts that an answer names, without the silent ones."""
        now = self._clock.monotonic()
        return [c for c in self._reader.contacts(answer, teller) if not self.dead.skip(c.address, now)]

    def nearest(self, target: bytes, count: int) -> list[Contact]:
        """Living contacts by distance; if all are silent the silent ones, because then the fault may be ours."""
        now, number = self._clock.monotonic(), int.from_bytes(target)
        ranked = sorted(self.router.contacts(), key=lambda c: c.long_id ^ number)
        living = (c for c in ranked if not self.dead.skip(c.address, now))
        return list(islice(living, count)) or ranked[:count]

    def request(self, contact: Contact, method: str, *args: object) -> asyncio.Future[Reply]:
        """Sends one request. The future never raises; it ends within the request time-out (and its grace after a stall of ours)."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        msg_id = self._rng.randbytes(20)
        data = b"\x00" + msg_id + umsgpack.packb([method, list(args)])
        if self._closed or len(self._outstanding) >= MAX_OUTSTANDING or not self._send(data, contact.address):
            future.set_result(_FAILED)
            return future
        timer = loop.call_later(DHT_REQUEST_TIMEOUT_S, self._timeout, msg_id)
        self._outstanding[msg_id] = _Pending(future, timer, contact, method, self._clock.monotonic())
        return future

    def close(self) -> None:
        """Closes the socket; whoever waits is told that it failed."""
        self._closed = True
        for pending in self._outstanding.values():
            pending.timer.cancel()
            if not pending.future.done():
                pending.future.set_result(_FAILED)
        self._outstanding.clear()
        if self.transport is not None:
            self.transport.close()

    # Datagrams

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._closed = True
        self.lost.set()

    def error_received(self, exc: OSError) -> None:
        """An earlier datagram was undeliverable; its request times out."""
        self.rejected["undeliverable"] += 1

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """Takes one datagram; anything wrong with it is counted, never raised."""
        source: Address = (addr[0], addr[1])
        reason = self._received(data, source)
        if reason:
            self.rejected[reason] += 1

    def _received(self, data: bytes, source: Address) -> str:
        if not 22 <= len(data) <= MAX_DATAGRAM_BYTES:
            return "datagram_size"
        msg_id, pending = data[1:21], None
        if data[0] == 1:
            pending = self._outstanding.get(msg_id)
            if pending is None or pending.contact.address != source:
                return "unasked_answer"
        elif data[0] != 0:
            return "unknown_kind"
        elif not self._limiter.admit(source, self._clock.monotonic()):
            return "rate_limited"
        try:
            payload = umsgpack.unpackb(data[21:])
        except Exception:  # noqa: BLE001 - strangers' bytes: the codec raises many types, RecursionError among them
            return "malformed"
        if pending is not None:
            self._answered(msg_id, pending, payload)
            return ""
        return self._requested(msg_id, payload, source)

    def _requested(self, msg_id: bytes, payload: object, source: Address) -> str:
        if not isinstance(payload, list | tuple) or len(payload) != 2:
            return "malformed"
        method, args = payload
        if not isinstance(method, str) or method not in _ARITY or not isinstance(args, list | tuple) or len(args) != _ARITY[method]:
            return "unknown_method"
        if any(not isinstance(a, bytes) for a in args) or any(len(a) != KEY_BYTES for a in args[:2]):
            return "bad_arguments"
        if args:
            self._introduced(args[0], source)
        answer = getattr(self, f"rpc_{method}")(source, *args)
        if not self._send(b"\x01" + msg_id + umsgpack.packb(answer), source):
            return "unsent_answer"
        return ""

    def _answered(self, msg_id: bytes, pending: _Pending, answer: object) -> None:
        del self._outstanding[msg_id]
        pending.timer.cancel()
        now, contact = self._clock.monotonic(), pending.contact
        self._heard_at = now
        self._round_trip.add(now - pending.sent_at)
        self.dead.heard(contact.address)
        if pending.method == "ping" and isinstance(answer, bytes) and len(answer) == KEY_BYTES:
            if answer != contact.id:
                self.router.remove_contact(contact)
            self._bound[contact.address] = answer
            self._bound.move_to_end(contact.address)
            if len(self._bound) > MAX_TRACKED_ADDRESSES:
                self._bound.popitem(last=False)
            self._welcome(Contact(answer, contact.host, contact.port))
        elif self.is_bound(contact):
            self._welcome(contact)
        if not pending.future.done():
            pending.future.set_result((True, answer))

    def _timeout(self, msg_id: bytes) -> None:
        pending, now = self._outstanding[msg_id], self._clock.monotonic()
        if not pending.late and now - pending.sent_at > DHT_REQUEST_TIMEOUT_S + LATE_TIMER_S:
            # This process stood still: the answer may lie in the socket's buffer.
            pending.late = True
            pending.timer = asyncio.get_running_loop().call_later(DHT_REQUEST_TIMEOUT_S / 2, self._timeout, msg_id)
            return
        del self._outstanding[msg_id]
        self.num_timeouts += 1
        if self._heard_at >= pending.sent_at:  # else nobody answered: rather our own line than this peer
            if self.dead.failed(pending.contact.address, pending.sent_at, now) == 1:
                self.request(pending.contact, "ping", self._own_id)
            else:
                self.router.remove_contact(pending.contact)
        if not pending.future.done():
            pending.future.set_result(_FAILED)

    def _send(self, data: bytes, address: Address) -> bool:
        if len(data) > MAX_DATAGRAM_BYTES or self.transport is None or self._closed:
            self.rejected["unsendable"] += 1
            return False
        try:
            self.transport.sendto(data, address)
        except (OSError, ValueError):
            self.rejected["unsendable"] += 1
            return False
        return True

    # What others ask: kademlia's methods, called with checked arguments only

    def rpc_stun(self, sender: Address) -> Address:
        """The address that we see."""
        return sender

    def rpc_ping(self, sender: Address, nodeid: bytes) -> bytes:
        """Our id: binds it to this address."""
        return self._own_id

    def rpc_store(self, sender: Address, nodeid: bytes, key: bytes, value: bytes) -> bool:
        """True exactly if these bytes are kept here now."""
        if not self._limiter.admit(sender, self._clock.monotonic(), cost=STORE_COST - 1):
            self.rejected["rate_limited"] += 1
            return False
        subnet = "" if self._exempt(sender[0]) else subnet_of(sender[0])
        result = self.storage.offer(key, value, subnet=subnet, now_wall=self._clock.wall())
        if result.holds:
            self.num_stored += 1
        else:
            self.rejected[result.value] += 1
        return bool(result.holds)

    def rpc_find_node(self, sender: Address, nodeid: bytes, key: bytes) -> list[tuple[bytes, str, int]]:
        """Our living contacts closest to ``key``."""
        return [c.wire() for c in self.nearest(key, WIDTH + 1) if c.id != nodeid][:WIDTH]

    def rpc_find_value(self, sender: Address, nodeid: bytes, key: bytes) -> dict[str, bytes] | list[tuple[bytes, str, int]]:
        """The record, if a valid one is kept here, else as `rpc_find_node`."""
        record = self.storage.read(key, self._clock.wall())
        return {"value": record} if record is not None else self.rpc_find_node(sender, nodeid, key)

    # Who gets into the table

    def _exempt(self, host: str) -> bool:
        return self._single_host and is_near(host)

    def _introduced(self, node_id: bytes, source: Address) -> None:
        """A request names its sender: known ones are alive, strangers must echo their id before they are believed."""
        self.dead.heard(source)
        contact = self._reader.contact((node_id, *source))
        if contact is None or node_id == self._own_id:
            return
        if self.is_bound(contact) and not self.router.is_new_node(contact):
            return
        wanted = self.router.accepts(contact, limited=not self._exempt(contact.host))
        if wanted and source not in self._echoing and len(self._echoing) < MAX_ECHOES:
            self._echoing.add(source)
            self.request(contact, "ping", self._own_id).add_done_callback(lambda _: self._echoing.discard(source))

    def _welcome(self, contact: Contact) -> None:
        """Takes a contact whose address echoed its id into the table, and hands it the records that it should keep."""
        if not usable_host(contact.host, single_host=self._single_host):
            return
        if not self.router.accepts(contact, limited=not self._exempt(contact.host)):
            return
        is_new = self.router.is_new_node(contact)
        probe = self.router.insert(contact)
        if probe is not None and is_new and probe.address not in self._echoing and len(self._echoing) < MAX_ECHOES:
            self._echoing.add(probe.address)
            self.request(probe, "ping", self._own_id).add_done_callback(lambda _: self._echoing.discard(probe.address))
        elif is_new and len(self.storage):
            self._hand_over(contact)

    def _hand_over(self, newcomer: Contact) -> None:
        keys = heapq.nsmallest(MAX_HANDED_OVER, self.storage.keys(), key=lambda key: int.from_bytes(key) ^ newcomer.long_id)
        for key in keys:
            number = int.from_bytes(key)
            keepers = [c.long_id ^ number for c in self.nearest(key, REPLICATION + 1) if c.id != newcomer.id]
            own = self.source_node.long_id ^ number
            closer_than_last = len(keepers) < REPLICATION or newcomer.long_id ^ number < keepers[REPLICATION - 1]
            if not closer_than_last or sum(d < own for d in keepers) >= HANDING_OVER:
                continue
            record = self.storage.read(key, self._clock.wall())
            if record is not None:
                self.request(newcomer, "store", self._own_id, key, record)


class DhtDirectory(DirectoryNode):
    """The directory over the DHT; see `membership.dht_directory.DirectoryNode` for its methods."""

    def _protocol(self, version: int) -> DhtProtocol:
        return DhtProtocol(
            self._own_id, self._store, clock=self._clock, rng=self._rng, single_host=self._single_host, version=version
        )
