"""Goal: a job's schedule says the same to everybody, stands still while the job is paused, and accuses nobody who keeps to it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr import limits
from dcnr.errors import InvalidInput
from dcnr.tempo import LATEST_S, Tempo, check_rate
from dcnr.v1 import local_pb2, model_pb2, orchestrator_pb2
from orchestrator.contribution import PATIENCE_S, Contributions
from orchestrator.jobview import eta_s
from orchestrator.planning import next_tempo
from pnode.orders import tempo_of
from tests.unit.test_contribution import BATCHES, report, view

RUNNING, PAUSED, PLACING = model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_PAUSED, model_pb2.JOB_STATE_PLACING
RATES = st.floats(limits.MIN_BATCHES_PER_S, limits.MAX_BATCHES_PER_S)
MOMENTS = st.floats(0.0, 4e9)


@given(RATES, MOMENTS, st.integers(0, 10**9), MOMENTS)
def test_exactly_the_batches_below_the_end_are_due(rate: float, from_s: float, from_batch: int, now_s: float) -> None:
    tempo = Tempo(rate, from_s, from_batch)
    end = tempo.end(now_s)
    assert end >= 0
    assert tempo.due_s(end) > now_s
    assert end == 0 or tempo.due_s(end - 1) <= now_s


@given(RATES, st.integers(0, 4 * 10**12), st.integers(0, 10**9))
def test_it_travels_whole(rate: float, from_unix_ms: int, from_batch: int) -> None:
    message = model_pb2.Tempo(batches_per_s=rate, from_unix_ms=from_unix_ms, from_batch=from_batch)
    assert Tempo.of(message).message() == message


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf, -math.inf, 1e-9, 1e9])
def test_a_rate_that_no_job_could_keep_to_is_refused_by_name(rate: float) -> None:
    with pytest.raises(InvalidInput) as error:
        check_rate(rate)
    assert (error.value.code, error.value.details["field"]) == ("bad_tempo", "batches_per_s")
    with pytest.raises(InvalidInput):
        Tempo(rate, 0.0)


def test_a_beginning_that_is_none_is_refused() -> None:
    assert check_rate(0.0) == 0.0
    for from_s, from_batch in ((math.nan, 0), (-1.0, 0), (2 * LATEST_S, 0), (0.0, -1)):
        with pytest.raises(InvalidInput):
            Tempo(1.0, from_s, from_batch)
    with pytest.raises(InvalidInput):
        Tempo(0.0, 1.0)


def plan(tempo: model_pb2.Tempo | None, *, halted: bool = False, waiting: bool = False) -> model_pb2.Plan:
    return model_pb2.Plan(job_id="j", tempo=tempo, halted=halted, waiting=["v"] if waiting else [])


def test_the_schedule_begins_once_and_stands_still_while_the_job_is_paused() -> None:
    assert next_tempo(None, 0.0, PLACING, 0, 1000) is None
    waiting = next_tempo(None, 2.0, PLACING, 0, 1000)
    first = next_tempo(plan(waiting, waiting=True), 2.0, PLACING, 0, 5000)
    assert first == model_pb2.Tempo(batches_per_s=2.0, from_unix_ms=5000, from_batch=0), "nothing could be learned before"
    assert next_tempo(plan(first), 2.0, RUNNING, 7, 60_000) == first
    assert next_tempo(plan(first, waiting=True), 2.0, RUNNING, 7, 60_000) == first, "what a fault costs is caught up on"
    halted = next_tempo(plan(first), 2.0, PAUSED, 7, 7_750)
    assert halted == model_pb2.Tempo(batches_per_s=2.0, from_unix_ms=7_750, from_batch=6), "0 to 5 were due"
    assert next_tempo(plan(halted, halted=True), 2.0, PAUSED, 7, 80_000) == halted
    again = next_tempo(plan(halted, halted=True), 2.0, PLACING, 7, 90_000)
    assert again == model_pb2.Tempo(batches_per_s=2.0, from_unix_ms=90_000, from_batch=6)


def test_where_plans_say_nothing_or_nonsense_it_begins_with_what_is_durable() -> None:
    for tempo in (None, model_pb2.Tempo(batches_per_s=math.nan)):
        assert next_tempo(plan(tempo), 2.0, RUNNING, 40, 1000) == model_pb2.Tempo(
            batches_per_s=2.0, from_unix_ms=1000, from_batch=40
        )


def test_the_rate_is_the_one_that_maintainers_signed() -> None:
    desired = model_pb2.DesiredState(tempo=model_pb2.Tempo(batches_per_s=99.0, from_unix_ms=5, from_batch=3))
    signed = model_pb2.JobRequest(batches_per_s=2.0)
    assert tempo_of(desired, signed) == model_pb2.Tempo(batches_per_s=2.0, from_unix_ms=5, from_batch=3)
    assert tempo_of(desired, model_pb2.JobRequest()) is None
    assert not local_pb2.HostReplica(tempo=tempo_of(model_pb2.DesiredState(), signed)).HasField("tempo")


def brought_nothing(tempo: model_pb2.Tempo | None, said: orchestrator_pb2.ReplicaReport) -> bool:
    """Whether a primary with ten durable batches is found of no use after the patience, with eleven due at most."""
    shown = view(10)
    assert shown.plan is not None
    shown = replace(shown, plan=model_pb2.Plan(job_id="j", tempo=tempo, assignments=shown.plan.assignments))
    contributions = Contributions()
    return any(
        contributions.look(shown, lambda item: said, {}, float(second), float(second)) for second in range(int(PATIENCE_S) + 2)
    )


def test_who_waits_for_the_schedule_is_not_of_no_use() -> None:
    slow = model_pb2.Tempo(batches_per_s=1e-3, from_batch=9)
    assert brought_nothing(None, report(10))
    assert not brought_nothing(slow, report(10)), "the next batch is due in twenty minutes"
    assert brought_nothing(slow, report(BATCHES)), "what it claims to have learned it owes all the same"
    assert brought_nothing(model_pb2.Tempo(batches_per_s=1e-3, from_batch=11), report(10)), "these are due"


def test_a_job_is_not_expected_to_end_before_its_last_batch_is_due() -> None:
    shown = orchestrator_pb2.JobView(num_batches=100)
    shown.vnodes.add(report=report(50)).replicas.add(report=orchestrator_pb2.ReplicaReport(rate=10.0))
    shown.vnodes[0].report.num_learned = 50
    tempo = model_pb2.Tempo(batches_per_s=1.0, from_unix_ms=1_000_000)
    assert eta_s(shown, plan(None), 1050.0) == 5.0
    assert eta_s(shown, plan(tempo), 1050.0) == 49.0, "the last of a hundred is due 99 s after the first"
    assert eta_s(shown, plan(tempo), 2000.0) == 5.0, "it is late"
