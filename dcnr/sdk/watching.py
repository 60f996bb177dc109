"""Views of a job until it has ended, from whichever orchestrator lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from dcnr.client import Orchestrators
from dcnr.errors import Unavailable
from dcnr.ports import Clock
from dcnr.v1 import model_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub

WATCH_TIMEOUT_S: Final = 3600.0
"""One stream of views; it is opened again until the job ends."""
RECONNECT_S: Final = 1.0
LOST_S: Final = 120.0
"""Without a view for so long, whoever watches is told: longer than a takeover, or the restart of the only orchestrator."""
ENDED: Final = frozenset(
    {model_pb2.JOB_STATE_COMPLETED, model_pb2.JOB_STATE_FAILED, model_pb2.JOB_STATE_CANCELLED, model_pb2.JOB_STATE_EXPIRED}
)


async def views_of(
    orchestrators: Orchestrators, job_id: str, *, model: str, interval_s: float, clock: Clock
) -> AsyncGenerator[orchestrator_pb2.WatchJobResponse, None]:
    """Views with the events in between; goes on at another orchestrator when one is lost.

    Event numbers belong to the orchestrator that keeps them, so after a change of orchestrator some events may come twice. Raises NotFound; Unavailable
    (``watch_lost``) where for `LOST_S` none shows the job.
    """
    last: tuple[str, int] = ("", 0)
    seen_s, why = clock.monotonic(), "the streams of views ended"
    while True:
        request = orchestrator_pb2.WatchJobRequest(model=model, job_id=job_id, interval_s=interval_s, after_event=last[1])
        try:
            stream = orchestrators.stream(OrchestratorServiceStub, "WatchJob", request, timeout_s=WATCH_TIMEOUT_S)
            async for view in stream:
                seen_s, reporter = clock.monotonic(), view.job.reporter
                newest = max((int(event.sequence) for event in view.events), default=0)
                last = (reporter, max(newest, last[1] if reporter == last[0] else 0))
                yield view
                seen_s = clock.monotonic()  # the time that the reader took is nobody's silence
                if view.job.state in ENDED:
                    return
        except Unavailable as error:
            last, why = ("", 0), error.message
        if clock.monotonic() - seen_s >= LOST_S:
            raise Unavailable(
                f"no orchestrator has shown job {job_id} for {LOST_S:.0f} s: {why}", code="watch_lost",
                remedy=f"the job goes on without being watched; see that an orchestrator can be reached, then: dcnr job watch {job_id}",
            )  # fmt: skip
        await asyncio.sleep(RECONNECT_S)
