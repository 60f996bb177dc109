"""A store with manifests of one trained model, and a network whose maintainers say which of them serves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.graph import Graph, graph_digest, graph_to_bytes
from dcnr.ids import digest_of
from dcnr.specs import TensorSpec
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.releases import ReleaseBook, Said, record_release
from orchestrator.view import ViewLoader
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

CLOCK = SystemClock()
ALICE, BOB, STRANGER, ORCHESTRATOR = (NodeKey.generate() for _ in range(4))
MODEL, JOB = "toy", "job-1"
VNODES = ("a", "b")


def graph() -> model_pb2.ModelGraph:
    made = Graph(
        MODEL, input=TensorSpec("float32", (8,)), target=TensorSpec("int64", ()), num_classes=2,
        train={"passes": 1, "batch_size": 4}, data={use: f"dataset:toy#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    for name, source in zip(VNODES, ("input", "a"), strict=True):
        made.vnode(
            name, "linear", {"out_features": 8}, inputs=[source], objective={"name": "local_ce", "config": {}},
            optimizer={"name": "sgd", "lr": 0.1},
        )  # fmt: skip
    return made.build()


GRAPH = graph()


class Shelf:
    """See the module. ``maintainers``: all of them have to sign."""

    def __init__(self, *maintainers: NodeKey, audits: str = "none") -> None:
        self.maintainers = maintainers or (ALICE,)
        self.store = MemoryStore(CLOCK, random.Random(1))
        document = create_document(
            *self.maintainers, name="test", now_wall=CLOCK.wall(), orchestrator_ids=[ORCHESTRATOR.node_id], threshold=len(self.maintainers),
            locality=identity_pb2.LOCALITY_SINGLE_HOST, audits=audits,
        )  # fmt: skip
        self.policy = verify_chain([document])
        self.loader = ViewLoader(self.store, lambda: self.policy, default_registry(), CLOCK)
        self.newest: model_pb2.Manifest | None = None
        request = model_pb2.JobRequest(network_id=self.policy.network_id, job_id=JOB, model=MODEL, graph_digest=graph_digest(GRAPH))
        self._put(keys.graph(graph_digest(GRAPH)), graph_to_bytes(GRAPH))
        self._put(keys.job_request(MODEL, JOB), self._sealed(identity_pb2.DOMAIN_JOB_REQUEST, request, *self.maintainers)[0])

    def manifest(
        self, number: int, *, model: str = MODEL, audits: str = "", job_id: str = JOB, are_cleared: bool = True, retracted: Sequence[str] = ()
    ) -> str:  # fmt: skip
        """Digest of a manifest in the store with the states that it names."""
        made = model_pb2.Manifest(
            network_id=self.policy.network_id, model=model, number=number, job_id=job_id, holder=ORCHESTRATOR.node_id,
            graph_digest=graph_digest(GRAPH), audits=audits or ("drawn" if self.policy.audits_drawn else "none"), retracted=retracted,
        )  # fmt: skip
        for vnode in VNODES:
            one = model_pb2.Checkpoint(vnode=vnode, digest=self.state(number, vnode), size_bytes=1, job_id=job_id)
            self._put(keys.state(model, vnode, one.digest), b"1")
            made.entries.add(vnode=vnode, working=[one], cleared=one if are_cleared else None)
        data, digest = self._sealed(identity_pb2.DOMAIN_MANIFEST, made, ORCHESTRATOR)
        self._put(keys.manifest(model, digest), data)
        return digest

    def ended(self, manifest: str, newest: str) -> None:
        """A job has ended with a manifest, and another one is under the head since."""
        outcome = model_pb2.Outcome(job_id="earlier", state=model_pb2.JOB_STATE_COMPLETED, manifest_digest=manifest)
        head = model_pb2.Head(
            network_id=self.policy.network_id, model=MODEL, epoch=1, holder=ORCHESTRATOR.node_id, sequence=1, manifest_digest=newest,
            decided=[outcome],
        )  # fmt: skip
        self._put(keys.head(MODEL), self._sealed(identity_pb2.DOMAIN_HEAD, head, ORCHESTRATOR)[0])

    def state(self, number: int, vnode: str) -> str:
        """Digest of the state that the manifest of that number names."""
        return digest_of(f"{number} {vnode}".encode())

    def envelope(
        self, number: int, manifest: str, *signers: NodeKey, model: str = MODEL, reason: str = "", network_id: str = ""
    ) -> identity_pb2.Envelope:
        """A statement, by all maintainers unless told otherwise."""
        release = model_pb2.Release(
            network_id=network_id or self.policy.network_id, model=model, number=number, manifest_digest=manifest, reason=reason
        )
        return seal(identity_pb2.DOMAIN_RELEASE, release, *(signers or self.maintainers))

    async def told(self, envelope: identity_pb2.Envelope) -> tuple[Said | None, bool]:
        """What an orchestrator makes of it."""
        return await record_release(
            envelope, policy=self.policy, store=self.store, loader=self.loader, newest=lambda _: self.newest
        )

    def say(self, number: int, manifest: str) -> bool:
        """Whether the statement is new."""
        return asyncio.run(self.told(self.envelope(number, manifest)))[1]

    def book(self) -> ReleaseBook:
        """What a process that has just started reads."""
        made = ReleaseBook(MODEL, self.store, lambda: self.policy)
        asyncio.run(made.refresh())
        return made

    def _sealed(self, domain: identity_pb2.Domain.ValueType, message: object, *signers: NodeKey) -> tuple[bytes, str]:
        envelope = seal(domain, message, *signers)  # type: ignore[arg-type]
        return envelope.SerializeToString(deterministic=True), digest_of_envelope(envelope)

    def _put(self, key: str, data: bytes) -> None:
        self.store.rewind(key, data)
