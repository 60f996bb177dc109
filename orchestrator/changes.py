"""What a head write may change: small typed changes, each with its own condition, so that composing anew never repeats or undoes a decision.

A change is applied to a private copy of the head and answers why it does not fit that head any more (empty text: applied). The caller keeps
a change until a head that contains it was acknowledged or read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from dcnr.v1 import model_pb2

MAX_DECIDED: Final = 16
"""Outcomes that the head keeps; an older one leaves only when its `end` object is known to exist."""

MAX_OUTCOME_BYTES: Final = 4000
"""Of one outcome: as many as a head keeps have to fit `dcnr.limits.MAX_HEAD_BYTES`, with what else it says."""

TERMINAL: Final = frozenset(
    (
        model_pb2.JOB_STATE_COMPLETED,
        model_pb2.JOB_STATE_FAILED,
        model_pb2.JOB_STATE_CANCELLED,
        model_pb2.JOB_STATE_EXPIRED,
    )
)


@dataclass(frozen=True, slots=True)
class Activate:
    """Makes a queued job the active one; ``manifest_digest`` is where it starts from, ``statement`` the newest that it may begin."""

    job_id: str
    request_digest: str
    manifest_digest: str
    statement: int = 0


@dataclass(frozen=True, slots=True)
class NamePlan:
    """Puts a plan under the head. ``sequence`` is what the plan's desired states carry, so the write takes exactly that number."""

    job_id: str
    parent_digest: str
    plan_digest: str
    sequence: int


@dataclass(frozen=True, slots=True)
class NameManifest:
    """Puts the successor of ``parent_digest`` under the head. ``takes_back``: a PNode was found at fault, and what goes back with that has to be learned
    again, so the time for settling begins anew. Whoever is found at fault is quarantined: each time more costs a key that was placed.
    """

    job_id: str
    parent_digest: str
    manifest_digest: str
    takes_back: bool = False


@dataclass(frozen=True, slots=True)
class MoveJob:
    """Moves the active job from one state to the next. ``statement``: the number of the one that asks for it, which counts no more then."""

    job_id: str
    before: model_pb2.JobState.ValueType
    after: model_pb2.JobState.ValueType
    statement: int = 0


@dataclass(frozen=True, slots=True)
class Decide:
    """Ends a job, active or queued. ``ended`` names jobs whose `end` object exists: only those may leave ``decided``."""

    outcome: bytes
    """A serialised Outcome."""
    ended: frozenset[str] = field(default_factory=frozenset)


Change = Activate | NamePlan | NameManifest | MoveJob | Decide


def outcomes(head: model_pb2.Head) -> Mapping[str, model_pb2.Outcome]:
    """What the head has decided, by job."""
    return {item.job_id: item for item in head.decided}


def apply(change: Change, head: model_pb2.Head) -> str:
    """Changes ``head`` in place and returns an empty text, or leaves it alone and returns why the change no longer fits."""
    match change:
        case Activate():
            return _activate(change, head)
        case NamePlan():
            return _name_plan(change, head)
        case NameManifest():
            return _name_manifest(change, head)
        case MoveJob():
            if head.active.job_id != change.job_id or head.active.state != change.before:
                return "the job is no longer in that state"
            head.active.state = change.after
            head.active.statement = max(head.active.statement, change.statement)
            return ""
        case Decide():
            return _decide(change, head)
        case _:
            assert_never(change)


def _activate(change: Activate, head: model_pb2.Head) -> str:
    if head.active.job_id:
        return f"job {head.active.job_id} is active"
    if change.job_id in outcomes(head):
        return "the job has ended"
    head.active.job_id = change.job_id
    head.active.request_digest = change.request_digest
    head.active.state = model_pb2.JOB_STATE_PLACING
    head.active.statement = change.statement
    head.manifest_digest = change.manifest_digest
    return ""


def _name_plan(change: NamePlan, head: model_pb2.Head) -> str:
    if head.active.job_id != change.job_id:
        return "another job is active"
    if head.plan_digest != change.parent_digest:
        return "the plan was made for another predecessor"
    if change.sequence <= head.sequence:
        return "the head has passed the sequence that the desired states carry"
    head.plan_digest = change.plan_digest
    head.plan_sequence = change.sequence
    return ""


def _name_manifest(change: NameManifest, head: model_pb2.Head) -> str:
    if head.active.job_id != change.job_id:
        return "another job is active"
    if head.manifest_digest != change.parent_digest:
        return "the manifest was made for another predecessor"
    head.manifest_digest = change.manifest_digest
    if change.takes_back:
        head.active.settling_s = 0.0
    return ""


def _decide(change: Decide, head: model_pb2.Head) -> str:
    outcome = model_pb2.Outcome.FromString(change.outcome)
    if outcome.state not in TERMINAL:
        return "an outcome needs a final state"
    if outcome.job_id in outcomes(head):
        return "the job has ended"
    if len(head.decided) >= MAX_DECIDED:
        gone = next((index for index, item in enumerate(head.decided) if item.job_id in change.ended), None)
        if gone is None:
            return "no outcome may leave the head before its end object exists"
        del head.decided[gone]
    head.decided.append(outcome)
    if head.active.job_id == outcome.job_id:
        head.ClearField("active")
    return ""
