"""What a run of the demo came to: all that its verdict follows from. Told by the network's views, read from its store, or computed by code of others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dcnr.audit_ledger import LedgerAudit
from dcnr.audit_lineage import VNodeLineage
from dcnr.demo.story import Story
from dcnr.v1 import orchestrator_pb2

WHOLE_LIMIT_S: Final = 900.0
"""From the first step to the last check; the comparison with backprop comes after it, and has as long."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What end-to-end backprop reaches on the same graph and batches, in one process."""

    exits: tuple[tuple[str, float, float], ...] = ()
    """VNode, accuracy, loss in nats, of every exit."""
    took_s: float = 0.0
    threads: int = 0
    trouble: str = ""
    """Why it is not known; empty where it is."""
    is_late: bool = False
    """That is because it had not ended in time: the machine is slow, nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one run whose job has ended."""

    example: str
    """Its name: each has an aim of its own."""
    time_limit_s: float
    """Printed beside the time from the first to the last learned batch."""
    story: Story
    names: Mapping[str, str]
    """Of all PNodes, by id."""
    order: tuple[str, ...]
    """The VNodes, sources first."""
    job: orchestrator_pb2.JobView
    """As an orchestrator shows it after its end."""
    took_s: float
    are_kills_wanted: bool
    plain: Mapping[str, Any]
    """What plain torch says of the export."""
    lineages: tuple[VNodeLineage, ...] = ()
    no_lineages: str = ""
    """Why they could not be read."""
    durable: Mapping[str, int] = field(default_factory=dict)
    """By VNode: different batches of the job in the newest state that a manifest names."""
    cleared: Mapping[str, int] = field(default_factory=dict)
    """Likewise in the newest cleared one."""
    ledger: LedgerAudit | None = None
    no_ledger: str = ""
    """Why it could not be read."""
    manifest: str = ""
    export: str = ""
    reference: Compared | None = None
    """None where nobody asked for it."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What it ran on, in words that name no host and no user; empty where that is not known."""
