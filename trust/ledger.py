"""Intervals, checkpoints and verdicts as a chain of manifests tells them: what is cleared, who waits for audits, who is credited. Pure.

A manifest names an interval once with what the draw said, and again whenever its verdict changes; the newest word counts. So whoever reads the chain from
checkpoint 0 on comes to the same ledger, and every batch of a VNode counts at most once by construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dcnr.errors import InvariantBroken
from dcnr.intervals import IntervalSet

MAX_UNCLEARED: Final = 4
"""With more open intervals than this a replica stops learning and says that it waits for audits."""


class Verdict(Enum):
    """What is known of an interval."""

    OPEN = "open"
    """Drawn, not judged yet."""
    SPARED = "spared"
    """Not drawn."""
    PASSED = "passed"
    FAILED = "failed"
    UNVERIFIABLE = "unverifiable"
    """Nobody has its inputs any more; nobody is blamed."""
    VOID = "void"
    """Of an accused, since its last passed audit: no credit."""
    DROPPED = "dropped"
    """Went back with somebody else's; nobody is blamed."""


CLEAR: Final = frozenset((Verdict.SPARED, Verdict.PASSED))
"""An interval with such a verdict stands in nobody's way."""


def waits_for_audit(num_open: int) -> bool:
    """Whether a replica of which so many intervals are open may learn no more for now."""
    return num_open > MAX_UNCLEARED


@dataclass(frozen=True, slots=True)
class Interval:
    """What a replica did between two signed statements."""

    name: str
    """Digest of the statement that ends it."""
    number: int
    """Its place in the chain of manifests: earlier ones have lower numbers."""
    vnode: str
    replica: str
    pnode_id: str
    batches: IntervalSet
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Named:
    """A checkpoint that the chain of manifests names."""

    digest: str
    intervals: tuple[str, ...]
    """What it holds more than the one before it, in order."""
    is_kept: bool = True
    """Whether its object is still in the store."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """``lines``: of each VNode the checkpoints that count now, oldest first; the first is what the job began with."""

    lines: Mapping[str, tuple[Named, ...]]
    intervals: Mapping[str, Interval]

    def check(self) -> None:
        """Raises InvariantBroken where a line has no beginning, names what nobody knows, or counts a batch twice."""
        for vnode, line in self.lines.items():
            seen = IntervalSet.empty()
            if not line or line[0].intervals:
                raise InvariantBroken(f"the checkpoints of {vnode} have no beginning", code="bad_ledger")
            for name in (name for one in line for name in one.intervals):
                found = self.intervals.get(name)
                if found is None or found.vnode != vnode or not seen.isdisjoint(found.batches):
                    raise InvariantBroken(f"interval {name[:12]} of {vnode} is unknown or counts a batch twice", code="bad_ledger")
                seen = seen | found.batches

    def held(self, vnode: str, at: int) -> IntervalSet:
        """The lineage of the checkpoint at that place of a VNode's line."""
        found = IntervalSet.empty()
        for one in self.lines[vnode][: at + 1]:
            for name in one.intervals:
                found = found | self.intervals[name].batches
        return found

    def num_held(self, one: Interval) -> int:
        """How many batches its VNode has with the checkpoint that brought that interval; 0 where none in the line did."""
        line = self.lines.get(one.vnode, ())
        at = next((at for at in range(len(line) - 1, -1, -1) if one.name in line[at].intervals), -1)
        return sum(len(self.intervals[name].batches) for named in line[: at + 1] for name in named.intervals)

    def num_cleared(self, vnode: str, known: int = 0) -> int:
        """How many checkpoints of a VNode are cleared, from the oldest on: the draw was made for every interval back to the beginning, and none is
        open or failed. At least 1: the beginning is cleared. ``known``: so many are known to be; they are not looked at.
        """
        line = self.lines[vnode]
        at = min(known, len(line))
        while at < len(line) and self._is_clear(line[at]):
            at += 1
        return at

    def credit(self, weight: Mapping[str, float]) -> dict[str, float]:
        """By PNode: the sum over its cleared batches of the VNode's ``weight`` (GFLOP per batch). What is not cleared gives nothing."""
        found: dict[str, float] = {}
        for vnode in sorted(self.lines):
            for one in self.lines[vnode][: self.num_cleared(vnode)]:
                for interval in (self.intervals[name] for name in one.intervals):
                    found[interval.pnode_id] = found.get(interval.pnode_id, 0.0) + weight[vnode] * len(interval.batches)
        return found

    def _is_clear(self, one: Named) -> bool:
        return all(self.intervals[name].verdict in CLEAR for name in one.intervals)
