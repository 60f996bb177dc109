"""Goal: a PNode counts as attached as soon as its greeting is good, whatever happens while it is dialled back; and what it says of others costs little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dcnr.ids import NodeId
from dcnr.v1 import identity_pb2, membership_pb2, model_pb2, orchestrator_pb2
from membership.probing import Findings
from orchestrator.attach import BEAT_RATE, MAX_REACH_CHECKS, RETURNS_PER_S, AttachService, _Stream
from orchestrator.history import History
from orchestrator.inventory import LOOK_AGAIN_S, Inventory
from orchestrator.runtime import Shared
from orchestrator.silence import REATTACH_GRACE_S
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from trust.records import VerifiedAdvert, make_advert, open_advert

PNODE, MAINTAINER, ORCHESTRATOR = (NodeKey.generate() for _ in range(3))
WALL_S = 1_700_000_000.0
WITHIN_S = 60.0
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
        self.probed: list[str] = []
        nothing: Any = None
        self.shared = Shared(
            ORCHESTRATOR,
            InForce(POLICY),
            nothing,
            self.clock,
            nothing,
            self.inventory,
            History(None, ORCHESTRATOR.node_id, self.clock),
        )
        self.service = AttachService(self.shared, {}, head_url=lambda model: ("", 0), reach=self._reach, probe=self._probe)

    async def _reach(self, node_id: str, addresses: list[str]) -> bool:
        self._dialled()
        return False

    async def _probe(self, node_id: str) -> Findings:
        self.probed.append(node_id)
        return Findings(NodeId(node_id), direct=True, num_asked=0, answers=())

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


def test_what_it_is_told_while_it_is_dialled_back_reaches_it_after_its_welcome() -> None:
    """It counts as here, so an audit may be given to it: one that was dropped was missed only when its time was up."""
    told = orchestrator_pb2.OrchestratorMessage(audit_task=identity_pb2.Envelope(payload=b"look at this"))

    def dialled() -> None:
        assert orchestrator.shared.mailbox.send(PNODE.node_id, told)

    orchestrator = Orchestrator(dialled)

    async def story() -> None:
        stream: Any = orchestrator.attach()
        async with asyncio.timeout(WITHIN_S):
            assert (await anext(stream)).HasField("welcome")
            while (heard := await anext(stream)).WhichOneof("kind") != "audit_task":
                pass
        assert heard == told
        await stream.aclose()

    asyncio.run(story())


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


def test_what_a_stranger_says_of_others_costs_nothing_and_what_a_neighbour_says_one_look_now_and_then() -> None:
    """Each beat accuses as many as a beat may, and beats come as fast as they may."""
    orchestrator = Orchestrator(lambda: None)
    accused = [f"{number:040x}" for number in range(MAX_REACH_CHECKS)]
    neighbour, stranger = "a" * 40, "b" * 40
    for name in (neighbour, stranger, *accused):
        orchestrator.inventory.advertised(membership_pb2.Advert(node_id=name, control_addresses=["192.0.2.1:7700"]), 0.0)
        orchestrator.inventory.attached(name, 0.0)
    hosted = {name: [model_pb2.Assignment(replica=f"v.{name}", vnode="v")] for name in (neighbour, accused[0])}
    orchestrator.inventory.planned("m", hosted)

    async def beats(of: str) -> list[str]:
        """Whom a hundred beats of that PNode have looked at."""
        stream = _Stream(of, "192.0.2.2:7700", outbox=asyncio.Queue())
        orchestrator.probed.clear()
        for sequence in range(100):
            orchestrator.clock.now += 1 / BEAT_RATE.per_s
            beat = orchestrator_pb2.Beat(sequence=sequence, worker_alive=True)
            for name in accused:
                beat.evidence.add(replica="v.1", pnode_id=name, broken=True, since_s=1.0)
            orchestrator.service._beat(stream, beat)
            await asyncio.sleep(0)
        await asyncio.gather(*orchestrator.service._probes)
        return list(orchestrator.probed)

    async def story() -> None:
        assert await beats(stranger) == []
        assert await beats(neighbour) == [accused[0]]
        orchestrator.clock.now += LOOK_AGAIN_S
        told = orchestrator.shared.nodes_changed.version
        assert await beats(neighbour) == [accused[0]]
        assert orchestrator.shared.nodes_changed.version == told, "what was known before is no news"

    asyncio.run(story())


def test_an_advert_that_comes_with_every_beat_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until another one comes, or its time is over: then it says nothing any more."""
    opened: list[identity_pb2.Envelope] = []

    def counted(envelope: identity_pb2.Envelope, **kinds: Any) -> VerifiedAdvert:
        opened.append(envelope)
        return open_advert(envelope, **kinds)

    monkeypatch.setattr("orchestrator.attach.open_advert", counted)
    orchestrator = Orchestrator(lambda: None)
    orchestrator.inventory.attached(PNODE.node_id, 0.0)
    stream = _Stream(PNODE.node_id, "192.0.2.2:7700")

    def advert(key: NodeKey, software: str) -> identity_pb2.Envelope:
        return make_advert(
            key, network_id=POLICY.network_id, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=2, control_addresses=["192.0.2.1:7700"],
            now_wall=WALL_S, lifetime_s=100.0, software=software,
        )  # fmt: skip

    def beat(envelope: identity_pb2.Envelope) -> str:
        """What the orchestrator then knows of its software."""
        orchestrator.clock.now += 10.0
        copy = identity_pb2.Envelope.FromString(envelope.SerializeToString())
        orchestrator.service._beat(stream, orchestrator_pb2.Beat(worker_alive=True, advert=copy))
        return orchestrator.inventory.nodes()[PNODE.node_id].software

    first, second, forged = advert(PNODE, "one"), advert(PNODE, "two"), advert(PNODE, "three")
    forged.signatures[0].signature = second.signatures[0].signature
    assert [beat(first), beat(first), beat(second), beat(second)] == ["one", "one", "two", "two"]
    assert opened == [first, second]
    assert [beat(forged), beat(advert(MAINTAINER, "four"))] == ["two", "two"], "what is not its own word changes nothing"
    orchestrator.clock.now = 100.0
    orchestrator.inventory.nodes()[PNODE.node_id].software = "unheard"
    assert beat(second) == "unheard", "it has expired"


def test_the_more_are_attached_the_longer_their_pauses_may_become_should_all_streams_break_at_once() -> None:
    orchestrator = Orchestrator(lambda: None)
    for number in range(900):
        orchestrator.inventory.attached(f"{number:040x}", 0.0)
    stream = _Stream(f"{0:040x}", "192.0.2.2:7700")

    def told_s() -> float:
        orchestrator.clock.now += 1.0
        orchestrator.service._beat(stream, orchestrator_pb2.Beat(worker_alive=True))
        return stream.outbox.get_nowait().beat_ack.longest_pause_s

    assert told_s() == 900 / RETURNS_PER_S
    for number in range(900, 1800):
        orchestrator.inventory.attached(f"{number:040x}", 0.0)
    assert told_s() == 1800 / RETURNS_PER_S, "with each beat: who was here first saw hardly anybody"
