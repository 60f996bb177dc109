"""One replica of a worker as its crew knows it: from the first word about it to the last."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from dataclasses import dataclass, field
from typing import Final
from weakref import ref

from dcnr.v1 import local_pb2, orchestrator_pb2
from pnode.chain import CommitChain
from pnode.host import ReplicaHost
from pnode.hosted import Fixed
from pnode.hosting import Prepared
from pnode.infer_live import LivePlace
from pnode.reports import Rate
from vnode.compute import Compute

PROVISIONING: Final = orchestrator_pb2.ASSIGNMENT_STATE_PROVISIONING
ACTIVE: Final = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE
RELEASING: Final = orchestrator_pb2.ASSIGNMENT_STATE_RELEASING
RELEASED: Final = orchestrator_pb2.ASSIGNMENT_STATE_RELEASED
FAILED: Final = orchestrator_pb2.ASSIGNMENT_STATE_FAILED
RELEASE_FAILED: Final = orchestrator_pb2.ASSIGNMENT_STATE_RELEASE_FAILED
COLLECT_FIRST_S: Final = 0.1
COLLECT_LONGEST_S: Final = 60.0


@dataclass(slots=True)
class Member:
    """One replica from the first word about it to the last."""

    order: local_pb2.HostReplica
    state: orchestrator_pb2.AssignmentState.ValueType = PROVISIONING
    reason: str = ""
    prepared: Prepared | None = None
    compute: ref[Compute] | None = None
    """As long as somebody holds it."""
    host: ReplicaHost | None = None
    place: LivePlace | None = None
    """Where it answers questions."""
    chain: CommitChain | None = None
    fixed: Fixed | None = None
    """Where its states lie, also after its end."""
    sequence: int = 0
    """Of the last commit that this worker signed for the replica, as far as its lives have ended."""
    rate: Rate = field(default_factory=Rate)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    num_learned: int = 0
    """Batches that it learned itself."""
    handing: asyncio.Task[None] | None = None
    """Its VNode moves: it hands over, or has, and stays until a plan is without it."""
    is_let_go: bool = False
    """The daemon has released it, and counts its memory as free once it has ended."""
    last: orchestrator_pb2.ReplicaReport | None = None
    """Once it has ended."""

    @property
    def has_place(self) -> bool:
        """Whether it is not on its way out."""
        return self.state in (PROVISIONING, ACTIVE) or self.handing is not None

    def forget_handing(self) -> None:
        """It does not hand over in its place any more."""
        if self.handing is not None:
            self.handing.cancel()
            self.handing = None

    def end(self, last: orchestrator_pb2.ReplicaReport) -> None:
        """Nothing here holds its state any more; what is still asked about it is kept."""
        self.forget_handing()
        last.rate = 0.0
        self.last = last
        if self.chain is not None:
            self.sequence = self.chain.sequence
        self.prepared = self.host = self.place = self.chain = None
        self.ended.set()

    async def gone(self, within_s: float | None = None) -> None:
        """Returns once it has ended, or after that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.ended.wait()

    def free(self, pause_s: float = COLLECT_FIRST_S) -> None:
        """Has what it computed with leave the memory, soon and without anybody waiting for it. Its parts know each other, so that only a search for garbage
        finds them, which an idle worker may never make by itself; threads and streams hold them for a moment longer than the replica lives.
        """
        if self.compute is not None and self.compute() is not None and pause_s <= COLLECT_LONGEST_S:
            asyncio.get_running_loop().call_later(pause_s, self._collect, pause_s)

    def _collect(self, pause_s: float) -> None:
        gc.collect()
        self.free(2 * pause_s)
