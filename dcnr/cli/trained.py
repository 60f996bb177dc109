"""What a model has learned, and which job it is from: the newest manifest answers and is exported, whether its job began at checkpoint 0 or ended half-way,
unless maintainers released another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dcnr.errors import Refused

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient
    from dcnr.sdk.releasing import Released
    from dcnr.v1 import model_pb2, orchestrator_pb2


def last_trained(jobs: Iterable[orchestrator_pb2.JobView]) -> orchestrator_pb2.JobView | None:
    """The newest that completed, of jobs with the newest first."""
    from dcnr.v1 import model_pb2

    return next((job for job in jobs if job.state == model_pb2.JOB_STATE_COMPLETED and job.outcome.manifest_digest), None)


def newest_made(jobs: Iterable[orchestrator_pb2.JobView]) -> dict[str, str]:
    """By model, the job whose manifest is the newest: what answers and is exported; of jobs with the newest first."""
    made: dict[str, str] = {}
    for job in jobs:
        if job.manifest_digest:
            made.setdefault(job.model, job.job_id)
    return made


def _unfinished() -> tuple[model_pb2.JobState.ValueType, ...]:
    """States of jobs that ended without completing."""
    from dcnr.v1 import model_pb2

    return model_pb2.JOB_STATE_CANCELLED, model_pb2.JOB_STATE_FAILED, model_pb2.JOB_STATE_EXPIRED


def told_of_unfinished(jobs: Sequence[orchestrator_pb2.JobView], job: orchestrator_pb2.JobView, *, audits_drawn: bool) -> str:
    """Of a job that did not complete and made the newest manifest of its model: what answers now, and how to go on, or back to what completed before it.

    Empty for any other job. ``jobs``: those of its model, the newest first. Where audits are drawn nobody is sent on from it: only a manifest whose newest
    checkpoints are all cleared is admitted there.
    """
    digest, submit = job.outcome.manifest_digest, "dcnr model submit GRAPH --from-manifest"
    if job.state not in _unfinished() or not digest or newest_made(jobs).get(job.model) != job.job_id:
        return ""
    lines = ["this manifest answers questions and is exported, although its job did not complete"]
    if not audits_drawn:
        lines.append(f"  to go on from it: {submit} {digest}")
    before = last_trained(jobs)
    if before is not None and before.outcome.manifest_digest != digest:
        trained = before.outcome.manifest_digest
        lines.append(f"  to go back to what job {before.job_id} completed, and on from there: {submit} {trained}")
        lines.append(f"  to have that answer at once: dcnr model release {job.model} --manifest {trained}")
        lines.append(f"  to export that: dcnr model export {job.model} --manifest {trained} --out {job.model}")
    return "\n".join(lines)


def told_of_released(released: Released, made: str) -> str:
    """Where maintainers released another manifest than the one that a job ``made``: what answers; else empty."""
    if released.manifest in ("", made):
        return ""
    return (
        f"manifest {released.manifest} answers questions and is exported: it is released (release {released.number})\n"
        f"  to have what training brings answer again: dcnr model release {released.model} --follow-training"
    )


async def check_untrained(client: AsyncClient, model: str) -> str:
    """Raises Refused (``already_trained``) where a job of that model has completed, with both ways to go on. A note where one is still to end, else empty."""
    from dcnr.v1 import model_pb2

    jobs = await client.jobs(model)
    if (job := last_trained(jobs)) is not None:
        digest = job.outcome.manifest_digest
        raise Refused(
            f"{model} is trained (job {job.job_id}, manifest {digest[:12]}); another job begins at checkpoint 0, and is what is served then",
            code="already_trained", remedy=f"go on from what it is: --from-manifest {digest}; or begin all the same: --anew", manifest=digest,
        )  # fmt: skip
    before = next((job for job in jobs if job.state not in (*_unfinished(), model_pb2.JOB_STATE_COMPLETED)), None)
    if before is None:
        return ""
    return (
        f"note: job {before.job_id} of {model} has not ended: another one waits for it, begins at checkpoint 0, and is what is served then; "
        "dcnr job cancel calls either off"
    )
