"""Signs the next statement that a job pauses or goes on; where somebody else was first, the one after it, and no later one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from dcnr.client import Orchestrators
from dcnr.errors import Stale
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy


async def say(
    orchestrators: Orchestrators, policy: NetworkPolicy, job: orchestrator_pb2.JobView, keys: Sequence[NodeKey], *, paused: bool, reason: str,
    now_wall: float,
) -> orchestrator_pb2.PauseJobResponse:  # fmt: skip
    """Records that ``job``, as it was last seen, pauses or goes on.

    At most the two numbers after that view's are signed, whatever orchestrators say is next. Raises Refused, NotFound, Stale (``job_ended``;
    ``pause_not_next``: see the job anew).
    """
    wish = model_pb2.JobPause(
        network_id=policy.network_id, job_id=job.job_id, model=job.model, number=job.pause.number + 1, paused=paused, reason=reason,
        created_unix_ms=int(now_wall * 1000),
    )  # fmt: skip
    try:
        return await _told(orchestrators, policy, wish, keys)
    except Stale as error:
        if error.code != "pause_not_next" or error.details.get("number") != str(wish.number + 1):
            raise  # a signature for a later number could be used when that is next
        wish.number += 1
        return await _told(orchestrators, policy, wish, keys)


async def _told(
    orchestrators: Orchestrators, policy: NetworkPolicy, wish: model_pb2.JobPause, keys: Sequence[NodeKey]
) -> orchestrator_pb2.PauseJobResponse:
    envelope = seal(identity_pb2.DOMAIN_JOB_PAUSE, wish, *keys)
    policy.open_pause(envelope)  # too few signatures are noticed here, with the remedy
    answer = await orchestrators.call(OrchestratorServiceStub, "PauseJob", orchestrator_pb2.PauseJobRequest(pause=envelope))
    return cast(orchestrator_pb2.PauseJobResponse, answer)
