"""Goal: a checkpoint is named only if its lineage follows from signed commits and deltas back to a known state, and its bytes could be restored."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from dataservice import keys
from dataservice.manifest_form import Contribution
from dataservice.memory import MemoryStore
from dcnr.errors import DcnrError, Unavailable
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
    batches: list[int], *, worker: NodeKey = HELPING, job: str = JOB, sequence: int = 1, steps: str = ""
) -> identity_pb2.Envelope:
    """What replica a.1 on another PNode learned."""
    message = model_pb2.Delta(
        network_id=POLICY.network_id, model=MODEL, job_id=job, vnode="a", replica="a.1", incarnation=7, sequence=sequence, anchor_digest="c" * 64,
        batches=batches, losses=[1.0] * len(batches), codec="raw", digest="d" * 64, size_bytes=9,
        delegation=make_delegation(HELPER, POLICY.network_id, HELPING.public_der, 7, ["127.0.0.1:2"], NOW - 90_000), steps_digest=steps,
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_DELTA, message, worker)


class World:
    """A store with checkpoint 0 of one VNode, and a primary that commits to it."""

    def __init__(self) -> None:
        self.store = MemoryStore(StoppedClock(), random.Random(0))
        self.judge = CheckpointJudge(self.store, POLICY, StoppedClock())
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


def test_own_batches_and_deltas_are_followed_over_anchors_and_credited() -> None:
    async def story(world: World) -> None:
        world.commits([0, 1], anchor="a" * 64, merges=[model_pb2.Merged(after=1, delta=delta([6, 7]))])
        world.commits([2], anchor="b" * 64, merges=[model_pb2.Merged(after=0, delta=delta([8], sequence=2))])
        made = world.checkpoint(IntervalSet.of((0, 4), (6, 9)), [3])
        helped = ("a.1", HELPER.node_id)
        assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 4), helped: SPAN(6, 9)}
        assert await world.learned(made) == await world.learned(made), "a record is repeated until it is named"
        later = world.checkpoint(SPAN(0, 9), [4, 5])
        assert (await world.learned(later))[helped] == SPAN(6, 9), "what led to a state that was not named is told again"
        world.manifest.entries[0].working.insert(0, made[0])
        fresh = CheckpointJudge(world.store, POLICY, StoppedClock())
        judged = await fresh.judge(world.view(), *later)
        assert judged.contributions == (Contribution("a", "a.0", PNODE.node_id, SPAN(4, 6)),), (
            "what a manifest names has been credited"
        )

    run(story)


def test_where_audits_are_in_force_what_was_learned_comes_in_intervals_named_by_the_statements_that_end_them() -> None:
    async def story(world: World) -> None:
        world.audited()
        base, helped = world.state, [delta([6, 7], steps="5" * 64), delta([8], sequence=2, steps="5" * 64)]
        world.commits([0, 1], anchor="a" * 64, merges=[model_pb2.Merged(after=1, delta=helped[0])])
        first = world.checkpoint(SPAN(0, 3) | SPAN(6, 8), [2])
        closing = world.commit
        world.commits([], anchor="b" * 64, merges=[model_pb2.Merged(after=0, delta=helped[1])])
        made = world.checkpoint(SPAN(0, 3) | SPAN(6, 9), [])
        judged = await world.judge.judge(world.view(), *made)
        assert judged.base == base
        assert {one.interval: (one.replica, one.batches) for one in judged.contributions} == {
            digest_of_envelope(helped[0]): ("a.1", SPAN(6, 8)), closing: ("a.0", SPAN(0, 3)),
            digest_of_envelope(helped[1]): ("a.1", SPAN(8, 9)), world.commit: ("a.0", IntervalSet.empty()),
        }, "merging alone is an interval too"  # fmt: skip
        world.manifest.entries[0].working.insert(0, first[0])
        world.audited()
        fresh = CheckpointJudge(world.store, POLICY, StoppedClock())
        assert (await fresh.judge(world.view(), *made)).base == first[0].digest

    run(story)


def test_an_interval_ends_where_another_replica_goes_on_from_an_anchor() -> None:
    async def story(world: World) -> None:
        world.audited()
        world.commits([0, 1], anchor="a" * 64)
        left = world.commit
        world.plan.assignments[0].role = model_pb2.ROLE_PRIMARY
        del world.plan.assignments[1]
        made = world.checkpoint(SPAN(0, 5), [4, 2, 3], replica="a.1", node=HELPER, worker=HELPING)
        judged = await world.judge.judge(world.view(), *made)
        found = {one.interval: (one.pnode_id, one.batches) for one in judged.contributions}
        assert found == {left: (PNODE.node_id, SPAN(0, 2)), world.commit: (HELPER.node_id, SPAN(2, 5))}

    run(story)


def test_where_audits_are_in_force_statements_name_their_steps() -> None:
    async def own(world: World) -> None:
        world.audited()
        world.steps = ""
        assert await refused(world, world.checkpoint(SPAN(0, 1), [0])) == "no_steps"

    async def merged(world: World) -> None:
        world.audited()
        world.commits([0, 1], anchor="a" * 64, merges=[model_pb2.Merged(after=0, delta=delta([6]))])
        assert await refused(world, world.checkpoint(SPAN(0, 2) | SPAN(6, 7), [])) == "no_steps"

    for story in (own, merged):
        run(story)


def test_what_a_replica_learned_before_its_vnode_went_back_counts_no_more() -> None:
    async def story(world: World) -> None:
        world.audited()
        world.manifest.fences.add(vnode="a", first_replica=1)
        made = world.checkpoint(SPAN(0, 1), [0])
        assert await refused(world, made) == "fenced"
        world.manifest.fences[0].first_replica = 0
        assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 1)}

    run(story)


def test_a_promoted_contributor_goes_on_from_an_anchor() -> None:
    async def story(world: World) -> None:
        world.commits([0, 1], anchor="a" * 64)
        world.plan.assignments[0].role = model_pb2.ROLE_PRIMARY
        del world.plan.assignments[1]
        made = world.checkpoint(SPAN(0, 5), [4, 2, 3], replica="a.1", node=HELPER, worker=HELPING)
        assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 2), ("a.1", HELPER.node_id): SPAN(2, 5)}

    run(story)


@pytest.mark.parametrize(
    ("merged", "code"),
    [
        (model_pb2.Merged(after=0, delta=delta([1, 2])), "bad_lineage"),
        (model_pb2.Merged(after=0, delta=delta([2], worker=STRANGER)), "wrong_signer"),
        (model_pb2.Merged(after=0, delta=delta([2], job="other")), "wrong_job"),
        (model_pb2.Merged(after=3, delta=delta([2])), "wrong_delta"),
        (model_pb2.Merged(after=0, delta=seal(identity_pb2.DOMAIN_COMMIT, delta([2]).payload, HELPING)), "wrong_domain"),
        (model_pb2.Merged(after=0), "bad_signature"),
    ],
)
def test_a_delta_that_does_not_hold_spoils_the_lineage(merged: model_pb2.Merged, code: str) -> None:
    async def story(world: World) -> None:
        world.commits([0, 1], anchor="a" * 64, merges=[merged])
        assert await refused(world, world.checkpoint(SPAN(0, 3), [])) == code

    run(story)


def test_ancestors_must_be_there_and_follow_one_another() -> None:
    async def missing(world: World) -> None:
        world.commits([0], anchor="a" * 64, stored=False)
        assert await refused(world, world.checkpoint(SPAN(0, 2), [1])) == "unknown_ancestor"

    async def elsewhere(world: World) -> None:
        world.commits([0], anchor="a" * 64)
        made = world.checkpoint(SPAN(0, 2), [1], data=state(SPAN(0, 2), "b" * 64), parent="b" * 64)
        made[0].parent_digest = "b" * 64
        assert await refused(world, made) == "wrong_commit"

    async def nowhere(world: World) -> None:
        made = world.checkpoint(SPAN(0, 2), [0, 1], data=state(SPAN(0, 2), ""), parent="")
        made[0].parent_digest = ""
        assert await refused(world, made) == "unknown_ancestor"

    for story in (missing, elsewhere, nowhere):
        run(story)


def test_only_the_primary_makes_checkpoints() -> None:
    async def story(world: World) -> None:
        made = world.checkpoint(SPAN(0, 1), [0], replica="a.1", node=HELPER, worker=HELPING)
        assert await refused(world, made) == "not_primary"

    run(story)


def nan_at_the_end(parent: str) -> bytes:
    data = bytearray(state(SPAN(0, 2), parent))
    data[-4:] = np.array([np.nan], "<f4").tobytes()
    return bytes(data)


@pytest.mark.parametrize(
    "bytes_of",
    [
        lambda parent: b"no state at all",
        lambda parent: b"",
        lambda parent: state(SPAN(0, 2), parent)[:-4],
        lambda parent: state(SPAN(0, 2), parent) + bytes(8),
        lambda parent: state(SPAN(0, 3), parent),
        lambda parent: state(SPAN(0, 2), "e" * 64),
        lambda parent: state(SPAN(0, 2), parent, graph="e" * 64),
        lambda parent: state(SPAN(0, 2), parent, model="other"),
        lambda parent: state(SPAN(0, 2), parent, num_batches=BATCHES + 1),
        lambda parent: state(SPAN(0, 2), parent, seed=6),
        lambda parent: state(SPAN(0, 2), parent, schema=StateSchema("a", {"w/weight": TensorSlot("float32", (2, 3))})),
        lambda parent: state(
            SPAN(0, 2), parent, schema=StateSchema("a", {**SCHEMA.tensors, "w/weight": TensorSlot("float32", (3, 2))})
        ),
        nan_at_the_end,
    ],
)
def test_bytes_that_no_replica_could_restore_are_refused(bytes_of: Callable[[str], bytes]) -> None:
    async def story(world: World) -> None:
        made = world.checkpoint(SPAN(0, 2), [0, 1], data=bytes_of(world.state))
        assert await refused(world, made) in ("bad_state", "bad_lineage")

    run(story)


def test_a_state_that_is_not_there_or_has_other_bytes_is_not_named() -> None:
    async def story(world: World) -> None:
        checkpoint, envelope = world.checkpoint(SPAN(0, 2), [0, 1])
        key = keys.state(MODEL, "a", checkpoint.digest)
        whole = world.store.peek(key)
        assert whole is not None
        world.store.rewind(key, None)
        with pytest.raises(Unavailable):
            await world.judge.judge(world.view(), checkpoint, envelope)
        world.store.rewind(key, state(SPAN(0, 2), checkpoint.parent_digest, mark=1.0))
        assert await refused(world, (checkpoint, envelope)) == "wrong_digest"
        world.store.rewind(key, whole)
        assert await world.learned((checkpoint, envelope)) == {("a.0", PNODE.node_id): SPAN(0, 2)}

    run(story)


def test_a_merge_is_named_only_if_plans_of_the_job_had_it() -> None:
    """Whose delta, and one part of how many."""

    async def told(world: World, replicas: int) -> str:
        world.commits([0, 1], anchor="a" * 64, merges=[model_pb2.Merged(after=1, delta=delta([6, 7]), replicas=replicas)])
        made = world.checkpoint(SPAN(0, 3) | SPAN(6, 8), [2])
        try:
            await world.learned(made)
        except DcnrError as error:
            return error.code
        return ""

    def story(replicas: int, code: str, *plans: dict[str, Any]) -> None:
        async def one(world: World) -> None:
            world.planned(*(world.seats(**plan) for plan in plans))
            assert await told(world, replicas) == code, (replicas, plans)

        run(one)

    aside = {"role": model_pb2.ROLE_STANDBY}
    story(2, "", {})
    story(0, "", {})
    story(3, "", {"learns": 3}, {})
    story(2, "", {}, *[{"helper": f"a.{number}"} for number in range(20, 40)])
    story(3, "unplanned_merge", {})
    story(2, "unplanned_merge", {"learns": 4})
    story(2, "unplanned_merge", {"where": PNODE})
    story(2, "unplanned_merge", aside)
    story(2, "unplanned_merge", {"helper": "a.7"})
    story(2, "unplanned_merge", {"job": "another"}, {"helper": "a.7"})
    story(2, "", {}, aside)


def test_many_plans_are_read_in_parts_and_one_that_is_lost_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.learners.MAX_READ", 4)

    async def story(world: World) -> None:
        world.planned(world.seats(), *(world.seats("a.7") for _ in range(9)))
        world.commits([0], anchor="a" * 64, merges=[model_pb2.Merged(after=1, delta=delta([6]), replicas=2)])
        made = world.checkpoint(SPAN(0, 2) | SPAN(6, 7), [1])
        codes = [await refused(world, made) for _ in range(2)]
        assert codes == ["plans_unread"] * 2
        assert len(await world.learned(made)) == 2

        newest = world.plan_digest
        world.planned(world.plan)
        world.plan.parent_digest = newest[::-1]
        world.judge = CheckpointJudge(world.store, POLICY, StoppedClock())
        world.plan.assignments[0].replica = "a.7"
        assert await refused(world, made) == "unplanned_merge"

    run(story)
