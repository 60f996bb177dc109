"""Goal: whoever submits a trained model once more, or calls a job off half-way, is told what answers then, and how to go on or back; a plan that cannot start
estimates nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dcnr.cli.job import _cancelled_text
from dcnr.cli.model import _plan_text
from dcnr.cli.trained import check_untrained, last_trained, newest_made, told_of_released, told_of_unfinished
from dcnr.errors import Refused
from dcnr.sdk.releasing import Released
from dcnr.v1 import model_pb2, orchestrator_pb2

COMPLETED, CANCELLED, RUNNING = model_pb2.JOB_STATE_COMPLETED, model_pb2.JOB_STATE_CANCELLED, model_pb2.JOB_STATE_RUNNING


def job(name: str, state: model_pb2.JobState.ValueType, manifest: str = "") -> orchestrator_pb2.JobView:
    outcome = model_pb2.Outcome(job_id=name, manifest_digest=manifest)
    return orchestrator_pb2.JobView(job_id=name, model="spiral", state=state, manifest_digest=manifest, outcome=outcome)


class Client:
    def __init__(self, *jobs: orchestrator_pb2.JobView) -> None:
        self._jobs = list(jobs)

    async def jobs(self, model: str) -> list[orchestrator_pb2.JobView]:
        assert model == "spiral"
        return self._jobs


def test_the_newest_completed_job_counts_whatever_came_after_it() -> None:
    jobs = [job("d", RUNNING), job("c", CANCELLED, "e" * 64), job("b", COMPLETED, "f" * 64), job("a", COMPLETED, "a" * 64)]
    found = last_trained(jobs)
    assert found is not None
    assert found.job_id == "b"
    assert last_trained(jobs[:2]) is None


def test_a_trained_model_is_not_begun_anew_by_accident() -> None:
    client: Any = Client(job("b", COMPLETED, "f" * 64))
    with pytest.raises(Refused) as refused:
        asyncio.run(check_untrained(client, "spiral"))
    assert refused.value.code == "already_trained"
    assert "spiral is trained (job b" in refused.value.message
    assert f"--from-manifest {'f' * 64}" in refused.value.remedy
    assert "--anew" in refused.value.remedy


def test_what_was_never_trained_to_the_end_begins() -> None:
    client: Any = Client(job("c", CANCELLED, "e" * 64))
    assert asyncio.run(check_untrained(client, "spiral")) == ""


def test_who_submits_a_model_twice_reads_that_the_first_job_goes_on() -> None:
    client: Any = Client(job("c", CANCELLED, "e" * 64), job("d", RUNNING))
    told = asyncio.run(check_untrained(client, "spiral"))
    assert told.startswith("note: job d of spiral has not ended")
    assert "dcnr job cancel" in told


def test_a_job_that_ended_half_way_is_told_with_what_answers_now_and_the_way_back() -> None:
    half, whole = "e" * 64, "f" * 64
    jobs = [
        job("d", model_pb2.JOB_STATE_QUEUED),
        job("c", CANCELLED, half),
        job("b", COMPLETED, whole),
        job("a", CANCELLED, "a" * 64),
    ]
    assert newest_made(jobs) == {"spiral": "c"}
    told = told_of_unfinished(jobs, jobs[1], audits_drawn=False)
    assert "answers questions and is exported" in told
    assert f"go on from it: dcnr model submit GRAPH --from-manifest {half}" in told
    assert f"back to what job b completed, and on from there: dcnr model submit GRAPH --from-manifest {whole}" in told
    assert f"dcnr model export spiral --manifest {whole}" in told
    assert f"dcnr model release spiral --manifest {whole}" in told
    assert "back" not in told_of_unfinished([jobs[1]], jobs[1], audits_drawn=False), "nothing completed before it"
    audited = told_of_unfinished(jobs, jobs[1], audits_drawn=True)
    assert half not in audited, "what nobody judged yet would count as cleared"
    assert whole in audited


def test_where_something_is_released_that_is_what_answers_whatever_a_job_made() -> None:
    made, released = "e" * 64, "f" * 64
    assert told_of_released(Released("spiral"), made) == told_of_released(Released("spiral", 2, made), made) == ""
    told = told_of_released(Released("spiral", 3, released), made)
    assert f"manifest {released} answers questions" in told
    assert "dcnr model release spiral --follow-training" in told


@pytest.mark.parametrize(
    ("place", "why"), [(1, "it completed"), (2, "others have made newer ones"), (3, "it was called off while queued")]
)
def test_nothing_is_told_of_a_job_whose_manifest_does_not_answer_half_way(place: int, why: str) -> None:
    jobs = [job("c", CANCELLED, "e" * 64), job("b", COMPLETED, "f" * 64), job("a", CANCELLED, "a" * 64), job("e", CANCELLED)]
    assert told_of_unfinished(jobs, jobs[place], audits_drawn=False) == "", why


def test_whoever_calls_a_job_off_hears_what_answers_then() -> None:
    assert "half-trained as it may be, answers questions" in _cancelled_text("j", RUNNING)
    assert "half-trained" not in _cancelled_text("j", model_pb2.JOB_STATE_QUEUED)
    assert "nothing changes" in _cancelled_text("j", COMPLETED)


def test_a_plan_that_cannot_start_says_so_and_estimates_nothing() -> None:
    plan = model_pb2.Plan(waiting=["deep"])
    text = _plan_text(orchestrator_pb2.PreviewPlanResponse(plan=plan, estimate_s=3.0, seconds_per_batch=0.1))
    assert "waiting: deep fits no node that is here" in text
    assert "it would not start" in text
    assert "estimate" not in text
    assert "estimate: 3" in _plan_text(orchestrator_pb2.PreviewPlanResponse(estimate_s=3.0, seconds_per_batch=0.1))
