"""Signs the next statement that a job pauses or goes on; where somebody else was first, the one after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from dcnr.client import Orchestrators
from dcnr.errors import Stale
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy

TRIES: Final = 4
MAX_NUMBER: Final = 9999
"""What an orchestrator says of the next number is bounded."""


async def say(
    orchestrators: Orchestrators, policy: NetworkPolicy, job: orchestrator_pb2.JobView, keys: Sequence[NodeKey], *, paused: bool, reason: str,
    now_wall: float,
) -> orchestrator_pb2.PauseJobResponse:  # fmt: skip
    """Records that ``job``, as it was last seen, pauses or goes on. Raises Refused, NotFound, Stale (``job_ended``, ``pause_not_next``)."""
    wish = model_pb2.JobPause(
        network_id=policy.network_id, job_id=job.job_id, model=job.model, number=job.pause.number + 1, paused=paused, reason=reason,
        created_unix_ms=int(now_wall * 1000),
    )  # fmt: skip
    for left in reversed(range(TRIES)):
        envelope = seal(identity_pb2.DOMAIN_JOB_PAUSE, wish, *keys)
        policy.open_pause(envelope)  # too few signatures are noticed here, with the remedy
        try:
            answer = await orchestrators.call(OrchestratorServiceStub, "PauseJob", orchestrator_pb2.PauseJobRequest(pause=envelope))
            return cast(orchestrator_pb2.PauseJobResponse, answer)
        except Stale as error:
            number = _next(error)
            if not left or number is None:
                raise
            wish.number = number
    raise AssertionError("unreachable")


def _next(error: Stale) -> int | None:
    text = str(error.details.get("number", ""))
    found = error.code == "pause_not_next" and text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER))
    return int(text) if found else None
