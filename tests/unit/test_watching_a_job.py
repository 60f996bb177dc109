"""Goal: whoever watches a job goes on at another orchestrator, and is told when none is left, instead of waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dcnr.errors import NotFound, Unavailable
from dcnr.sdk import watching
from dcnr.sdk.watching import LOST_S, views_of
from dcnr.v1 import model_pb2, orchestrator_pb2

RUNNING, COMPLETED = model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_COMPLETED
JobStates = list[model_pb2.JobState.ValueType]


class Steps:
    """A clock that each stream moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Told:
    """Orchestrators that tell, stream after stream, after so many seconds, these views and then why they end."""

    def __init__(self, clock: Steps, streams: list[tuple[float, JobStates, Exception | None]]) -> None:
        self._clock, self._streams = clock, iter(streams)

    async def stream(self, stub: Any, method: str, request: Any, *, timeout_s: float) -> AsyncGenerator[Any, None]:
        took_s, states, end = next(self._streams)
        self._clock.now += took_s
        for state in states:
            yield orchestrator_pb2.WatchJobResponse(job=orchestrator_pb2.JobView(job_id="j", state=state, reporter="o"))
        if end is not None:
            raise end


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "RECONNECT_S", 0.0)


def watched(streams: list[tuple[float, JobStates, Exception | None]]) -> JobStates:
    clock = Steps()

    async def story() -> JobStates:
        views = views_of(Told(clock, streams), "j", model="m", interval_s=1.0, clock=clock)  # type: ignore[arg-type]
        return [view.job.state async for view in views]

    return asyncio.run(story())


AWAY = Unavailable("nobody answers", code="no_orchestrator")


def test_losses_shorter_than_the_limit_are_gone_through_however_many() -> None:
    lost: list[tuple[float, JobStates, Exception | None]] = [(LOST_S - 1, [RUNNING], AWAY)] * 5
    assert watched([*lost, (LOST_S / 2, [], AWAY), (LOST_S / 4, [], None), (1, [COMPLETED], None)]) == [RUNNING] * 5 + [COMPLETED]


def test_a_job_that_nobody_shows_any_more_is_told_with_the_reason() -> None:
    with pytest.raises(Unavailable) as lost:
        watched([(1, [RUNNING], AWAY), (LOST_S / 2, [], AWAY), (LOST_S / 2, [], AWAY)])
    assert lost.value.code == "watch_lost"
    assert "nobody answers" in lost.value.message
    assert "dcnr job watch j" in lost.value.remedy


def test_streams_that_end_without_a_view_are_no_views() -> None:
    with pytest.raises(Unavailable):
        watched([(LOST_S, [], None)])


def test_the_time_that_the_reader_takes_is_no_loss() -> None:
    clock = Steps()

    async def story() -> JobStates:
        told = Told(clock, [(1, [RUNNING], AWAY), (1, [COMPLETED], None)])
        found: JobStates = []
        async for view in views_of(told, "j", model="m", interval_s=1.0, clock=clock):  # type: ignore[arg-type]
            found.append(view.job.state)
            clock.now += 2 * LOST_S
        return found

    assert asyncio.run(story()) == [RUNNING, COMPLETED]


def test_a_job_that_does_not_exist_is_told_at_once() -> None:
    with pytest.raises(NotFound):
        watched([(0, [], NotFound("there is no job j", code="job_not_found"))])
