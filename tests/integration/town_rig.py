"""A town of real membership nodes on loopback."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dcnr.errors import Unavailable
from dcnr.rpc.connection import Connection
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, membership_pb2, membership_pb2_grpc
from membership.gossip import GossipEvent
from membership.node import Membership, MembershipSettings
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy, create_document, verify_chain

QUICK = MembershipSettings(exchange_s=0.1, document_s=0.2, cache_s=0.2)
MAINTAINER = NodeKey.generate()


class SkewedClock(SystemClock):
    """A machine whose wall clock is wrong."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def wall(self) -> float:
        return time.time() + self.ahead_s


class CutDialer(Dialer):
    """A dialer from which there is no way to some nodes; of ``silent`` ones it does not even hear that, except for a probe."""

    cut_off: set[str]
    silent: set[str]
    num_silent = 0
    """Exchanges that wait for them."""

    async def connect(self, peer_id: str, addresses: Sequence[str], *, own_connection: bool | None = None) -> Connection:
        if peer_id in self.cut_off:
            raise Unavailable("no way there", code="unreachable")
        if peer_id in self.silent and own_connection is None:
            self.num_silent += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.num_silent -= 1
        return await super().connect(peer_id, addresses, own_connection=own_connection)


class Node:
    """One node: server, dialer, membership."""

    def __init__(self, policy: NetworkPolicy, key: NodeKey | None = None, *, entries: list[str], seed: int, **options: Any) -> None:
        self.key = key or NodeKey.generate()
        clock = options.pop("clock", None) or SystemClock()
        kind = membership_pb2.NODE_KIND_ORCHESTRATOR if policy.is_orchestrator(self.key.node_id) else membership_pb2.NODE_KIND_PNODE
        self.network = InForce(policy)
        self.dialer = CutDialer(self.key, policy.network_id, clock=clock, rng=secrets.token_bytes)
        self.dialer.cut_off, self.dialer.silent = set(), set()
        self.server = RpcServer(self.key, policy.network_id, clock=clock, rng=secrets.token_bytes)
        self.membership = Membership(
            key=self.key,
            network=self.network,
            kind=kind,
            dialer=self.dialer,
            clock=clock,
            rng=random.Random(seed),
            bootstrap=entries,
            settings=options.pop("settings", QUICK),
            **options,
        )
        self.server.add(lambda s: membership_pb2_grpc.add_MembershipServiceServicer_to_server(self.membership.servicer, s))
        self.events: list[GossipEvent] = []
        self.membership.subscribe(self.events.append)
        self.address = ""

    async def start(self, port: int = 0) -> None:
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1', port)}"
        await self.membership.start(self.address, "127.0.0.1", 0)

    async def stop(self) -> None:
        await self.membership.stop()
        await self.server.stop(0)

    async def die(self) -> None:
        """As by a power cut: it says nothing to anybody."""
        runner = self.membership._runner
        assert runner is not None
        runner.cancel()
        await asyncio.wait([runner])
        await self.membership._doubts.close()
        await self.membership._partners.close()
        await self.server.stop(0)
        await self.membership._directory.stop()

    def tables(self) -> set[str]:
        """Whom its part of the directory knows."""
        return {node_id for _, _, node_id in self.membership._directory.export_contacts()}

    def knows(self, *others: Node) -> bool:
        return all(self.membership.find(o.key.node_id) is not None for o in others if o is not self)


class Town:
    """A network with one listed orchestrator; nodes are stopped at the end, last first."""

    def __init__(self, network: str = "town") -> None:
        self.orchestrator_key = NodeKey.generate()
        self.policy = verify_chain(
            [
                create_document(
                    MAINTAINER,
                    name=network,
                    now_wall=time.time(),
                    orchestrator_ids=[self.orchestrator_key.node_id],
                    locality=identity_pb2.LOCALITY_SINGLE_HOST,
                )
            ]
        )
        self.nodes: list[Node] = []

    async def add(self, key: NodeKey | None = None, *, entries: list[str] | None = None, **options: Any) -> Node:
        if entries is None:
            entries = [self.nodes[0].address] if self.nodes else []
        port = options.pop("port", 0)
        node = Node(options.pop("policy", self.policy), key, entries=entries, seed=len(self.nodes), **options)
        await node.start(port)
        self.nodes.append(node)
        return node

    async def orchestrator(self, **options: Any) -> Node:
        return await self.add(self.orchestrator_key, **options)

    async def __aenter__(self) -> Town:
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in reversed(self.nodes):
            await node.stop()


def in_town(scene: Callable[[Town], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(180):
            async with Town() as town:
                await scene(town)

    asyncio.run(run())


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)
