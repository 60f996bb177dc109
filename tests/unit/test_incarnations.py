"""Goal: after a restart nobody listens to the earlier life any more: neither its greeting, nor its advert, nor where its replicas were."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.errors import Stale
from dcnr.ids import ReplicaId
from dcnr.v1 import identity_pb2, membership_pb2, orchestrator_pb2
from membership.gossip import View
from membership.probing import Answer, Findings
from orchestrator.attach import AttachService
from orchestrator.inventory import Inventory
from pnode.hub import LinkHub
from trust.delegation import VerifiedDelegation, make_delegation, open_delegation
from trust.identity import NodeKey
from trust.records import make_advert

NETWORK = "a" * 40
KEY, OTHER = NodeKey.generate(), NodeKey.generate()
WORKERS = [NodeKey.generate() for _ in range(3)]
"""Each life's worker makes a key of its own."""


def advert(incarnation: int) -> identity_pb2.Envelope:
    return make_advert(
        KEY, network_id=NETWORK, kind=membership_pb2.NODE_KIND_PNODE, incarnation=incarnation, sequence=2, control_addresses=["127.0.0.1:7700"],
        now_wall=time.time(),
    )  # fmt: skip


def delegation(incarnation: int) -> VerifiedDelegation:
    now = time.time()
    envelope = make_delegation(KEY, NETWORK, WORKERS[incarnation].public_der, incarnation, ["127.0.0.1:7701"], now)
    return open_delegation(envelope, network_id=NETWORK, now_wall=now)


def test_an_orchestrator_greets_no_earlier_life() -> None:
    inventory = Inventory()
    shared: Any = SimpleNamespace(
        policy=SimpleNamespace(network_id=NETWORK),
        clock=SimpleNamespace(wall=time.time, monotonic=time.monotonic),
        inventory=inventory,
    )
    service = AttachService(shared, {}, head_url=lambda model: ("", 0), reach=lambda node, where: None)
    greeted = service._greeting(KEY.node_id, orchestrator_pb2.Hello(advert=advert(2)))
    inventory.advertised(greeted.advert, 0.0)
    for incarnation in (2, 3):
        service._greeting(KEY.node_id, orchestrator_pb2.Hello(advert=advert(incarnation)))
    with pytest.raises(Stale) as refused:
        service._greeting(KEY.node_id, orchestrator_pb2.Hello(advert=advert(1)))
    assert refused.value.code == "stale_incarnation"


def test_gossip_keeps_the_newest_life_whatever_comes_later() -> None:
    view = View(OTHER.node_id, NETWORK, is_orchestrator=lambda node_id: False, salt=b"salt")
    for incarnation in (2, 1, 3, 2):
        view.offer(advert(incarnation), time.time())
    found = view.find(KEY.node_id, time.time())
    assert found is not None
    assert found.order[0] == 3


def test_a_worker_dials_no_earlier_life() -> None:
    renewed: list[int] = []
    peers: Any = SimpleNamespace(renew=lambda worker: renewed.append(worker.incarnation))
    clock: Any = SimpleNamespace(monotonic=time.monotonic)
    hub = LinkHub(clock, OTHER.node_id, peers, lambda replica, pnode_id, broken: None)
    for incarnation in (1, 2, 1):
        hub.neighbour(ReplicaId("a.1"), delegation(incarnation))
    assert renewed == [1, 2]


def test_a_probe_that_nobody_answers_is_no_evidence() -> None:
    """Goal: a PNode that others reach, or of which nobody can say anything, is not the sooner taken for gone."""

    def probed(*answers: bool, num_asked: int) -> bool | None:
        async def probe(node_id: str) -> Findings:
            return Findings(KEY.node_id, False, num_asked, tuple(Answer(OTHER.node_id, said) for said in answers))

        async def never(node: str, where: list[str]) -> bool:
            raise AssertionError("the findings are enough")

        shared: Any = SimpleNamespace()
        service = AttachService(shared, {}, head_url=lambda model: ("", 0), reach=never, probe=probe)
        return asyncio.run(service._reaches(KEY.node_id, "127.0.0.1:1"))

    assert probed(True, False, num_asked=2) is True
    assert probed(False, num_asked=2) is False
    assert probed(num_asked=2) is None
