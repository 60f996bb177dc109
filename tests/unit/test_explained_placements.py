"""Goal: of a VNode without state one learns who evaluates it."""

from __future__ import annotations

from dcnr.v1 import model_pb2
from orchestrator.explain import evaluated

PLAN = model_pb2.Plan(
    assignments=[
        model_pb2.Assignment(replica="conv2.3", vnode="conv2", pnode_id="a" * 40, hosted=["join", "relu"]),
        model_pb2.Assignment(replica="conv2.4", vnode="conv2", pnode_id="b" * 40, hosted=["join", "relu"]),
        model_pb2.Assignment(replica="head.1", vnode="head", pnode_id="a" * 40),
    ]
)


def test_a_vnode_without_state_is_evaluated_with_each_replica_of_its_host() -> None:
    lines = evaluated(PLAN, "join")
    assert [(one.subject, one.verdict, one.inputs["replica"], one.inputs["pnode"]) for one in lines] == [
        ("join", "evaluated", "conv2.3", "a" * 40), ("join", "evaluated", "conv2.4", "b" * 40),
    ]  # fmt: skip
    assert lines[0].reason == "it has no state: conv2.3 on aaaaaaaa evaluates it with conv2"


def test_a_vnode_with_replicas_of_its_own_is_not() -> None:
    assert evaluated(PLAN, "conv2") == []
    assert evaluated(PLAN, "") == []
