"""What the daemon does about each message of its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dcnr.ports import Clock
from dcnr.v1 import local_pb2, orchestrator_pb2
from pnode.audits import Audits
from pnode.cache import Shards
from pnode.duties import Duties
from pnode.neighbours import Neighbours
from pnode.reasons import Journal, news_of
from pnode.seat_duties import SeatDuties
from pnode.telling import Condition
from pnode.uploads import Uploads


@dataclass(frozen=True, slots=True)
class Hearing:
    """See the module. ``drained``: nothing is left to hand over; ``changed``: orchestrators should hear at once."""

    now: Condition
    duties: Duties
    neighbours: Neighbours
    uploads: Uploads
    shards: Shards
    audits: Audits
    seats: SeatDuties
    journal: Journal
    drained: asyncio.Event
    changed: Callable[[], None]
    clock: Clock

    async def heard(self, message: local_pb2.FromWorker) -> None:
        """One message."""
        match message.WhichOneof("kind"):
            case "report":
                self._reported(message.report)
            case "snapshot":
                await self.uploads.added(message.snapshot)
            case "lost":
                self.neighbours.lost(message.lost)
                self.changed()
            case "shards":
                self.shards.wanted(message.shards)
            case "event":
                self.journal.add(message.event)
            case "drained":
                self.drained.set()
            case "audited" | "gathered":
                await self.audits.heard(message)

    def _reported(self, report: local_pb2.WorkerReport) -> None:
        before = self._news_of(self.now.worker.replicas.values())
        self.now.worker.replicas = {item.replica: item for item in report.replicas}
        self.now.worker.rss_bytes, self.now.worker.cpu_s = int(report.rss_bytes) or self.now.worker.rss_bytes, report.cpu_s
        self.now.worker.load.heard(self.clock.monotonic(), report.cpu_s)
        self.now.counted(report)
        self.now.worker.listens_at, self.now.worker.has_reported = tuple(report.listens_at), True
        self.neighbours.reached({item.pnode_id for item in report.evidence})
        for item in report.replicas:
            self.duties.worker_reported(item)
        self.duties.worker_knows({item.replica for item in report.replicas})
        self.seats.heard(report.seats)
        if before != self._news_of(report.replicas):
            self.changed()

    def _news_of(self, reports: Iterable[orchestrator_pb2.ReplicaReport]) -> dict[str, tuple[object, ...]]:
        return {item.replica: news_of(item, has_learned_all=self.duties.has_learned_all(item)) for item in reports}
