"""Goal: the DHT directory over real UDP on loopback; each known fault of kademlia 2.2.3 has a test that would show it here."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import umsgpack  # type: ignore[import-untyped]
import uvloop
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dcnr.errors import InvalidInput, NotRunning
from dcnr.ids import NodeId, node_id_of
from membership.dht import MAX_DATAGRAM_BYTES, DhtDirectory
from membership.dht_peers import Contact
from membership.dht_walk import REPLICATION
from membership.directory import VerifiedRecord, record_key


class Clock:
    """The machine's clocks; tests move the wall clock of a whole network forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time() + self.ahead_s


class Owner:
    """Signs records: key, signature, sequence, expiry, value."""

    def __init__(self, seed: int = 1) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(random.Random(seed).randbytes(32))

    def sign(self, key: str | bytes, sequence: int, *, lifetime_s: float = 600.0, value: bytes = b"") -> bytes:
        payload = struct.pack(">Qd", sequence, time.time() + lifetime_s) + value
        return self._key.public_key().public_bytes_raw() + self._key.sign(record_key(key) + payload) + payload


def verify(key: bytes, record: bytes, now_wall: float) -> VerifiedRecord | None:
    if len(record) < 112:
        return None
    public, signature, payload = record[:32], record[32:96], record[96:]
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, key + payload)
    except InvalidSignature:
        return None
    sequence, expires = struct.unpack(">Qd", payload[:16])
    return VerifiedRecord(key, node_id_of(public), sequence, expires)


class Net:
    """Nodes in one process, each with its own socket."""

    def __init__(self, seed: int = 1) -> None:
        self.rng, self.clock = random.Random(seed), Clock()
        self.nodes: list[DhtDirectory] = []
        self.ports: dict[DhtDirectory, int] = {}

    async def add(
        self, *, node_id: bytes | None = None, entries: Sequence[tuple[str, int]] | None = None, **options: Any
    ) -> DhtDirectory:
        name = NodeId((node_id or self.rng.randbytes(20)).hex())
        node = DhtDirectory(
            name, clock=self.clock, rng=random.Random(self.rng.random()), verify=verify, single_host=True, **options
        )
        self.ports[node] = await node.start("127.0.0.1", 0)
        if entries is None and self.nodes:
            entries = [("127.0.0.1", self.ports[n]) for n in self.rng.sample(self.nodes, min(3, len(self.nodes)))]
        if entries:
            assert await node.bootstrap(entries) == len(entries)
        self.nodes.append(node)
        return node

    async def kill(self, node: DhtDirectory) -> None:
        """From now on the node's port is silent."""
        self.nodes.remove(node)
        await node.stop()

    def holders(self, key: str | bytes, record: bytes) -> list[DhtDirectory]:
        return [n for n in self.nodes if n._store.read(record_key(key), self.clock.wall()) == record]


@asynccontextmanager
async def network(count: int, *, seed: int = 1) -> AsyncIterator[Net]:
    net = Net(seed)
    try:
        for _ in range(count):
            await net.add()
        yield net
    finally:
        for node in list(net.nodes):
            await net.kill(node)
        assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


