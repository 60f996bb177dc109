"""Goal: where only orchestrators reach the store, everything else goes on through them: data comes in, a job is trained, a dead PNode's state restored, and
what came of it audited, without one connection of a PNode, a worker or a maintainer to the store.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator

import pytest
from network_rig import BATCH_SIZE, MODEL, SAMPLES, Rig, running_network
from store_proxy import Fault, StoreProxy, Trouble, store_proxy

from dataservice import keys
from dataservice.listing import all_below
from dataservice.s3 import S3Store
from dcnr.sdk.client import AsyncClient
from dcnr.testing import LocalPNode, Process
from dcnr.v1 import orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub

PASSES = 4
BATCHES_PER_S = 20.0
"""So many that the job outlasts what is done to the network, also where nothing else runs."""
PER_PASS = SAMPLES // BATCH_SIZE
PNODES = tuple(LocalPNode(f"p{number}", 1.0, 360) for number in (1, 2, 3))
"""Each has room for two of the three VNodes."""
LONG_S = 240.0


@pytest.fixture
def way() -> Iterator[StoreProxy]:
    """The orchestrators' way to the store, which sees whoever else comes by."""
    with store_proxy() as made:
        made.visitors = set()
        yield made


@pytest.fixture
def door() -> Iterator[StoreProxy]:
    """Where everybody else finds the store, and nobody is let in."""
    with store_proxy() as made:
        yield made


@pytest.mark.parametrize("document", ["names no store", "names one that nobody reaches"])
def test_a_network_trains_through_its_orchestrators(way: StoreProxy, door: StoreProxy, document: str) -> None:
    knocks = door.meet(Trouble(Fault.DROP))
    is_named = document != "names no store"
    with running_network(
        PNODES, num_orchestrators=2, way_to_store=way.at, public_way=door.at if is_named else lambda endpoint: ""
    ) as rig:
        assert rig.network.policy is not None
        assert bool(rig.network.policy.document.store_address) is is_named
        job_id = rig.submit("out of reach", passes=PASSES, batches_per_s=BATCHES_PER_S)
        hosts = rig.learning(job_id, 10, LONG_S)
        rig.until(lambda: all(rig.durable(vnode) for vnode in rig.vnodes), "every VNode has a durable checkpoint", LONG_S)
        victim = hosts["b"][0]
        cut_off(rig, victim)
        before, logs = proxied(rig), {process.name: len(process.log.read_text()) for process in rig.network.pnodes}
        rig.until(lambda: restored(rig, logs), "somebody goes on from the dead PNode's state", LONG_S)
        assert proxied(rig).read_bytes > before.read_bytes
        rig.ended(job_id, LONG_S)
        audit = rig.audit()
        assert all(item.exact and item.num_batches == PASSES * PER_PASS for item in audit), audit
        told, brought = proxied(rig), stored(rig)
        assert told.written_bytes >= sum(brought)
        assert told.num_written >= len(brought)
        assert way.visitors == {process.pid for process in rig.network.orchestrators}
    assert bool(knocks.met) is is_named, "who is told of a store tries it"


def cut_off(rig: Rig, victim: Process) -> None:
    """A power cut: its worker must not hand its state to whoever takes its place, as it does while only its daemon is gone."""
    worker = rig.told(victim).worker_pid
    for pid in (victim.pid, worker):
        os.kill(pid, signal.SIGKILL)
    rig.network.kill(victim)


def restored(rig: Rig, logs: dict[str, int]) -> bool:
    """Whether a PNode says, after so much in its log, that it goes on from learned batches which the store had."""
    said = [process.log.read_text()[logs[process.name] :] for process in rig.network.pnodes]
    return any(re.search(r"restored [1-9]\d* batches from store", text) for text in said)


def proxied(rig: Rig) -> orchestrator_pb2.ProxyFigures:
    """What went through all orchestrators together, by their own counting."""

    async def told(client: AsyncClient) -> list[orchestrator_pb2.GetStatusResponse]:
        found = [await client.orchestrators.connection(*known) for known in client.orchestrators.known()]
        question = orchestrator_pb2.GetStatusRequest()
        return [await one.call(OrchestratorServiceStub(one.channel).GetStatus, question, timeout_s=LONG_S) for one in found]

    total = orchestrator_pb2.ProxyFigures()
    for answer in rig.ask(told):
        for figure in total.DESCRIPTOR.fields:
            setattr(total, figure.name, getattr(total, figure.name) + getattr(answer.proxied, figure.name))
    return total


def stored(rig: Rig) -> list[int]:
    """Sizes of what lies in the store and no orchestrator made: shards, states and commits."""

    async def found() -> list[int]:
        prefixes = [f"{keys.dataset_prefix(MODEL)}shards/", f"models/{MODEL}/state/", f"models/{MODEL}/commits/"]
        return [row.size_bytes for prefix in prefixes for row in await all_below(store, prefix)]

    store = S3Store(rig.network.store.file.address())
    try:
        return asyncio.run(found())
    finally:
        store.close()
