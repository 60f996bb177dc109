"""Goal: a daemon serves what the holder of the confirmed head wishes, and only states that manifests on its chain name, of a graph that maintainers signed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.errors import NotFound
from dcnr.graph import Graph, graph_digest, graph_to_bytes
from dcnr.ids import NodeId, digest_of
from dcnr.limits import MIB
from dcnr.specs import TensorSpec
from dcnr.system import SystemClock
from dcnr.v1 import data_pb2, identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Term
from pnode.budget import DAEMON_BYTES, Budget, Limits, Reservation
from pnode.cache import ObjectCache
from pnode.orders import HostingOptions
from pnode.provision import Provisioner
from pnode.seat_duties import MAX_GONE, Around, SeatDuties
from pnode.snapshots import Shelf
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, draft_successor, sign_document, verify_chain
from vnode.registry import default_registry

MAINTAINER, HOLDER, OTHER = NodeKey.generate(), NodeKey.generate(), NodeKey.generate()
POLICY, AUDITED = (
    verify_chain(
        [
            create_document(
                MAINTAINER, name="n", now_wall=1_700_000_000.0, orchestrator_ids=[HOLDER.node_id, OTHER.node_id], audits=audits
            )
        ]
    )
    for audits in ("none", "drawn")
)
MODEL, JOB = "m", "job-1"
STATES = (b"state of manifest one", b"state of manifest two")
WITHIN_S = 60.0


def graph() -> model_pb2.ModelGraph:
    made = Graph(
        MODEL, input=TensorSpec("float32", (4,)), target=TensorSpec("int64", ()), num_classes=2,
        train={"passes": 1, "batch_size": 2, "seed": 1}, data={use: f"dataset:dots#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    made.vnode(
        "a",
        "linear_block",
        {},
        inputs=["input"],
        objective={"name": "local_ce", "config": {}},
        optimizer={"name": "sgd", "lr": 0.1},
    )
    return made.build()


GRAPH = graph()


@dataclass
class World:
    """A store, an orchestrator's head, a worker that says what it is told to."""

    directory: Path
    memory_bytes: int = 1024 * MIB
    store: dict[str, bytes] = field(default_factory=dict)
    sent: list[local_pb2.HostSeat] = field(default_factory=list)
    callers: list[str] = field(default_factory=list)
    cache_bytes: int = 0
    said: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    term: Term | None = field(default_factory=lambda: Term(1, HOLDER.node_id))
    head: str = ""
    policy: NetworkPolicy = POLICY

    def __post_init__(self) -> None:
        request = model_pb2.JobRequest(
            network_id=self.policy.network_id,
            job_id=JOB,
            model=MODEL,
            graph_digest=graph_digest(GRAPH),
            dataset_digest=self.put(b"data"),
        )
        signed = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER).SerializeToString(deterministic=True)
        self.put(graph_to_bytes(GRAPH))
        self.request = self.put(signed)
        self.first = self.manifest(STATES[0], "")
        self.second = self.manifest(STATES[1], self.first)
        self.head = self.second
        objects: Any = self
        cache = ObjectCache(objects, self.directory / "cache", 1 << 20)
        self.budget = Budget(Limits(1.0, DAEMON_BYTES + self.memory_bytes, 1 << 30, 0))
        duties: Any = SimpleNamespace(term_of=lambda model: self.term, manifests=lambda: [(MODEL, self.head)])
        self.around = Around(
            policy=lambda: self.policy, fetch=cache.file, budget=self.budget, options=HostingOptions(1, 0, lambda: 1 << 30), duties=duties,
            provisioner=Provisioner(policy=lambda: self.policy, registry=default_registry(), fetch=cache.file, shelf=Shelf(self.directory)),
            delegation=lambda: identity_pb2.Envelope(payload=b"delegation"), takes_no_work=lambda: "", send=self.send, changed=self.news.set,
            say=self.say, clock=SystemClock(),
        )  # fmt: skip

    def put(self, data: bytes) -> str:
        self.store[digest_of(data)] = data
        return digest_of(data)

    def manifest(self, state: bytes, parent: str, signer: NodeKey = HOLDER, **changes: Any) -> str:
        checkpoint = model_pb2.Checkpoint(vnode="a", digest=self.put(state), size_bytes=len(state), job_id=JOB)
        cleared = checkpoint if self.policy.audits_drawn else None
        body = model_pb2.Manifest(
            network_id=self.policy.network_id, model=MODEL, parent_digest=parent, holder=signer.node_id, graph_digest=graph_digest(GRAPH),
            entries=[model_pb2.ManifestEntry(vnode="a", working=[checkpoint], cleared=cleared)], number=1, **changes,
        )  # fmt: skip
        envelope = seal(identity_pb2.DOMAIN_MANIFEST, body, signer)
        self.store[digest_of_envelope(envelope)] = envelope.SerializeToString(deterministic=True)
        return digest_of_envelope(envelope)

    async def read_file(self, ref: data_pb2.ObjectRef, destination: Path, *, max_bytes: int) -> None:
        """As `ObjectClient`."""
        if ref.digest not in self.store:
            raise NotFound("no such object")
        destination.write_bytes(self.store[ref.digest])

    async def send(self, message: local_pb2.ToWorker) -> bool:
        if message.WhichOneof("kind") == "callers":
            self.callers = list(message.callers.orchestrators)
        elif message.WhichOneof("kind") == "caches":
            self.cache_bytes = message.caches.max_bytes
        else:
            self.sent.append(message.seat)
        self.news.set()
        return True

    def say(self, kind: str, subject: str, reason: str) -> None:
        self.said.append(f"{kind} {reason}")
        self.news.set()

    def wish(self, manifest: str, *vnodes: str, **changes: Any) -> orchestrator_pb2.SeatWish:
        return orchestrator_pb2.SeatWish(
            model=MODEL, manifest_digest=manifest, vnodes=vnodes, job_id=JOB, request_digest=self.request, **changes
        )

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not what():
                self.news.clear()
                await self.news.wait()


