"""Goal: uploads over a line of a known rate measure that rate, those of checkpoints then keep to a quarter of it, and those of a machine that leaves do not."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from network_rig import MODEL, running_network
from store_proxy import Fault, StoreProxy, Trouble, store_proxy

from dataservice import keys
from dataservice.addresses import AddressRule
from dataservice.objects import ObjectClient
from dataservice.pacing import BURST_S, BYTES_PER_MBIT, Sent
from dataservice.s3 import S3Store, StoreAddress
from dcnr.ids import digest_of
from dcnr.limits import MIB, UPLINK_SHARE
from dcnr.settings import LimitSettings
from dcnr.system import SystemClock
from dcnr.testing import LocalPNode
from dcnr.v1 import data_pb2
from pnode.line import Line
from pnode.measured import MIN_SENT_BYTES

RATE_BYTES_S = 4_000_000
WIDTH = 1100
"""States of some 5 MB."""
NEAR = 0.25
PATIENCE_S = 90.0
"""A machine that does much else measures too little at first; the largest of some uploads is right."""


class Granting:
    """An orchestrator as far as grants go."""

    def __init__(self, store: S3Store) -> None:
        self._store = store

    async def call(self, stub: object, method: str, request: data_pb2.GrantRequest, **more: object) -> data_pb2.GrantResponse:
        [item] = request.items
        signed = self._store.presign_put(
            keys.state(item.object.model, item.object.owner, item.sha256), int(item.size_bytes), item.sha256, 60
        )  # type: ignore[arg-type]
        return data_pb2.GrantResponse(grants=[data_pb2.Grant(url=signed.url, headers=dict(signed.headers))])


@pytest.fixture
def proxy() -> Iterator[StoreProxy]:
    with store_proxy() as made:
        yield made


def test_what_is_measured_is_what_checkpoints_keep_a_quarter_of(
    proxy: StoreProxy, embedded_store: StoreAddress, fresh_model: Callable[[], str], tmp_path: Path
) -> None:
    address = replace(embedded_store, endpoint=proxy.at(embedded_store.endpoint))
    store, model, took, leaves = S3Store(address), fresh_model(), list[Sent](), list[bool]()
    line = Line(
        LimitSettings(), SystemClock(), hosted=lambda: [], leaves=lambda: bool(leaves), unnamed=lambda: [], tell=lambda kind, reason: None
    )  # fmt: skip
    granting: Any = Granting(store)

    def sent(one: Sent) -> None:
        took.append(one)
        line.sent(one)

    def client(**more: Any) -> ObjectClient:
        return ObjectClient(granting, lambda: AddressRule(stores=(address.endpoint,)), up=line.up, sent=sent, **more)

    async def bring(objects: ObjectClient, num_bytes: int) -> Sent:
        data, path = os.urandom(num_bytes), tmp_path / "state"
        path.write_bytes(data)
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=model, owner="v", digest=digest_of(data))
        await objects.write_file(ref, path, size_bytes=num_bytes, sha256=digest_of(data))
        return took[-1]

    async def story() -> None:
        checkpoints, evidence = client(held=line.held), client()
        proxy.meet(Trouble(Fault.SLOW, frozenset({"PUT"}), prefix="", num_bytes=RATE_BYTES_S))
        first = await bring(checkpoints, 8 * MIB)
        assert first.held_s == 0.0, "nothing is known of the line: nothing holds back"
        deadline_s = time.monotonic() + PATIENCE_S
        while line.uplink_mbit * BYTES_PER_MBIT < (1 - NEAR) * RATE_BYTES_S and time.monotonic() < deadline_s:
            await bring(evidence, 8 * MIB)
        measured_bytes_s = line.uplink_mbit * BYTES_PER_MBIT
        assert measured_bytes_s == pytest.approx(RATE_BYTES_S, rel=NEAR)

        paced = await bring(checkpoints, MIN_SENT_BYTES)
        assert paced.seconds >= MIN_SENT_BYTES / (UPLINK_SHARE * measured_bytes_s) - BURST_S, "a quarter of the line at most"
        assert line.uplink_mbit * BYTES_PER_MBIT == measured_bytes_s, "and what the pace allows is no measure of the line"

        leaves.append(True)
        assert (await bring(checkpoints, MIN_SENT_BYTES)).held_s == 0.0

    try:
        asyncio.run(story())
    finally:
        store.close()


def test_a_daemon_tells_orchestrators_and_its_owner_what_its_checkpoints_measured(proxy: StoreProxy) -> None:
    """A real one, over the same line. How near it comes depends on what else the machine does; the line is the upper bound."""
    with running_network(
        [LocalPNode("p1", 1.0, 1024)], num_orchestrators=1, width=WIDTH, vnodes=("a",), samples=640, way_to_store=proxy.at
    ) as rig:
        [pnode] = rig.network.pnodes
        assert rig.told(pnode).capability.uplink_mbit == 0.0
        proxy.meet(Trouble(Fault.SLOW, frozenset({"PUT"}), f"models/{MODEL}/state/", num_bytes=RATE_BYTES_S))
        rig.submit("measures", passes=10_000, checkpoint_s=1.0)

        def told() -> list[float]:
            return [item.capability.uplink_mbit for item in rig.ask(lambda client: client.nodes()) if item.node_id == pnode.node_id]

        rig.until(lambda: told() > [0.0], "orchestrators hear of the uplink", 120)
        assert told()[0] * BYTES_PER_MBIT <= (1 + NEAR) * RATE_BYTES_S
        assert rig.told(pnode).capability.uplink_mbit == told()[0]
        assert any(line.startswith("uplink_measured") for line in rig.events(pnode))

        def uploaded() -> tuple[int, float]:
            return int(rig.told(pnode).uploaded_bytes), time.monotonic()

        before, began_s = uploaded()
        rig.until(lambda: uploaded()[0] >= before + MIN_SENT_BYTES, "most of a checkpoint more is on its way", 120)
        after, ended_s = uploaded()
        kept = UPLINK_SHARE * max(told()) * BYTES_PER_MBIT
        assert after - before <= kept * (ended_s - began_s + BURST_S) + MIB, "they leave at a quarter of it"
