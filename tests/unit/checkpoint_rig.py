"""A world of one VNode for the judge of checkpoints: its states, commits, deltas and plans, in a store in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.errors import DcnrError
from dcnr.graph import graph_digest, graph_from_toml, stages_of_graph
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.chain import Chain
from orchestrator.checkpoints import CheckpointJudge
from orchestrator.documents import sealed
from orchestrator.jobs import intervals_message
from orchestrator.view import JobFacts, ModelView
from trust.delegation import make_delegation
from trust.envelope import digest_of_envelope, seal
from trust.folding import Chronicle
from trust.identity import NodeKey
from trust.ledger import Ledger, Named
from trust.network import create_document, verify_chain
from vnode.registry import default_registry
from vnode.state import StateInfo, StateSchema, TensorSlot, serialise

NOW, BATCHES, MODEL, JOB = 1_800_000_000.0, 12, "m", "j"
MAINTAINER, ORCHESTRATOR, PNODE, WORKER, HELPER, HELPING, STRANGER = (NodeKey.generate() for _ in range(7))
POLICY = verify_chain([create_document(MAINTAINER, name="n", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id])])
SCHEMA = StateSchema("a", {"w/weight": TensorSlot("float32", (2, 3)), "o/weight/momentum": TensorSlot("float32", (2, 3))})
GRAPH = graph_from_toml(
    """
