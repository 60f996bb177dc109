"""Goal: a store that denies a call (keys that were changed, clocks that differ, a start in which it knows nobody yet) has judged nothing: once for every kind
of document, nothing accepted fails, nothing made is thrown away, and the job completes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from network_rig import BATCH_SIZE, SAMPLES, Rig, running_network
from runtime_rig import JOB, MODEL, World, until
from store_proxy import Fault as ProxyFault
from store_proxy import StoreProxy, Trouble, store_proxy

from dataservice import keys
from dataservice.memory import Fault, Operation, PlannedFaults
from dcnr.errors import Unavailable
from dcnr.testing import LocalPNode
from dcnr.v1 import data_pb2, model_pb2

GET, HEAD, LIST, PUT = Operation.GET, Operation.HEAD, Operation.LIST, Operation.PUT
NETWORK_MODEL = "dots"
LONG_S = 240.0


# ---- an orchestrator's reads ----------------------------------------------------------------------------------------------------


def denied(*calls: tuple[Operation, str]) -> PlannedFaults:
    """Each of these calls is denied once."""
    return PlannedFaults([(operation, prefix, Fault.DENIED) for operation, prefix in calls])


async def recorded(made: World, holder: int, request: data_pb2.RecordCheckpointRequest) -> None:
    """As a PNode does it: repeated until a manifest names it, and given up if it is refused."""
    status = data_pb2.RECORD_STATUS_UNSPECIFIED
    while status != data_pb2.RECORD_STATUS_NAMED:
        with contextlib.suppress(Unavailable):
            answer = await made.orchestrators[holder].runtime.record(request)
            status = answer.status
            assert status in (data_pb2.RECORD_STATUS_PENDING, data_pb2.RECORD_STATUS_NAMED), answer.reason
        await asyncio.sleep(0.05)


def test_a_job_completes_though_each_of_its_documents_was_denied_once_to_its_holder_and_to_its_successor() -> None:
    first_reads = [
        (GET, keys.head(MODEL)), (LIST, keys.jobs_prefix(MODEL)), (GET, keys.job_request(MODEL, JOB)), (GET, "graph/"),
        (GET, f"models/{MODEL}/manifests/"),
    ]  # fmt: skip
    writes = [
        (PUT, f"models/{MODEL}/plans/"),
        (PUT, f"models/{MODEL}/plans/"),
        (PUT, f"models/{MODEL}/manifests/"),
        (PUT, keys.head(MODEL)),
    ]
    judged = [(HEAD, f"models/{MODEL}/state/"), (GET, f"models/{MODEL}/state/"), (PUT, keys.job_end(MODEL, JOB))]

    async def story() -> None:
        made = World(orchestrators=2, workers=2)
        first, second = made.orchestrators
        try:
            first.start()
            await made.submit()
            made.store.faults = before = denied(*first_reads, *writes)
            await until(lambda: first.state() == model_pb2.JOB_STATE_RUNNING, "the job runs")
            for worker in made.workers:
                worker.learn_all()
            request = await made.request(first, 0)
            await recorded(made, 0, request)
            assert before.plan == []
            await first.stop()
            made.store.faults = after = denied(*first_reads, (GET, f"models/{MODEL}/plans/"), *judged)
            second.start()
            await until(lambda: second.runtime.is_holder and second.runtime.view is not None, "another goes on with it")
            request = await made.request(second, 1)
            await recorded(made, 1, request)
            await until(lambda: made.end() is not None, "the job has ended")
            assert after.plan == []
            assert made.end().state == model_pb2.JOB_STATE_COMPLETED  # type: ignore[union-attr]
        finally:
            for one in made.orchestrators:
                await one.stop()

    asyncio.run(story())


# ---- a whole network ------------------------------------------------------------------------------------------------------------

PNODES = tuple(LocalPNode(f"p{number}", 1.0, 360, ("--cpu-percent", "25")) for number in (1, 2))
JUDGED = ("job_ended", "assignment_refused", "checkpoint_refused", "snapshot_unusable", "checkpoint_unusable", "replica_released")
"""What is said of a document, or follows from it."""


@pytest.fixture(scope="module")
def proxy() -> Iterator[StoreProxy]:
    with store_proxy() as made:
        yield made


@pytest.fixture(scope="module")
def rig(proxy: StoreProxy) -> Iterator[Rig]:
    with running_network(PNODES, num_orchestrators=2, way_to_store=proxy.at) as running:
        yield running


def denying(proxy: StoreProxy, method: str, prefix: str, times: int = 1) -> Trouble:
    return proxy.meet(Trouble(ProxyFault.REFUSE, frozenset({method}), prefix, times, status=403, word="RequestTimeTooSkewed"))


def test_a_network_whose_store_denies_every_kind_of_call_once_loses_nothing(rig: Rig, proxy: StoreProxy) -> None:
    model, passes = f"models/{NETWORK_MODEL}", 3
    listing = denying(
        proxy, "GET", f"?{keys.jobs_prefix(NETWORK_MODEL)}", 1_000_000
    )  # until all others are in place, nobody reads the job
    job_id = rig.submit("denied", passes=passes)
    troubles = [
        denying(proxy, "GET", keys.head(NETWORK_MODEL)), denying(proxy, "PUT", keys.head(NETWORK_MODEL)),
        denying(proxy, "GET", keys.job_request(NETWORK_MODEL, job_id), 2), denying(proxy, "GET", "graph/", 2),
        denying(proxy, "GET", f"{model}/manifests/", 2), denying(proxy, "GET", "datasets/"), denying(proxy, "GET", f"{model}/plans/"),
        denying(proxy, "PUT", f"{model}/plans/", 2), denying(proxy, "PUT", f"{model}/commits/", 2), denying(proxy, "PUT", f"{model}/state/"),
        denying(proxy, "HEAD", f"{model}/state/", 2), denying(proxy, "GET", f"{model}/state/", 2),
        denying(proxy, "PUT", keys.job_end(NETWORK_MODEL, job_id)),
    ]  # fmt: skip
    rig.until(lambda: listing.met > 0, "somebody looks for jobs", 60.0)
    listing.over.set()
    rig.ended(job_id, LONG_S)
    audit = rig.audit()
    assert all(item.exact and item.num_batches == passes * SAMPLES // BATCH_SIZE for item in audit), audit
    rig.until(lambda: all(one.met == one.times for one in troubles), "each of them was met", 60.0)
    proxy.heal()
    said = [
        line for process in (*rig.network.orchestrators, *rig.network.pnodes) for line in process.log.read_text().splitlines()
        if any(f"] {kind} " in line for kind in JUDGED)
    ]  # fmt: skip
    assert [line for line in said if "job_ended" not in line or "state=completed" not in line] == []
    assert rig.network.trouble() == ""
