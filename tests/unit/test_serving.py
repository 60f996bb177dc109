"""A holder asks PNodes to serve the newest trained version until they do, and moves on without a gap; a new holder goes on from what is reported."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from stages_rig import LINE

from dataservice.memory import MemoryStore
from dcnr import limits
from dcnr.errors import NotFound
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.inventory import Inventory
from orchestrator.mailbox import Mailbox
from orchestrator.releases import ReleaseBook, Said
from orchestrator.seating import OVERLAP_S, TAKE_S
from orchestrator.serving import REFUSED_S, REPEAT_S, Serving, may_serve
from orchestrator.silence import NodeRecord
from orchestrator.versions import Versions
from orchestrator.view import JobFacts, ModelView

MODEL, JOB = "toy", "job-1"


@dataclass
class Loader:
    """Manifests by digest; ``num_reads`` counts what is asked for."""

    manifests: dict[str, model_pb2.Manifest] = field(default_factory=dict)
    num_reads: int = 0

    def add(self, digest: str, number: int, job_id: str = JOB) -> None:
        entries = [
            model_pb2.ManifestEntry(
                vnode=stage.id, working=[model_pb2.Checkpoint(vnode=stage.id, digest=f"{digest}-{stage.id}", job_id=job_id)]
            )
            for stage in LINE
        ]
        self.manifests[digest] = model_pb2.Manifest(number=number, job_id=job_id, entries=entries, audits="none", graph_digest="g")

    async def manifest(self, model: str, digest: str) -> tuple[model_pb2.Manifest, bytes]:
        self.num_reads += 1
        if digest not in self.manifests:
            raise NotFound("no such manifest")
        return self.manifests[digest], b""

    async def job(self, model: str, job_id: str) -> JobFacts:
        return FACTS


NEEDS = frozenset({"component mix"})
FACTS = JobFacts(model_pb2.JobRequest(job_id=JOB, graph_digest="g"), "r" * 64, model_pb2.ModelGraph(), b"", LINE, (), NEEDS)


class World:
    """PNodes that do as they are asked, when the test says so."""

    def __init__(self, num_nodes: int = 3) -> None:
        self.now, self.is_holder, self.loader = 0.0, True, Loader()
        self.inventory, self.mailbox = Inventory(), Mailbox()
        self.nodes = [f"{number:040x}" for number in range(num_nodes)]
        self.inbox: dict[str, list[orchestrator_pb2.SeatWish]] = {name: [] for name in self.nodes}
        self.seats: dict[str, dict[str, orchestrator_pb2.SeatReport]] = {name: {} for name in self.nodes}
        self.active = JOB
        self.said: list[str] = []
        self.releases = self.book()
        asyncio.run(self.releases.refresh())
        for name in self.nodes:
            self.attach(name)
        self.serving = self.holder()

    def book(self) -> ReleaseBook:
        """What a process that has just started knows of releases: nothing."""
        policy: Any = None
        return ReleaseBook(MODEL, MemoryStore(SystemClock(), random.Random(1)), lambda: policy)

    def release(self, number: int, digest: str) -> identity_pb2.Envelope:
        """What maintainers say is heard."""
        envelope = identity_pb2.Envelope(payload=f"release {number}".encode())
        self.releases.heard(Said(model_pb2.Release(model=MODEL, number=number, manifest_digest=digest), envelope))
        return envelope

    def holder(self) -> Serving:
        loader: Any = self.loader
        return Serving(
            MODEL, versions=Versions(MODEL, loader), releases=self.releases, inventory=self.inventory, mailbox=self.mailbox, now=lambda: self.now,
            view=lambda: None, is_holder=lambda: self.is_holder, tell=lambda kind, reason: self.said.append(f"{kind} {reason}"),
        )  # fmt: skip

    def attach(self, name: str) -> None:
        self.inventory.attached(name, self.now)
        self.mailbox.opened(name, lambda message: self.inbox[name].append(message.seats))

    def beat(self) -> None:
        for name in self.nodes:
            self.inventory.beat(name, self.now, self.beat_of(name), limits.HEARTBEAT_S)
        self.inventory.tick(self.now)

    def beat_of(self, name: str) -> orchestrator_pb2.Beat:
        return orchestrator_pb2.Beat(
            worker_alive=True, capability=membership_pb2.Capability(accepts_work=True, memory_bytes=limits.MIB * 1024, gflops=1),
            free_memory_bytes=limits.MIB * 1024, seats=list(self.seats[name].values()),
        )  # fmt: skip

    def obey(self, name: str) -> None:
        """Loads what the newest wish says, and keeps what it does not call off."""
        wish = self.inbox[name][-1]
        kept = {digest: seat for digest, seat in self.seats[name].items() if seat.manifest_digest == wish.previous_manifest_digest}
        self.seats[name] = kept | {
            f"{wish.manifest_digest}-{vnode}": orchestrator_pb2.SeatReport(
                model=MODEL,
                vnode=vnode,
                state_digest=f"{wish.manifest_digest}-{vnode}",
                ready=True,
                manifest_digest=wish.manifest_digest,
            )
            for vnode in wish.vnodes
        }

    def round(self, newest: str, *, after_s: float = 1.0) -> None:
        self.now += after_s
        self.beat()
        head = model_pb2.Head(manifest_digest=newest, active=model_pb2.ActiveJob(job_id=self.active))
        asyncio.run(self.serving.round(ModelView(MODEL, head, b"", job=FACTS)))

    def served(self) -> dict[str, tuple[str, ...]]:
        """What each PNode was asked for last."""
        return {name: tuple(wishes[-1].vnodes) for name, wishes in self.inbox.items() if wishes and wishes[-1].vnodes}


@pytest.fixture
def world() -> World:
    made = World()
    made.loader.add("m1", 1)
    made.loader.add("m2", 2)
    return made


def test_two_pnodes_are_asked_for_the_whole_model_and_for_nothing_untrained(world: World) -> None:
    world.loader.add("m0", 0, job_id="")
    world.round("m0")
    assert world.served() == {}
    world.round("m1")
    assert set(world.served().values()) == {("a", "b", "c")}
    assert len(world.served()) == 2
    [wish, *_] = next(wishes for wishes in world.inbox.values() if wishes)
    assert (wish.manifest_digest, wish.job_id, wish.request_digest, wish.cleared) == ("m1", JOB, "r" * 64, False)


def test_who_lacks_a_component_is_asked_for_no_seat_though_nobody_else_has_one_ready(world: World) -> None:
    idle, *others = world.nodes
    for name in world.nodes:
        world.inventory.attached(name, world.now, "", frozenset({"component linear"}) if name == idle else NEEDS)
    world.round("m1")
    assert set(world.served()) == set(others)
    world.inventory.attached(others[0], world.now, "", frozenset({"component linear"}))
    world.round("m1")
    assert set(world.served()) == set(others[1:]), "nor is it asked for what it served before it came back without"


def test_a_wish_is_said_again_until_it_is_followed(world: World) -> None:
    world.round("m1")
    asked = sorted(world.served())
    world.round("m1")
    assert all(len(world.inbox[name]) == 1 for name in asked)
    world.round("m1", after_s=REPEAT_S)
    assert all(len(world.inbox[name]) == 2 for name in asked)
    for name in asked:
        world.obey(name)
    world.round("m1", after_s=REPEAT_S)
    world.round("m1", after_s=REPEAT_S)
    assert all(len(world.inbox[name]) == 2 for name in asked)


def test_the_next_version_is_asked_for_while_the_old_one_goes_on_answering(world: World) -> None:
    world.round("m1")
    asked = sorted(world.served())
    for name in asked:
        world.obey(name)
    world.round("m2")
    assert all(world.inbox[name][-1].manifest_digest == "m1" for name in asked)
    world.round("m2", after_s=TAKE_S)
    assert all(world.inbox[name][-1].manifest_digest == "m2" for name in asked)
    assert all(world.inbox[name][-1].previous_manifest_digest == "m1" for name in asked)
    for name in asked:
        world.obey(name)
        assert {seat.manifest_digest for seat in world.seats[name].values()} == {"m1", "m2"}
    world.round("m2")
    world.round("m2", after_s=OVERLAP_S)
    assert all(world.inbox[name][-1].previous_manifest_digest == "" for name in asked)


def test_with_the_job_ended_the_last_version_is_served_at_once_and_goes_on_being_served(world: World) -> None:
    world.round("m1")
    for name in sorted(world.served()):
        world.obey(name)
    world.active = ""
    world.round("m2")
    asked = world.served()
    assert all(world.inbox[name][-1].manifest_digest == "m2" for name in asked)
    gone = sorted(asked)[0]
    world.nodes.remove(gone)
    world.inventory.detached(gone, world.now, "killed")
    world.round("m2", after_s=1.2)
    world.round("m2", after_s=1.2)
    assert len(set(world.served()) - {gone}) == 2


def test_a_new_holder_goes_on_with_what_is_served_and_moves_nothing(world: World) -> None:
    world.round("m1")
    asked = world.served()
    for name in asked:
        world.obey(name)
    world.is_holder = False
    world.round("m2")
    for wishes in world.inbox.values():
        wishes.clear()
    world.is_holder, world.serving = True, world.holder()
    world.round("m2")
    assert world.served() == asked
    assert all(world.inbox[name][-1].manifest_digest == "m1" for name in asked)


def obeyed(world: World) -> set[str]:
    """Everybody who was asked does it; which manifests they were asked for last."""
    for name in world.served():
        world.obey(name)
    return {world.inbox[name][-1].manifest_digest for name in world.served()}


def test_what_is_released_is_asked_for_whatever_training_brings_until_training_is_followed_again(world: World) -> None:
    world.loader.add("m3", 3)
    world.round("m2")
    assert obeyed(world) == {"m2"}
    envelope = world.release(1, "m1")
    world.round("m2")
    asked = world.served()
    for name in asked:
        wish = world.inbox[name][-1]
        assert (wish.manifest_digest, wish.previous_manifest_digest, wish.release) == ("m1", "m2", envelope), "what answers goes on"
    world.round("m2", after_s=OVERLAP_S)
    assert {world.inbox[name][-1].previous_manifest_digest for name in asked} == {"m2"}, "until every VNode has a seat of the other"
    assert obeyed(world) == {"m1"}
    for _ in range(3):
        world.round("m3", after_s=TAKE_S)
        assert obeyed(world) == {"m1"}
    world.release(2, "")
    world.round("m3")
    assert obeyed(world) == {"m3"}
    assert not any(world.inbox[name][-1].HasField("release") for name in world.served())


def test_a_released_manifest_that_cannot_be_read_is_told_once_and_what_answers_goes_on(world: World) -> None:
    world.round("m1")
    obeyed(world)
    world.round("m1")
    world.release(1, "m9")
    for _ in range(3):
        world.round("m2", after_s=TAKE_S)
        assert obeyed(world) == {"m1"}
    assert [said for said in world.said if said.startswith("release_unreadable")] == [
        "release_unreadable release 1 cannot be served, what answers goes on: no such manifest"
    ]
    world.loader.add("m9", 9)
    world.round("m2", after_s=TAKE_S)
    assert obeyed(world) == {"m9"}


def test_a_new_holder_asks_for_nothing_else_before_it_has_read_what_is_released(world: World) -> None:
    world.releases = world.book()
    world.serving = world.holder()
    world.round("m2")
    assert world.served() == {}
    world.release(1, "m1")
    world.round("m2")
    assert obeyed(world) == {"m1"}


def test_where_every_seat_is_taken_only_those_that_serve_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round comes twice a second, and holds up everything else of its process: however many PNodes there are, it takes what serving takes."""
    world = World(num_nodes=300)
    world.loader.add("m1", 1)
    world.round("m1")
    asked = world.served()
    for name in asked:
        world.obey(name)
    world.round("m1")
    looked: list[str] = []

    def counted(record: NodeRecord) -> bool:
        looked.append(record.node_id)
        return may_serve(record)

    monkeypatch.setattr("orchestrator.serving.may_serve", counted)
    world.round("m1")
    assert sorted(looked) == sorted(asked)
    for gone in sorted(asked):
        world.nodes.remove(gone)
        world.inventory.detached(gone, world.now, "killed")
    world.round("m1")
    assert len(set(world.served()) - set(asked)) == 2


