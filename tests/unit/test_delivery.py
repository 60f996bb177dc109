"""Goal: desired states are read once for all streams, and PNodes that no plan names cost the store one listing together."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.errors import Corrupt
from dcnr.ports import ObjectInfo, StoredObject
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import publishing
from orchestrator.delivery import ABSENT_S, DesiredReader
from orchestrator.documents import sealed
from orchestrator.view import ModelView
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain

PLAN = "d" * 64
NAMED, STRAY = "a" * 40, "b" * 40


class Clock:
    now = 5.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class CountingStore(MemoryStore):
    """Counts what it is asked."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, random.Random(0))
        self.asked: Counter[str] = Counter()

    async def get(self, key: str, *, max_bytes: int) -> StoredObject:
        self.asked["get"] += 1
        return await super().get(key, max_bytes=max_bytes)

    async def list(self, prefix: str, *, max_keys: int = 1000, after: str = "") -> Sequence[ObjectInfo]:
        self.asked["list"] += 1
        return await super().list(prefix, max_keys=max_keys, after=after)


def network_of(key: NodeKey) -> NetworkPolicy:
    """One whose orchestrator has that key."""
    document = create_document(
        NodeKey.generate(), name="n", now_wall=0.0, orchestrator_ids=[key.node_id], locality=identity_pb2.LOCALITY_SINGLE_HOST
    )
    return verify_chain([document])


@pytest.mark.parametrize(
    "changed", [{"pnode_id": STRAY}, {"plan_digest": "e" * 64}, {"sequence": 8}], ids=["pnode", "plan", "sequence"]
)
def test_what_lies_in_the_place_of_another_s_desired_state_is_not_handed_out(changed: dict[str, Any]) -> None:
    """Whoever can write to the store may copy a signed one there."""
    key, clock = NodeKey.generate(), Clock()
    policy = network_of(key)
    store = CountingStore(clock)
    view = ModelView(
        "m", model_pb2.Head(plan_digest=PLAN, plan_sequence=7), b"", hosted={NAMED: (model_pb2.Assignment(replica="v.1"),)}
    )
    fields: dict[str, Any] = {"holder": key.node_id, "sequence": 7, "plan_digest": PLAN, "pnode_id": NAMED} | changed
    state = model_pb2.DesiredState(network_id=policy.network_id, model="m", **fields)

    async def story() -> None:
        await store.put(keys.desired("m", PLAN, NAMED), sealed(identity_pb2.DOMAIN_DESIRED_STATE, state, key).data)
        with pytest.raises(Corrupt) as refused:
            await DesiredReader(store, lambda: policy, clock).of(view, NAMED)
        assert refused.value.code == "wrong_desired"

    asyncio.run(story())


def test_one_answer_serves_all() -> None:
    key = NodeKey.generate()
    policy = network_of(key)
    clock = Clock()
    store = CountingStore(clock)
    head = model_pb2.Head(plan_digest=PLAN, plan_sequence=7)
    view = ModelView("m", head, b"", hosted={NAMED: (model_pb2.Assignment(replica="v.1"),)})

    def desired(pnode_id: str) -> bytes:
        state = model_pb2.DesiredState(
            network_id=policy.network_id, model="m", holder=key.node_id, sequence=7, plan_digest=PLAN, pnode_id=pnode_id
        )
        return sealed(identity_pb2.DOMAIN_DESIRED_STATE, state, key).data

    async def story() -> None:
        await store.put(keys.desired("m", PLAN, NAMED), desired(NAMED))
        reader = DesiredReader(store, lambda: policy, clock)
        found = await asyncio.gather(*(reader.of(view, NAMED) for _ in range(3)))
        assert all(item is not None for item in found)
        before = store.asked["get"]
        idle = [f"{index:040x}" for index in range(50)]
        for _ in range(4):
            assert set(await asyncio.gather(*(reader.of(view, name) for name in idle))) == {None}
            assert await reader.of(view, STRAY) is None
        assert (store.asked["list"], store.asked["get"]) == (1, before)
        await store.put(keys.desired("m", PLAN, STRAY), desired(STRAY))
        clock.now += ABSENT_S
        assert await reader.of(view, STRAY) is not None
        assert await reader.of(view, STRAY) is not None
        assert (store.asked["list"], store.asked["get"]) == (2, before + 1)

    asyncio.run(story())


def test_what_was_written_here_is_not_read_back() -> None:
    key = NodeKey.generate()
    plan = model_pb2.Plan(network_id="n", model="m", holder=key.node_id, sequence=7)
    plan.assignments.add(replica="v.1", vnode="v", pnode_id=NAMED)
    clock = Clock()
    store = CountingStore(clock)
    made = publishing.published("m", plan, key, (), "", [STRAY])
    view = ModelView("m", model_pb2.Head(plan_digest=str(made.stored.digest), plan_sequence=7), b"")

    def unasked() -> NetworkPolicy:
        raise AssertionError("what was signed here needs no verification")

    async def story() -> None:
        reader = DesiredReader(store, unasked, clock)
        reader.wrote(made)
        for pnode_id in (NAMED, STRAY):
            found = await reader.of(view, pnode_id)
            assert found is not None
            assert found.SerializeToString(deterministic=True) == made.desired[pnode_id].data
        assert not store.asked
        assert await reader.of(view, "c" * 40) is None, "whoever was told nothing is looked for as before"

    asyncio.run(story())
