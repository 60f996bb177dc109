"""Bugs in how a job is paused and goes on, one for each rule of its checkers (`simulation/control_pause_checkers.py`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dcnr.ports import ObjectStore
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from orchestrator import decider as decider_module
from orchestrator import jobs as jobs_module
from orchestrator import pauses as pauses_module
from orchestrator.changes import Change, Decide
from orchestrator.head import HeadCore
from orchestrator.jobs import JobRecord
from orchestrator.offers import PlanRequest
from pnode.orders import Orders
from simulation.control_replica import Replica
from simulation.control_worker import WorkerModel
from trust.network import NetworkPolicy


def old_pauses_are_obeyed(patch: pytest.MonkeyPatch) -> None:
    """Whoever repeats the statement that paused a job pauses it again, though a newer one has let it go on."""

    def repeated(active: model_pb2.ActiveJob, newest: model_pb2.JobPause | None) -> model_pb2.JobPause | None:
        if newest is not None and active.state == model_pb2.JOB_STATE_RUNNING and not newest.paused:
            return model_pb2.JobPause(job_id=newest.job_id, number=newest.number - 1, paused=True)
        return newest

    patch.setattr(jobs_module, "_not_yet_obeyed", repeated)


def what_is_not_read_was_not_said(patch: pytest.MonkeyPatch) -> None:
    """A job goes on where the look at the store lacks the statement that paused it, and pauses where it lacks the one that let it go on."""
    patch.setattr(jobs_module, "_not_yet_obeyed", lambda active, newest: newest or model_pb2.JobPause())


def what_seems_in_force_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """A look at the store that lacks the newest statement is enough to tell maintainers that what they want is in force."""

    async def hasty(
        envelope: identity_pb2.Envelope, *, policy: NetworkPolicy, store: ObjectStore
    ) -> tuple[model_pb2.JobPause, bool]:
        wish = policy.open_pause(envelope)
        numbers = await pauses_module._numbers(store, wish.model, wish.job_id)
        newest = await pauses_module.newest_pause(store, policy, wish.model, wish.job_id, numbers)
        if pauses_module.is_paused(newest) == wish.paused:
            return newest or wish, False
        return await pauses_module.record_pause(envelope, policy=policy, store=store)

    patch.setattr("simulation.control_orchestrator.record_pause", hasty)


def workers_are_not_told_to_halt(patch: pytest.MonkeyPatch) -> None:
    """A PNode writes down that its job is paused, and its worker learns on."""
    host = Orders.host

    def unsaid(self: Orders, *args: Any) -> local_pb2.HostReplica:
        message = host(self, *args)
        message.halted = False
        return message

    patch.setattr(Orders, "host", unsaid)


def halted_plans_stay_halted(patch: pytest.MonkeyPatch) -> None:
    """The job goes on, and no plan lets its replicas go on."""
    made = decider_module.plan_request

    def halted(view: Any, *args: Any, **more: Any) -> PlanRequest:
        request = made(view, *args, **more)
        was = view.plan is not None and view.plan.job_id == request.job_id and view.plan.halted
        return replace(request, halted=request.halted or was)

    patch.setattr(decider_module, "plan_request", halted)


def clocks_run_while_it_is_paused(patch: pytest.MonkeyPatch) -> None:
    """Every renewal of the head adds to the time that a job has settled, whether it stands still or not."""
    send = HeadCore._send_body

    def counted(self: HeadCore, head: model_pb2.Head, *rest: Any) -> None:
        known = self._known
        if known is not None and known.head.epoch == head.epoch and head.active.state == model_pb2.JOB_STATE_PAUSED:
            head.active.settling_s += 1.0
        send(self, head, *rest)

    patch.setattr(HeadCore, "_send_body", counted)


def it_always_goes_on_by_placing(patch: pytest.MonkeyPatch) -> None:
    """A job that had come to settling is placed anew, where no deadline runs."""
    patch.setattr(jobs_module, "_resumed", lambda active, progress: model_pb2.JOB_STATE_PLACING)


def paused_jobs_expire(patch: pytest.MonkeyPatch) -> None:
    """What stands still is taken for what never ends."""
    decided = decider_module.next_change

    def impatient(head: model_pb2.Head, jobs: dict[str, JobRecord], *rest: Any) -> Change | None:
        if head.active.state == model_pb2.JOB_STATE_PAUSED:
            over = model_pb2.Outcome(
                job_id=head.active.job_id, state=model_pb2.JOB_STATE_EXPIRED, manifest_digest=head.manifest_digest
            )
            return Decide(over.SerializeToString(deterministic=True))
        return decided(head, jobs, *rest)

    patch.setattr(decider_module, "next_change", impatient)


def what_is_paused_keeps_nothing(patch: pytest.MonkeyPatch) -> None:
    """While a job is paused no checkpoint of it is made."""
    snapshot = WorkerModel.snapshot

    def careless(self: WorkerModel, replica: Replica) -> None:
        if not replica.halted:
            snapshot(self, replica)

    patch.setattr(WorkerModel, "snapshot", careless)