def all_but_one_obey(world: World, slow: str, lacks: str) -> None:
    """One PNode never has some of its seats ready."""
    for name in world.served():
        world.obey(name)
        if name == slow:
            world.seats[name] = {key: seat for key, seat in world.seats[name].items() if seat.vnode not in lacks}


@pytest.mark.parametrize("lacks", ["b", "abc"])
def test_a_seat_that_does_not_get_ready_is_asked_of_another_and_where_there_is_none_of_the_same(world: World, lacks: str) -> None:
    world.round("m1")
    slow, good = sorted(world.served())
    [other] = set(world.nodes) - {slow, good}
    for _ in range(2 + int(REFUSED_S / REPEAT_S)):
        all_but_one_obey(world, slow, lacks)
        world.round("m1", after_s=REPEAT_S)
    assert set(lacks) <= set(world.served()[other]), "it has room, and nothing to do"
    assert not set(lacks) & set(world.served().get(slow, ()))
    world.nodes.remove(other)
    world.inventory.detached(other, world.now, "killed")
    for _ in range(3):
        world.round("m1", after_s=1.2)
    assert world.served()[slow] == ("a", "b", "c"), "nobody else is left"


def test_a_pnode_that_was_away_has_the_whole_time_again_to_bring_a_seat(world: World) -> None:
    """It was asked for a seat once and lost before it had it: that is no refusal when it comes back."""
    world.round("m1")
    away, good = sorted(world.served())
    [other] = set(world.nodes) - {away, good}
    for _ in range(3):
        all_but_one_obey(world, away, "abc")
        world.round("m1", after_s=REPEAT_S)
    for gone, back in ((away, ""), (other, away)):
        if back:
            world.nodes.append(back)
            world.inventory.attached(back, world.now)
        world.nodes.remove(gone)
        world.inventory.detached(gone, world.now, "killed")
        for _ in range(int(REFUSED_S)):
            all_but_one_obey(world, away, "abc")
            world.round("m1", after_s=1.2)
            if back and world.served().get(away):
                break
    world.nodes.append(other)
    world.inventory.attached(other, world.now)
    for _ in range(3):
        world.round("m1", after_s=REPEAT_S)
    assert world.served()[away] == ("a", "b", "c")


def test_made_up_manifests_in_reports_cost_few_reads(world: World) -> None:
    world.round("m1")
    for number in range(60):
        report = orchestrator_pb2.SeatReport(model=MODEL, vnode="zz", state_digest="x", ready=True, manifest_digest="m1")
        world.seats[world.nodes[0]][f"s{number}"] = report
    before = world.loader.num_reads
    for _ in range(10):
        world.round("m1")
    assert world.loader.num_reads == before


def test_a_model_without_a_signed_job_is_not_served() -> None:
    world = World()
    world.loader.add("m1", 1)
    world.loader.manifests["m1"].graph_digest = "another"
    world.round("m1")
    assert world.served() == {}
    assert world.serving.versions.why_not("m1") != ""
