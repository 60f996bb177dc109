"""Goal: who has to know a manifest hears of it at once, and nobody else does: with thousands of PNodes each checkpoint would be told to all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from orchestrator.attach import IDLE_HEAD_NEWS_S, AttachService, _Stream
from orchestrator.inventory import Inventory

MODEL = "toy"


class World:
    """An orchestrator whose head a test moves on, and one PNode's stream."""

    def __init__(self) -> None:
        self.now, self.runtime = 0.0, SimpleNamespace(head=None, head_bytes=b"", view=None)
        self.head("m1", sequence=1)
        shared: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: self.now, wall=lambda: 0.0),
            inventory=Inventory(),
            heard=lambda pnode_id, beat: beat,
        )
        models: Any = {MODEL: self.runtime}
        self.service = AttachService(
            shared, models, head_url=lambda model: ("http://store/head", 0), reach=lambda node, where: None
        )
        self.stream = _Stream("a" * 40, "127.0.0.1:1")

    def head(self, manifest: str, *, sequence: int, plan: str = "p1") -> None:
        head = model_pb2.Head(epoch=1, holder="h" * 40, sequence=sequence, plan_digest=plan, manifest_digest=manifest)
        self.runtime.head = head
        self.runtime.head_bytes = identity_pb2.Envelope(payload=head.SerializeToString()).SerializeToString()

    def heard(self) -> list[int]:
        """Sequences of the heads that the PNode is told of now."""
        news = self.service._head_news(self.stream, MODEL, self.runtime)  # type: ignore[arg-type]
        return [sequence(message) for message in news]

    def put(self, message: orchestrator_pb2.OrchestratorMessage) -> list[str]:
        """What goes out when somebody has that to say."""
        self.service._put(self.stream, message)
        return [str(self.stream.outbox.get_nowait().WhichOneof("kind")) for _ in range(self.stream.outbox.qsize())]


def sequence(message: orchestrator_pb2.OrchestratorMessage) -> int:
    return int(model_pb2.Head.FromString(message.head.head.payload).sequence)


def wish(*vnodes: str) -> orchestrator_pb2.OrchestratorMessage:
    return orchestrator_pb2.OrchestratorMessage(seats=orchestrator_pb2.SeatWish(model=MODEL, manifest_digest="m2", vnodes=vnodes))


def test_an_idle_pnode_hears_of_plans_at_once_and_of_manifests_now_and_then() -> None:
    world = World()
    assert world.heard() == [1]
    world.head("m2", sequence=2)
    assert world.heard() == []
    world.head("m2", sequence=3, plan="p2")
    assert world.heard() == [3]
    world.head("m3", sequence=4, plan="p2")
    world.now += IDLE_HEAD_NEWS_S
    assert world.heard() == [4]


def test_who_works_hears_of_every_manifest_at_once() -> None:
    world = World()
    world.stream.desired[MODEL] = b"something to host"
    assert world.heard() == [1]
    world.head("m2", sequence=2)
    assert world.heard() == [2]


def test_who_is_to_serve_hears_of_the_newest_manifest_first_and_of_later_ones_at_once() -> None:
    world = World()
    assert world.heard() == [1]
    world.head("m2", sequence=2)
    assert world.put(wish()) == ["seats"]
    assert world.put(wish("v0")) == ["head", "seats"]
    assert world.put(wish("v0")) == ["seats"]
    world.head("m3", sequence=3)
    assert world.heard() == [3]


def test_seats_that_a_pnode_reports_count_as_well() -> None:
    world = World()
    assert world.heard() == [1]
    world.service._beat(world.stream, orchestrator_pb2.Beat(seats=[orchestrator_pb2.SeatReport(model=MODEL, vnode="v0")]))
    world.head("m2", sequence=2)
    assert world.heard() == [2]
