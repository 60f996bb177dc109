"""Goal: evidence is taken from the accused, from hosts and from auditors, about what is audited, and a stranger brings no byte of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from audited_rig import NODES, Job, drawn, judged, piece

from dcnr import limits
from dcnr.errors import Refused, Unavailable
from dcnr.v1 import model_pb2
from orchestrator.evidence_rights import evidence_bound, hourly_bytes
from orchestrator.view import ModelView
from trust.evidence import MAX_RECORD_BYTES

STATE_BYTES = 1000
BUNDLE_BYTES = limits.EVIDENCE_BYTES + limits.BUNDLE_STATES * STATE_BYTES


def view_of(*, drawn_too: bool = True, state_bytes: int = STATE_BYTES) -> ModelView:
    """Of VNode a an interval of x is open (or none is); y hosts a, z hosts nothing."""
    job = Job()
    job.named(judged("a1", "a0", piece("a-1", 0, 1), held=[(0, 1)]), draw=drawn("a-1") if drawn_too else drawn())
    hosted = {NODES["y"]: (model_pb2.Assignment(vnode="a", pnode_id=NODES["y"], replica="a.1"),)}
    facts: Any = SimpleNamespace(costs=(SimpleNamespace(vnode="a", state_bytes=state_bytes),))
    return ModelView("m", model_pb2.Head(), b"", plan=model_pb2.Plan(), job=facts, chain=job.chain(), hosted=hosted)


def bound(view: ModelView | None, node: str, vnode: str = "a", *, is_drawn: bool = True, is_asked: bool | None = None) -> int:
    return evidence_bound(view, NODES[node], vnode, is_drawn=is_drawn, is_asked=is_asked)


@pytest.mark.parametrize("is_asked", [None, False])
def test_the_accused_and_who_hosts_the_vnode_bring_a_bundle_of_that_stage_to_any_orchestrator(is_asked: bool | None) -> None:
    assert bound(view_of(), "x", is_asked=is_asked) == bound(view_of(), "y", is_asked=is_asked) == BUNDLE_BYTES
    assert bound(view_of(state_bytes=limits.MAX_OBJECT_BYTES), "x") == limits.MAX_OBJECT_BYTES


def test_the_accused_of_what_was_left_aside_and_is_open_brings_a_bundle_too() -> None:
    job = Job()
    job.named(judged("a1", "a0", piece("a-1", 0, 1), held=[(0, 1)]), draw=drawn("a-1"))
    job.primaries["a"] = "a.1"
    job.named(judged("a2", "a0", piece("a-2", 1, 2, "y", "a.1"), held=[(1, 2)], replica="a.1", node="y"))
    assert job.chain().open_intervals() == ()
    assert bound(replace(view_of(), chain=job.chain()), "x", is_asked=False) == BUNDLE_BYTES


def test_an_auditor_brings_a_record_to_whoever_gave_the_audit_or_knows_that_something_is_open() -> None:
    assert bound(view_of(drawn_too=False), "z", is_asked=True) == MAX_RECORD_BYTES
    assert bound(view_of(), "z") == MAX_RECORD_BYTES


def test_who_was_not_asked_brings_nothing() -> None:
    for view, refused in [
        ({"is_asked": False}, "not_asked"),
        ({"vnode": "nobody"}, "no_such_vnode"),
        ({"is_drawn": False}, "no_audits"),
    ]:
        with pytest.raises(Refused) as found:
            bound(view_of(), "z", **view)  # type: ignore[arg-type]
        assert found.value.code == refused


def test_where_nothing_is_open_as_far_as_is_known_another_orchestrator_is_asked() -> None:
    for view, code in [(view_of(drawn_too=False), "not_challenged"), (None, "unknown_model")]:
        with pytest.raises(Unavailable) as found:
            bound(view, "z")
        assert found.value.code == code


def test_who_hosts_large_vnodes_writes_more_up_to_a_bound() -> None:
    node = NODES["y"]
    assert hourly_bytes(None, node) == hourly_bytes(view_of(), node) == limits.WRITTEN_BYTES_H
    large = limits.WRITTEN_BYTES_H // limits.WRITTEN_STATES_H + 1
    assert hourly_bytes(view_of(state_bytes=large), node) == limits.WRITTEN_STATES_H * large
    assert hourly_bytes(view_of(state_bytes=limits.MAX_OBJECT_BYTES), node) == limits.MAX_WRITTEN_BYTES_H
    assert hourly_bytes(view_of(state_bytes=large), NODES["z"]) == limits.WRITTEN_BYTES_H
