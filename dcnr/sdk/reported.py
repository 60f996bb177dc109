"""How many batches a report's sets have: an answer may hold the lowest intervals of a set alone, and says then how many batches the whole has."""

from __future__ import annotations

from dcnr.v1 import common_pb2, orchestrator_pb2


def num_durable(report: orchestrator_pb2.ReplicaReport) -> int:
    """Batches in a checkpoint that a manifest names."""
    return int(report.num_durable) or _count(report.durable)


def num_unmerged(report: orchestrator_pb2.ReplicaReport) -> int:
    """Batches of a contributor that its anchor lacks."""
    return int(report.num_unmerged) or _count(report.unmerged)


def loss_text(report: orchestrator_pb2.ReplicaReport) -> str:
    """The loss of late steps for people; where none was made since the replica was restored, there is none."""
    return f"{report.loss:.3f}" if report.loss else "-"


def _count(batches: common_pb2.IntervalSet) -> int:
    """Of nodes that do not tell sizes yet."""
    return sum(int(interval.end - interval.first) for interval in batches.intervals)
