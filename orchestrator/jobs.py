"""The life of a job, decided from the head, the stored objects and the reports: queued → placing → running → settling → one of four ends. Pure.

Maintainers may pause it on the way; it goes on through placing, or in settling where it had come so far. While it is paused nobody learns and no clock of
its runs; one that is paused in the queue lets others pass.
Nothing here writes: each call returns at most one change for the head. A job's outcome is decided by a head write and only then repeated in its
`end` object. *Finished* always means durable: a job is completed when the manifest under the head has every lineage exactly [0, N).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dcnr import limits
from dcnr.intervals import IntervalSet
from dcnr.ports import Clock, DoubtingClock
from dcnr.v1 import common_pb2, model_pb2
from orchestrator.changes import Activate, Change, Decide, MoveJob, outcomes
from orchestrator.pauses import is_paused

EVALUATION_GRACE_S: Final = 120.0
"""After the manifest is complete, evaluations are awaited for this long."""
MAX_REASON_BYTES: Final = 1000
"""Of an outcome's reason, as UTF-8: the head keeps sixteen outcomes, all of which have to fit `limits.MAX_HEAD_BYTES`."""
MAX_EXITS: Final = 24
"""Test results kept in the head per outcome: the deepest ones."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the store says about one job."""

    job_id: str
    requested_at: float
    """The store's clock, for fairness only."""
    request: model_pb2.JobRequest | None
    """None: the stored bytes are no valid request."""
    request_digest: str
    begins_with: frozenset[str] = frozenset()
    """Digests of the states that it begins with, as far as they are known."""
    problem: str = ""
    """Why it can never run: bad signature, missing graph, ..."""
    lacks: str = ""
    """What this orchestrator lacks to read its graph, in words: others may have it, so this one decides nothing about it."""
    unread: str = ""
    """Why the request of a job that has ended could not be read; empty: it was."""
    cancel_reason: str | None = None
    """Set when the job was called off."""
    pause: model_pb2.JobPause | None = None
    """The newest statement that it pauses or goes on."""
    end: model_pb2.Outcome | None = None
    is_doubted: bool = False
    """The newest listing lacks what is remembered of it: it is stale, or the store went back. Nothing is decided by it until one shows it again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the active job is, as the holder sees it."""

    stateful: tuple[str, ...]
    sources: tuple[str, ...]
    num_batches: int
    placed: bool
    """The plan names this job, nothing waits and every primary works."""
    durable: Mapping[str, IntervalSet]
    """By VNode: lineage of the newest working checkpoint under the head."""
    exits: tuple[model_pb2.ExitResult, ...]
    """Test results of the objectives, by depth."""
    since_manifest_complete_s: float
    settling_deadline_s: float = limits.SETTLING_DEADLINE_S
    num_open_audits: int = 0
    """Intervals of what would be the result that wait for their audit."""

    @property
    def manifest_complete(self) -> bool:
        """Every stateful VNode's newest working checkpoint has lineage [0, N)."""
        return all(self.durable.get(name, IntervalSet.empty()).is_exactly(0, self.num_batches) for name in self.stateful)


def next_change(
    head: model_pb2.Head,
    jobs: Mapping[str, JobRecord],
    progress: Progress | None,
    wall_unix_ms: int,
    taken_back: Iterable[str] = (),
) -> Change | None:
    """The next step of the active job, else the end of a queued job, else the activation of the one that waits longest.

    ``taken_back``: states of which the manifest under the head says so.
    """
    jobs = {job_id: item for job_id, item in jobs.items() if not item.is_doubted}
    ended = frozenset(item.job_id for item in jobs.values() if item.end is not None)
    active = head.active
    if active.job_id:
        record = jobs.get(active.job_id)
        if record is not None and (change := _active(head, record, progress, ended)) is not None:
            return change
    decided = outcomes(head)
    queue = sorted(
        (item for item in jobs.values() if item.job_id not in decided and item.end is None and item.job_id != active.job_id),
        key=lambda item: (item.requested_at, item.job_id),
    )
    for record in queue:
        outcome = _queued_end(record, wall_unix_ms) or _beginning_gone(record, taken_back)
        if outcome is not None:
            return Decide(outcome.SerializeToString(deterministic=True), ended)
    first = next((item for item in queue if not item.lacks and not is_paused(item.pause)), None)
    if active.job_id or first is None:
        return None
    assert first.request is not None
    said = int(first.pause.number) if first.pause is not None else 0
    return Activate(first.job_id, first.request_digest, first.request.initial_manifest_digest, said)


def ends_as(change: Change | None) -> model_pb2.JobState.ValueType:
    """How a job ends by it; unspecified where none does, or where its `end` is stored already: that is repeated whatever has become of what it names."""
    if isinstance(change, Decide) and (outcome := model_pb2.Outcome.FromString(change.outcome)).job_id not in change.ended:
        return outcome.state
    return model_pb2.JOB_STATE_UNSPECIFIED


