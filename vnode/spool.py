"""Which outputs lie in the spool: never more than fit, and what is needed soonest stays longest. Pure, torch-free.

A full spool drops the oldest frame that nobody asks for now. Where all are asked for, it drops the highest batch, which is needed last:
dropping the oldest there would make every recomputed batch push out the next one that is needed, for ever. Frames on their way out
stay. The tensors themselves are the shell's. Outputs of evaluations have a small place of their own, so they never push out what
training needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dcnr.errors import InvariantBroken
from dcnr.intervals import IntervalSet
from vnode.events import DropFrames
from vnode.vocabulary import Lane

Frame = tuple[Lane, int]
_NONE = IntervalSet.empty()


class Spool:
    """The index of the frames that the shell holds. ``train_batches`` and ``eval_batches`` bound the two parts."""

    def __init__(self, train_batches: int, eval_batches: int) -> None:
        self._limits = {True: train_batches, False: eval_batches}
        self._order: dict[bool, dict[Frame, None]] = {True: {}, False: {}}
        self._available: dict[Lane, IntervalSet] = {}

    def available(self, lane: Lane) -> IntervalSet:
        """What can be sent now."""
        return self._available.get(lane, IntervalSet.empty())

    def size(self, *, train: bool) -> int:
        """Frames in one of the two parts."""
        return len(self._order[train])

    def is_full(self, *, train: bool) -> bool:
        """Whether another frame in that part may push one out."""
        return len(self._order[train]) >= self._limits[train]

    def put(self, lane: Lane, batch: int, pinned: Collection[Frame], asked: Mapping[Lane, IntervalSet]) -> list[DropFrames]:
        """Enters a frame and names what must go for it, which may be the new frame itself."""
        order = self._order[lane.is_train]
        order.pop((lane, batch), None)
        order[lane, batch] = None
        self._available[lane] = self.available(lane).add(batch)
        dropped: list[DropFrames] = []
        while len(order) > self._limits[lane.is_train]:
            staying = [frame for frame in order if frame not in pinned]
            unasked = next((frame for frame in staying if frame[1] not in asked.get(frame[0], _NONE)), None)
            dropped.append(self._drop(unasked or max(staying, default=(lane, batch))))
        return dropped

    def remove(self, lane: Lane, batches: IntervalSet, pinned: Collection[Frame]) -> list[DropFrames]:
        """Takes out those of ``batches`` that are here and not on their way out."""
        gone = self.available(lane) & batches
        return [self._drop((lane, batch)) for batch in gone if (lane, batch) not in pinned]

    def forget(self, lane: Lane, batch: int) -> None:
        """The shell has lost this frame."""
        if batch in self.available(lane):
            self._drop((lane, batch))

    def lanes(self) -> tuple[Lane, ...]:
        """Lanes with at least one frame, in order."""
        return tuple(sorted(self._available))

    def check(self) -> None:
        """Raises InvariantBroken where a bound or the two books disagree."""
        for part, order in self._order.items():
            if len(order) > self._limits[part]:
                raise InvariantBroken(f"{len(order)} frames in a spool of {self._limits[part]}", code="spool_bound")
        if sum(map(len, self._order.values())) != sum(map(len, self._available.values())):
            raise InvariantBroken("the spool's index and its order disagree", code="spool_index")

    def _drop(self, frame: Frame) -> DropFrames:
        lane, batch = frame
        del self._order[lane.is_train][frame]
        one = IntervalSet.span(batch, batch + 1)
        left = self._available[lane] - one
        if left:
            self._available[lane] = left
        else:
            del self._available[lane]
        return DropFrames(lane, one)
