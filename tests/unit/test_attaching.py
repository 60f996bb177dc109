"""Goal: a PNode counts as attached as soon as its greeting is good: dialling it back takes its time, and no stream that ends meanwhile is counted for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dcnr.v1 import membership_pb2, orchestrator_pb2
from orchestrator.attach import AttachService
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.runtime import Shared
from orchestrator.silence import REATTACH_GRACE_S
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from trust.records import make_advert

PNODE, MAINTAINER, ORCHESTRATOR = (NodeKey.generate() for _ in range(3))
WALL_S = 1_700_000_000.0
POLICY = verify_chain([create_document(MAINTAINER, name="n", now_wall=WALL_S, orchestrator_ids=[ORCHESTRATOR.node_id])])
OFFLINE, ACTIVE = orchestrator_pb2.NODE_STATE_OFFLINE, orchestrator_pb2.NODE_STATE_ACTIVE


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL_S + self.now


class Orchestrator:
    """The streams' service, and who dials PNodes back for it."""

    def __init__(self, dialled: Callable[[], object]) -> None:
        self.clock, self.inventory, self._dialled = Clock(), Inventory(), dialled
        nothing: Any = None
        self.shared = Shared(
            ORCHESTRATOR, InForce(POLICY), nothing, self.clock, nothing, self.inventory, History(None, ORCHESTRATOR.node_id, self.clock)
        )
        self.service = AttachService(self.shared, {}, head_url=lambda model: ("", 0), reach=self._reach)

    async def _reach(self, node_id: str, addresses: list[str]) -> bool:
        self._dialled()
        return False

    def attach(self) -> AsyncIterator[orchestrator_pb2.OrchestratorMessage]:
        """A stream that greets and then says nothing."""
        advert = make_advert(
            PNODE, network_id=POLICY.network_id, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=2, control_addresses=["192.0.2.1:7700"],
            now_wall=self.clock.wall(),
        )  # fmt: skip

        async def said() -> AsyncIterator[orchestrator_pb2.PNodeMessage]:
            yield orchestrator_pb2.PNodeMessage(hello=orchestrator_pb2.Hello(advert=advert))
            await asyncio.Event().wait()

        return self.service.attach(PNODE.node_id, "198.51.100.7:40001", said())

    def state(self) -> int:
        self.inventory.tick(self.clock.now)
        self.inventory.check()
        return self.inventory.judgement(PNODE.node_id).state

    def kinds(self) -> list[str]:
        return [event.kind for event in self.shared.history.since(0, 100)]


def test_who_reattaches_in_time_keeps_its_place_however_long_it_takes_to_dial_it_back() -> None:
    seen: list[int] = []

    def dialled() -> None:
        """The address that it tells is dropped: nobody answers within the time."""
        orchestrator.clock.now += REATTACH_GRACE_S
        seen.append(orchestrator.state())

    orchestrator = Orchestrator(dialled)
    beat = orchestrator_pb2.Beat(worker_alive=True, capability=membership_pb2.Capability(accepts_work=True, gflops=5))
    orchestrator.inventory.attached(PNODE.node_id, 0.0)
    orchestrator.inventory.beat(PNODE.node_id, 0.0, beat, 2.0)
    assert orchestrator.state() == ACTIVE
    orchestrator.inventory.detached(PNODE.node_id, 0.0, "reset")
    orchestrator.clock.now = REATTACH_GRACE_S / 2

    async def story() -> None:
        stream: Any = orchestrator.attach()
        assert (await anext(stream)).HasField("welcome")
        await stream.aclose()

    asyncio.run(story())
    assert seen == [ACTIVE]


def test_a_stream_that_ends_while_its_pnode_is_dialled_back_is_not_counted() -> None:
    def dialled() -> None:
        assert orchestrator.inventory.num_attached() == 1
        raise ConnectionError("the line went dead")

    orchestrator = Orchestrator(dialled)

    async def story() -> None:
        with pytest.raises(ConnectionError):
            await anext(orchestrator.attach())

    asyncio.run(story())
    assert orchestrator.inventory.num_attached() == 0
    assert orchestrator.inventory.nodes()[PNODE.node_id].streams == 0
    assert orchestrator.kinds() == ["node_attached", "node_detached"]
