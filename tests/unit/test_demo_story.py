"""Goal: the demo's figures come from what the network reported, and a kill counts as made good only when all of it was seen."""

from __future__ import annotations

from dcnr.demo.story import Kill, Resumed, Story
from dcnr.v1 import model_pb2, orchestrator_pb2

ACTIVE = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE


def view(
    *vnodes: tuple[str, str, str, int], epoch: int = 1, holder: str = "o1", gone: str = "", suspect: str = ""
) -> orchestrator_pb2.WatchJobResponse:
    """(vnode, replica, pnode, learned) each."""
    job = orchestrator_pb2.JobView(num_batches=100, state=model_pb2.JOB_STATE_RUNNING, epoch=epoch, holder=holder)
    for vnode, replica, pnode, learned in vnodes:
        item = job.vnodes.add(vnode=vnode)
        item.assignment.replica, item.assignment.pnode_id = replica, pnode
        item.report.replica, item.report.state, item.report.num_learned, item.report.incarnation = replica, ACTIVE, learned, 1
    answer = orchestrator_pb2.WatchJobResponse(job=job)
    for name in ("p1", "p2"):
        state = orchestrator_pb2.NODE_STATE_OFFLINE if name == gone else orchestrator_pb2.NODE_STATE_ACTIVE
        state = orchestrator_pb2.NODE_STATE_SUSPECT if name == suspect else state
        answer.nodes.add(node_id=name, state=state)
    return answer


def test_progress_and_time_from_first_to_last_batch() -> None:
    story = Story()
    story.seen(1.0, view(("a", "a.0", "p1", 0), ("b", "b.1", "p2", 0)))
    assert story.first_learned_s is None
    story.seen(2.0, view(("a", "a.0", "p1", 10), ("b", "b.1", "p2", 0)))
    story.seen(3.0, view(("a", "a.0", "p1", 100), ("b", "b.1", "p2", 100)))
    story.seen(4.0, view(("a", "a.0", "p1", 100), ("b", "b.1", "p2", 100)))
    assert (story.first_learned_s, story.last_learned_s, story.progress()) == (2.0, 3.0, 1.0)


def test_a_killed_pnode_is_made_good_in_four_steps() -> None:
    story = Story()
    story.seen(1.0, view(("a", "a.0", "p1", 40)))
    kill = Kill("PNode", "p1", "p1", 1.5, ("a",))
    story.kills.append(kill)
    story.seen(1.75, view(("a", "a.0", "p1", 40), suspect="p1"))
    assert (kill.suspected_s, kill.gone_s) == (1.75, None), "a suspect keeps what it has"
    story.seen(2.0, view(("a", "a.0", "p1", 40), gone="p1"))
    assert (kill.suspected_s, kill.gone_s, kill.decided_s) == (1.75, 2.0, None)
    story.seen(3.0, view(("a", "a.1", "p2", 30), gone="p1"))
    assert (kill.decided_s, kill.training_s, story.relearned) == (3.0, None, 10)
    story.seen(4.0, view(("a", "a.1", "p2", 31), gone="p1"))
    assert kill.settled
    assert kill.training_s == 4.0


def test_a_killed_holder_is_made_good_by_another_epoch_and_further_batches() -> None:
    story = Story()
    story.seen(1.0, view(("a", "a.0", "p1", 40)))
    kill = Kill("orchestrator", "o1", "o1", 1.0, epoch=1, learned_before=40)
    story.kills.append(kill)
    story.seen(2.0, view(("a", "a.0", "p1", 41)))
    assert (kill.training_s, kill.settled) == (2.0, False)
    story.seen(9.0, view(("a", "a.0", "p1", 50), epoch=2, holder="o2"))
    assert kill.settled
    assert kill.decided_s == 9.0


def restored(
    *, durable_before: int, durable_after: int, restored_from: str, contributor: bool = False, learned: int = 31
) -> Resumed:
    """With what a copy on p2 goes on after p1 was killed, where manifests named so many batches before and after it began."""
    story = Story()
    first, second = ("a", "a.0", "p1", 40), ("a", "a.1", "p2", learned)
    story.seen(0.5, working(view(("a", "a.0", "p1", 0)), "zero", 0))
    before = working(view(first), "ten", durable_before)
    if contributor:
        beside = before.job.vnodes[0].replicas.add()
        beside.assignment.replica, beside.assignment.role = "a.1", model_pb2.ROLE_CONTRIBUTOR
        beside.report.replica, beside.report.state, beside.report.incarnation = "a.1", ACTIVE, 1
    story.seen(1.0, before)
    kill = Kill("PNode", "p1", "p1", 1.5, ("a",), durable=dict(story.durable))
    story.kills.append(kill)
    story.seen(2.0, working(view(first, gone="p1"), "ten", durable_after))
    story.seen(2.5, view(first, gone="p1"))
    after = working(view(second, gone="p1"), "later", 50)
    after.job.vnodes[0].report.restored_from = restored_from
    story.seen(3.0, after)
    story.seen(4.0, working(view(("a", "a.1", "p2", learned + 1), gone="p1"), "later", 50))
    assert kill.settled
    return kill.resumed["a"]


def working(told: orchestrator_pb2.WatchJobResponse, digest: str, step: int) -> orchestrator_pb2.WatchJobResponse:
    told.job.vnodes[0].working.digest, told.job.vnodes[0].working.step = digest, step
    return told


def test_a_copy_that_starts_over_is_told_from_one_that_was_restored() -> None:
    """Goal: also where it has learned as much by then, or has made checkpoints of its own."""
    assert restored(durable_before=30, durable_after=30, restored_from="ten") == Resumed(30, 31, is_from_start=False)
    over = restored(durable_before=30, durable_after=30, restored_from="zero")
    assert over == Resumed(30, 31, is_from_start=True)
    assert not over.good
    assert not restored(durable_before=30, durable_after=30, restored_from="").good


def test_a_copy_may_start_over_where_nothing_was_durable_or_it_was_taken_back() -> None:
    assert restored(durable_before=0, durable_after=0, restored_from="zero").good
    assert restored(durable_before=30, durable_after=0, restored_from="zero").good


def test_a_contributor_in_the_place_of_the_primary_goes_on_with_what_it_has() -> None:
    assert restored(durable_before=30, durable_after=30, restored_from="zero", contributor=True).good
