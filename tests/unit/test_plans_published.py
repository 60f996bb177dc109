"""Goal: a plan is published whatever is said to explain it: too much of that is left out, and only what decides something makes a plan too large."""

from __future__ import annotations

import math

import pytest

from dcnr import limits
from dcnr.errors import Refused
from dcnr.v1 import model_pb2
from orchestrator import publishing
from orchestrator.documents import WRITES_AT_ONCE
from orchestrator.publishing import Published
from trust.identity import NodeKey

KEY = NodeKey.generate()
PNODE, STRANGER = "a" * 40, "b" * 40


def plan(num_candidates: int, reason: str, short: str = "it waits for memory", why: str = "best") -> model_pb2.Plan:
    """One VNode is placed, and one waits, for which as many candidates were not taken."""
    made = model_pb2.Plan(network_id="n", model="m", number=2, holder=KEY.node_id, sequence=7, waiting=["w"])
    made.assignments.add(replica="v.1", vnode="v", pnode_id=PNODE, role=model_pb2.ROLE_PRIMARY, reason=why)
    made.rejections.add(vnode="w", reason=short)
    for _ in range(num_candidates):
        made.rejections.add(vnode="w", pnode_id=STRANGER, reason=reason)
    return made


def published(made: model_pb2.Plan) -> Published:
    found = publishing.published("m", made, KEY, (), "", ())
    assert len(found.stored.data) <= limits.MAX_PLAN_BYTES
    assert model_pb2.Plan.FromString(found.stored.envelope.payload) == made, "what was made is told as it is stored"
    return found


def test_a_plan_of_usual_size_says_everything() -> None:
    made = plan(40, "too little memory")
    before = made.SerializeToString(deterministic=True)
    published(made)
    assert made.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("reason", "short", "left"), [("x" * limits.MIB, "it waits for memory", ["it waits for memory"]), ("x" * limits.MIB, "x" * 5 * limits.MIB, [])]
)  # fmt: skip
def test_what_explains_goes_before_the_plan_does_candidates_first(reason: str, short: str, left: list[str]) -> None:
    made = plan(5, reason, short)
    rows, waiting = list(made.assignments), list(made.waiting)
    found = published(made)
    assert [row.reason for row in made.rejections] == left
    assert list(made.assignments) == rows
    assert list(made.waiting) == waiting
    assert set(found.desired) == {PNODE}


def test_what_decides_is_never_left_out() -> None:
    with pytest.raises(Refused) as refused:
        publishing.published("m", plan(5, "x" * limits.MIB, why="y" * 5 * limits.MIB), KEY, (), "", ())
    assert refused.value.code == "plan_too_large"


@pytest.mark.parametrize("num_pnodes", [1, 40, 2_000, 10_000])
def test_a_plan_is_stored_before_the_head_has_passed_its_sequence(num_pnodes: int) -> None:
    """Each write takes as long as one may. A plan that comes too late is made anew, and would come too late again."""
    stored_s = limits.STORE_TIMEOUT_S * (1 + math.ceil(num_pnodes / WRITES_AT_ONCE))
    assert publishing.sequences_meanwhile(num_pnodes) * limits.HEAD_RENEW_S > stored_s
