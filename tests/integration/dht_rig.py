"""A directory of real nodes on loopback, with a clock that tests move."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import umsgpack  # type: ignore[import-untyped]
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dcnr.ids import NodeId, node_id_of
from membership.dht import DhtDirectory
from membership.dht_peers import Contact
from membership.directory import VerifiedRecord, record_key

AT_ONCE = 10


class Clock:
    """The loop's time and the machine's wall clock; tests move the wall clock of a whole network forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

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


async def until(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - conditions of other nodes have no event
            await asyncio.sleep(0.01)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def timed(work: Sequence[Awaitable[object]]) -> tuple[list[object], list[float]]:
    """What came of it, and the seconds of each by the loop's time, sorted. `AT_ONCE` at a time."""
    gate, time = asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop().time

    async def one(job: Awaitable[object]) -> tuple[object, float]:
        async with gate:
            since = time()
            return await job, time() - since

    done = await asyncio.gather(*(one(job) for job in work))
    return [d[0] for d in done], sorted(d[1] for d in done)


def datagram_from_outside(port: int, data: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(data, ("127.0.0.1", port))


def request(method: object, *args: object) -> bytes:
    packed: bytes = umsgpack.packb([method, list(args)])
    return b"\x00" + bytes(20) + packed


def contact(net: Net, node: DhtDirectory) -> Contact:
    return Contact(node._own_id, "127.0.0.1", net.ports[node])


class Recording:
    """Passes datagrams on and notes their sizes."""

    def __init__(self, inner: Any, sizes: list[int]) -> None:
        self._inner, self._sizes = inner, sizes

    def sendto(self, data: bytes, address: Any) -> None:
        self._sizes.append(len(data))
        self._inner.sendto(data, address)

    def close(self) -> None:
        self._inner.close()
