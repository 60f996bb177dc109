"""Goal: of a VNode without state one learns who evaluates it, and of what the planner found when."""

from __future__ import annotations

from dcnr.v1 import model_pb2
from orchestrator.explain import evaluated, rejected, waiting

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


def test_what_the_planner_found_is_told_with_the_plan_it_was_found_for() -> None:
    """Nodes come and go between two plans: nobody should take it for what is so now."""
    plan = model_pb2.Plan(
        number=7,
        waiting=["conv3"],
        rejections=[model_pb2.Rejection(vnode="conv3", pnode_id="c" * 40, reason="needs 90 MiB, has 60")],
    )
    [waits], [refused] = waiting(plan, ""), rejected(plan, "conv3")
    assert (waits.verdict, waits.reason) == ("waiting", "when plan 7 was made: no node could take it")
    assert (refused.verdict, refused.reason) == ("rejected", "when plan 7 was made: needs 90 MiB, has 60")
    assert waiting(plan, "conv2") == rejected(plan, "conv2") == []
