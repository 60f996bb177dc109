"""When the state is captured: at once where PROTOCOL.md rule 9 says so, else by time and steps, after something was learned. Pure."""

from __future__ import annotations

from dcnr import limits
from dcnr.intervals import IntervalSet
from vnode.replica_config import ReplicaConfig, backoff_s


class Snapshots:
    """The schedule of one replica's snapshots. ``lineage`` is that of the restored state."""

    def __init__(self, config: ReplicaConfig, lineage: IntervalSet, now_s: float) -> None:
        self._config = config
        self._lineage, self._taken_s = lineage, now_s
        self._forced = "new primary" if config.is_new_primary else ""
        self._num_failures, self._not_before_s = 0, now_s
        self.is_leaving = False
        """Whatever was learned since the last one is captured at once."""

    def reason(self, lineage: IntervalSet, now_s: float) -> str:
        """Why a snapshot of ``lineage`` is due; empty if none is."""
        if now_s < self._not_before_s:
            return ""
        if self._forced:
            return self._forced
        news = len(lineage - self._lineage)
        if not news:
            return ""
        if self.is_leaving:
            return "handing over"
        if lineage.is_exactly(0, self._config.num_batches):
            return "everything is learned"
        if news >= self._config.checkpoint_steps:
            return f"{news} steps since the last"
        waited_s = now_s - self._taken_s
        return f"{waited_s:.0f} s since the last" if waited_s >= self._config.checkpoint_s else ""

    def waits_why(self, lineage: IntervalSet) -> str:
        """Why nothing more may be learned before a snapshot: what lies between two of them is named by one commit."""
        news = len(lineage - self._lineage)
        return f"{news} batches wait for a snapshot that can be written" if news >= limits.MAX_COMMIT_BATCHES else ""

    def taken(self, lineage: IntervalSet, now_s: float) -> None:
        """It was captured."""
        self._lineage, self._taken_s = lineage, now_s
        self._forced, self._num_failures = "", 0

    def failed(self, now_s: float) -> None:
        """It could not be captured: tried again, later each time."""
        self._num_failures += 1
        self._not_before_s = now_s + backoff_s(self._num_failures)

    def lost(self, reason: str) -> None:
        """The last one will never be named."""
        self.force(f"the last one was lost: {reason}")

    def force(self, reason: str) -> None:
        """One is due at once."""
        self._forced = reason
