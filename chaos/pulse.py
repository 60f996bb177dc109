"""When each VNode learns, to a tenth of a second: the workers of `chaos.watched` touch a file after each batch, and the file tells when.

Views come with beats, every two seconds: too seldom to see a gap of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

POLL_S: Final = 0.1
AFTER_S: Final = 15.0
"""Gaps that begin later than this after a fault are not its doing."""


class Pulse:
    """Moments, on the clock of the files, at which some replica of a VNode had just learned."""

    def __init__(self) -> None:
        self._moments: dict[str, list[float]] = {}

    def look(self, directory: Path) -> None:
        """Takes in the newest moment of every VNode, over all machines."""
        newest: dict[str, float] = {}
        for path in directory.iterdir():
            vnode = path.name.rpartition(".")[0]
            newest[vnode] = max(newest.get(vnode, 0.0), path.stat().st_mtime)
        for vnode, at_s in newest.items():
            self.learned(vnode, at_s)

    def learned(self, vnode: str, at_s: float) -> None:
        """One moment."""
        moments = self._moments.setdefault(vnode, [])
        if not moments or at_s > moments[-1]:
            moments.append(at_s)

    def gap_s(self, vnodes: Iterable[str], at_s: float) -> float | None:
        """The longest time around a fault in which no replica of one of these VNodes learned; None where none was ever seen to."""
        gaps = [gap for vnode in vnodes if (gap := _longest(self._moments.get(vnode, []), at_s)) is not None]
        return max(gaps, default=None)

    def stillness_s(self, vnodes: Iterable[str], from_s: float, to_s: float) -> float | None:
        """The longest time of a span in which some VNode of these learned nothing, the ends of the span included; None where one of them was never seen to."""
        longest = 0.0
        for vnode in vnodes:
            if not (moments := self._moments.get(vnode)):
                return None
            within = [from_s, *(at_s for at_s in moments if from_s < at_s < to_s), to_s]
            longest = max(longest, *(later - earlier for earlier, later in pairwise(within)))
        return longest


def _longest(moments: list[float], at_s: float) -> float | None:
    """Of gaps that end after the fault, and begin soon after it at the latest."""
    around = [(earlier, later) for earlier, later in pairwise(moments) if later >= at_s and earlier <= at_s + AFTER_S]
    return max((later - earlier for earlier, later in around), default=None)