def play(world: World, scenario: Callable[[SeatDuties], Any]) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            duties = SeatDuties(world.around, group)
            await duties.worker_up()
            running = group.create_task(duties.run())
            await scenario(duties)
            duties.stop()
            running.cancel()

    asyncio.run(run())


async def reported(duties: SeatDuties, reason: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not any(reason in report.reason for report in duties.reports()):  # noqa: ASYNC110  beats ask, nobody is told
            await asyncio.sleep(0.01)


def ready(order: local_pb2.HostSeat) -> orchestrator_pb2.SeatReport:
    return orchestrator_pb2.SeatReport(model=order.model, vnode=order.vnode, state_digest=order.state_digest, ready=True)


def test_who_may_ask_a_worker_that_runs_follows_the_network_document(tmp_path: Path) -> None:
    """Whoever is taken out asks it nothing more, and whoever comes need not wait for its next start."""
    world, newcomer = World(tmp_path), NodeKey.generate()

    async def scenario(duties: SeatDuties) -> None:
        assert world.callers == sorted([HOLDER.node_id, OTHER.node_id])
        draft = draft_successor(POLICY)
        draft.orchestrator_ids[:] = [OTHER.node_id, newcomer.node_id]
        world.policy = POLICY.successor([*POLICY.history, sign_document(draft, MAINTAINER)])
        await world.until(lambda: world.callers == sorted([OTHER.node_id, newcomer.node_id]))

    play(world, scenario)


def test_a_new_state_is_loaded_beside_the_one_before_which_goes_when_nobody_keeps_it(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        assert world.callers == sorted([HOLDER.node_id, OTHER.node_id])
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await world.until(lambda: len(world.sent) == 1)
        first = world.sent[0]
        assert (first.state_digest, Path(first.state_path).read_bytes()) == (digest_of(STATES[0]), STATES[0])
        assert first.graph == graph_to_bytes(GRAPH)
        duties.heard([ready(first)])
        (report,) = duties.reports()
        assert (report.ready, report.manifest_digest, report.delegation.payload) == (True, world.first, b"delegation")
        duties.wished(HOLDER.node_id, world.wish(world.second, "a", previous_manifest_digest=world.first))
        await world.until(lambda: len(world.sent) == 2)
        duties.heard([ready(first), ready(world.sent[1])])
        assert {report.manifest_digest for report in duties.reports()} == {world.first, world.second}
        duties.wished(HOLDER.node_id, world.wish(world.second, "a"))
        await world.until(lambda: len(world.sent) == 3)
        assert (world.sent[2].state_digest, world.sent[2].state_path) == (digest_of(STATES[0]), "")
        duties.wished(HOLDER.node_id, world.wish(world.second))
        await world.until(lambda: len(world.sent) == 4)
        assert (world.sent[3].state_digest, world.sent[3].state_path) == (digest_of(STATES[1]), "")
        assert duties.reports() == []

    play(world, scenario)


def test_a_wish_counts_when_a_confirmed_head_names_who_sent_it(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(NodeId("9" * 40), world.wish(world.first, "a"))
        assert any("unlisted_orchestrator" in said for said in world.said)
        duties.wished(OTHER.node_id, world.wish(world.first, "a"))
        duties.wished(HOLDER.node_id, world.wish(world.second, "a"))
        await world.until(lambda: bool(world.sent))
        assert world.sent[0].state_digest == digest_of(STATES[1])
        duties.heard([ready(world.sent[0])])
        world.term = Term(2, OTHER.node_id)
        await world.until(lambda: len(world.sent) == 2)
        assert world.sent[1].state_digest == digest_of(STATES[0])

    play(world, scenario)


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (lambda world: world.wish(world.manifest(b"elsewhere", world.first), "a"), "not_on_chain"),
        (lambda world: world.wish(world.first, "b"), "no_state"),
        (lambda world: world.wish(world.first, "a", cleared=True), "no_state"),
    ],
)
def test_what_the_chain_does_not_name_is_not_loaded(
    tmp_path: Path, wish: Callable[[World], orchestrator_pb2.SeatWish], reason: str
) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, wish(world))
        await reported(duties, reason)
        assert world.sent == []

    play(world, scenario)


