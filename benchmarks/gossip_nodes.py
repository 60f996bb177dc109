"""One town of real membership nodes, and what they cost: JSON on standard input and output, for `benchmarks.gossip`.

All bytes of this network namespace's loopback are theirs: TLS, sessions, gossip and directory. `QUARTER` nodes at most share a process: a node that starts
opens about a hundred connections, both ends of which are descriptors here. Processor time is that of these processes by node; nodes with processes of their
own pay more for each message than nodes that share one.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import secrets
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from dcnr.ports import Random
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, membership_pb2, membership_pb2_grpc
from membership import gossip
from membership.circle import Circle
from membership.node import Membership
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy, create_document, verify_chain
from trust.records import VerifiedAdvert

HOST: Final = "127.0.0.1"
QUARTER: Final = 25
"""Nodes of one process."""
APART_S: Final = 1.0
"""Between the starts of two nodes: two cores have no more handshakes to give, and nodes whose partners are late ask others whether they live."""
STARTED_S: Final = 120.0
"""That a quarter takes at most to start."""


class Anew(Circle):
    """What a circle is compared with: partners are drawn from everybody each time."""

    def partners(
        self, rng: Random, willing: Sequence[VerifiedAdvert], again: Collection[str], count: int, now_s: float
    ) -> list[VerifiedAdvert]:
        """As the circle's."""
        return rng.sample(willing, min(count, len(willing)))


class Node:
    """Server, dialer and membership of one."""

    def __init__(self, policy: NetworkPolicy, key: NodeKey, entries: Sequence[str], seed: int) -> None:
        clock = SystemClock()
        kind = membership_pb2.NODE_KIND_ORCHESTRATOR if policy.is_orchestrator(key.node_id) else membership_pb2.NODE_KIND_PNODE
        self._dialer = Dialer(key, policy.network_id, clock=clock, rng=secrets.token_bytes)
        self._server = RpcServer(key, policy.network_id, clock=clock, rng=secrets.token_bytes)
        self.membership = Membership(
            key=key,
            network=InForce(policy),
            kind=kind,
            dialer=self._dialer,
            clock=clock,
            rng=random.Random(seed),
            bootstrap=entries,
        )
        self._server.add(
            lambda server: membership_pb2_grpc.add_MembershipServiceServicer_to_server(self.membership.servicer, server)
        )

    async def start(self) -> str:
        """Its address."""
        address = f"{HOST}:{await self._server.start(HOST, 0)}"
        await self.membership.start(address, HOST, 0)
        return address

    async def stop(self) -> None:
        """Ends it."""
        await self.membership.stop()
        await self._server.stop(0)


def measured(num_nodes: int, settle_s: float, for_s: float, *, anew: bool) -> dict[str, Any]:
    """Starts so many nodes, waits, and looks twice. Raises TimeoutError; nothing runs afterwards."""
    spawn = multiprocessing.get_context("spawn")
    quarters: list[Connection] = []
    founded: tuple[NetworkPolicy, str] | None = None
    try:
        for first in range(0, num_nodes, QUARTER):
            ours, theirs = spawn.Pipe()
            quarters.append(ours)
            numbers = range(first, min(first + QUARTER, num_nodes))
            spawn.Process(target=quarter, args=(theirs, numbers, founded), kwargs={"anew": anew}, daemon=True).start()
            theirs.close()
            founded = answer(ours)
        time.sleep(settle_s)
        begun, carried, cpu_before = time.monotonic(), loopback_bytes(), [told["cpu_s"] for told in looked(quarters)]
        time.sleep(for_s)
        each, carried = num_nodes * (time.monotonic() - begun), loopback_bytes() - carried
        after = looked(quarters)
        cpu_s = sum(told["cpu_s"] for told in after) - sum(cpu_before)
        return {
            "bytes_s": round(carried / each, 1), "cpu_percent": round(100 * cpu_s / each, 4), "known": min(told["known"] for told in after),
        }  # fmt: skip
    finally:
        for pipe in quarters:
            pipe.close()
        for process in multiprocessing.active_children():
            process.join(STARTED_S)


def looked(quarters: Sequence[Connection]) -> list[dict[str, Any]]:
    """What each quarter has used until now, and whom its nodes know."""
    for pipe in quarters:
        pipe.send("look")
    return [answer(pipe) for pipe in quarters]


def answer(pipe: Connection) -> Any:
    """What comes next. Raises TimeoutError, EOFError where the quarter has failed."""
    if not pipe.poll(STARTED_S):
        raise TimeoutError(f"a quarter of the town said nothing for {STARTED_S:.0f} s")
    return pipe.recv()


def quarter(pipe: Connection, numbers: Sequence[int], founded: tuple[NetworkPolicy, str] | None, *, anew: bool) -> None:
    """A process: these nodes, until the other end is closed. ``founded``: the network and its first node's address, which it says when all have started."""
    if anew:
        vars(gossip)["Circle"] = Anew
    asyncio.run(_quarter(pipe, numbers, founded))


async def _quarter(pipe: Connection, numbers: Sequence[int], founded: tuple[NetworkPolicy, str] | None) -> None:
    key = NodeKey.generate()
    policy, entry = founded or (network_of(key), "")
    nodes: list[Node] = []
    try:
        for number in numbers:
            nodes.append(Node(policy, key, [entry] if entry else [], number))
            address, key = await nodes[-1].start(), NodeKey.generate()
            entry = entry or address
            await asyncio.sleep(APART_S)
        pipe.send((policy, entry))
        with suppress(EOFError):
            while await asyncio.to_thread(pipe.recv):
                pipe.send({"cpu_s": time.process_time(), "known": min(len(node.membership.members()) for node in nodes)})
    finally:
        for node in reversed(nodes):
            await node.stop()


def network_of(orchestrator: NodeKey) -> NetworkPolicy:
    """A new one."""
    document = create_document(
        NodeKey.generate(), name="town", now_wall=time.time(), orchestrator_ids=[orchestrator.node_id],
        locality=identity_pb2.LOCALITY_SINGLE_HOST,
    )  # fmt: skip
    return verify_chain([document])


def loopback_bytes() -> int:
    """What this namespace's loopback has carried."""
    [line] = [line for line in Path("/proc/self/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[0])


def main() -> int:
    """Entry point."""
    asked = json.load(sys.stdin)
    told = measured(asked["nodes"], asked["settle_s"], asked["for_s"], anew=asked["anew"])
    print("\n" + json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
