"""Goal: whatever maintainers say in whatever order while a job is on its way, the head follows the last word, and a job that is let go on ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2
from orchestrator.changes import Activate, Decide, apply
from orchestrator.jobs import JobRecord, Progress, next_change

N = 8
EXITS = (model_pb2.ExitResult(vnode="a", split="test", step=N, complete=True),)
STEPS = st.lists(st.sampled_from(["pause", "resume", "place", "lose", "learn", "round"]), max_size=30)


def progress_of(placed: bool, learned: int) -> Progress:
    held = {"a": IntervalSet.span(0, learned)}
    return Progress(("a",), ("a",), N, placed, held, held, EXITS, 0.0)


def settle(head: model_pb2.Head, record: JobRecord, progress: Progress) -> None:
    """Rounds until nothing is to be decided; a bound says that they end."""
    for _ in range(8):
        change = next_change(head, {record.job_id: record}, progress, 0)
        if change is None or head.decided:
            return
        assert apply(change, head) == ""
        assert isinstance(change, Activate | Decide) or head.active.job_id
    raise AssertionError("it is decided round and round")


@given(STEPS)
def test_the_last_word_is_followed_and_a_job_let_go_on_ends(steps: list[str]) -> None:
    head, record = model_pb2.Head(), JobRecord("j", 0.0, model_pb2.JobRequest(job_id="j"), "r")
    placed, learned, number = False, 0, 0
    for step in [*steps, "resume", "place", *["learn"] * N]:
        match step:
            case "pause" | "resume":
                number += 1
                record = JobRecord("j", 0.0, record.request, "r", pause=model_pb2.JobPause(number=number, paused=step == "pause"))
            case "place" | "lose":
                placed = step == "place"
            case "learn" if placed and head.active.state == model_pb2.JOB_STATE_RUNNING:
                learned = min(N, learned + 1)
        settle(head, record, progress_of(placed, learned))
        if head.active.job_id:
            is_paused = record.pause is not None and record.pause.paused
            assert (head.active.state == model_pb2.JOB_STATE_PAUSED) == is_paused
    assert [item.state for item in head.decided] == [model_pb2.JOB_STATE_COMPLETED]