def waits_for_time(change: Change | None, clock: Clock) -> bool:
    """Whether it ends a job by a wall clock that was just set, nobody having said yet whether rightly: an end is for good, so it waits for some seconds."""
    return ends_as(change) == model_pb2.JOB_STATE_EXPIRED and isinstance(clock, DoubtingClock) and clock.is_unsure


def lacking(head: model_pb2.Head | None, jobs: Mapping[str, JobRecord], planned: str, wall_unix_ms: int) -> str:
    """What an orchestrator lacks to decide on a model, in words; empty: nothing.

    It has to read the jobs that are to run; where there are none, that of the plan, ``planned``, whose weights are served.
    """
    active, decided = (head.active.job_id, outcomes(head)) if head is not None else ("", {})
    to_run = [
        item for item in jobs.values() if item.end is None and item.job_id not in decided and _is_to_run(item, active, wall_unix_ms)
    ]
    read = to_run or [item for item in jobs.values() if item.job_id == planned]
    return next((item.lacks for item in read if item.lacks), "")


def ends_to_write(head: model_pb2.Head, jobs: Mapping[str, JobRecord]) -> Sequence[model_pb2.Outcome]:
    """Outcomes that an acknowledged head has decided and whose `end` object is not known to exist."""
    return [item for item in head.decided if (record := jobs.get(item.job_id)) is None or record.end is None]


def state_of(job_id: str, head: model_pb2.Head | None, record: JobRecord | None) -> model_pb2.JobState.ValueType:
    """Where a job stands: `decided` first, then `end`, then the active job, else queued."""
    if head is not None:
        outcome = outcomes(head).get(job_id)
        if outcome is not None:
            return outcome.state
    if record is not None and record.end is not None:
        return record.end.state
    if head is not None and head.active.job_id == job_id:
        return head.active.state
    return model_pb2.JOB_STATE_QUEUED if record is not None else model_pb2.JOB_STATE_UNSPECIFIED


def intervals(message: common_pb2.IntervalSet) -> IntervalSet:
    """An interval set from the wire. Raises Corrupt."""
    return IntervalSet.from_pairs((item.first, item.end) for item in message.intervals)


def intervals_message(batches: IntervalSet) -> common_pb2.IntervalSet:
    """An interval set as it travels."""
    return common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=first, end=end) for first, end in batches.pairs()])


def _is_to_run(record: JobRecord, active: str, wall_unix_ms: int) -> bool:
    """Whether only who can read its graph brings it further: it is neither called off nor, in the queue, paused or at its end."""
    if record.job_id == active:
        return record.cancel_reason is None
    return not is_paused(record.pause) and _queued_end(record, wall_unix_ms) is None


def _queued_end(record: JobRecord, wall_unix_ms: int) -> model_pb2.Outcome | None:
    if record.cancel_reason is not None:
        return _outcome(record.job_id, model_pb2.JOB_STATE_CANCELLED, "", record.cancel_reason or "called off while queued")
    if record.request is None or record.problem:
        return _outcome(record.job_id, model_pb2.JOB_STATE_FAILED, "", record.problem or "the stored request is not valid")
    expires = record.request.expires_unix_ms
    if expires and wall_unix_ms >= expires:
        return _outcome(record.job_id, model_pb2.JOB_STATE_EXPIRED, "", "still queued at its expiry")
    return None


def _beginning_gone(record: JobRecord, taken_back: Iterable[str]) -> model_pb2.Outcome | None:
    """What a job begins with counts as cleared from then on: nothing may be in it that was taken back while the job was queued."""
    if record.begins_with.isdisjoint(taken_back):
        return None
    return _outcome(record.job_id, model_pb2.JOB_STATE_FAILED, "", "states that it would begin with were taken back")


