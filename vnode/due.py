"""When a replica may begin to learn a batch by the tempo of its job (`dcnr.tempo`). Pure, torch-free.

Only who reads the data set waits: nothing behind it could be learned sooner anyway. What was learned here and is asked for again is never waited with, nor are
evaluations, and batches are read before they are due. What another replica is to learn is computed for nobody before: who is behind would have it too soon, and
lack it when it is due. Times of events are those of one machine; how far network time is ahead of them the shell tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.tempo import Tempo
from vnode.replica_config import ReplicaConfig


@dataclass(frozen=True, slots=True)
class NetworkTime:
    """An event: network time is ``now_s + ahead_s``. Told at the start, and where it moved against the clock of events: a machine slept, or was set right."""

    now_s: float
    ahead_s: float


@dataclass(frozen=True, slots=True)
class WakeAt:
    """An instruction: send a Tick at this moment: a batch is due then. Replaces what was said before."""

    at_s: float


class Due:
    """Of one replica. While a tempo is in force and the network's time is not known nothing is due."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._is_source = config.is_source
        self._tempo: Tempo | None = None
        self._ahead_s: float | None = None
        self._refused_s = self._told_s = float("inf")

    def plan(self, tempo: Tempo | None) -> None:
        """What the newest plan says; None for a job that goes as fast as it can."""
        self._tempo = tempo

    def told(self, event: NetworkTime) -> None:
        """The time of this machine's events, by the network's."""
        self._ahead_s = event.ahead_s

    def may_begin(self, batch: int, now_s: float) -> bool:
        """Whether a batch is due; where not, `wake` says when it will be."""
        at_s = self._at_s(batch)
        if now_s < at_s:
            self._refused_s = min(self._refused_s, at_s)
        return now_s >= at_s

    def wake(self) -> list[WakeAt]:
        """When to look again, if that is not what was said last: the first moment at which something is due that was refused since the last call."""
        at_s, self._refused_s = self._refused_s, float("inf")
        if at_s in (self._told_s, float("inf")):
            return []
        self._told_s = at_s
        return [WakeAt(at_s)]

    def end(self, now_s: float) -> int | None:
        """Batches from here on are due for nobody, so nobody is late with them; None where there is no tempo."""
        if self._tempo is None:
            return None
        return self._tempo.end(now_s + self._ahead_s) if self._ahead_s is not None else 0

    def why(self, batch: int | None, now_s: float) -> str:
        """Why it does not begin that batch yet; empty where the tempo has nothing to do with it."""
        if batch is None or self._tempo is None or now_s >= self._at_s(batch):
            return ""
        return f"batch {batch} is not due yet: the job learns at most {self._tempo.batches_per_s:g} batches per second"

    def _at_s(self, batch: int) -> float:
        if self._tempo is None or not self._is_source:
            return float("-inf")
        return self._tempo.due_s(batch) - self._ahead_s if self._ahead_s is not None else float("inf")
