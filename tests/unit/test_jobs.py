"""A job's life: each step only when its condition holds, each outcome once, completed only when everything is durable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_network_time import Clock

from dcnr import limits
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from membership.network_time import NetworkTime
from orchestrator.changes import MAX_DECIDED, MAX_OUTCOME_BYTES, Activate, Decide, MoveJob, NameManifest, apply
from orchestrator.costs import StageCost
from orchestrator.exits import ExitBook
from orchestrator.jobs import (
    MAX_EXITS,
    JobRecord,
    Progress,
    ends_as,
    ends_to_write,
    intervals_message,
    lacking,
    next_change,
    state_of,
    waits_for_time,
)
from orchestrator.progress import progress_of
from orchestrator.view import JobFacts, ModelView
from trust.envelope import seal
from trust.identity import NodeKey

PLACING, RUNNING, SETTLING = model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_SETTLING
N = 10
FULL = IntervalSet.span(0, N)


def record(name: str = "j1", at: float = 1.0, **kinds: object) -> JobRecord:
    return replace(JobRecord(name, at, model_pb2.JobRequest(job_id=name, initial_manifest_digest="m0"), "r0"), **kinds)  # type: ignore[arg-type]


def exit_of(name: str, *, complete: bool = True) -> model_pb2.ExitResult:
    return model_pb2.ExitResult(vnode=name, split="test", step=N, complete=complete)


PROGRESS = Progress(("a", "b"), ("a",), N, True, {"a": FULL, "b": FULL}, (exit_of("a"), exit_of("b")), 0.0)


def head(state: int = 0, job: str = "j1", settling_s: float = 0.0, statement: int = 0) -> model_pb2.Head:
    made = model_pb2.Head(manifest_digest="m5")
    if state:
        made.active.job_id, made.active.state, made.active.settling_s = job, state, settling_s  # type: ignore[assignment]
        made.active.statement = statement
    return made


def outcome(change: object) -> model_pb2.Outcome:
    assert isinstance(change, Decide)
    return model_pb2.Outcome.FromString(change.outcome)


def test_the_oldest_request_is_activated_first() -> None:
    jobs = {"j2": record("j2", 2.0), "j1": record("j1", 3.0), "j3": record("j3", 2.0)}
    assert next_change(head(), jobs, None, 0) == Activate("j2", "r0", "m0")
    assert next_change(head(PLACING), jobs, None, 0) is None


def test_placing_running_settling() -> None:
    jobs = {"j1": record()}
    waiting = replace(PROGRESS, placed=False, durable={})
    assert next_change(head(PLACING), jobs, waiting, 0) is None
    assert next_change(head(PLACING), jobs, replace(waiting, placed=True), 0) == MoveJob("j1", PLACING, RUNNING)
    almost = replace(waiting, durable={"a": IntervalSet.span(0, N - 1)})
    assert next_change(head(RUNNING), jobs, almost, 0) is None
    assert next_change(head(RUNNING), jobs, replace(waiting, durable={"a": FULL}), 0) == MoveJob("j1", RUNNING, SETTLING)


def test_no_sources_word_brings_a_job_to_settling() -> None:
    """From there is no way back, and its deadline runs: one source that says that it has learned everything would have the job expire."""
    says = orchestrator_pb2.ReplicaReport(state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, lineage=intervals_message(FULL))
    source = StageCost("a", (), (), True, 1, 1.0, 1, 1, 1)
    facts = JobFacts(model_pb2.JobRequest(job_id="j1", num_batches=N), "r0", model_pb2.ModelGraph(), b"", (), (source,))
    plan = model_pb2.Plan(job_id="j1")
    plan.assignments.add(replica="a.1", vnode="a", pnode_id="p", role=model_pb2.ROLE_PRIMARY)
    for durable, after in ((IntervalSet.span(0, 1), None), (FULL, MoveJob("j1", RUNNING, SETTLING))):
        manifest = model_pb2.Manifest()
        manifest.entries.add(vnode="a", working=[model_pb2.Checkpoint(vnode="a", job_id="j1", lineage=intervals_message(durable))])
        view = ModelView("m", head(RUNNING), b"", plan=plan, manifest=manifest, job=facts)
        progress = progress_of(view, lambda _: says, ExitBook(), 0.0, 0)
        assert next_change(view.head, {"j1": record()}, progress, 0) == after


def test_completed_needs_every_lineage_and_every_evaluation() -> None:
    jobs = {"j1": record()}
    done = outcome(next_change(head(SETTLING), jobs, PROGRESS, 0))
    assert (done.state, done.manifest_digest, len(done.exits), done.reason) == (model_pb2.JOB_STATE_COMPLETED, "m5", 2, "")
    gap = replace(PROGRESS, durable={"a": FULL, "b": IntervalSet.of((0, 4), (5, N))})
    assert next_change(head(SETTLING), jobs, gap, 0) is None
    more = replace(PROGRESS, durable={"a": FULL, "b": IntervalSet.span(0, N + 1)})
    assert next_change(head(SETTLING), jobs, more, 0) is None
    unread = replace(PROGRESS, exits=(exit_of("a"), exit_of("b", complete=False)))
    assert next_change(head(SETTLING), jobs, unread, 0) is None
    late = outcome(next_change(head(SETTLING), jobs, replace(unread, since_manifest_complete_s=120.0), 0))
    assert late.state == model_pb2.JOB_STATE_COMPLETED
    assert "b" in late.reason


def test_a_job_waits_for_open_audits_and_no_longer_than_its_settling_deadline() -> None:
    jobs, waits = {"j1": record()}, replace(PROGRESS, num_open_audits=2, settling_deadline_s=60.0)
    assert next_change(head(SETTLING, settling_s=59.0), jobs, waits, 0) is None
    done = outcome(next_change(head(SETTLING, settling_s=60.0), jobs, waits, 0))
    assert (done.state, done.reason) == (model_pb2.JOB_STATE_COMPLETED, "with 2 intervals whose audit did not come in time")
    assert outcome(next_change(head(SETTLING), jobs, replace(waits, num_open_audits=0), 0)).reason == ""


def test_the_settling_deadline_names_what_is_missing() -> None:
    jobs = {"j1": record()}
    gap = replace(PROGRESS, durable={"a": FULL, "b": IntervalSet.of((0, 4), (5, N))})
    assert next_change(head(SETTLING, settling_s=599), jobs, gap, 0) is None
    ended = outcome(next_change(head(SETTLING, settling_s=600), jobs, gap, 0))
    assert ended.state == model_pb2.JOB_STATE_EXPIRED
    assert "b lacks 1 batches: [4, 5)" in ended.reason


def test_a_fault_found_while_it_settles_gives_the_time_for_learning_again_what_goes_back() -> None:
    gap = replace(PROGRESS, durable={"a": FULL, "b": IntervalSet.of((0, 4), (5, N))})
    found = head(SETTLING, settling_s=599)
    assert apply(NameManifest("j1", "m5", "m6"), found) == ""
    assert found.active.settling_s == 599, "whatever else a manifest says"
    assert apply(NameManifest("j1", "m5", "m7", takes_back=True), found), "it is not its successor"
    assert found.active.settling_s == 599
    assert apply(NameManifest("j1", "m6", "m7", takes_back=True), found) == ""
    assert (found.active.state, found.active.settling_s) == (SETTLING, 0.0)
    found.active.settling_s += 599
    assert next_change(found, {"j1": record()}, gap, 0) is None
    found.active.settling_s += 1
    assert outcome(next_change(found, {"j1": record()}, gap, 0)).state == model_pb2.JOB_STATE_EXPIRED


PAUSED = model_pb2.JOB_STATE_PAUSED


def said(paused: bool, number: int = 1) -> model_pb2.JobPause:
    return model_pb2.JobPause(job_id="j1", number=number, paused=paused)


@pytest.mark.parametrize("state", [PLACING, RUNNING, SETTLING])
def test_a_job_pauses_from_every_state_and_goes_on(state: model_pb2.JobState.ValueType) -> None:
    paused, goes_on = {"j1": record(pause=said(True))}, {"j1": record(pause=said(False, 2))}
    assert next_change(head(state), paused, PROGRESS, 0) == MoveJob("j1", state, PAUSED, 1)
    assert next_change(head(state), paused, None, 0) == MoveJob("j1", state, PAUSED, 1), "whatever is known of its progress"
    assert next_change(head(PAUSED), paused, PROGRESS, 0) is None, "everything is done, and it stays paused"
    assert next_change(head(PAUSED), goes_on, None, 0) == MoveJob("j1", PAUSED, PLACING, 2)
    assert next_change(head(PLACING), goes_on, PROGRESS, 0) == MoveJob("j1", PLACING, RUNNING)


def test_a_job_that_had_come_to_settling_goes_on_settling_though_nobody_has_room_for_what_left() -> None:
    """In placing no clock runs: without room it would wait there for ever."""
    jobs = {"j1": record(pause=said(False, 2))}
    gap = replace(PROGRESS, placed=False, durable={"a": FULL, "b": IntervalSet.span(0, 4)})
    forgotten = replace(gap, durable={})
    assert next_change(head(PAUSED), jobs, gap, 0) == MoveJob("j1", PAUSED, SETTLING, 2), "every source is done"
    assert next_change(head(PAUSED, settling_s=1.0), jobs, forgotten, 0) == MoveJob("j1", PAUSED, SETTLING, 2), (
        "it had settled before"
    )
    assert next_change(head(PAUSED, settling_s=1.0), jobs, None, 0) == MoveJob("j1", PAUSED, SETTLING, 2), "whatever is known"
    assert next_change(head(PAUSED), jobs, forgotten, 0) == MoveJob("j1", PAUSED, PLACING, 2)
    assert next_change(head(PLACING), jobs, gap, 0) == MoveJob("j1", PLACING, SETTLING), (
        "the sources learned the rest while others had no place"
    )
    assert outcome(next_change(head(SETTLING, settling_s=600), jobs, gap, 0)).state == model_pb2.JOB_STATE_EXPIRED


@pytest.mark.parametrize(
    ("state", "obeyed", "shown"),
    [
        (PAUSED, 1, None),
        (PAUSED, 1, said(True)),
        (PAUSED, 3, said(False, 2)),
        (PLACING, 2, said(True, 1)),
        (SETTLING, 2, said(True, 2)),
    ],
)
def test_what_was_obeyed_counts_no_more_whoever_reads_an_older_store(
    state: model_pb2.JobState.ValueType, obeyed: int, shown: model_pb2.JobPause | None
) -> None:
    """Who takes the head over may read a listing that is stale: what it lacks was said all the same."""
    waiting = replace(PROGRESS, placed=False, durable={}, exits=())
    assert next_change(head(state, statement=obeyed), {"j1": record(pause=shown)}, waiting, 0) is None


def test_the_head_keeps_the_number_of_the_statement_that_it_follows() -> None:
    found = head(RUNNING)
    assert apply(MoveJob("j1", RUNNING, PAUSED, 3), found) == ""
    assert (found.active.state, found.active.statement) == (PAUSED, 3)
    assert apply(MoveJob("j1", PAUSED, PLACING, 4), found) == ""
    assert apply(MoveJob("j1", PLACING, RUNNING), found) == ""
    assert (found.active.state, found.active.statement) == (RUNNING, 4)


def test_a_paused_job_can_be_called_off_and_fails_for_good() -> None:
    called_off = {"j1": record(pause=said(True), cancel_reason="enough")}
    assert outcome(next_change(head(PAUSED), called_off, None, 0)).state == model_pb2.JOB_STATE_CANCELLED
    broken = {"j1": record(pause=said(True), problem="its graph is gone")}
    assert outcome(next_change(head(PAUSED), broken, None, 0)).state == model_pb2.JOB_STATE_FAILED


def test_a_job_paused_in_the_queue_lets_others_pass_and_keeps_its_expiry() -> None:
    request = model_pb2.JobRequest(job_id="j1", expires_unix_ms=1000)
    jobs = {"j1": record("j1", 1.0, request=request, pause=said(True)), "j2": record("j2", 2.0)}
    assert next_change(head(), jobs, None, 0) == Activate("j2", "r0", "m0")
    del jobs["j2"]
    assert next_change(head(), jobs, None, 0) is None
    assert outcome(next_change(head(), jobs, None, 1000)).state == model_pb2.JOB_STATE_EXPIRED
    jobs["j1"] = record(pause=said(False, 2))
    begins = next_change(head(), jobs, None, 0)
    assert begins == Activate("j1", "r0", "m0", 2)
    found = head()
    assert apply(begins, found) == ""
    assert found.active.statement == 2


@pytest.mark.parametrize("state", [0, PLACING, RUNNING, SETTLING, PAUSED])
def test_cancelling_is_a_decision_in_every_state(state: int) -> None:
    ended = outcome(next_change(head(state), {"j1": record(cancel_reason="enough")}, None, 0))
    assert (ended.state, ended.reason) == (model_pb2.JOB_STATE_CANCELLED, "enough")


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f600"])
def test_a_head_with_the_longest_of_everything_is_read_again(letter: str) -> None:
    """Whoever holds a head that is too large to be written falls over it, and everybody after it."""
    name, big = "v" * 63, 2**53 - 1
    result = model_pb2.ExitResult(
        vnode=name, split="test", step=big, count=big, correct=big, sum_loss=1e12, complete=True, depth=4096
    )
    done = replace(PROGRESS, exits=(result,) * (MAX_EXITS + 1), since_manifest_complete_s=1e9)
    full = model_pb2.Head(
        network_id="n" * 40, model=name, epoch=2**63, holder="h" * 40, sequence=2**63, plan_digest="p" * 64, plan_sequence=2**63,
        manifest_digest="m" * 64, written_unix_ms=2**53,
    )  # fmt: skip
    for index in range(MAX_DECIDED):
        job = f"{index:063}"
        full.active.CopyFrom(
            model_pb2.ActiveJob(job_id=job, state=SETTLING, running_s=1.0, settling_s=600.0, request_digest="r" * 64, statement=64)
        )
        change = next_change(full, {job: record(job)}, done, 0)
        assert isinstance(change, Decide)
        ended = outcome(change)
        called_off = outcome(next_change(full, {job: record(job, cancel_reason=letter * 1000)}, done, 0))
        assert called_off.reason
        assert called_off.reason == letter * len(called_off.reason), "no letter is cut in two"
        ended.reason = called_off.reason
        assert ended.ByteSize() <= MAX_OUTCOME_BYTES, "what is read again has to fit as well"
        ended.reason += letter * ((MAX_OUTCOME_BYTES - ended.ByteSize()) // len(letter.encode()))
        assert apply(Decide(ended.SerializeToString()), full) == ""
    full.active.job_id = "j" * 63
    sealed = seal(identity_pb2.DOMAIN_HEAD, full, NodeKey.generate()).SerializeToString(deterministic=True)
    assert len(sealed) <= limits.MAX_HEAD_BYTES


def test_no_queued_job_ends_by_a_clock_that_was_just_set_wrong() -> None:
    """Its end would be for good, and a minute later the clock is right again."""
    machine = Clock()
    time = NetworkTime(machine)
    for name in "abc":
        time.note(name, -machine.ahead_s)
    jobs = {"j2": record("j2", request=model_pb2.JobRequest(job_id="j2", expires_unix_ms=int(time.wall() + 1000) * 1000))}

    def expires() -> object:
        change = next_change(head(RUNNING), jobs, None, int(time.wall() * 1000))
        assert change is None or outcome(change).state == model_pb2.JOB_STATE_EXPIRED
        return None if waits_for_time(change, time) else change

    machine.ahead_s = 3600.0
    machine.now += 1.0
    assert expires() is None
    for name in "abc":
        time.note(name, -machine.ahead_s)
    assert expires() is None, "network time is what it was"
    machine.now += 1000.0
    assert expires() is not None
    machine.ahead_s = 0.0
    assert expires() is None, "set again: by its time alone nothing is ended"


@pytest.mark.parametrize("state", [model_pb2.JOB_STATE_EXPIRED, model_pb2.JOB_STATE_COMPLETED])
def test_the_end_of_a_job_that_runs_once_more_is_repeated_and_waits_for_nothing(state: model_pb2.JobState.ValueType) -> None:
    """A store that went back: its end is there, and until the head says so again the job would be placed."""
    said = model_pb2.Outcome(job_id="j1", state=state, manifest_digest="m")
    change = next_change(head(RUNNING), {"j1": record(end=said)}, None, 0)
    assert outcome(change) == said
    assert ends_as(change) == model_pb2.JOB_STATE_UNSPECIFIED
    assert ends_as(Decide(said.SerializeToString())) == state, "one that is decided for the first time"


def test_a_queued_job_expires_and_a_broken_one_fails_while_another_runs() -> None:
    request = model_pb2.JobRequest(job_id="j2", expires_unix_ms=1000)
    jobs = {"j1": record(), "j2": record("j2", 2.0, request=request)}
    assert next_change(head(RUNNING), jobs, None, 999) is None
    assert outcome(next_change(head(RUNNING), jobs, None, 1000)).state == model_pb2.JOB_STATE_EXPIRED
    jobs["j2"] = record("j2", problem="its graph is not in the store")
    assert outcome(next_change(head(RUNNING), jobs, None, 0)).state == model_pb2.JOB_STATE_FAILED


def test_an_ended_job_is_never_run_again() -> None:
    made = head()
    done = model_pb2.Outcome(job_id="j1", state=model_pb2.JOB_STATE_COMPLETED)
    made.decided.append(done)
    assert next_change(made, {"j1": record()}, None, 0) is None
    assert next_change(head(), {"j1": record(end=done)}, None, 0) is None
    assert list(ends_to_write(made, {"j1": record()})) == [done]
    assert not ends_to_write(made, {"j1": record(end=done)})


@pytest.mark.parametrize(
    "kinds",
    [{}, {"cancel_reason": "enough"}, {"problem": "its graph is gone"}, {"pause": model_pb2.JobPause(number=9, paused=True)}],
)
def test_where_the_head_went_back_the_end_of_its_active_job_is_repeated_and_nothing_else(kinds: dict[str, object]) -> None:
    done = model_pb2.Outcome(job_id="j1", state=model_pb2.JOB_STATE_COMPLETED, manifest_digest="m9", reason="as it was")
    jobs = {"j1": record(end=done, **kinds), "j2": record("j2", 2.0)}
    back = head(RUNNING)
    change = next_change(back, jobs, PROGRESS, 0)
    assert outcome(change) == done
    assert isinstance(change, Decide)
    assert apply(change, back) == ""
    assert not ends_to_write(back, jobs)
    assert next_change(back, jobs, None, 0) == Activate("j2", "r0", "m0")


def test_where_a_job_stands() -> None:
    made = head(RUNNING)
    assert state_of("j1", made, record()) == RUNNING
    assert state_of("j2", made, record("j2")) == model_pb2.JOB_STATE_QUEUED
    assert state_of("j3", made, None) == model_pb2.JOB_STATE_UNSPECIFIED
    change = next_change(head(SETTLING), {"j1": record()}, PROGRESS, 0)
    assert isinstance(change, Decide)
    made = head(SETTLING)
    assert not apply(change, made)
    assert state_of("j1", made, record()) == model_pb2.JOB_STATE_COMPLETED


def test_who_lacks_something_of_a_job_decides_nothing_until_the_job_needs_nobody_who_has_it() -> None:
    done = model_pb2.Outcome(job_id="j1", state=model_pb2.JOB_STATE_COMPLETED)
    unread, other = record(lacks="lacks component mix"), record("j2", 2.0)
    assert next_change(head(), {"j1": unread}, None, 0) is None, "it is never activated by who cannot read it"
    assert next_change(head(), {"j1": unread, "j2": other}, None, 0) == Activate("j2", "r0", "m0")
    for known in ({"j1": unread}, {"j1": unread, "j2": other}):
        assert lacking(head(), known, "", 0) == lacking(None, known, "", 0) == "lacks component mix"
    assert lacking(head(RUNNING), {"j1": unread}, "", 0) == "lacks component mix"
    assert not lacking(head(), {"j2": other}, "", 0)
    expires = replace(unread, request=model_pb2.JobRequest(job_id="j1", expires_unix_ms=1000))
    assert lacking(head(), {"j1": expires}, "", 999)
    paused = model_pb2.JobPause(job_id="j1", paused=True, number=1)
    for over in (replace(unread, cancel_reason="enough"), replace(unread, end=done), expires, replace(unread, pause=paused)):
        assert not lacking(head(), {"j1": over}, "", 1000), "whoever holds the head can end it, or passes it over"
    assert not lacking(head(RUNNING), {"j1": replace(unread, cancel_reason="enough")}, "", 0)
    served = replace(unread, end=done)
    assert lacking(head(), {"j1": served}, "j1", 0) == "lacks component mix", "its weights are served"
    assert not lacking(head(), {"j1": served, "j2": other}, "j1", 0), "what is to run comes first"


def test_what_begins_on_a_state_that_was_taken_back_since_fails_also_while_another_job_runs() -> None:
    """It was cleared when the job was queued; begun on, what an audit had found wrong would have counted as cleared for ever."""
    jobs = {"j2": record("j2", begins_with=frozenset(("s1", "s2"))), "j3": record("j3", 2.0, begins_with=frozenset(("s3",)))}
    for made in (head(), head(RUNNING)):
        ended = outcome(next_change(made, jobs, None, 0, taken_back=["s0", "s2"]))
        assert (ended.job_id, ended.state) == ("j2", model_pb2.JOB_STATE_FAILED)
        assert "taken back" in ended.reason
    assert next_change(head(), jobs, None, 0, taken_back=["s0"]) == Activate("j2", "r0", "m0")
    active = {"j1": replace(jobs["j2"], job_id="j1")}
    assert next_change(head(RUNNING), active, None, 0, taken_back=["s2"]) is None, "what runs is judged by its own audits"
