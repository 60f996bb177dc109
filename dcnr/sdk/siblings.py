"""The replicas of a VNode beside its primary, in words, for every screen that shows them."""

from __future__ import annotations

from dcnr.sdk.plain import word
from dcnr.sdk.reported import num_unmerged
from dcnr.v1 import model_pb2, orchestrator_pb2


def siblings(view: orchestrator_pb2.VNodeView) -> list[orchestrator_pb2.ReplicaView]:
    """All but the primary, as the plan lists them; none where the VNode has one replica."""
    return [item for item in view.replicas if item.assignment.role != model_pb2.ROLE_PRIMARY]


def standing(item: orchestrator_pb2.ReplicaView) -> str:
    """Role and state."""
    state = word(orchestrator_pb2.AssignmentState, item.report.state) if item.report.replica else "placed"
    return f"{word(model_pb2.Role, item.assignment.role)}, {state}"


def learned(item: orchestrator_pb2.ReplicaView) -> int:
    """Batches in its state, merged or not."""
    return int(item.report.num_learned)


def merging(item: orchestrator_pb2.ReplicaView) -> str:
    """How its work reaches the primary, or what the primary has taken in; empty where there is nothing to say."""
    report = item.report
    parts = [f"{num_unmerged(report)} batches unmerged"] if item.assignment.role == model_pb2.ROLE_CONTRIBUTOR else []
    parts += [f"{report.num_merged} deltas merged"] if report.num_merged else []
    parts += [f"{report.num_refused} refused"] if report.num_refused else []
    return ", ".join(parts)
