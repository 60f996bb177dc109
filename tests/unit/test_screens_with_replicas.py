"""Goal: wherever a VNode has more than one replica, people see it: in the view of a job, in the preview of a plan, in the demo."""

from __future__ import annotations

import io

from rich.console import Console

from dcnr.cli.model import _plan_text
from dcnr.cli.watching import vnodes_table
from dcnr.demo.screen import Screen
from dcnr.demo.story import Story
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.jobs import intervals_message

P = model_pb2.Assignment(
    replica="a.1", vnode="a", pnode_id="1" * 40, role=model_pb2.ROLE_PRIMARY, weight=2.0, reason="least loaded"
)
C = model_pb2.Assignment(replica="a.7", vnode="a", pnode_id="2" * 40, role=model_pb2.ROLE_CONTRIBUTOR, weight=1.0, reason="wanted")
ALONE = model_pb2.Assignment(replica="b.2", vnode="b", pnode_id="3" * 40, role=model_pb2.ROLE_PRIMARY, weight=1.0, reason="fits")


def job() -> orchestrator_pb2.JobView:
    view = orchestrator_pb2.JobView(model="m", num_batches=40, state=model_pb2.JOB_STATE_RUNNING)
    active = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE
    first = orchestrator_pb2.ReplicaReport(replica="a.1", state=active, num_learned=20, num_merged=3, rate=4.0)
    lineage = intervals_message(IntervalSet.span(0, 18))
    second = orchestrator_pb2.ReplicaReport(
        replica="a.7", state=active, num_learned=18, lineage=lineage, unmerged=intervals_message(IntervalSet.span(12, 18)), num_merged=2,
        num_refused=1, rate=2.0,
    )  # fmt: skip
    crew = view.vnodes.add(vnode="a", assignment=P, report=first)
    crew.replicas.add(assignment=P, report=first)
    crew.replicas.add(assignment=C, report=second)
    alone = view.vnodes.add(vnode="b", assignment=ALONE)
    alone.replicas.add(assignment=ALONE)
    return view


def test_the_view_of_a_job_has_a_line_for_every_replica() -> None:
    lines = vnodes_table(job()).splitlines()
    [line] = [line for line in lines if "a.7" in line]
    for shown in ("contributor, active", "18/40", "6 batches unmerged", "2 deltas merged", "1 refused"):
        assert shown in line
    assert "3 deltas merged" in next(line for line in lines if line.startswith("a "))
    assert not any("b.2" in line for line in lines), "a VNode with one replica has one line"


def test_where_audits_are_in_force_what_is_cleared_is_shown_beside_what_is_durable() -> None:
    view = job()
    view.job_id, view.audited = "j", True
    view.vnodes[0].cleared.step, view.vnodes[0].cleared.job_id, view.vnodes[0].num_open = 12, "j", 2
    view.vnodes[1].cleared.step, view.vnodes[1].cleared.job_id = 40, "an earlier one"
    lines = vnodes_table(view).splitlines()
    assert "cleared" in lines[0]
    assert "12 (2 open)" in next(line for line in lines if line.startswith("a "))
    assert "40" not in next(line for line in lines if line.startswith("b ")).replace("/40", "")
    assert "cleared" not in vnodes_table(job())


def test_the_preview_names_roles_and_what_waits() -> None:
    plan = model_pb2.Plan(assignments=[P, C, ALONE])
    plan.rejections.add(vnode="b", reason="1 of 2 replicas wait: no further node fits")
    plan.rejections.add(vnode="b", pnode_id="4" * 40, reason="takes no work at the moment")
    text = _plan_text(orchestrator_pb2.PreviewPlanResponse(plan=plan))
    assert "a.1 (primary)" in text
    assert "a.7 (contributor)" in text
    assert "b.2 (primary)" not in text
    assert "waiting: b: 1 of 2 replicas wait" in text
    assert "not on 44444444: b: takes no work" in text


def test_the_demo_shows_where_all_replicas_are() -> None:
    story = Story()
    story.seen(1.0, orchestrator_pb2.WatchJobResponse(job=job()))
    plain, live = io.StringIO(), io.StringIO()
    Screen(Console(file=plain, width=160)).show(10.0, story, [])
    assert "a@11111111+22222222 20/40" in plain.getvalue()
    screen = Screen(Console(file=live, width=160, force_terminal=False))
    Console(file=live, width=160).print(screen._progress(10.0, story))
    assert "a.7" in live.getvalue()
    assert "contributor, active" in live.getvalue()
