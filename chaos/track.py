"""What became of each fault, from the views of the network alone: noticed, made good, and the machine of use again. Pure.

Times are seconds on the clock of whoever calls, None until seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.schedule import Fault, Kind
from dcnr.sdk.reported import num_unmerged
from dcnr.v1 import orchestrator_pb2

ACTIVE: Final = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE
CONTRIBUTED_S: Final = 10.0
"""A replica contributes if it has learned something within so long."""
OFFLINE: Final = orchestrator_pb2.NODE_STATE_OFFLINE
SUSPECT: Final = orchestrator_pb2.NODE_STATE_SUSPECT
Life = tuple[str, str, int]
"""Job, replica and incarnation."""


@dataclass(slots=True)
class Copy:
    """One replica in one view."""

    job_id: str
    num_batches: int
    vnode: str
    replica: str
    pnode_id: str
    report: orchestrator_pb2.ReplicaReport

    @property
    def life(self) -> Life:
        """Which copy this is."""
        return self.job_id, self.report.replica, int(self.report.incarnation)

    @property
    def complete(self) -> bool:
        """Whether it has learned all there is."""
        return int(self.report.num_learned) >= self.num_batches > 0

    @property
    def progress(self) -> int:
        """Grows with everything it learns."""
        return int(self.report.num_learned) + num_unmerged(self.report)

    @property
    def works(self) -> bool:
        """Whether the report is of this very replica, at work."""
        return self.report.replica == self.replica and self.report.state == ACTIVE


def copies_of(job: orchestrator_pb2.JobView) -> list[Copy]:
    """All replicas of a job."""
    found: list[Copy] = []
    for item in job.vnodes:
        for one in item.replicas or [orchestrator_pb2.ReplicaView(assignment=item.assignment, report=item.report)]:
            found.append(
                Copy(job.job_id, int(job.num_batches), item.vnode, one.assignment.replica, one.assignment.pnode_id, one.report)
            )
    return [copy for copy in found if copy.replica]


@dataclass(slots=True)
class Struck:
    """One fault as it was carried out."""

    fault: Fault
    node_id: str
    at_s: float
    hosted: tuple[str, ...]
    """VNodes with a replica there at that moment."""
    lives: frozenset[Life] = frozenset()
    over_s: float | None = None
    """Healed, continued, or started again."""
    told: bool | None = None
    """Of a killed worker: whether its daemon said so."""
    suspected_s: float | None = None
    """Gets nothing new from here on; what it has stays."""
    gone_s: float | None = None
    """Taken for gone: what it hosts is placed elsewhere."""
    learning_s: float | None = None
    back_s: float | None = None
    """A replica on this machine has learned something after it was over."""
    first_seen: dict[Life, int] = field(default_factory=dict)

    def row(self, zero_s: float) -> dict[str, Any]:
        """For the file: moments on the clock of the run, the rest in seconds since the fault."""

        def since(at_s: float | None, begin_s: float | None = None) -> float | None:
            return None if at_s is None else round(at_s - (self.at_s if begin_s is None else begin_s), 3)

        told = {} if self.told is None else {"told": self.told}
        return {
            "kind": str(self.fault.kind), "victim": self.fault.victim, "at_s": round(self.at_s - zero_s, 3), "hosted": list(self.hosted),
            "over_s": since(self.over_s), "suspected_s": since(self.suspected_s), "gone_s": since(self.gone_s), "learning_s": since(self.learning_s),
            "back_s": since(self.back_s, self.over_s) if self.over_s is not None else None, **told,
        }  # fmt: skip


@dataclass(slots=True)
class Tracker:
    """Grows by one view at a time."""

    struck: list[Struck] = field(default_factory=list)
    shares: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    """(seconds, replicas on machines without a fault, those of them that contribute; the same for machines that have had none for `CONTRIBUTED_S`)."""
    _progress: dict[Life, tuple[int, float]] = field(default_factory=dict)
    _copies: list[Copy] = field(default_factory=list)

    def strikes(self, fault: Fault, node_id: str, now_s: float) -> Struck:
        """A fault happens now."""
        mine = [copy for copy in self._copies if copy.pnode_id == node_id]
        struck = Struck(
            fault, node_id, now_s, tuple(dict.fromkeys(copy.vnode for copy in mine)), frozenset(copy.life for copy in mine)
        )
        if not struck.hosted:
            struck.learning_s = now_s
        self.struck.append(struck)
        return struck

    def seen(self, now_s: float, view: orchestrator_pb2.WatchJobResponse) -> None:
        """Takes in one view."""
        self._copies = copies = copies_of(view.job)
        for copy in copies:
            known = self._progress.get(copy.life)
            if copy.works and (known is None or copy.progress > known[0]):
                self._progress[copy.life] = (copy.progress, now_s if known is not None else float("-inf"))
        for struck in self.struck:
            if struck.gone_s is None or struck.learning_s is None or struck.back_s is None:
                self._follow(now_s, struck, copies, view.nodes)
        self._share(now_s, copies)

    def _follow(self, now_s: float, struck: Struck, copies: Sequence[Copy], nodes: Sequence[orchestrator_pb2.NodeView]) -> None:
        node = next((item for item in nodes if item.node_id == struck.node_id), None)
        moved = struck.hosted and all(copy.pnode_id != struck.node_id for copy in copies if copy.vnode in struck.hosted)
        if self._still(struck):
            gone = moved or (node is not None and node.state == OFFLINE)
            if struck.gone_s is None and gone:
                struck.gone_s = now_s
            if struck.suspected_s is None and (gone or (node is not None and node.state == SUSPECT)):
                struck.suspected_s = now_s
        learning = {copy.vnode for copy in copies if self._learns_after(struck, copy)}
        if struck.learning_s is None and learning >= set(struck.hosted):
            struck.learning_s = now_s
        if struck.back_s is None and struck.over_s is not None:
            mine = [copy for copy in copies if copy.pnode_id == struck.node_id]
            if any(self._learns_after(struck, copy) for copy in mine):
                struck.back_s = now_s

    def _still(self, struck: Struck) -> bool:
        """Whether what a fault ended is away. A daemon that was started again is away until it works; until then its old life can be taken for gone."""
        return struck.back_s is None if struck.fault.kind is Kind.KILL else struck.over_s is None

    def _learns_after(self, struck: Struck, copy: Copy) -> bool:
        """Whether a copy has learned since the fault. One that lived there counts only once the fault is over: late reports prove nothing."""
        if not copy.works or (copy.life in struck.lives and (struck.over_s is None or struck.fault.kind is Kind.KILL)):
            return False
        first = struck.first_seen.setdefault(copy.life, copy.progress)
        return copy.progress > first or copy.complete

    def _share(self, now_s: float, copies: Sequence[Copy]) -> None:
        under = {struck.node_id for struck in self.struck if struck.over_s is None}
        back = {struck.node_id for struck in self.struck if struck.over_s is not None and now_s - struck.over_s < CONTRIBUTED_S}
        living = [copy for copy in copies if copy.pnode_id not in under]
        settled = [copy for copy in living if copy.pnode_id not in back]
        good, settled_good = (sum(self._contributes(now_s, copy) for copy in some) for some in (living, settled))
        self.shares.append((now_s, len(living), good, len(settled), settled_good))

    def _contributes(self, now_s: float, copy: Copy) -> bool:
        known = self._progress.get(copy.life)
        recent = known is not None and now_s - known[1] <= CONTRIBUTED_S
        return copy.works and (recent or copy.complete)