async def until(condition: Callable[[], bool], *, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - conditions of other nodes have no event
            await asyncio.sleep(0.01)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def timed(work: Sequence[Awaitable[object]]) -> tuple[list[object], list[float]]:
    async def one(job: Awaitable[object]) -> tuple[object, float]:
        since = time.perf_counter()
        return await job, time.perf_counter() - since

    done = await asyncio.gather(*(one(job) for job in work))
    return [d[0] for d in done], sorted(d[1] for d in done)


def datagram_from_outside(port: int, data: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(data, ("127.0.0.1", port))


def request(method: object, *args: object) -> bytes:
    packed: bytes = umsgpack.packb([method, list(args)])
    return b"\x00" + bytes(20) + packed


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_records_are_found_from_everywhere(runner: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def scenario() -> None:
        async with network(30) as net:
            owner = Owner()
            for i in range(20):
                record = owner.sign(f"k{i}", 1, value=b"x" * 500)
                acks = await net.rng.choice(net.nodes).put(f"k{i}", record)
                assert acks >= REPLICATION - 1
                others = sum(n is not None for n in net.holders(f"k{i}", record))
                assert others >= acks
                assert await net.rng.choice(net.nodes).get(f"k{i}") == record
            assert await net.nodes[0].get("nowhere") is None
            assert net.nodes[0].stats().lookups >= 1

    runner(scenario())


def test_a_put_that_nobody_keeps_says_zero() -> None:
    """kademlia: set() returns True although no store kept the value, and raises when all nodes are dead."""

    async def scenario() -> None:
        async with network(1) as net:
            alone = net.nodes[0]
            assert await alone.put("k", Owner().sign("k", 1)) == 0
            refusing = DhtDirectory(
                NodeId("f" * 40), clock=net.clock, rng=random.Random(5), verify=lambda k, r, n: None, single_host=True
            )
            try:
                port = await refusing.start("127.0.0.1", 0)
                assert await alone.bootstrap([("127.0.0.1", port)]) == 1
                assert await alone.put("k", Owner().sign("k", 2)) == 0
                assert refusing.stats().rejected["invalid_record"] >= 1
            finally:
                await refusing.stop()
            assert await alone.put("k", Owner().sign("k", 3)) == 0  # everybody is dead: an answer, no exception

    run(scenario())


def test_nobody_overwrites_the_record_of_another() -> None:
    """kademlia: anyone overwrites any key."""

    async def scenario() -> None:
        async with network(20) as net:
            record, key = Owner(1).sign("k", 5), record_key("k")
            assert await net.nodes[0].put("k", record) >= REPLICATION - 1
            thief = net.nodes[7]
            assert await thief.put("k", Owner(2).sign("k", 10**9)) <= 20 - REPLICATION
            forged = record[:-1] + bytes([record[-1] ^ 1])
            with pytest.raises(InvalidInput):
                await thief.put("k", forged)
            for node in net.nodes:
                answered, kept = await thief._endpoint.request(contact(net, node), "store", thief._own_id, key, forged)  # type: ignore[union-attr]
                assert node is thief or (answered and kept is False)
            for node in net.nodes[:10]:
                assert await node.get("k") == record

    run(scenario())


def contact(net: Net, node: DhtDirectory) -> Contact:
    return Contact(node._own_id, "127.0.0.1", net.ports[node])


def test_records_expire_everywhere() -> None:
    """kademlia: records never expire, and republishing resets their age."""

    async def scenario() -> None:
        async with network(15) as net:
            record = Owner().sign("k", 1, lifetime_s=60.0)
            assert await net.nodes[0].put("k", record) > 0
            net.clock.ahead_s = 59.0
            assert await net.nodes[3].get("k") == record
            assert await net.nodes[0].republish_due(time.monotonic() + 1000.0) == 1
            net.clock.ahead_s = 61.0
            assert await net.nodes[0].republish_due(time.monotonic() + 2000.0) == 0
            assert [await node.get("k") for node in net.nodes] == [None] * 15

    run(scenario())


def test_the_newest_record_wins_over_an_own_stale_copy() -> None:
    """kademlia: a node's own stale copy answers first."""

    async def scenario() -> None:
        async with network(20) as net:
            owner, key = Owner(), record_key("k")
            old, new = owner.sign("k", 1), owner.sign("k", 2)
            assert await net.nodes[0].put("k", new) > 0
            for node in net.nodes[5:10]:
                node._store._drop(key) if key in set(node._store.keys()) else None
                assert node._store.offer(key, old, subnet="", now_wall=net.clock.wall()).holds
            for node in net.nodes[5:10]:
                assert await node.get("k") == new

    run(scenario())


def test_a_reader_mends_keepers_that_have_an_older_record() -> None:
    async def scenario() -> None:
        async with network(6) as net:
            owner, key = Owner(), record_key("k")
            old, new = owner.sign("k", 1), owner.sign("k", 2)
            reader = net.nodes[0]
            for node in net.nodes[1:]:
                assert node._store.offer(key, new if node is net.nodes[1] else old, subnet="", now_wall=net.clock.wall()).holds

            def mended() -> bool:
                return len(net.holders("k", new)) >= 4

            async with asyncio.timeout(10):
                while not mended():
                    assert await reader.get("k") in (old, new)
            assert await reader.get("k") == new

    run(scenario())


def test_a_newcomer_is_handed_the_records_it_should_keep() -> None:
    """kademlia: `welcome_if_new` hashes the key twice and hands over the wrong ones."""

    async def scenario() -> None:
        async with network(25) as net:
            owner = Owner()
            records = {f"k{i}": owner.sign(f"k{i}", 1) for i in range(10)}
            for key, record in records.items():
                assert await net.nodes[0].put(key, record) > 0
            for key, record in records.items():
                close = bytearray(record_key(key))
                close[-1] ^= 1
                newcomer = await net.add(node_id=bytes(close))
                await until(lambda key=key, record=record, newcomer=newcomer: newcomer in net.holders(key, record))  # type: ignore[misc]

    run(scenario())


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_look_ups_and_stores_stay_fast_when_many_nodes_fall_silent(share: float) -> None:
    """kademlia: after 30 % of the nodes died a set takes 30 s."""

    async def scenario() -> None:
        async with network(40) as net:
            owner = Owner()
            records = {f"k{i}": owner.sign(f"k{i}", 1) for i in range(40)}
            for key, record in records.items():
                assert await net.rng.choice(net.nodes).put(key, record) > 0
            for node in net.rng.sample(net.nodes, int(40 * share)):
                await net.kill(node)
            got, get_s = await timed([net.rng.choice(net.nodes).get(key) for key in records])
            assert got == list(records.values())
            later = {f"n{i}": owner.sign(f"n{i}", 1) for i in range(40)}
            acks, put_s = await timed([net.rng.choice(net.nodes).put(key, record) for key, record in later.items()])
            assert min(int(str(a)) for a in acks) >= REPLICATION - 2
            assert [await net.rng.choice(net.nodes).get(key) for key in later] == list(later.values())
            for seconds in (get_s, put_s):  # far from the 30 s of waiting for the silent in turn; the benchmark holds the figure
                assert seconds[len(seconds) // 2] <= 10.0
                assert seconds[-1] <= 20.0
            await until(lambda: any(node.stats().num_dead for node in net.nodes))

    run(scenario())


def test_a_silent_node_is_forgotten_and_comes_back_when_heard() -> None:
    async def scenario() -> None:
        async with network(8) as net:
            victim = net.nodes[3]
            port, name = net.ports[victim], victim._own_id
            await net.kill(victim)
            observer = net.nodes[0]

            def listed() -> bool:
                return ("127.0.0.1", port, NodeId(name.hex())) in observer.export_contacts()

            async with asyncio.timeout(10):
                while listed() or observer.stats().num_dead == 0:
                    await observer.get(name)
            back = DhtDirectory(NodeId(name.hex()), clock=net.clock, rng=random.Random(9), verify=verify, single_host=True)
            try:
                assert await back.start("127.0.0.1", port) == port
                assert await back.bootstrap([("127.0.0.1", net.ports[observer])]) == 1
                await until(listed)
            finally:
                await back.stop()

    run(scenario())


def test_a_node_that_lost_everybody_joins_again() -> None:
    async def scenario() -> None:
        async with network(3) as net:
            lonely = net.nodes[2]
            for node in list(lonely._endpoint.router.contacts()):  # type: ignore[union-attr]
                lonely._endpoint.router.remove_contact(node)  # type: ignore[union-attr]
            lonely._rejoined_at = float("-inf")
            assert await lonely.put("k", Owner().sign("k", 1)) == 2

    run(scenario())


def test_own_records_are_republished_to_nodes_that_lost_them() -> None:
    async def scenario() -> None:
        async with network(10) as net:
            publisher = await net.add(republish_s=0.2, tick_s=0.05)
            record = Owner().sign("k", 1)
            assert await publisher.put("k", record) > 0
            for node in net.holders("k", record):
                node._store._drop(record_key("k"))
            await until(lambda: len(net.holders("k", record)) >= 9)
            publisher.withdraw("k")
            assert await publisher.republish_due(time.monotonic() + 1000.0) == 0

    run(scenario())


def test_no_datagram_is_too_large() -> None:
    """kademlia: requests over 8 KiB raise; here the largest record fits and larger ones are refused before anything is sent."""

    async def scenario() -> None:
        async with network(20) as net:
            sent: list[int] = []
            for node in net.nodes:
                transport = node._endpoint.transport  # type: ignore[union-attr]
                node._endpoint.transport = Recording(transport, sent)  # type: ignore[union-attr]
            owner = Owner()
            record = owner.sign("k", 1, value=b"x" * (1024 - 112))
            assert len(record) == 1024
            assert await net.nodes[0].put("k", record) >= REPLICATION - 1
            assert await net.nodes[1].get("k") == record
            with pytest.raises(InvalidInput) as caught:
                await net.nodes[0].put("k", owner.sign("k", 2, value=b"x" * 913))
            assert caught.value.code == "record_too_large"
            answered, _ = await net.nodes[0]._endpoint.request(contact(net, net.nodes[1]), "store", b"x" * 9000)  # type: ignore[union-attr]
            assert not answered
            assert max(sent) <= MAX_DATAGRAM_BYTES

    run(scenario())


class Recording:
    """Passes datagrams on and notes their sizes."""

    def __init__(self, inner: Any, sizes: list[int]) -> None:
        self._inner, self._sizes = inner, sizes

    def sendto(self, data: bytes, address: Any) -> None:
        self._sizes.append(len(data))
        self._inner.sendto(data, address)

    def close(self) -> None:
        self._inner.close()


def test_host_names_are_resolved_and_unknown_ones_are_not_fatal() -> None:
    """kademlia: addresses must be IPs."""

    async def scenario() -> None:
        async with network(3) as net:
            node = await net.add(entries=[("localhost", net.ports[net.nodes[0]])])
            assert await node.bootstrap([("name.invalid", 7700), ("", 0), ("x" * 300, 1)]) == 0
            assert len(node.export_contacts()) == 3
            assert all(host == "127.0.0.1" for host, _, _ in node.export_contacts())

    run(scenario())


def test_malformed_datagrams_are_counted_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with network(2) as net:
            victim = net.nodes[0]
            rng, ids = random.Random(1), bytes(20)
            noise = [
                b"", b"\x00", b"\x00" * 21, b"\x07" + bytes(40), b"\x01" + bytes(40), b"\x00" * 3000,
                b"\x00" + bytes(20) + b"\x91" * 2000, b"\x00" + bytes(20) + b"\xc1", b"\x00" + bytes(20) + b"\xdd\xff\xff\xff\xff",
                request("store", ids, ids), request("store", ids, ids, "text"), request("store", ids, ids, [1]), request("store", 1, 2, 3),
                request("find_node", ids, ids[:5]), request("find_node", "x" * 20, ids), request("ping", None), request("ping", victim._own_id),
                request("__init__"), request("connection_lost", ids), request(["ping"], ids), request("ping", ids, ids), request({"a": 1}),
                request("find_value", ids, {"a": ids}),
            ]  # fmt: skip
            noise += [b"\x00" + bytes(20) + rng.randbytes(rng.randrange(200)) for _ in range(200)]
            for data in noise:
                datagram_from_outside(net.ports[victim], data)
            await until(lambda: sum(victim.stats().rejected.values()) >= 200)
            record = Owner().sign("k", 1)
            assert await net.nodes[1].put("k", record) == 1
            assert await victim.get("k") == record
            assert set(victim.stats().rejected) <= {
                "datagram_size", "unknown_kind", "unasked_answer", "malformed", "unknown_method", "bad_arguments", "undeliverable",
            }  # fmt: skip
            assert victim.stats().num_contacts == 1

    run(scenario())
    assert caplog.records == []


def test_answers_of_wrong_shape_and_impostors_are_ignored() -> None:
    """A peer that answers nonsense, or that claims another's id, neither breaks a look-up nor enters the table."""

    async def scenario() -> None:
        async with network(5) as net:
            liar = net.nodes[4]
            endpoint = liar._endpoint
            junk: list[object] = [None, 5, "x", [1, 2], [[1, 2, 3]], {"value": 7}, {"value": b"unsigned"}, {"other": 1}, [[b"i" * 20, "x.y", 1]],
                                  [[b"i" * 20, "127.0.0.1", net.ports[net.nodes[0]]]] * 500]  # fmt: skip
            endpoint.rpc_find_node = lambda *args: net.rng.choice(junk[:9])  # type: ignore[union-attr]
            endpoint.rpc_find_value = lambda *args: net.rng.choice(junk)  # type: ignore[union-attr]
            record = Owner().sign("k", 1)
            assert await net.nodes[0].put("k", record) >= 3
            for _ in range(20):
                assert await net.nodes[1].get("k") == record
                assert await net.nodes[1].get("missing") is None
            known = {name for _, _, name in net.nodes[1].export_contacts()}
            assert NodeId((b"i" * 20).hex()) not in known

    run(scenario())


def test_an_id_counts_only_at_an_address_that_echoes_it() -> None:
    """A liar names an honest node's address under an id made up to be closest to a key."""

    async def scenario() -> None:
        async with network(5) as net:
            key = record_key("k")
            made_up = key[:-1] + bytes([key[-1] ^ 1])
            honest, liar, asker = net.nodes[0], net.nodes[4]._endpoint, net.nodes[1]
            assert liar is not None
            assert asker._walker is not None
            liar.rpc_find_node = lambda *args: [[made_up, "127.0.0.1", net.ports[honest]]]  # type: ignore[attr-defined]
            keepers, further = await asker._walker.closest(key)
            assert {c.id for c in keepers + further} == {n._own_id for n in net.nodes if n is not asker}
            assert NodeId(made_up.hex()) not in {name for _, _, name in asker.export_contacts()}

    run(scenario())


def test_a_flood_from_one_address_is_cut_and_others_are_served() -> None:
    async def scenario() -> None:
        async with network(3) as net:
            victim = net.nodes[0]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.bind(("127.0.0.1", 0))
                async with asyncio.timeout(10):
                    while victim.stats().rejected.get("rate_limited", 0) < 50:
                        for _ in range(10):
                            sock.sendto(request("find_node", bytes(20), bytes(20)), ("127.0.0.1", net.ports[victim]))
                        await asyncio.sleep(0)
                record = Owner().sign("k", 1)
                async with asyncio.timeout(10):
                    while await net.nodes[1].put("k", record) != 2:  # the flood's rest still fills the socket's buffer
                        pass
                assert await net.nodes[2].get("k") == record

    run(scenario())


def test_the_table_takes_few_contacts_of_one_subnet() -> None:
    async def scenario() -> None:
        net = Net()
        node = DhtDirectory(NodeId("0" * 40), clock=net.clock, rng=net.rng, verify=verify, single_host=False)
        try:
            await node.start("127.0.0.1", 0)
            for i in range(1, 50):
                node._endpoint._welcome(Contact(net.rng.randbytes(20), f"8.8.8.{i}", 7700))  # type: ignore[union-attr]
            assert node.stats().num_contacts <= 3
            for i in range(1, 50):
                node._endpoint._welcome(Contact(net.rng.randbytes(20), f"8.8.{i + 10}.1", 7700))  # type: ignore[union-attr]
            assert node.stats().num_contacts > 20
            node._endpoint._welcome(Contact(net.rng.randbytes(20), "127.0.0.1", 7700))  # type: ignore[union-attr]
            assert "127.0.0.1" not in {host for host, _, _ in node.export_contacts()}
        finally:
            await node.stop()

    run(scenario())


def test_stop_ends_look_ups_at_once_and_frees_the_port() -> None:
    async def scenario() -> None:
        async with network(3) as net:
            node = net.nodes[0]
            for other in net.nodes[1:]:
                await net.kill(other)
            lookup = asyncio.create_task(node.get("k"))
            await asyncio.sleep(0)
            since = time.perf_counter()
            await node.stop()
            assert await lookup is None
            assert time.perf_counter() - since < 5.0
            await node.stop()
            with pytest.raises(NotRunning):
                await node.get("k")
            again = DhtDirectory(NodeId("a" * 40), clock=net.clock, rng=net.rng, verify=verify, single_host=True)
            assert await again.start("127.0.0.1", net.ports[node]) == net.ports[node]
            await again.stop()

    run(scenario())
