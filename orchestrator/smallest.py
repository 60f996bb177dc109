"""What a PNode would have to lend to host anything of the jobs that there are: its volunteer is told, and lends more or does not wait in vain. Pure.

As the planner counts (`orchestrator.costs`): the only replica of a VNode, on a PNode that hosts nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dcnr import limits
from dcnr.v1 import membership_pb2
from orchestrator.costs import disk_bytes, spool_bytes
from orchestrator.view import ModelView

MAX_TOLD: Final = 500


def too_small(capability: membership_pb2.Capability, views: Iterable[ModelView | None]) -> str:
    """Model by model the least that a VNode of its job needs, where that is more than the PNode lends; empty where something fits, or nothing is asked for."""
    told: list[str] = []
    if not capability.ByteSize():
        return ""  # it has not said yet what it lends
    for view in views:
        if view is None or view.job is None or not view.job.costs or not view.head.active.job_id:
            continue
        costs, spool = view.job.costs, spool_bytes(capability.disk_bytes)
        if any(cost.memory_bytes <= capability.memory_bytes and disk_bytes(cost, spool) <= capability.disk_bytes for cost in costs):
            return ""  # nearly always the first one: this is asked with every beat
        least = min(costs, key=lambda cost: cost.memory_bytes)
        what, needed, lent = "memory", least.memory_bytes, capability.memory_bytes
        if needed <= lent:
            least = min((cost for cost in costs if cost.memory_bytes <= lent), key=lambda cost: disk_bytes(cost, spool))
            what, needed, lent = "disk", disk_bytes(least, spool), capability.disk_bytes
        mib = -(-needed // limits.MIB)
        told.append(
            f"{view.model}: no VNode needs less than {mib} MiB of {what} ({least.vnode}), {lent // limits.MIB} MiB are lent"
        )
    return "; ".join(told)[:MAX_TOLD]
