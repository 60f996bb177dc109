"""A store, the head that a daemon has heard of, and a worker that says what it is told to: what the tests of seats drive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dcnr.errors import NotFound
from dcnr.graph import Graph, graph_digest, graph_to_bytes
from dcnr.ids import digest_of
from dcnr.limits import MIB
from dcnr.specs import TensorSpec
from dcnr.system import SystemClock
from dcnr.v1 import data_pb2, identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Term
from pnode.budget import DAEMON_BYTES, Budget, Limits
from pnode.cache import ObjectCache
from pnode.orders import HostingOptions
from pnode.provision import Provisioner
from pnode.seat_duties import Around, SeatDuties
from pnode.snapshots import Shelf
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain
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

    def manifest(self, state: bytes, parent: str, signer: NodeKey = HOLDER, graph: str = "", **changes: Any) -> str:
        checkpoint = model_pb2.Checkpoint(vnode="a", digest=self.put(state), size_bytes=len(state), job_id=JOB)
        cleared = checkpoint if self.policy.audits_drawn else None
        body = model_pb2.Manifest(
            network_id=self.policy.network_id, model=MODEL, parent_digest=parent, holder=signer.node_id,
            graph_digest=graph or graph_digest(GRAPH),
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