def _active(head: model_pb2.Head, record: JobRecord, progress: Progress | None, ended: frozenset[str]) -> Change | None:
    active = head.active
    if record.end is not None:  # a store that went back: what was decided of it is repeated, never decided anew
        return Decide(record.end.SerializeToString(deterministic=True), ended)
    if record.cancel_reason is not None:
        outcome = _outcome(record.job_id, model_pb2.JOB_STATE_CANCELLED, head.manifest_digest, record.cancel_reason or "called off")
        return Decide(outcome.SerializeToString(deterministic=True), ended)
    if record.problem:
        outcome = _outcome(record.job_id, model_pb2.JOB_STATE_FAILED, head.manifest_digest, record.problem)
        return Decide(outcome.SerializeToString(deterministic=True), ended)
    if (
        progress is None
        and "" not in (record.request_digest, active.request_digest)
        and record.request_digest != active.request_digest
    ):
        why = "the store has its request no more: under its name something was asked for anew"
        outcome = _outcome(record.job_id, model_pb2.JOB_STATE_FAILED, head.manifest_digest, why)
        return Decide(outcome.SerializeToString(deterministic=True), ended)
    said = _not_yet_obeyed(active, record.pause)
    if said is not None and said.paused != (active.state == model_pb2.JOB_STATE_PAUSED):
        after = model_pb2.JOB_STATE_PAUSED if said.paused else _resumed(active, progress)
        return MoveJob(record.job_id, active.state, after, int(said.number))
    if progress is None:
        return None
    match active.state:
        case model_pb2.JOB_STATE_PLACING if progress.placed:
            return MoveJob(record.job_id, active.state, model_pb2.JOB_STATE_RUNNING)
        case model_pb2.JOB_STATE_PLACING | model_pb2.JOB_STATE_RUNNING if _sources_done(progress):
            return MoveJob(record.job_id, active.state, model_pb2.JOB_STATE_SETTLING)
        case model_pb2.JOB_STATE_SETTLING:
            return _settling(head, progress, ended)
        case _:
            return None


def _not_yet_obeyed(active: model_pb2.ActiveJob, newest: model_pb2.JobPause | None) -> model_pb2.JobPause | None:
    """What maintainers said after that which the head has obeyed. Who has just begun, or reads what is stale, may know older statements only."""
    return newest if newest is not None and newest.number > active.statement else None


def _resumed(active: model_pb2.ActiveJob, progress: Progress | None) -> model_pb2.JobState.ValueType:
    """Where a paused job goes on. One that settles needs no place for everybody: its deadline has to run, whoever left meanwhile."""
    is_settling = active.settling_s > 0 or (progress is not None and _sources_done(progress))
    return model_pb2.JOB_STATE_SETTLING if is_settling else model_pb2.JOB_STATE_PLACING


def _sources_done(progress: Progress) -> bool:
    """Every source's newest checkpoint holds every batch. What a source only reports does not count: from settling there is no way back, and one source's
    false word would have the job expire.
    """
    return all(progress.durable.get(name, IntervalSet.empty()).is_exactly(0, progress.num_batches) for name in progress.sources)


def _settling(head: model_pb2.Head, progress: Progress, ended: frozenset[str]) -> Change | None:
    missing_exits = _missing_exits(progress)
    is_over = head.active.settling_s >= progress.settling_deadline_s
    is_judged = not progress.num_open_audits or is_over
    if progress.manifest_complete and is_judged and (not missing_exits or progress.since_manifest_complete_s >= EVALUATION_GRACE_S):
        lacking = [f"without the evaluation of {', '.join(missing_exits)}"] if missing_exits else []
        if progress.num_open_audits:
            lacking.append(f"with {progress.num_open_audits} intervals whose audit did not come in time")
        reason = "; ".join(lacking)
        outcome = _outcome(head.active.job_id, model_pb2.JOB_STATE_COMPLETED, head.manifest_digest, reason, progress.exits)
        return Decide(outcome.SerializeToString(deterministic=True), ended)
    if not progress.manifest_complete and is_over:
        reason = f"the settling deadline passed; {missing(progress)}"
        outcome = _outcome(head.active.job_id, model_pb2.JOB_STATE_EXPIRED, head.manifest_digest, reason, progress.exits)
        return Decide(outcome.SerializeToString(deterministic=True), ended)
    return None


def _missing_exits(progress: Progress) -> list[str]:
    complete = {
        item.vnode for item in progress.exits if item.split == "test" and item.complete and item.step == progress.num_batches
    }
    return [name for name in progress.stateful if name not in complete]


def missing(progress: Progress) -> str:
    """In words: which batches of which VNodes are not durable."""
    parts: list[str] = []
    for name in progress.stateful:
        lacks = progress.durable.get(name, IntervalSet.empty()).complement(0, progress.num_batches)
        if lacks:
            shown = ", ".join(f"[{first}, {end})" for first, end in lacks.pairs()[:4])
            more = f" and {len(lacks.pairs()) - 4} intervals more" if len(lacks.pairs()) > 4 else ""
            parts.append(f"{name} lacks {len(lacks)} batches: {shown}{more}")
    return "; ".join(parts) or "nothing is missing"


def _outcome(
    job_id: str,
    state: model_pb2.JobState.ValueType,
    manifest_digest: str,
    reason: str,
    exits: Iterable[model_pb2.ExitResult] = (),
) -> model_pb2.Outcome:
    told = reason.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore")  # no letter is cut in two
    return model_pb2.Outcome(
        job_id=job_id, state=state, manifest_digest=manifest_digest, reason=told, exits=list(exits)[-MAX_EXITS:]
    )
