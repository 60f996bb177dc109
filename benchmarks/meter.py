"""How much of a job was learned by when, from the reports that PNodes send: rates over any span of time. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from dcnr.v1 import orchestrator_pb2


@dataclass(slots=True)
class Meter:
    """Grows by one view at a time. Counts are batches, summed over all VNodes; a restored VNode that learns again does not count twice."""

    num_batches: int
    vnodes: tuple[str, ...]
    points: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """By VNode: (seconds, most batches learned by then), growing in both."""

    def seen(self, now_s: float, vnodes: Iterable[orchestrator_pb2.VNodeView]) -> None:
        """Takes in the reports of a view; each report counts at the time when it was made."""
        for item in vnodes:
            if item.report.replica:
                self.add(item.vnode, now_s - item.report_age_s, int(item.report.num_learned))

    def add(self, vnode: str, at_s: float, num_learned: int) -> None:
        """One report."""
        points = self.points.setdefault(vnode, [])
        if not points or (at_s > points[-1][0] and num_learned > points[-1][1]):
            points.append((at_s, num_learned))

    @property
    def began_s(self) -> float | None:
        """When every VNode had learned something."""
        firsts = [next((at for at, count in self.points.get(vnode, ()) if count), None) for vnode in self.vnodes]
        return None if None in firsts else max(at for at in firsts if at is not None)

    @property
    def ended_s(self) -> float | None:
        """When the last VNode had learned everything."""
        lasts = [self.points.get(vnode, [(0.0, 0)])[-1] for vnode in self.vnodes]
        return max(at for at, _ in lasts) if all(count >= self.num_batches for _, count in lasts) else None

    def learned(self, vnode: str) -> int:
        """Most batches reported."""
        points = self.points.get(vnode)
        return points[-1][1] if points else 0

    def total_at(self, at_s: float) -> float:
        """Batches learned by all VNodes together at that time, between two reports in proportion."""
        return sum(_between(self.points.get(vnode, []), at_s) for vnode in self.vnodes)

    def rate(self, from_s: float, to_s: float) -> float | None:
        """Batches per second through the whole chain."""
        if to_s <= from_s:
            return None
        return (self.total_at(to_s) - self.total_at(from_s)) / len(self.vnodes) / (to_s - from_s)


def _between(points: list[tuple[float, int]], at_s: float) -> float:
    after = bisect_right(points, at_s, key=lambda point: point[0])
    if after == 0:
        return 0.0
    low_s, low = points[after - 1]
    if after == len(points):
        return float(low)
    high_s, high = points[after]
    return low + (high - low) * (at_s - low_s) / (high_s - low_s)
