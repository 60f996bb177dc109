"""One replica of a worker as its crew knows it: from the first word about it to the last."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from dcnr.v1 import local_pb2, orchestrator_pb2
from pnode.chain import CommitChain
from pnode.host import ReplicaHost
from pnode.hosting import Prepared
from pnode.infer_live import LivePlace
from pnode.reports import Rate

PROVISIONING: Final = orchestrator_pb2.ASSIGNMENT_STATE_PROVISIONING
ACTIVE: Final = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE
RELEASING: Final = orchestrator_pb2.ASSIGNMENT_STATE_RELEASING
RELEASED: Final = orchestrator_pb2.ASSIGNMENT_STATE_RELEASED
FAILED: Final = orchestrator_pb2.ASSIGNMENT_STATE_FAILED
RELEASE_FAILED: Final = orchestrator_pb2.ASSIGNMENT_STATE_RELEASE_FAILED


@dataclass(slots=True)
class Member:
    """One replica from the first word about it to the last."""

    order: local_pb2.HostReplica
    state: orchestrator_pb2.AssignmentState.ValueType = PROVISIONING
    reason: str = ""
    prepared: Prepared | None = None
    host: ReplicaHost | None = None
    place: LivePlace | None = None
    """Where it answers questions."""
    chain: CommitChain | None = None
    sequence: int = 0
    """Of the last commit that this worker signed for the replica before."""
    rate: Rate = field(default_factory=Rate)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    num_learned: int = 0
    """Batches that it learned itself."""
    handing: asyncio.Task[None] | None = None
    """Its VNode moves: it hands over, or has, and stays until a plan is without it."""

    @property
    def has_place(self) -> bool:
        """Whether it is not on its way out."""
        return self.state in (PROVISIONING, ACTIVE) or self.handing is not None

    def forget_handing(self) -> None:
        """It does not hand over in its place any more."""
        if self.handing is not None:
            self.handing.cancel()
            self.handing = None
