"""Memory that will be free before long: of replicas that the worker was told to let go of, which are in memory until it says that they have ended, and of the
audit under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from dcnr.errors import Refused, Unavailable
from dcnr.v1 import orchestrator_pb2
from pnode.budget import AUDIT, Budget

ENDED: Final = frozenset(
    (
        orchestrator_pb2.ASSIGNMENT_STATE_RELEASED,
        orchestrator_pb2.ASSIGNMENT_STATE_RELEASE_FAILED,
        orchestrator_pb2.ASSIGNMENT_STATE_FAILED,
    )
)
BEING_FREED: Final = "being_freed"
"""The code of a wait for room."""
UNHEARD_S: Final = 30.0
"""What the worker has not named in a report by then it was never told to host."""


class Leaving:
    """One per daemon."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._seen: dict[str, bool] = {}
        """By replica, whether the worker has named it in a report."""
        self._since_s: dict[str, float] = {}
        self._freed = asyncio.Event()

    def began(self, replica: str, *, is_seen: bool) -> None:
        """The worker is told to let go of it."""
        self._seen[replica], self._since_s[replica] = is_seen, asyncio.get_running_loop().time()

    def stays(self, replica: str) -> None:
        """A replica of that name is hosted anew: the worker lets go of the former one first, and both have one reservation."""
        self._seen.pop(replica, None)

    def ended(self, replica: str) -> None:
        """It is in memory no more."""
        if self._seen.pop(replica, None) is not None:
            self._budget.release(replica)
            self.freed()

    def reported(self, report: orchestrator_pb2.ReplicaReport) -> None:
        """The worker's word on a replica."""
        if report.replica in self._seen:
            self._seen[report.replica] = True
            if report.state in ENDED:
                self.ended(report.replica)

    def named(self, replicas: Collection[str]) -> None:
        """All that the worker knows of: what it named before and names no more has ended, and what it never named was not hosted."""
        before_s = asyncio.get_running_loop().time() - UNHEARD_S
        gone = [one for one, is_seen in self._seen.items() if one not in replicas and (is_seen or self._since_s[one] < before_s)]
        for replica in gone:
            self.ended(replica)

    def worker_down(self) -> None:
        """With the worker all have ended."""
        for replica in list(self._seen):
            self.ended(replica)

    def refused(self, error: Refused) -> Refused | Unavailable:
        """What a refusal for want of room comes to: while something is being let go of, or audited, to wait."""
        passing = sorted(self._seen) + [f"an {AUDIT}"] * (AUDIT in self._budget.reserved)
        if not passing:
            return error
        return Unavailable(f"memory is being freed, of {', '.join(passing)}: {error.message}", code="being_freed")

    def freed(self) -> None:
        """There may be more room than there was."""
        self._freed.set()

    async def pause(self, longest_s: float) -> None:
        """Returns after that time, or as soon as something has ended."""
        self._freed.clear()
        try:
            async with asyncio.timeout(longest_s):
                await self._freed.wait()
        except TimeoutError:
            return
