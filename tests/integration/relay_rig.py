"""Relays in this process, and what listens and dials through them."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from typing import Any

from worker_rig import DaemonEnd

from dcnr.client import Orchestrators
from dcnr.ids import NodeId
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.guard import caller_of, peer_of
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, membership_pb2, membership_pb2_grpc
from membership.reach_desk import ReachDesk
from membership.relay_desk import RelayDesk
from membership.relay_streams import CallStream
from membership.relays import RelayDialer
from pnode.listening import Listening
from trust.delegation import make_delegation
from trust.identity import NodeKey

CLOCK = SystemClock()


class Relay(membership_pb2_grpc.MembershipServiceServicer):
    """A server with nothing but a desk that passes on for everybody, and one that dials its callers."""

    def __init__(self, network_id: str, *, key: NodeKey | None = None, bytes_s: float = 1e9) -> None:
        self.key = key or NodeKey.generate()
        self.desk = RelayDesk(
            CLOCK,
            secrets.token_bytes,
            may_use=lambda peer: True,
            is_orchestrator=lambda name: name == self.key.node_id,
            bytes_s=bytes_s,
        )
        self.reach = ReachDesk(network_id, CLOCK)
        self.server = RpcServer(self.key, network_id, clock=CLOCK, rng=secrets.token_bytes)
        self.server.add(lambda target: membership_pb2_grpc.add_MembershipServiceServicer_to_server(self, target))

    async def Relay(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await self.desk.serve(CallStream(context), peer_of(context))

    async def Reach(self, request: membership_pb2.ReachRequest, context: Any) -> membership_pb2.ReachResponse:
        return await self.reach.serve(request, peer_of(context), caller_of(context))

    @property
    def known(self) -> tuple[NodeId, Sequence[str]]:
        return self.key.node_id, (f"127.0.0.1:{self.server.port}",)


@asynccontextmanager
async def relays(network_id: str, count: int = 1, **options: Any) -> AsyncIterator[list[Relay]]:
    made = [Relay(network_id, **options) for _ in range(count)]
    try:
        for relay in made:
            await relay.server.start("127.0.0.1", 0)
        yield made
    finally:
        for relay in made:
            await relay.server.stop(0)


@asynccontextmanager
async def listening(
    network_id: str, worker: NodeKey, port: int, known: Sequence[Relay], volunteers: Set[NodeId] = frozenset()
) -> AsyncIterator[Listening]:
    """The worker with that key, whose server is at ``port`` and which nobody else dials, at all these relays."""
    delegation = make_delegation(NodeKey.generate(), network_id, worker.public_der, 1, [], time.time())
    reached = connected_to(network_id, worker, known, lambda: delegation)
    listener = Listening(
        worker.node_id, port, reached, CLOCK, random.Random(1), lambda *_: None, lambda: None, volunteers=lambda: volunteers
    )
    running = asyncio.ensure_future(listener.run())
    listener.want(True)
    try:
        await until(lambda: len(listener.at) == len(known), "it listens at all relays")
        yield listener
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reached.close()


@asynccontextmanager
async def dialling(
    network_id: str, caller: NodeKey, known: Sequence[Relay], near: Sequence[str] = (), volunteers: Set[NodeId] = frozenset()
) -> AsyncIterator[RelayDialer]:
    reached = connected_to(network_id, caller, known)
    dialer = Dialer(caller, network_id, clock=CLOCK, rng=secrets.token_bytes)
    try:
        yield RelayDialer(dialer, reached, near=lambda worker_id: near, volunteers=lambda: volunteers)
    finally:
        await reached.close()


def connected_to(
    network_id: str, key: NodeKey, known: Sequence[Relay], delegation: Callable[[], identity_pb2.Envelope | None] = lambda: None
) -> Orchestrators:
    """What keeps connections of that key to them."""
    dialer = Dialer(key, network_id, clock=CLOCK, rng=secrets.token_bytes, delegation=delegation, own_connections=True)
    return Orchestrators(dialer, lambda: [relay.known for relay in known])


async def tell_of_relays(end: DaemonEnd, known: Sequence[Relay], *, outbound_only: bool) -> None:
    """That worker dials through these relays where it has to; ``outbound_only``: from now on nobody dials it otherwise, and it listens at all of them."""
    told = [local_pb2.RelayAddress(node_id=node_id, addresses=where) for node_id, where in (relay.known for relay in known)]
    if outbound_only:
        await end.delegate([])
    await end.pipe.send(local_pb2.ToWorker(relays=local_pb2.WorkerRelays(relays=told, listen=outbound_only)))
    if outbound_only:
        await end.until(lambda: len(end.listens_at) == len(known))


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)
