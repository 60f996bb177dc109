"""Goal: wherever a VNode has more than one replica, people see it: in the view of a job, in the preview of a plan, in the demo."""

from __future__ import annotations

import io

from rich.console import Console

from dcnr.cli.model import _plan_text
from dcnr.cli.watching import vnodes_table
from dcnr.demo.screen import Screen
from dcnr.demo.shares import assigned
from dcnr.demo.story import Story
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
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


def plain_lines(*shown: tuple[float, Story, list[orchestrator_pb2.NodeView]]) -> list[str]:
    """What a piped demo prints of these views."""
    written = io.StringIO()
    screen = Screen(Console(file=written, width=160, soft_wrap=True))
    screen.name_nodes({"1" * 40: "p1", "2" * 40: "p2", "3" * 40: "p3"})
    for now_s, story, nodes in shown:
        screen.show(now_s, story, nodes)
    return written.getvalue().splitlines()


def live(*, story: Story, nodes: list[orchestrator_pb2.NodeView]) -> str:
    """What is on the screen of a terminal."""
    written = io.StringIO()
    screen = Screen(Console(file=written, width=200, force_terminal=True, color_system=None))
    with screen:
        screen.show(10.0, story, nodes)
    return written.getvalue()


def seen(unit_batches: int = 0) -> Story:
    story = Story(unit_batches=unit_batches)
    story.seen(1.0, orchestrator_pb2.WatchJobResponse(job=job()))
    return story


def node(name: str, *replicas: str, state: orchestrator_pb2.NodeState.ValueType, reason: str = "") -> orchestrator_pb2.NodeView:
    return orchestrator_pb2.NodeView(node_id=name * 40, state=state, reason=reason, replicas=replicas)


def test_the_demo_shows_where_all_replicas_are() -> None:
    [line] = plain_lines((10.0, seen(), []))
    assert "a@p1+p2 20/40" in line
    shown = live(story=seen(), nodes=[])
    assert "a.7" in shown
    assert "contributor, active" in shown


def unit(number: int) -> tuple[int, int]:
    return 4 * number, 4 * number + 4


def test_the_demo_shows_which_unit_each_replica_is_in_and_how_many_it_owns() -> None:
    """Goal: a primary and a contributor with half its weight share ten units; who is alone owns all of them."""
    shares = assigned(job().vnodes[0], 40, 4)
    own = split([Share(ReplicaId("a.1"), 2.0), Share(ReplicaId("a.7"), 1.0)], 40, 4)
    sizes = {replica: len(batches) // 4 for replica, batches in own.items()}
    first = {"a.1": own[ReplicaId("a.1")].lowest(), "a.7": (own[ReplicaId("a.7")] - IntervalSet.span(0, 18)).lowest()}
    assert {replica: (one.num_units, one.in_work) for replica, one in shares.items()} == {
        replica: (sizes[ReplicaId(replica)], unit((first[replica] or 0) // 4)) for replica in ("a.1", "a.7")
    }
    [line] = plain_lines((10.0, seen(4), []))
    assert f"a@p1+p2 20/40 [p1 {shares['a.1']}, p2 {shares['a.7']}]" in line
    assert "b@p3 0/40 [10 units, batches 0-3 in work]" in line
    shown = live(story=seen(4), nodes=[])
    assert "10 units of 4 batches" in shown
    assert all(column in shown for column in ("units", "in work"))


def test_a_unit_is_in_work_until_all_of_it_is_learned_and_none_is_made_up() -> None:
    alone = job().vnodes[1]

    def in_work(*pairs: tuple[int, int]) -> tuple[int, int] | None:
        alone.replicas[0].report.lineage.CopyFrom(intervals_message(IntervalSet.of(*pairs)))
        return assigned(alone, 42, 4)["b.2"].in_work

    assert in_work((0, 7)) == unit(1)
    assert in_work((0, 8)) == unit(2)
    assert in_work((0, 5), (6, 42)) == unit(1)
    assert in_work((0, 41)) == (40, 42), "the last one is shorter"
    assert in_work((0, 42)) is None
    assert assigned(alone, 42, 4)["b.2"].num_units == 11
    shared = job().vnodes[0]
    own = split([Share(ReplicaId("a.1"), 2.0), Share(ReplicaId("a.7"), 1.0)], 100, 1)[ReplicaId("a.1")]
    shared.replicas[0].report.lineage.CopyFrom(intervals_message(own.first(60)))
    del shared.replicas[0].report.lineage.intervals[16:]
    assert assigned(shared, 100, 1)["a.1"].in_work is None, "a view has the lowest sixteen intervals alone"


def test_a_piped_demo_tells_of_nodes_when_they_change_and_not_again() -> None:
    active, suspect = orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_SUSPECT
    well = [node("1", "a.1", state=active), node("2", "a.7", "b.2", state=active)]
    well[0].holder = True
    ill = [well[0], node("2", "a.7", state=suspect, reason="missed 2 beats")]
    worse = [well[0], node("2", "a.7", state=suspect, reason="missed 3 beats")]
    views = [(1.0, well), (1.2, well), (1.4, ill), (1.6, worse), (6.2, worse)]
    lines = plain_lines(*((now_s, seen(), nodes) for now_s, nodes in views))
    assert [line for line in lines if " nodes: " in line] == [
        "   1.0 s nodes: p1 active, decides a.1; p2 active a.7, b.2",
        "   1.4 s nodes: p1 active, decides a.1; p2 suspect a.7",
    ]
    assert len(lines) == 4, "and of the job every five seconds"