[model]
name = "m"
version = 1
input = { dtype = "float32", shape = [3] }
target = { dtype = "int64", shape = [] }
num_classes = 2
[data]
train = "dataset:d#train"
validation = "dataset:d#validation"
test = "dataset:d#test"
[train]
passes = 1
batch_size = 2
seed = 5
[[vnode]]
id = "a"
component = "linear"
config = { out_features = 2 }
inputs = ["input"]
objective = { name = "local_ce" }
optimizer = { name = "sgd", lr = 0.1 }
"""
)


class StoppedClock:
    """Time that stands still."""

    def monotonic(self) -> float:
        return 5.0

    def wall(self) -> float:
        return NOW


def state(lineage: IntervalSet, parent: str, *, mark: float = 0.0, schema: StateSchema = SCHEMA, **changes: Any) -> bytes:
    facts = {
        "model": MODEL,
        "graph": graph_digest(GRAPH),
        "parent": parent,
        "epoch": 1,
        "step": 1,
        "num_batches": BATCHES,
        "seed": 5,
        **changes,
    }
    tensors = {name: np.full(slot.shape, mark, slot.dtype) for name, slot in schema.tensors.items()}
    return serialise(schema, StateInfo(vnode="a", lineage=lineage, **facts), tensors)


def delta(
    batches: list[int], *, worker: NodeKey = HELPING, job: str = JOB, sequence: int = 1, steps: str = "", anchor: str = "c" * 64, measured: str = "",
) -> identity_pb2.Envelope:  # fmt: skip
    """What replica a.1 on another PNode learned above that anchor."""
    message = model_pb2.Delta(
        network_id=POLICY.network_id, model=MODEL, job_id=job, vnode="a", replica="a.1", incarnation=7, sequence=sequence, anchor_digest=anchor,
        batches=batches, losses=[1.0] * len(batches), codec="raw", digest="d" * 64, size_bytes=9,
        delegation=make_delegation(HELPER, POLICY.network_id, HELPING.public_der, 7, ["127.0.0.1:2"], NOW - 90_000), steps_digest=steps,
        measured_digest=measured,
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_DELTA, message, worker)


class World:
    """A store with checkpoint 0 of one VNode, and a primary that commits to it."""

    def __init__(self) -> None:
        self.store = MemoryStore(StoppedClock(), random.Random(0))
        self.judge = CheckpointJudge(self.store, lambda: POLICY, StoppedClock())
        self.zero = state(IntervalSet.empty(), "")
        self.store.rewind(keys.state(MODEL, "a", digest_of(self.zero)), self.zero)
        first = model_pb2.Checkpoint(vnode="a", digest=digest_of(self.zero), size_bytes=len(self.zero))
        self.manifest = model_pb2.Manifest(entries=[model_pb2.ManifestEntry(vnode="a", working=[first], cleared=first)])
        self.beginning = model_pb2.Manifest()
        self.beginning.CopyFrom(self.manifest)
        self.plan, self.plan_digest = self.seats(), ""
        self.state, self.commit, self.steps = digest_of(self.zero), "", ""
        self.chain: Chain | None = None

    def seats(
        self,
        helper: str = "a.1",
        *,
        where: NodeKey = HELPER,
        role: model_pb2.Role.ValueType = model_pb2.ROLE_CONTRIBUTOR,
        learns: int = 2,
        job: str = JOB,
    ) -> model_pb2.Plan:
        """A plan of the VNode with that many replicas that learn."""
        seats = [
            model_pb2.Assignment(replica=helper, vnode="a", pnode_id=where.node_id, role=role, weight=1.0),
            model_pb2.Assignment(replica="a.0", vnode="a", pnode_id=PNODE.node_id, role=model_pb2.ROLE_PRIMARY, weight=1.0),
        ]
        more = [
            model_pb2.Assignment(
                replica=f"a.{number}", vnode="a", pnode_id=f"{number:040x}", role=model_pb2.ROLE_CONTRIBUTOR, weight=1.0
            )
            for number in range(10, 8 + learns)
        ]
        return model_pb2.Plan(
            network_id=POLICY.network_id, model=MODEL, holder=ORCHESTRATOR.node_id, job_id=job, assignments=[*seats, *more]
        )

    def planned(self, *plans: model_pb2.Plan) -> None:
        """The head names the last of them, and each the one before."""
        digest = ""
        for plan in plans:
            plan.parent_digest = digest
            made = sealed(identity_pb2.DOMAIN_PLAN, plan, ORCHESTRATOR)
            digest = made.digest
            self.store.rewind(keys.plan(MODEL, made.digest), made.data)
        self.plan, self.plan_digest = plans[-1], digest

    def promote(self) -> None:
        """The next plan has the contributor lead, alone."""
        after = self.seats(role=model_pb2.ROLE_PRIMARY)
        del after.assignments[1]
        self.planned(self.seats(), after)

    def audited(self) -> None:
        """Audits are in force, and the line of the VNode is what the manifest names."""
        line = tuple(Named(one.digest, ()) for one in reversed(self.manifest.entries[0].working))
        self.chain = Chain(Chronicle(Ledger({"a": line}, {})), {one.digest: one for one in self.manifest.entries[0].working})
        self.steps = "5" * 64

    def view(self) -> ModelView:
        request = model_pb2.JobRequest(job_id=JOB, graph_digest=graph_digest(GRAPH), num_batches=BATCHES)
        stages = stages_of_graph(GRAPH, default_registry())
        job = JobFacts(request, "r" * 64, GRAPH, b"", stages, ())
        return ModelView(
            MODEL,
            model_pb2.Head(plan_digest=self.plan_digest),
            b"",
            plan=self.plan,
            manifest=self.manifest,
            job=job,
            beginning=self.beginning,
            chain=self.chain,
        )

    def commits(
        self, batches: list[int], *, state: str = "", anchor: str = "", merges: list[model_pb2.Merged] | None = None, stored: bool = True,
        node: NodeKey = PNODE, worker: NodeKey = WORKER, replica: str = "a.0", parent: str | None = None,
    ) -> identity_pb2.Envelope:  # fmt: skip
        """The next commit, in the store."""
        message = model_pb2.Commit(
            network_id=POLICY.network_id, model=MODEL, job_id=JOB, vnode="a", replica=replica, incarnation=3,
            parent_digest=self.state if parent is None else parent, state_digest=state, anchor_digest=anchor, batches=batches,
            losses=[1.0] * len(batches), merges=merges or [], parent_commit=self.commit, steps_digest=self.steps,
            delegation=make_delegation(node, POLICY.network_id, worker.public_der, 3, ["127.0.0.1:1"], NOW),
        )  # fmt: skip
        envelope = seal(identity_pb2.DOMAIN_COMMIT, message, worker)
        self.state, self.commit = state or anchor, digest_of_envelope(envelope)
        if stored:
            self.store.rewind(keys.commit(MODEL, "a", self.commit), envelope.SerializeToString(deterministic=True))
        return envelope

    def checkpoint(
        self,
        lineage: IntervalSet,
        batches: list[int],
        *,
        data: bytes | None = None,
        replica: str = "a.0",
        node: NodeKey = PNODE,
        **given: Any,
    ) -> tuple[model_pb2.Checkpoint, identity_pb2.Envelope]:
        """The next commit with a state that holds that lineage."""
        parent = self.state
        data = state(lineage, parent) if data is None else data
        self.store.rewind(keys.state(MODEL, "a", digest_of(data)), data)
        envelope = self.commits(batches, state=digest_of(data), replica=replica, node=node, **given)
        checkpoint = model_pb2.Checkpoint(
            vnode="a", digest=digest_of(data), size_bytes=len(data), lineage=intervals_message(lineage), replica=replica,
            pnode_id=node.node_id, incarnation=3, step=len(lineage), parent_digest=parent, commit_digest=self.commit, job_id=JOB,
        )  # fmt: skip
        return checkpoint, envelope

    async def learned(self, made: tuple[model_pb2.Checkpoint, identity_pb2.Envelope]) -> dict[tuple[str, str], IntervalSet]:
        judged = await self.judge.judge(self.view(), *made)
        assert judged.checkpoint == made[0]
        return {(one.replica, one.pnode_id): one.batches for one in judged.contributions}


def run(story: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story(World())

    asyncio.run(bounded())


async def refused(world: World, made: tuple[model_pb2.Checkpoint, identity_pb2.Envelope]) -> str:
    with pytest.raises(DcnrError) as caught:
        await world.judge.judge(world.view(), *made)
    return caught.value.code


SPAN = IntervalSet.span
