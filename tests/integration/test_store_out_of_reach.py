"""Goal: where only orchestrators reach the store, everything else goes on through them: data comes in, a job is trained, a dead PNode's state restored, and
what came of it audited, without one connection of a PNode, a worker or a maintainer to the store.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator

import nursery
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

PASSES = 2
BATCHES_PER_S = 10.0
"""So many that the job outlasts what is done to the network, also where nothing else runs."""
PER_PASS = SAMPLES // BATCH_SIZE
PNODES = tuple(LocalPNode(f"p{number}", 1.0, 360) for number in (1, 2))
"""Each has room for both VNodes."""
VNODES = ("a", "b")
MADE_ELSEWHERE = (f"{keys.dataset_prefix(MODEL)}shards/", f"models/{MODEL}/state/", f"models/{MODEL}/commits/")
"""What no orchestrator makes: shards, states and commits."""
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


def test_a_network_whose_document_names_no_store_is_trained_through_its_orchestrators(way: StoreProxy) -> None:
    """Goal: all the way, with a power cut under a job at work. Who takes over was not there before: it has nothing but what comes through orchestrators."""
    first, second = PNODES
    with running_network([first], num_orchestrators=2, vnodes=VNODES, way_to_store=way.at, public_way=lambda endpoint: "") as rig:
        assert rig.network.policy is not None
        assert not rig.network.policy.document.store_address
        job_id = rig.submit("out of reach", passes=PASSES, batches_per_s=BATCHES_PER_S)
        rig.learning(job_id, 5, LONG_S)
        rig.until(lambda: all(rig.durable(vnode) for vnode in VNODES), "every VNode has a durable checkpoint", LONG_S)
        before = proxied(rig)
        cut_off(rig, rig.network.pnodes[0])
        heir = rig.network.add_pnode(*nursery.nursed([second]))
        rig.until(lambda: restored(heir) == len(VNODES), "both VNodes go on from what they had learned", LONG_S)
        read_bytes = proxied(rig).read_bytes - before.read_bytes
        assert read_bytes >= sum(min(stored(rig, keys.state_prefix(MODEL, vnode))) for vnode in VNODES)
        trained(rig, way, job_id, PASSES)


def test_who_does_not_reach_the_store_that_the_document_names_goes_through_orchestrators(way: StoreProxy, door: StoreProxy) -> None:
    """Goal: whoever is told of a store tries it, is not let in, and gets everything all the same."""
    knocks = door.meet(Trouble(Fault.DROP))
    with running_network(PNODES, num_orchestrators=2, vnodes=VNODES, way_to_store=way.at, public_way=door.at) as rig:
        trained(rig, way, rig.submit("not let in", passes=1), 1)
    assert knocks.met


def trained(rig: Rig, way: StoreProxy, job_id: str, passes: int) -> None:
    """The job completes with exact lineages; what lies in the store went through orchestrators, and nobody else was at it."""
    rig.ended(job_id, LONG_S)
    audit = rig.audit()
    assert all(item.exact and item.num_batches == passes * PER_PASS for item in audit), audit
    assert way.visitors == {process.pid for process in rig.network.orchestrators}
    told, brought = proxied(rig), stored(rig, *MADE_ELSEWHERE)
    assert told.written_bytes >= sum(brought) > 0
    assert told.num_written >= len(brought)
    assert told.read_bytes > 0


def cut_off(rig: Rig, victim: Process) -> None:
    """A power cut: its worker must not hand its state to whoever takes its place, as it does while only its daemon is gone."""
    worker = rig.told(victim).worker_pid
    for pid in (victim.pid, worker):
        os.kill(pid, signal.SIGKILL)
    rig.network.kill(victim)


def restored(process: Process) -> int:
    """How many replicas a PNode says to go on from learned batches, in a state that the store had."""
    return len(re.findall(r"restored [1-9]\d* batches from store", process.log.read_text()))


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


def stored(rig: Rig, *prefixes: str) -> list[int]:
    """Sizes of what lies in the store below these."""

    async def found() -> list[int]:
        return [row.size_bytes for prefix in prefixes for row in await all_below(store, prefix)]

    store = S3Store(rig.network.store.file.address())
    try:
        return asyncio.run(found())
    finally:
        store.close()