def released(world: World, manifest: str, *, model: str = MODEL, key: NodeKey = MAINTAINER) -> identity_pb2.Envelope:
    """Maintainers say that it answers."""
    release = model_pb2.Release(network_id=world.policy.network_id, model=model, number=1, manifest_digest=manifest)
    return seal(identity_pb2.DOMAIN_RELEASE, release, key)


def test_what_maintainers_released_is_loaded_though_no_chain_leads_there(tmp_path: Path) -> None:
    """A job that began anew leaves every manifest before it behind."""
    world = World(tmp_path)
    world.head = world.manifest(b"anew", "")

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await reported(duties, "not_on_chain")
        duties.wished(HOLDER.node_id, world.wish(world.first, "a", release=released(world, world.first)))
        await world.until(lambda: bool(world.sent))
        assert world.sent[0].state_digest == digest_of(STATES[0])

    play(world, scenario)


@pytest.mark.parametrize(
    ("release", "reason"),
    [
        (lambda world: released(world, world.first, key=HOLDER), "unsigned_job"),
        (lambda world: released(world, world.second), "not_released"),
        (lambda world: released(world, world.first, model="other"), "not_released"),
        (lambda world: identity_pb2.Envelope(), "unsigned_job"),
    ],
)
def test_what_is_said_to_be_released_and_is_not_is_not_loaded(
    tmp_path: Path, release: Callable[[World], identity_pb2.Envelope], reason: str
) -> None:
    world = World(tmp_path)
    world.head = world.manifest(b"anew", "")

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a", release=release(world)))
        await reported(duties, reason)
        assert world.sent == []

    play(world, scenario)


