"""Which units of its VNode each replica owns by the plan, and in which of them its work stands. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, owned
from dcnr.v1 import orchestrator_pb2
from orchestrator.jobview import MAX_INTERVALS


@dataclass(frozen=True, slots=True)
class Assigned:
    """What one replica is to learn, in units."""

    pnode_id: str
    num_units: int
    """That it owns."""
    in_work: tuple[int, int] | None
    """First batch and end of the lowest unit of them that it has not learned whole; None: there is none, or the view does not reach so far."""

    @property
    def span(self) -> str:
        """The batches of the unit in work."""
        return f"{self.in_work[0]}-{self.in_work[1] - 1}" if self.in_work is not None else "-"

    def __str__(self) -> str:
        told = f"{self.num_units} units"
        return told if self.in_work is None else f"{told}, batches {self.span} in work"


def num_units(num_batches: int, unit_batches: int) -> int:
    """Of a job; the last one may be shorter."""
    return -(-num_batches // unit_batches)


def assigned(item: orchestrator_pb2.VNodeView, num_batches: int, unit_batches: int) -> dict[str, Assigned]:
    """By replica, the primary first; nothing where the VNode waits for a place. Raises InvalidInput for a unit of no batches."""
    if not item.assignment.replica:
        return {}
    replicas = list(item.replicas) or [orchestrator_pb2.ReplicaView(assignment=item.assignment, report=item.report)]
    shares = [Share(ReplicaId(one.assignment.replica), one.assignment.weight) for one in replicas]
    whole, found = IntervalSet.span(0, num_batches), dict[str, Assigned]()
    for one in replicas:
        replica = one.assignment.replica
        own = whole if len(shares) < 2 else owned(ReplicaId(replica), shares, num_batches, unit_batches)
        units = sum(num_units(end, unit_batches) - first // unit_batches for first, end in own.pairs())
        found[replica] = Assigned(one.assignment.pnode_id, units, _in_work(one.report, own, num_batches, unit_batches))
    return found


def _in_work(
    report: orchestrator_pb2.ReplicaReport, own: IntervalSet, num_batches: int, unit_batches: int
) -> tuple[int, int] | None:
    pairs = [(int(one.first), int(one.end)) for one in report.lineage.intervals]
    lowest = (own - IntervalSet.of(*pairs)).lowest()
    is_cut = len(pairs) >= MAX_INTERVALS
    if lowest is None or (is_cut and lowest >= pairs[-1][1]):
        return None
    first = lowest // unit_batches * unit_batches
    return first, min(first + unit_batches, num_batches)
