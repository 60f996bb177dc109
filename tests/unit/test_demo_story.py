"""Goal: the demo's figures come from what the network reported, and a kill counts as made good only when all of it was seen."""

from __future__ import annotations

from dcnr.demo.story import Kill, Story
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
