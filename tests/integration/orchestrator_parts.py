"""Parts for tests of the orchestrator: a network of one maintainer, a small staged model without torch, and a worker that signs real commits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dataservice import keys
from dataservice.dataset_manifest import DatasetManifest, FieldSpec, ShardRef
from dcnr.graph import Graph, graph_digest, graph_to_bytes
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.ports import Clock, ObjectStore
from dcnr.specs import TensorSpec
from dcnr.v1 import common_pb2, identity_pb2, membership_pb2, model_pb2, orchestrator_pb2
from trust.delegation import make_delegation
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain
from vnode.state import StateInfo, StateSchema, TensorSlot, serialise

VNODES = ("first", "second")
BATCHES = 12
MODELS_WAIT_S = 30.0


def network(
    maintainer: NodeKey,
    orchestrators: list[NodeKey],
    clock: Clock,
    *,
    store_address: str = "",
    bucket: str = "",
    audits: str = "none",
) -> NetworkPolicy:
    """A single-host network of these orchestrators."""
    document = create_document(
        maintainer, name="test", now_wall=clock.wall(), orchestrator_ids=[key.node_id for key in orchestrators],
        locality=identity_pb2.LOCALITY_SINGLE_HOST, store_address=store_address, store_bucket=bucket, store_scheme="http", audits=audits,
    )  # fmt: skip
    return verify_chain([document])


def small_graph(model: str) -> model_pb2.ModelGraph:
    """Two linear stages."""
    objective, optimizer = {"name": "local_ce", "config": {}}, {"name": "sgd", "lr": 0.1}
    graph = Graph(
        model, input=TensorSpec("float32", (8,)), target=TensorSpec("int64", ()), num_classes=2,
        train={"passes": 1, "batch_size": 4}, data={"train": "dataset:toy#train", "validation": "dataset:toy#validation", "test": "dataset:toy#test"},
    )  # fmt: skip
    for name, source in zip(VNODES, ("input", "first"), strict=True):
        graph.vnode(name, "linear", {"out_features": 8}, inputs=[source], objective=objective, optimizer=optimizer)
    return graph.build()


def state_bytes(model: str, vnode: str, *, learned: int, parent: str, mark: int) -> bytes:
    """A state of that VNode which could be restored; ``mark`` makes it another one."""
    info = StateInfo(
        vnode, model, graph_digest(small_graph(model)), parent, epoch=1, step=int(learned > 0), num_batches=BATCHES, seed=0,
        lineage=IntervalSet.span(0, learned),
    )  # fmt: skip
    schema = StateSchema(vnode, {"w/weight": TensorSlot("float32", (4,))})
    return serialise(schema, info, {"w/weight": np.full(4, mark, np.float32)})


async def stage(
    store: ObjectStore, policy: NetworkPolicy, maintainer: NodeKey, model: str, clock: Clock, job_id: str, *, batches_per_s: float = 0.0
) -> identity_pb2.Envelope:  # fmt: skip
    """Graph, data set manifest, first states and manifest 0 in the store; the signed request."""
    graph = small_graph(model)
    splits = {"train": 4 * BATCHES, "validation": 4, "test": 4}
    fields = {"input": FieldSpec("float32", (8,), "float32"), "target": FieldSpec("int64", (), "uint8", num_classes=2)}
    shards = {(name, split): (ShardRef(digest_of(b"shard"), 0, count),) for name in fields for split, count in splits.items()}
    dataset = DatasetManifest("toy", 1, fields, splits, shards, "none", "made up")
    manifest = model_pb2.Manifest(network_id=policy.network_id, model=model, graph_digest=graph_digest(graph), audits="none")
    for vnode in VNODES:
        state = state_bytes(model, vnode, learned=0, parent="", mark=0)
        await store.put(keys.state(model, vnode, digest_of(state)), state)
        checkpoint = model_pb2.Checkpoint(vnode=vnode, digest=digest_of(state), size_bytes=len(state))
        manifest.entries.add(vnode=vnode, working=[checkpoint], cleared=checkpoint)
    envelope = seal(identity_pb2.DOMAIN_MANIFEST, manifest, maintainer)
    await store.put(keys.graph(graph_digest(graph)), graph_to_bytes(graph))
    await store.put(keys.dataset_manifest("toy", dataset.digest), dataset.to_bytes())
    await store.put(keys.manifest(model, digest_of_envelope(envelope)), envelope.SerializeToString(deterministic=True))
    request = model_pb2.JobRequest(
        network_id=policy.network_id, job_id=job_id, model=model, graph_digest=graph_digest(graph),
        initial_manifest_digest=digest_of_envelope(envelope), dataset_digest=dataset.digest, dataset_name="toy", num_batches=BATCHES,
        unit_batches=4, lead_batches=64, created_unix_ms=int(clock.wall() * 1000), batches_per_s=batches_per_s,
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_JOB_REQUEST, request, maintainer)


def capability() -> membership_pb2.Capability:
    """A machine that takes work."""
    return membership_pb2.Capability(cores=1, memory_bytes=4 << 30, disk_bytes=8 << 30, gflops=10, accepts_work=True)


@dataclass
class Worker:
    """A PNode's worker without a model: it reports progress and signs the commits that real states would have."""

    policy: NetworkPolicy
    store: ObjectStore
    clock: Clock
    daemon: NodeKey = field(default_factory=NodeKey.generate)
    key: NodeKey = field(default_factory=NodeKey.generate)
    incarnation: int = 1
    reports: dict[str, orchestrator_pb2.ReplicaReport] = field(default_factory=dict)
    sequence: int = 0
    plan_digest: str = ""
    halted: bool = False
    """Whether it was last told to learn nothing."""

    @property
    def node_id(self) -> str:
        return self.daemon.node_id

    def host(self, desired: model_pb2.DesiredState) -> None:
        """Does what it is told: replicas begin empty."""
        self.plan_digest, self.halted = desired.plan_digest, desired.halted
        wanted = {item.replica: item for item in desired.assignments}
        self.reports = {name: report for name, report in self.reports.items() if name in wanted}
        for name, item in wanted.items():
            self.reports.setdefault(
                name,
                orchestrator_pb2.ReplicaReport(
                    replica=name, vnode=item.vnode, incarnation=self.incarnation, state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE
                ),
            )

    def learn_all(self) -> None:
        """Every replica has learned everything and evaluated the test split."""
        for report in self.reports.values():
            report.lineage.CopyFrom(common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=0, end=BATCHES)]))
            report.num_learned = BATCHES
            del report.exits[:]
            report.exits.add(vnode=report.vnode, split="test", step=BATCHES, count=4, correct=3, complete=True)

    def beat(self) -> orchestrator_pb2.Beat:
        """The whole report."""
        self.sequence += 1
        return orchestrator_pb2.Beat(
            sequence=self.sequence, worker_alive=True, incarnation=self.incarnation, capability=capability(), plan_digest=self.plan_digest,
            replicas=list(self.reports.values()),
        )  # fmt: skip

    async def checkpoint(
        self, model: str, job_id: str, replica: str, parent: model_pb2.Checkpoint
    ) -> tuple[model_pb2.Checkpoint, identity_pb2.Envelope]:
        """A state with every batch of the job, in the store, with its signed commit."""
        vnode = self.reports[replica].vnode
        mark = int(replica.rsplit(".", 1)[1])
        state = state_bytes(model, vnode, learned=BATCHES, parent=parent.digest, mark=mark)
        done = sum(item.end - item.first for item in parent.lineage.intervals) if parent.job_id == job_id else 0
        commit = model_pb2.Commit(
            network_id=self.policy.network_id, model=model, job_id=job_id, vnode=vnode, replica=replica, incarnation=self.incarnation,
            parent_digest=parent.digest, state_digest=digest_of(state), batches=range(done, BATCHES), losses=[1.0] * (BATCHES - done),
            parent_commit=parent.commit_digest, steps_digest=digest_of(state) if self.policy.audits_drawn else "",
            delegation=make_delegation(
                self.daemon, self.policy.network_id, self.key.public_der, self.incarnation, ["127.0.0.1:1"], self.clock.wall()
            ),
        )  # fmt: skip
        envelope = seal(identity_pb2.DOMAIN_COMMIT, commit, self.key)
        await self.store.put(keys.state(model, vnode, digest_of(state)), state)
        await self.store.put(
            keys.commit(model, vnode, digest_of_envelope(envelope)), envelope.SerializeToString(deterministic=True)
        )
        checkpoint = model_pb2.Checkpoint(
            vnode=vnode, digest=digest_of(state), size_bytes=len(state), replica=replica, pnode_id=self.node_id, incarnation=self.incarnation,
            step=BATCHES, parent_digest=parent.digest, commit_digest=digest_of_envelope(envelope), job_id=job_id,
            lineage=common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=0, end=BATCHES)]),
        )  # fmt: skip
        return checkpoint, envelope
