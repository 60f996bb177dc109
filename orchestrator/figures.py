"""What questions came to: how many, with which ends, and how long they took; and what went through here to and from the store. Counted in memory, since this
process began.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from dcnr.v1 import orchestrator_pb2

KEPT: Final = 512
"""Latencies that percentiles are taken of."""
MAX_EXITS: Final = 256
MAX_CODES: Final = 64


@dataclass(slots=True)
class _Ways:
    """What ways of one depth took, and the percentile of that as of ``num_new`` of them ago."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    p95_s: float = 0.0
    num_new: int = 0


class Figures:
    """See the module."""

    def __init__(self) -> None:
        self.num_in_flight = self.num_questions = self.num_answered = self.num_degraded = self.num_ways = 0
        self.num_compared = self.num_differing = self.num_continued = self.num_replays = 0
        self._failed: Counter[str] = Counter()
        self._all: deque[float] = deque(maxlen=KEPT)
        self._by_exit: OrderedDict[tuple[str, str], _Ways] = OrderedDict()

    def answered(self, seconds: float, *, degraded: bool) -> None:
        """One question was answered."""
        self.num_answered += 1
        self.num_degraded += degraded
        self._all.append(seconds)

    def took(self, model: str, exit_: str, seconds: float) -> None:
        """One way of that depth took so long."""
        ways = self._by_exit.setdefault((model, exit_), _Ways())
        ways.seconds.append(seconds)
        ways.num_new += 1
        self._by_exit.move_to_end((model, exit_))
        while len(self._by_exit) > MAX_EXITS:
            self._by_exit.popitem(last=False)

    def failed(self, code: str) -> None:
        """One question got an error."""
        if code in self._failed or len(self._failed) < MAX_CODES:
            self._failed[code] += 1

    def p95_s(self, model: str, exit_: str) -> float:
        """Of ways to that exit, but for the newest sixteenth of them; 0 where none was measured."""
        ways = self._by_exit.get((model, exit_))
        if ways is None:
            return 0.0
        if ways.num_new > len(ways.seconds) // 16:
            ways.p95_s, ways.num_new = percentile(ways.seconds, 0.95), 0
        return ways.p95_s

    def view(self) -> orchestrator_pb2.ServingFigures:
        """As GetStatus shows them."""
        return orchestrator_pb2.ServingFigures(
            num_questions=self.num_questions, num_answered=self.num_answered, num_degraded=self.num_degraded, num_ways=self.num_ways,
            in_flight=self.num_in_flight, failed=dict(self._failed), p50_s=percentile(self._all, 0.5), p95_s=percentile(self._all, 0.95),
            num_compared=self.num_compared, num_differing=self.num_differing, num_continued=self.num_continued, num_replays=self.num_replays,
        )  # fmt: skip


@dataclass(slots=True)
class Proxied:
    """Objects that went through here between the store and those who do not reach it, each counted once it has arrived whole."""

    num_read: int = 0
    read_bytes: int = 0
    num_written: int = 0
    written_bytes: int = 0

    def read(self, size_bytes: int) -> None:
        """One object was given out."""
        self.num_read += 1
        self.read_bytes += size_bytes

    def written(self, size_bytes: int) -> None:
        """One object was taken."""
        self.num_written += 1
        self.written_bytes += size_bytes

    def view(self) -> orchestrator_pb2.ProxyFigures:
        """As GetStatus shows them."""
        return orchestrator_pb2.ProxyFigures(
            num_read=self.num_read, read_bytes=self.read_bytes, num_written=self.num_written, written_bytes=self.written_bytes
        )


def percentile(values: deque[float], share: float) -> float:
    """The value below which that share lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
