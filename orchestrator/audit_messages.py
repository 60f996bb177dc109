"""What the audit desk's shell signs and sends: challenges, and tasks of auditors. Pure."""

from __future__ import annotations

from dcnr.ports import Clock
from dcnr.v1 import model_pb2
from orchestrator.audit_events import SendChallenge, SendTask
from orchestrator.view import ModelView
from trust.evidence import DRAWN


def challenge_of(
    action: SendChallenge, view: ModelView, network_id: str, job_id: str, manifest_digest: str, until_unix_ms: int
) -> model_pb2.Challenge:
    """For the accused. ``manifest_digest``: of the manifest that says that its interval is open."""
    return model_pb2.Challenge(
        network_id=network_id, model=view.model, job_id=job_id, vnode=action.vnode, replica=action.replica, interval=action.interval,
        pnode_id=action.pnode_id, manifest_digest=manifest_digest, epoch=view.head.epoch, until_unix_ms=until_unix_ms,
    )  # fmt: skip


def audit_task_of(
    action: SendTask, view: ModelView, network_id: str, job_id: str, seed: bytes, until_unix_ms: int
) -> model_pb2.AuditTask:
    """For an auditor, the verifier included."""
    return model_pb2.AuditTask(
        network_id=network_id, model=view.model, job_id=job_id, vnode=action.vnode, task_id=action.task_id,
        pnode_id=action.auditor, bundle_digest=action.bundle.digest, bundle_bytes=action.bundle.size_bytes,
        request_digest=view.head.active.request_digest, check=DRAWN, seed=seed, epoch=view.head.epoch,
        until_unix_ms=until_unix_ms,
    )  # fmt: skip


def unix_ms_of(until_s: float, clock: Clock) -> int:
    """A deadline by the monotonic clock, as others are told of it."""
    return int((clock.wall() + until_s - clock.monotonic()) * 1000)


def past_s_of(unix_ms: int, clock: Clock) -> float:
    """When that was by the monotonic clock; nothing has happened later than now."""
    return clock.monotonic() - max(0.0, clock.wall() - unix_ms / 1000)
