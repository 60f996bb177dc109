"""One orchestrator's services over real gRPC, above a store in memory, and strangers that call them."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
from orchestrator_parts import capability, network

from dataservice.memory import MemoryStore
from dcnr.rpc.connection import Connection
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, membership_pb2, orchestrator_pb2
from dcnr.v1.data_pb2_grpc import add_DataServiceServicer_to_server
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub, add_OrchestratorServiceServicer_to_server
from orchestrator.attach import AttachService
from orchestrator.datarpc import DataServicer
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.rpc import OrchestratorServicer
from orchestrator.runtime import Shared
from orchestrator.view import ViewLoader
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy
from trust.records import make_advert
from vnode.registry import default_registry

CLOCK = SystemClock()
MODEL = "toy"
WAIT_S = 60.0


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = CLOCK.monotonic() + WAIT_S
    while not condition():
        assert CLOCK.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.02)


@dataclass
class Rig:
    """The orchestrator's services over real gRPC, above a store in memory."""

    policy: NetworkPolicy
    shared: Shared
    store: MemoryStore
    key: NodeKey
    runtimes: dict[str, Any]
    address: str = ""
    open: list[Connection] = field(default_factory=list)
    data: DataServicer = field(init=False)
    services: OrchestratorServicer = field(init=False)

    async def dial(self, caller: NodeKey) -> Connection:
        dialer = Dialer(caller, self.policy.network_id, clock=CLOCK, rng=secrets.token_bytes, own_connections=True)
        connection = await dialer.connect(self.key.node_id, [self.address])
        self.open.append(connection)
        return connection

    async def attach(self, caller: NodeKey, connection: Connection) -> Any:
        """A control stream that has been welcomed, and whose coming is written down."""
        advert = make_advert(
            caller, network_id=self.policy.network_id, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=1, now_wall=CLOCK.wall(),
            lifetime_s=60, control_addresses=[], capability=capability(),
        )  # fmt: skip
        stub: Any = OrchestratorServiceStub(connection.channel)
        call = stub.Attach(metadata=connection.metadata)
        await call.write(orchestrator_pb2.PNodeMessage(hello=orchestrator_pb2.Hello(advert=advert)))
        assert (await call.read()).HasField("welcome")
        await until(lambda: bool(self.shared.history.about({caller.node_id}, 1)), "its coming is written down")
        return call

    def record(self, caller: NodeKey) -> Any:
        return self.shared.inventory.nodes()[caller.node_id]


def own_advert(policy: NetworkPolicy, key: NodeKey) -> identity_pb2.Envelope:
    """The orchestrator's own."""
    return make_advert(
        key, network_id=policy.network_id, kind=membership_pb2.NODE_KIND_ORCHESTRATOR, incarnation=1, sequence=1, now_wall=CLOCK.wall(),
        lifetime_s=300, control_addresses=["127.0.0.1:1"],
    )  # fmt: skip


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    key = NodeKey.generate()
    policy = network(NodeKey.generate(), [key], CLOCK)
    store = MemoryStore(CLOCK, random.Random(1))
    shared = Shared(key, InForce(policy), store, CLOCK, default_registry(), Inventory(), History(None, key.node_id, CLOCK))
    found = Rig(policy, shared, store, key, {})

    async def look() -> None:
        """The runtimes are those that a test puts there."""

    models: Any = SimpleNamespace(
        shared=shared,
        look=look,
        loader=ViewLoader(store, lambda: policy, shared.registry, CLOCK),
        runtimes=found.runtimes,
        software="test",
        started_at=0.0,
        check_room=lambda model: None,
    )

    async def unreachable(node_id: str, addresses: list[str]) -> bool:
        return False

    attach = AttachService(shared, models.runtimes, head_url=lambda model: ("", 0), reach=unreachable)
    found.data = DataServicer(shared, models.runtimes, presigner=None, proxy_uploads=True, known=lambda node: True)
    directory: Any = SimpleNamespace(own_advert=own_advert(policy, key), orchestrators=list)
    asking: Any = None
    metering: Any = None
    server = RpcServer(key, policy.network_id, clock=CLOCK, rng=secrets.token_bytes)
    found.services = OrchestratorServicer(models, attach, directory, asking, metering)
    server.add(lambda target: add_OrchestratorServiceServicer_to_server(found.services, target))
    server.add(lambda target: add_DataServiceServicer_to_server(found.data, target))
    found.address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        yield found
    finally:
        for connection in found.open:
            await connection.close()
        await server.stop(0.1)


def run(story: Callable[[Rig], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120), rig() as found:
            await story(found)

    asyncio.run(whole())


async def ended(call: Any) -> grpc.StatusCode:
    """How a stream ended, after everything that was said before is read."""
    while (await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        pass
    code: grpc.StatusCode = await call.code()
    return code


def beat(sequence: int, **fields: Any) -> orchestrator_pb2.PNodeMessage:
    return orchestrator_pb2.PNodeMessage(beat=orchestrator_pb2.Beat(sequence=sequence, worker_alive=True, **fields))
