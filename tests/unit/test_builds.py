"""Goal: what a PNode can build is held against what a graph is made of, kind by kind; what it says is bounded, counts for its newest stream, and keeps
audits from it too.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dataservice.memory import MemoryStore
from dcnr.errors import InvalidInput
from dcnr.graph import Graph
from dcnr.specs import TensorSpec
from dcnr.system import SystemClock
from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.audit_people import people_of
from orchestrator.builds import MAX_NAMES, builds_of, lacks, lacks_of_jobs, needs_of
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.runtime import Shared
from orchestrator.view import JobFacts, ModelView
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

OURS = default_registry().names
NEEDS = frozenset({"component mix", "component relu", "objective distance", "optimizer sgd"})
MIXING = OURS | NEEDS
CLOCK = SystemClock()


def graph() -> model_pb2.ModelGraph:
    made = Graph(
        "m", input=TensorSpec("float32", (4,)), target=TensorSpec("int64", ()), num_classes=2, train={"batch_size": 4},
        data=dict.fromkeys(("train", "validation", "test"), "dataset:d#train"),
    )  # fmt: skip
    made.vnode("a", "mix", inputs=["input"], objective={"name": "distance"}, optimizer={"name": "sgd", "lr": 0.1})
    return made.vnode("act", "relu", inputs=["a"]).build()


def hello(**names: list[str]) -> orchestrator_pb2.Hello:
    return orchestrator_pb2.Hello(builds=orchestrator_pb2.Builds(**names))


def view(model: str, needs: frozenset[str]) -> ModelView:
    return ModelView(model, model_pb2.Head(), b"", job=JobFacts(model_pb2.JobRequest(), "", graph(), b"", (), (), needs))


def test_what_is_lacking_is_named_with_its_kind() -> None:
    assert needs_of(graph()) == NEEDS
    assert lacks(OURS, NEEDS) == "lacks component mix, objective distance"
    assert lacks(builds_of(hello(components=["mix", "relu", "distance"], optimizers=["sgd"])), NEEDS) == "lacks objective distance"
    assert lacks(frozenset(), frozenset(f"component c{number}" for number in range(9))).endswith("component c3 and 5 more")
    assert not lacks(MIXING, NEEDS)
    assert not lacks(builds_of(orchestrator_pb2.Hello()), NEEDS), "it has said nothing: it is tried"


@pytest.mark.parametrize("said", [hello(components=[f"c{number}" for number in range(MAX_NAMES + 1)]), hello(objectives=["../x"])])
def test_what_is_said_is_bounded(said: orchestrator_pb2.Hello) -> None:
    with pytest.raises(InvalidInput):
        builds_of(said)


def test_the_newest_stream_says_what_counts() -> None:
    inventory, name = Inventory(), "a" * 40
    inventory.attached(name, 0.0, "", OURS)
    inventory.beat(name, 0.0, orchestrator_pb2.Beat(worker_alive=True), 2.0)
    assert [offer.builds for offer in inventory.offers(0.0)] == [OURS]
    inventory.attached(name, 1.0, "", frozenset([*MIXING]))
    assert [offer.builds for offer in inventory.offers(1.0)] == [MIXING]
    inventory.attached("b" * 40, 1.0, "", frozenset([*MIXING]))
    first, second = (inventory.nodes()[letter * 40].builds for letter in "ab")
    assert first is second, "what thousands say alike is kept once"
    for number in range(1000):
        inventory.attached(name, 2.0, "", frozenset([str(number)]))
    assert len(inventory._said) < 1000, "whoever says something else each time fills nothing"


def test_a_beat_is_answered_with_what_its_node_lacks_of_each_model() -> None:
    assert lacks_of_jobs(OURS, [view("m", NEEDS), view("n", OURS), None]) == "m: lacks component mix, objective distance"
    assert not lacks_of_jobs(MIXING, [view("m", NEEDS), view("n", OURS)])


def test_who_lacks_something_audits_nothing_of_it() -> None:
    key = NodeKey.generate()
    policy = verify_chain([create_document(key, name="n", now_wall=CLOCK.wall(), orchestrator_ids=[key.node_id])])
    history = History(None, key.node_id, CLOCK)
    store = MemoryStore(CLOCK, random.Random(1))
    shared = Shared(key, InForce(policy), store, CLOCK, default_registry(), Inventory(), history)
    beat = orchestrator_pb2.Beat(worker_alive=True, capability=membership_pb2.Capability(accepts_work=True))
    for name, builds in (("a" * 40, OURS), ("b" * 40, MIXING)):
        shared.inventory.attached(name, 0.0, "", builds)
        shared.inventory.beat(name, 0.0, beat, 2.0)
    shared.inventory.tick(0.0)
    assert {name[0]: one.is_free for name, one in people_of(view("m", NEEDS), shared).candidates.items()} == {"a": False, "b": True}
    free = people_of(replace(view("m", NEEDS), job=None), shared).candidates.values()
    assert all(one.is_free for one in free)
