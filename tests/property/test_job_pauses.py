"""Goal: whatever maintainers say in whatever order while a job is on its way, the head follows the last word, also where an older one is read again, and a
job that is let go on ends, whether everybody has a place or not.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2
from orchestrator.changes import Activate, Decide, apply
from orchestrator.jobs import JobRecord, Progress, next_change

N = 8
EXITS = (model_pb2.ExitResult(vnode="a", split="test", step=N, complete=True),)
STEPS = st.lists(st.sampled_from(["pause", "resume", "place", "lose", "learn", "round", "stale"]), max_size=30)


def progress_of(placed: bool, learned: int) -> Progress:
    held = {"a": IntervalSet.span(0, learned)}
    return Progress(("a",), ("a",), N, placed, held, EXITS, 0.0)


def settle(head: model_pb2.Head, record: JobRecord, progress: Progress) -> None:
    """Rounds until nothing is to be decided; a bound says that they end."""
    for _ in range(8):
        change = next_change(head, {record.job_id: record}, progress, 0)
        if change is None or head.decided:
            return
        assert apply(change, head) == ""
        assert isinstance(change, Activate | Decide) or head.active.job_id
    raise AssertionError("it is decided round and round")


@given(STEPS, st.booleans())
def test_the_last_word_is_followed_and_a_job_let_go_on_ends(steps: list[str], has_room: bool) -> None:
    head, record = model_pb2.Head(), JobRecord("j", 0.0, model_pb2.JobRequest(job_id="j"), "r")
    said: list[model_pb2.JobPause | None] = [None]
    placed, learned = False, 0
    for step in [*steps, "resume", "place" if has_room else "lose", *["learn"] * N]:
        match step:
            case "pause" | "resume":
                said.append(model_pb2.JobPause(number=len(said), paused=step == "pause"))
            case "place" | "lose":
                placed = step == "place"
            case "learn" if head.active.state in (model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING):
                learned = min(N, learned + 1)
            case "stale" if head.active.job_id:
                before = head.active.state
                for older in said[:-1]:
                    settle(head, replace(record, pause=older), progress_of(placed, 0))
                    assert head.active.state == before or model_pb2.JOB_STATE_PAUSED not in (head.active.state, before)
        settle(head, replace(record, pause=said[-1]), progress_of(placed, learned))
        if head.active.job_id:
            newest = said[-1]
            assert (head.active.state == model_pb2.JOB_STATE_PAUSED) == (newest is not None and newest.paused)
    assert [item.state for item in head.decided] == [model_pb2.JOB_STATE_COMPLETED]
