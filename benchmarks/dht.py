"""Discovery over the DHT directory: many nodes in one process on loopback, some of which fall silent. Prints one JSON object.

    python benchmarks/dht.py --nodes 50 --kill 0.3

Every record is signed and verified with ECDSA P-256. Phases: start and bootstrap, set, get, kill a share silently, get, get again, new sets, and
get of those. A set counts as ok when at least one other node acknowledged it, a get when it brings exactly the record that was set.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dcnr.ids import NodeId, node_id_of
from membership.dht import DhtDirectory
from membership.directory import VerifiedRecord, record_key


class MachineClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class Signer:
    """Signs and verifies records of one owner: sequence, expiry, value, DER signature."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key()
        self._owner = node_id_of(public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))

    def sign(self, name: str, value: bytes) -> bytes:
        payload = struct.pack(">QdH", 1, time.time() + 600.0, len(value)) + value
        return payload + self._key.sign(record_key(name) + payload, ec.ECDSA(hashes.SHA256()))

    def verify(self, key: bytes, record: bytes, now_wall: float) -> VerifiedRecord | None:
        if len(record) < 18:
            return None
        sequence, expires, size = struct.unpack(">QdH", record[:18])
        try:
            self._key.public_key().verify(record[18 + size :], key + record[: 18 + size], ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return None
        return VerifiedRecord(key, self._owner, sequence, expires)


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    ranked = sorted(seconds)
    pick = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(1e3 * ranked[min(len(ranked) - 1, int(share * len(ranked)))], 2) for name, share in pick.items()}


async def measure(names: Sequence[str], operation: Callable[[str], Awaitable[bool]], at_once: int) -> dict[str, Any]:
    """Runs the operation on each name, ``at_once`` at a time."""
    slots, seconds, oks = asyncio.Semaphore(at_once), list[float](), list[bool]()

    async def one(name: str) -> None:
        async with slots:
            since = time.perf_counter()
            oks.append(await operation(name))
            seconds.append(time.perf_counter() - since)

    since = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))
    wall_s = round(time.perf_counter() - since, 2)
    return {"ok": sum(oks), "total": len(oks), "concurrency": at_once, "wall_s": wall_s, "ms": quantiles(seconds)}


async def start_nodes(args: argparse.Namespace, rng: random.Random, signer: Signer) -> tuple[list[DhtDirectory], dict[str, Any]]:
    """All nodes, each bootstrapped from up to three earlier ones."""
    nodes: list[DhtDirectory] = []
    ports: list[int] = []
    joins: list[float] = []
    since = time.perf_counter()
    for _ in range(args.nodes):
        node = DhtDirectory(
            NodeId(rng.randbytes(20).hex()),
            clock=MachineClock(),
            rng=random.Random(rng.random()),
            verify=signer.verify,
            single_host=True,
        )
        began = time.perf_counter()
        port = await node.start("127.0.0.1", 0)
        entries = [("127.0.0.1", p) for p in rng.sample(ports, min(3, len(ports)))]
        if entries and await node.bootstrap(entries) == 0:
            raise SystemExit("a node reached nobody")
        joins.append(time.perf_counter() - began)
        nodes.append(node)
        ports.append(port)
    return nodes, {"bootstrap_total_s": round(time.perf_counter() - since, 2), "join_ms": quantiles(joins)}


async def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All phases."""
    rng, signer = random.Random(args.seed), Signer()
    out: dict[str, Any] = {
        "impl": "dcnr", "nodes": args.nodes, "kill": args.kill, "keys": args.keys, "value_bytes": args.value, "seed": args.seed, "loop": args.loop,
    }  # fmt: skip
    nodes, joined = await start_nodes(args, rng, signer)
    sizes = sorted(node.stats().num_contacts for node in nodes)
    out |= joined | {"routing_table_size": {"min": sizes[0], "median": sizes[len(sizes) // 2], "max": sizes[-1]}}
    records: dict[str, bytes] = {}

    async def put(name: str) -> bool:
        records[name] = signer.sign(name, b"x" * args.value)
        return await rng.choice(nodes).put(name, records[name]) > 0

    async def get(name: str) -> bool:
        return await rng.choice(nodes).get(name) == records[name]

    first, later = [f"k{i}" for i in range(args.keys)], [f"n{i}" for i in range(args.keys)]
    out["set"] = await measure(first, put, args.conc)
    out["get"] = await measure(first, get, args.conc)
    if args.kill > 0:
        for node in rng.sample(nodes, int(args.kill * len(nodes))):
            nodes.remove(node)
            await node.stop()
        out["get_after_kill"] = await measure(first, get, args.kill_conc)
        out["get_after_kill_2nd"] = await measure(first, get, args.kill_conc)
        out["set_after_kill"] = await measure(later, put, args.kill_conc)
        out["get_of_new_after_kill"] = await measure(later, get, args.kill_conc)
    out["max_rss_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out["targets_met"] = targets_met(out)
    for node in nodes:
        await node.stop()
    return out


def targets_met(out: dict[str, Any]) -> bool:
    """After a kill: success ≥ 99 %, p50 ≤ 1 s, p99 ≤ 5 s; before it everything succeeds."""
    whole = all(out[phase]["ok"] == out[phase]["total"] for phase in ("set", "get"))
    after = [row for phase, row in out.items() if "after_kill" in phase]
    return whole and all(r["ok"] >= 0.99 * r["total"] and r["ms"]["p50"] <= 1000 and r["ms"]["p99"] <= 5000 for r in after)


def main() -> int:
    """Entry point; exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--value", type=int, default=100, help="bytes of value in a record")
    parser.add_argument("--kill", type=float, default=0.3, help="share of nodes that fall silent")
    parser.add_argument("--conc", type=int, default=1, help="operations at once before the kill")
    parser.add_argument("--kill-conc", type=int, default=16, help="operations at once after the kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="uvloop")
    args = parser.parse_args()
    result = (uvloop.run if args.loop == "uvloop" else asyncio.run)(bench(args))
    print(json.dumps(result))
    return 0 if result["targets_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
