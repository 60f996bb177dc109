"""One town of real membership nodes in this process, and what they cost: JSON on standard input and output, for `benchmarks.gossip`.

All bytes of this network namespace's loopback are theirs: TLS, sessions, gossip and directory. Processor time is that of this process by node; nodes with
processes of their own pay more for each message than nodes that share one.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

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

HOST = "127.0.0.1"


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


async def measured(num_nodes: int, settle_s: float, for_s: float) -> dict[str, Any]:
    """Starts so many nodes, waits, and looks twice."""
    first = NodeKey.generate()
    policy = verify_chain([
        create_document(
            NodeKey.generate(), name="town", now_wall=time.time(), orchestrator_ids=[first.node_id],
            locality=identity_pb2.LOCALITY_SINGLE_HOST,
        )
    ])  # fmt: skip
    nodes: list[Node] = []
    entries: list[str] = []
    try:
        for number in range(num_nodes):
            nodes.append(Node(policy, NodeKey.generate() if number else first, entries, number))
            address = await nodes[-1].start()
            entries = entries or [address]
        await asyncio.sleep(settle_s)
        begun, cpu_s, carried = time.monotonic(), time.process_time(), loopback_bytes()
        await asyncio.sleep(for_s)
        each = num_nodes * (time.monotonic() - begun)
        return {
            "bytes_s": round((loopback_bytes() - carried) / each, 1), "cpu_percent": round(100 * (time.process_time() - cpu_s) / each, 4),
            "known": min(len(node.membership.members()) for node in nodes),
        }  # fmt: skip
    finally:
        for node in reversed(nodes):
            await node.stop()


def loopback_bytes() -> int:
    """What this namespace's loopback has carried."""
    [line] = [line for line in Path("/proc/self/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[0])


def main() -> int:
    """Entry point."""
    asked = json.load(sys.stdin)
    if asked["anew"]:
        vars(gossip)["Circle"] = Anew
    told = asyncio.run(measured(asked["nodes"], asked["settle_s"], asked["for_s"]))
    print("\n" + json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
