"""The directory's life around the DHT's socket: start, bootstrap, put, get, republish, refresh, stop. Knows no wire format.

`membership.dht.DhtDirectory` binds it to kademlia's protocol. Everything is bounded: look-ups at once, own records, bootstrap addresses, every wait.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dcnr.errors import InvalidInput, NotRunning, Refused, Unavailable
from dcnr.ids import NodeId, check_node_id
from dcnr.limits import CONNECT_TIMEOUT_S, DHT_REPUBLISH_S, MAX_BOOTSTRAP_ENTRIES
from dcnr.ports import Clock, Random
from dcnr.rpc.resolving import Resolver
from membership.dht_peers import Address, Contact, DeadPeers
from membership.dht_storage import MAX_RECORDS, RecordStore
from membership.dht_walk import REPLICATION, Transport, Walker
from membership.directory import KEY_BYTES, Verify, best_answer, checked_record, record_key

MAX_OWN_RECORDS: Final = 256
MAX_WALKS: Final = 32
MAX_EXPORTED_CONTACTS: Final = 200
BOOTSTRAP_TRIES: Final = 3
WITNESSES: Final = 3
REFRESH_S: Final = 60.0
REJOIN_S: Final = 10.0
TICK_S: Final = 5.0
STOP_TIMEOUT_S: Final = 2.0


class Router(Protocol):
    """The routing table, as far as the directory reads it."""

    def contacts(self) -> Iterator[Contact]: ...


class Endpoint(Transport, Protocol):
    """The open socket with its table and its counters."""

    router: Router
    dead: DeadPeers
    rejected: Counter[str]
    num_timeouts: int
    num_stored: int
    lost: asyncio.Event

    def close(self) -> None:
        """Closes the socket and fails what is outstanding; ``lost`` is set once it is closed."""
        ...


@dataclass(frozen=True, slots=True)
class DhtStats:
    """Counters since start and present sizes."""

    lookups: int
    hits: int
    puts: int
    acks: int
    timeouts: int
    stores: int
    rejected: Mapping[str, int]
    num_contacts: int
    num_dead: int
    num_records: int


@dataclass(slots=True)
class _Own:
    record: bytes
    sequence: int
    expires_wall: float
    due: float


class DirectoryNode(ABC):
    """A `membership.directory.Directory` that is also a peer of the network it asks.

    ``rng`` names requests and must be unpredictable in production (`random.SystemRandom`); ``single_host`` (networks on one machine, tests) lifts the
    bounds per subnet for loopback and private addresses and allows loopback contacts.
    """

    def __init__(
        self,
        node_id: NodeId,
        *,
        clock: Clock,
        rng: Random,
        verify: Verify,
        single_host: bool,
        republish_s: float = DHT_REPUBLISH_S,
        refresh_s: float = REFRESH_S,
        tick_s: float = TICK_S,
        max_records: int = MAX_RECORDS,
    ) -> None:
        self._own_id = bytes.fromhex(check_node_id(node_id))
        self._clock, self._rng, self._verify, self._single_host = clock, rng, verify, single_host
        self._republish_s, self._refresh_s, self._tick_s = republish_s, refresh_s, tick_s
        self._store = RecordStore(verify, max_records=max_records)
        self._own: dict[bytes, _Own] = {}
        self._entries: list[tuple[str, int]] = []
        self._rejoined_at = float("-inf")
        self._walks = asyncio.Semaphore(MAX_WALKS)
        self._endpoint: Endpoint | None = None
        self._walker: Walker | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._family = socket.AF_INET
        self._counts: Counter[str] = Counter()
        self._resolver = Resolver(MAX_BOOTSTRAP_ENTRIES)

    @abstractmethod
    def _protocol(self, version: int) -> Any:
        """A new `Endpoint` that is also an `asyncio.DatagramProtocol`; ``version`` 4 or 6."""

    async def start(self, host: str, port: int) -> int:
        """Opens the socket on ``host`` (an IP address or a name) and returns the bound port. Raises Unavailable if that fails."""
        if self._endpoint is not None:
            raise InvalidInput("the directory has been started already", code="already_started")
        loop = asyncio.get_running_loop()
        found = await self._resolve(host, port, socket.AF_UNSPEC)
        if found is None:
            raise Unavailable(f"{host} is no address of this machine", code="cannot_resolve", host=host)
        self._family = _family(found[0])
        version = 4 if self._family == socket.AF_INET else 6
        try:
            transport, protocol = await loop.create_datagram_endpoint(lambda: self._protocol(version), local_addr=found)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {found[0]} port {port}/udp: {error.strerror}",
                code="port_in_use",
                remedy="choose another port, or 0 for a free one",
            ) from error
        self._endpoint = protocol
        self._walker = Walker(protocol, self._own_id, clock=self._clock, verify=self._verify, limit_subnets=not self._single_host)
        self._keeper = loop.create_task(self._keep(), name="dht-keeper")
        return int(transport.get_extra_info("sockname")[1])

    async def stop(self) -> None:
        """Ends all tasks and closes the socket. Look-ups under way end at once, as if nobody answered. May be called twice."""
        keeper, endpoint = self._keeper, self._endpoint
        self._keeper = self._endpoint = None
        if endpoint is not None:
            endpoint.close()
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if endpoint is not None:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await endpoint.lost.wait()

    async def bootstrap(self, addresses: Sequence[tuple[str, int]]) -> int:
        """Number of the given nodes (host or name, port) that answered; they are remembered for when all contacts are lost.

        At most `MAX_BOOTSTRAP_ENTRIES` are tried, each `BOOTSTRAP_TRIES` times.
        """
        self._entries = list(dict.fromkeys([*addresses, *self._entries]))[:MAX_BOOTSTRAP_ENTRIES]
        return await self._join(addresses[:MAX_BOOTSTRAP_ENTRIES])

    async def put(self, key: bytes | str, record: bytes) -> int:
        """Number of peers that said they keep the record. It is republished until it expires, is withdrawn or is replaced by a newer one.

        Raises InvalidInput for a record that does not verify, Refused when this node publishes too many already.
        """
        name, now = record_key(key), self._clock.wall()
        facts = checked_record(name, record, self._verify, now)
        held = self._own.get(name)
        if held is None and len(self._own) >= MAX_OWN_RECORDS:
            raise Refused(f"a node publishes at most {MAX_OWN_RECORDS} records", code="too_many_records", remedy="withdraw some")
        if held is None or facts.sequence >= held.sequence:
            due = self._clock.monotonic() + self._republish_s * self._rng.uniform(0.8, 1.0)
            self._own[name] = _Own(record, facts.sequence, facts.expires_wall, due)
        return await self._publish(name, record)

    def withdraw(self, key: bytes | str) -> None:
        """Stops republishing; copies at other nodes expire by themselves."""
        self._own.pop(record_key(key), None)

    async def get(self, key: bytes | str) -> bytes | None:
        """The newest valid record that the network shows. A copy kept here is only one voice among those, the only one if nobody answers."""
        name = record_key(key)
        self._counts["lookups"] += 1
        walker = self._running()
        async with self._walks:
            await self._rejoin()
            found = await walker.find(name)
        self._counts["bad_answers"] += found.num_bad
        answers = list(found.answers)
        now = self._clock.wall()
        kept = self._store.read(name, now)
        facts = self._verify(name, kept, now) if kept is not None else None
        if kept is not None and facts is not None:
            answers.append((facts, kept))
        record = best_answer(answers)
        if record is not None:
            self._counts["hits"] += 1
            walker.repair(name, found, record)
        return record

    async def republish_due(self, now: float) -> int:
        """Stores own records again whose time has come (``now``: monotonic) and forgets expired ones; returns how many were stored by somebody."""
        done = 0
        for name, own in sorted(self._own.items()):
            if own.expires_wall <= self._clock.wall():
                self._own.pop(name, None)
            elif own.due <= now:
                own.due = now + self._republish_s * self._rng.uniform(0.8, 1.0)
                done += await self._publish(name, own.record) > 0
        return done

    def export_contacts(self) -> list[tuple[str, int, NodeId]]:
        """Living contacts as (host, port, id), for the caller's own cache of known peers."""
        if self._endpoint is None:
            return []
        now = self._clock.monotonic()
        living = [c for c in self._endpoint.router.contacts() if not self._endpoint.dead.skip(c.address, now)]
        return [(c.host, c.port, NodeId(c.id.hex())) for c in living[:MAX_EXPORTED_CONTACTS]]

    def doubt(self, node_id: str) -> None:
        """Somebody found that node dead: it is asked for a sign of life now, and leaves the table if it gives none."""
        if self._endpoint is None:
            return
        wanted = bytes.fromhex(check_node_id(node_id))
        contacts = list(self._endpoint.router.contacts())
        doubted = [item for item in contacts if item.id == wanted]
        others = [item for item in contacts if item.id != wanted][-WITNESSES:]
        for contact in [*doubted, *others] if doubted else []:  # silence counts only while somebody else answers
            self._endpoint.request(contact, "ping", self._own_id)

    def stats(self) -> DhtStats:
        """Counters since start and present sizes."""
        end, count = self._endpoint, self._counts
        rejected = Counter(end.rejected if end else {}) + Counter({"bad_answer": count["bad_answers"]})
        return DhtStats(
            lookups=count["lookups"],
            hits=count["hits"],
            puts=count["puts"],
            acks=count["acks"],
            timeouts=end.num_timeouts if end else 0,
            stores=end.num_stored if end else 0,
            rejected=dict(sorted(rejected.items())),
            num_contacts=sum(1 for _ in end.router.contacts()) if end else 0,
            num_dead=len(end.dead) if end else 0,
            num_records=len(self._store),
        )

    def _running(self) -> Walker:
        if self._endpoint is None or self._walker is None:
            raise NotRunning("the directory is not running", code="dht_stopped")
        return self._walker

    async def _publish(self, name: bytes, record: bytes) -> int:
        walker = self._running()
        self._counts["puts"] += 1
        async with self._walks:
            await self._rejoin()
            keepers, further = await walker.closest(name)
            number = int.from_bytes(name)
            own_distance = int.from_bytes(self._own_id) ^ number
            if len(keepers) < REPLICATION or own_distance < keepers[REPLICATION - 1].long_id ^ number:
                self._store.offer(name, record, subnet="", now_wall=self._clock.wall())  # kept here too, but not counted
            acks = await walker.store(name, record, keepers, further)
        self._counts["acks"] += acks
        return acks

    async def _rejoin(self) -> None:
        """When all contacts are lost, asks the bootstrap addresses again, once in `REJOIN_S`."""
        now = self._clock.monotonic()
        if self._endpoint is None or not self._entries or now - self._rejoined_at < REJOIN_S:
            return
        if next(self._endpoint.router.contacts(), None) is None:
            await self._join(self._entries)

    async def _join(self, addresses: Sequence[tuple[str, int]]) -> int:
        walker, endpoint = self._running(), self._endpoint
        assert endpoint is not None
        self._rejoined_at = self._clock.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._greet(endpoint, host, port)) for host, port in addresses]
        reached = [contact for task in tasks if (contact := task.result()) is not None]
        if reached:
            await walker.closest(self._own_id, reached)
            await walker.closest(self._rng.randbytes(KEY_BYTES))
        return len(reached)

    async def _greet(self, endpoint: Endpoint, host: str, port: int) -> Contact | None:
        found = await self._resolve(host, port, self._family)
        if found is None:
            return None
        unknown = Contact(bytes(KEY_BYTES), found[0], found[1])
        for _ in range(BOOTSTRAP_TRIES):
            answered, node_id = await endpoint.request(unknown, "ping", self._own_id)
            if answered and isinstance(node_id, bytes) and len(node_id) == KEY_BYTES:
                return Contact(node_id, found[0], found[1]) if node_id != self._own_id else None
        return None

    async def _resolve(self, host: str, port: int, family: int) -> Address | None:
        """The first IP address of ``host``, or None; names are looked up within `CONNECT_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                found = await self._resolver.resolve(host, port, family)
        except (Unavailable, TimeoutError):
            return None
        fits = (ip for ip in found if family in (socket.AF_UNSPEC, _family(ip)))
        return next(((ip, port) for ip in fits), None)

    async def _keep(self) -> None:
        """Housekeeping: expiry, republishing, refreshing of the table, coming back after all contacts were lost."""
        refresh_at = self._clock.monotonic() + self._refresh_s * self._rng.uniform(0.5, 1.0)
        while True:
            await asyncio.sleep(self._tick_s)
            self._store.sweep(self._clock.wall())
            await self._rejoin()
            await self.republish_due(self._clock.monotonic())
            if self._clock.monotonic() >= refresh_at:
                refresh_at = self._clock.monotonic() + self._refresh_s * self._rng.uniform(0.5, 1.0)
                await self._running().closest(self._rng.randbytes(KEY_BYTES))


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET if ipaddress.ip_address(ip).version == 4 else socket.AF_INET6
