"""How many entries the log of the present interval has, where audits are in force: one with more than a log may hold counts as a fault. Pure, torch-free."""

from __future__ import annotations

from typing import Final

from trust.step_logs import MAX_ENTRIES
from vnode.replica_config import ReplicaConfig

FULL_ENTRIES: Final = MAX_ENTRIES * 7 // 8
"""From here on an interval has to end before anything more is computed of it. It is asked to end earlier; the last eighth is for what was written down
although its computation failed afterwards.
"""
MAX_AUDITED_BATCHES: Final = MAX_ENTRIES // 2
"""Of one delta: what is computed again beside them has as much room."""


class Entries:
    """Counts what was computed of training since the last snapshot or anchor: of this a replica writes down one entry each."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._is_counted, self._count = config.audited, 0

    def add(self) -> None:
        """A batch was learned, or computed again."""
        self._count += self._is_counted

    def begin(self) -> None:
        """The interval has ended, and the next one begins."""
        self._count = 0

    @property
    def why(self) -> str:
        """Why nothing more may be computed of training; empty if it may."""
        return f"{self._count} steps wait for the statement that ends their interval" if self._count >= FULL_ENTRIES else ""
