"""An orchestrator as its process runs it, over the real store, and PNodes that attach to it and report what they are told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator_parts import Worker, capability, network

from dataservice.s3 import StoreAddress
from dcnr.rpc.connection import Connection
from dcnr.rpc.dialer import Dialer
from dcnr.settings import OrchestratorSettings
from dcnr.system import SystemClock
from dcnr.v1 import membership_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from orchestrator.documents import open_desired
from orchestrator.service import run_orchestrator
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy
from trust.records import make_advert

CLOCK = SystemClock()


class PNode:
    """The control stream of a PNode, and its calls."""

    def __init__(self, worker: Worker, policy: NetworkPolicy) -> None:
        self.worker, self.policy = worker, policy
        self.heard: list[orchestrator_pb2.OrchestratorMessage] = []
        self.head_url = ""

    async def attach(self, connection: Connection) -> None:
        """Beats and obeys until cancelled."""
        stub: Any = OrchestratorServiceStub(connection.channel)
        call = stub.Attach(metadata=connection.metadata)
        advert = make_advert(
            self.worker.daemon, network_id=self.policy.network_id, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=1,
            now_wall=CLOCK.wall(), lifetime_s=60, control_addresses=[], capability=capability(),
        )  # fmt: skip
        await call.write(orchestrator_pb2.PNodeMessage(hello=orchestrator_pb2.Hello(advert=advert)))

        async def beats() -> None:
            while True:
                await call.write(orchestrator_pb2.PNodeMessage(beat=self.worker.beat()))
                await asyncio.sleep(0.2)

        beating = asyncio.create_task(beats())
        try:
            async for message in call:
                self.heard.append(message)
                if message.HasField("desired"):
                    self.worker.host(open_desired(message.desired.SerializeToString(), self.policy, "toy"))
                if message.HasField("head"):
                    self.head_url = message.head.head_url
        finally:
            beating.cancel()
            call.cancel()


async def dial(caller: NodeKey, policy: NetworkPolicy, key: NodeKey, address: str) -> Connection:
    return await Dialer(caller, policy.network_id, clock=CLOCK, rng=secrets.token_bytes).connect(key.node_id, [address])


def network_over(store: StoreAddress, maintainer: NodeKey, key: NodeKey) -> NetworkPolicy:
    """A network of one orchestrator over that store."""
    return network(maintainer, [key], CLOCK, store_address=store.endpoint.partition("://")[2], bucket=store.bucket)


@contextlib.asynccontextmanager
async def serving(store: StoreAddress, home: Path, key: NodeKey, policy: NetworkPolicy) -> AsyncIterator[str]:
    """The address of an orchestrator that serves while the block lasts."""
    home.mkdir()
    write_store_file(home / "store.json", store)
    settings = replace(
        OrchestratorSettings(),
        listen_host="127.0.0.1",
        control_port=0,
        dht_port=0,
        store_url=store.endpoint,
        store_bucket=store.bucket,
    )
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(
        run_orchestrator(
            settings, home, key=key, network=InForce(policy), clock=CLOCK, rng=random.Random(1), random_bytes=secrets.token_bytes, stop=stop,
            on_ready=lambda host, port: ready.set_result(f"{host}:{port}"),
        )
    )  # fmt: skip
    try:
        await asyncio.wait({running, ready}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert ready.done(), running
        yield ready.result()
    finally:
        stop.set()
        await running


def write_store_file(path: Path, address: StoreAddress) -> None:
    content = {
        "endpoint": address.endpoint, "bucket": address.bucket, "access_key": address.access_key, "secret_key": address.secret_key,
        "public_endpoint": "",
    }  # fmt: skip
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
