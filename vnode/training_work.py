"""What there is to train, looked for only where something that it follows from has changed: every message asks. Pure, torch-free.

While anything is left to learn, what is asked for again takes at most half of the window, so nobody behind can keep a replica from learning by asking.
"""

from __future__ import annotations

from collections.abc import Callable

from dcnr.intervals import IntervalSet
from vnode.intake import LaneWork, lane_work
from vnode.replica_config import ReplicaConfig, lowest_intervals
from vnode.vocabulary import TRAIN_LANE


class TrainingWork:
    """Own gaps, and of what successors ask that which is not to be learned here first (PROTOCOL.md, rule 6)."""

    def __init__(self, config: ReplicaConfig, fits: Callable[[IntervalSet], IntervalSet]) -> None:
        """``fits``: of batches that are asked for, those that the spool would hold on to."""
        self._config, self._fits = config, fits
        self._again: tuple[tuple[IntervalSet, ...], IntervalSet] | None = None
        self._last: tuple[tuple[IntervalSet, ...], LaneWork] | None = None

    def of(self, demanded: IntervalSet, missing: IntervalSet, held_back: IntervalSet, late: IntervalSet) -> LaneWork:
        """The work that follows from what successors ask and have not, what is missing here, what must not be begun, and what was awaited in vain.

        While something is missing, what is asked for again has at most half of the window; one of a single batch has no halves, and then it goes first.
        """
        asked = (demanded, missing)
        if self._again is None or self._again[0] != asked:
            # Where windows of successors move, it is mostly over what is missing here too: nothing follows from that.
            self._again = (asked, demanded - missing)
        room = self._config.spool_batches // 2
        if missing:
            room = min(room, self._config.window(TRAIN_LANE) // 2)
        again = self._fits(self._again[1]).first(max(1, room))
        given = (again, missing, held_back, late)
        if self._last is None or self._last[0] != given:
            self._last = (given, lane_work(self._config, TRAIN_LANE, lowest_intervals(missing), again, held_back, late))
        return self._last[1]

    @property
    def is_asked_again(self) -> bool:
        """Whether successors lack what was learned here before: what of it the spool would hold on to depends on their floors."""
        return self._again is not None and bool(self._again[1])

    def forget(self) -> None:
        """The next one is looked for anew."""
        self._again = self._last = None
