"""Whether a model is trained already: a job that begins at checkpoint 0 takes the place of what it has learned, for whoever asks it and whoever exports it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dcnr.errors import Refused

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient
    from dcnr.v1 import orchestrator_pb2


def last_trained(jobs: Iterable[orchestrator_pb2.JobView]) -> orchestrator_pb2.JobView | None:
    """The newest that completed, of jobs with the newest first."""
    from dcnr.v1 import model_pb2

    return next((job for job in jobs if job.state == model_pb2.JOB_STATE_COMPLETED and job.outcome.manifest_digest), None)


async def check_untrained(client: AsyncClient, model: str) -> None:
    """Raises Refused (``already_trained``) where a job of that model has completed, with both ways to go on."""
    if (job := last_trained(await client.jobs(model))) is not None:
        digest = job.outcome.manifest_digest
        raise Refused(
            f"{model} is trained (job {job.job_id}, manifest {digest[:12]}); another job begins at checkpoint 0, and is what is served then",
            code="already_trained", remedy=f"go on from what it is: --from-manifest {digest}; or begin all the same: --anew", manifest=digest,
        )  # fmt: skip
