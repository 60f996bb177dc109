"""What of a job's trace happens in a worker: a replica is restored, and takes its first step. Read off the reports, so that training knows nothing of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dcnr.ports import Clock
from dcnr.tracing import Tracer, of_job
from dcnr.v1 import orchestrator_pb2


@dataclass(slots=True)
class _Seen:
    """One replica in one job."""

    began_s: float
    is_restored: bool = False
    has_stepped: bool = False


class JobTraces:
    """For one worker."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer, self._clock = tracer, clock
        self._seen: dict[tuple[str, str], _Seen] = {}

    def look(self, reports: Iterable[orchestrator_pb2.ReplicaReport], jobs: Mapping[str, str]) -> None:
        """The newest reports; ``jobs``: by replica, the job that it works for. Who is not reported any more is forgotten."""
        here: dict[tuple[str, str], _Seen] = {}
        for report in reports:
            job = jobs.get(report.replica, "")
            if job:
                here[job, report.replica] = seen = self._seen.get((job, report.replica)) or _Seen(self._clock.monotonic())
                self._judge(job, report, seen)
        self._seen = here

    def _judge(self, job: str, report: orchestrator_pb2.ReplicaReport, seen: _Seen) -> None:
        if report.state != orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE:
            return
        if not seen.is_restored:
            seen.is_restored = True
            self._tracer.past(
                "restore", of_job(job), self._clock.monotonic() - seen.began_s, vnode=report.vnode, replica=report.replica
            )
        if report.step_s > 0 and not seen.has_stepped:  # it is measured from the first step on
            seen.has_stepped = True
            self._tracer.past("first step", of_job(job), report.step_s, vnode=report.vnode, replica=report.replica)