def test_what_was_taken_back_is_not_served_though_it_is_released(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.head = world.manifest(b"third", world.second, retracted=[digest_of(STATES[0])])

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a", release=released(world, world.first)))
        await reported(duties, "retracted")
        assert world.sent == []

    play(world, scenario)


def test_a_state_that_was_taken_back_is_not_served(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.head = world.manifest(b"third", world.second, retracted=[digest_of(STATES[0])])

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await reported(duties, "retracted")
        assert world.sent == []

    play(world, scenario)


def test_what_is_taken_back_while_it_is_served_goes(tmp_path: Path) -> None:
    world = World(tmp_path, policy=AUDITED)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await reported(duties, "not_cleared")
        duties.wished(HOLDER.node_id, world.wish(world.first, "a", cleared=True))
        await world.until(lambda: len(world.sent) == 1)
        duties.heard([ready(world.sent[0])])
        world.head = world.manifest(b"third", world.second, retracted=[digest_of(STATES[0])])
        await world.until(lambda: len(world.sent) == 2)
        assert (world.sent[1].state_digest, world.sent[1].state_path) == (digest_of(STATES[0]), "")

    play(world, scenario)


def test_a_new_worker_serves_what_the_last_one_did(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await world.until(lambda: len(world.sent) == 1)
        duties.heard([ready(world.sent[0])])
        duties.worker_down()
        assert not any(report.ready for report in duties.reports())
        await duties.worker_up()
        await world.until(lambda: len(world.sent) == 2)
        assert world.sent[1] == world.sent[0]

    play(world, scenario)


def test_the_seats_of_a_model_that_is_forgotten_go(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await world.until(lambda: len(world.sent) == 1)
        world.term = None
        await world.until(lambda: len(world.sent) == 2)
        assert (world.sent[1].state_path, duties.reports()) == ("", [])

    play(world, scenario)


def test_replicas_have_the_memory_before_seats(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await world.until(lambda: len(world.sent) == 1)
        duties.heard([ready(world.sent[0])])
        lent = world.cache_bytes
        assert MIB <= lent < world.memory_bytes
        world.budget.admit("r.1", Reservation(world.memory_bytes - MIB, 0), free_disk_bytes=1 << 30)
        await world.until(lambda: len(world.sent) == 2)
        assert world.cache_bytes <= MIB
        assert world.sent[1].state_path == ""
        assert "too_little_memory" in duties.reports()[0].reason
        world.budget.release("r.1")
        await world.until(lambda: len(world.sent) == 3)
        assert (world.sent[2].state_path != "", world.cache_bytes) == (True, lent)

    play(world, scenario)


def test_a_state_whose_file_went_before_the_worker_read_it_is_brought_again_without_a_word(tmp_path: Path) -> None:
    """A snapshot of this machine lies there until a newer one takes its place, which may be at any moment."""
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.second, "a"))
        await world.until(lambda: len(world.sent) == 1)
        order = world.sent[0]
        gone = orchestrator_pb2.SeatReport(
            model=order.model, vnode=order.vnode, state_digest=order.state_digest, reason="state_gone: its file was removed"
        )
        for number in range(MAX_GONE):
            Path(world.sent[-1].state_path).unlink()
            await asyncio.sleep(0)  # the order that was sent is over
            duties.heard([gone])
            await world.until(lambda number=number: len(world.sent) == number + 2)
            assert Path(world.sent[-1].state_path).read_bytes() == STATES[1]
        assert world.said == []
        await asyncio.sleep(0)
        duties.heard([gone])
        assert world.said == ["seat_failed state_gone: its file was removed"]

    play(world, scenario)


def test_others_hear_that_a_vnode_answers_and_when_that_changes_but_not_of_every_newer_state(tmp_path: Path) -> None:
    """Whoever watches a job sees what changes: checkpoints are taken all the time."""
    world = World(tmp_path)
    states = (*STATES, b"third", b"fourth")

    async def scenario(duties: SeatDuties) -> None:
        async def tried(manifest: str, state: bytes, trouble: str = "", previous: str = "") -> None:
            digest, num_sent = digest_of(state), len(world.sent)
            duties.wished(HOLDER.node_id, world.wish(manifest, "a", previous_manifest_digest=previous))
            await world.until(lambda: any(one.state_path for one in world.sent[num_sent:] if one.state_digest == digest))
            await asyncio.sleep(0)  # the order that was sent is over
            duties.heard(
                [orchestrator_pb2.SeatReport(model=MODEL, vnode="a", state_digest=digest, ready=not trouble, reason=trouble)]
            )

        await tried(world.first, states[0])
        await tried(world.second, states[1], previous=world.first)
        ready_once = f"seat_ready state {digest_of(states[0])[:12]} of m"
        assert world.said == [ready_once]
        world.head = world.manifest(states[2], world.second)
        await tried(world.head, states[2], "bad_state: no weights")
        world.head = world.manifest(states[3], world.head)
        await tried(world.head, states[3], "bad_state: no weights")
        assert world.said == [ready_once, "seat_failed bad_state: no weights"]
        await tried(world.first, states[0])
        assert world.said == [ready_once, "seat_failed bad_state: no weights", ready_once]
        duties.worker_down()
        await duties.worker_up()
        num_sent = len(world.sent)
        await world.until(lambda: len(world.sent) > num_sent)
        await asyncio.sleep(0)
        duties.heard([ready(world.sent[-1])])
        assert world.said[3:] == [ready_once]

    play(world, scenario)
