"""Evaluation rounds of one objective: each batch counts once and sums do not depend on the order. Pure, torch-free.

A validation round opens when the lineage reaches ``round * every``; a newer one ends the older, which keeps its partial sums. The
test round opens once, when the final state is durable, so that it gives the same result whatever dies. Results live with the
replica: a restarted one evaluates again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcnr.intervals import IntervalSet
from vnode.events import Forwarded
from vnode.replica_config import MAX_KEPT_ROUNDS, ReplicaConfig
from vnode.vocabulary import Lane

VALIDATION = "validation"
TEST = "test"
TEST_LANE = Lane(TEST)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one round has so far. ``step``: the smallest lineage that any of its batches was evaluated with."""

    lane: Lane
    sum_loss: float
    correct: int
    count: int
    step: int
    num_batches: int
    complete: bool


class _Round:
    """Results by batch, so that their sum is the same in whatever order they came."""

    def __init__(self, lane: Lane, size: int) -> None:
        self.lane, self.size = lane, size
        self.left = IntervalSet.span(0, size)
        self._results: dict[int, tuple[float, int, int]] = {}
        self._step = 0

    def count(self, result: Forwarded, step: int) -> None:
        if result.batch in self.left:
            self._step = min(self._step, step) if self._results else step
            self._results[result.batch] = (result.sum_loss, result.correct, result.count)
            self.left -= IntervalSet.span(result.batch, result.batch + 1)

    def evaluation(self) -> Evaluation:
        results = self._results.values()
        return Evaluation(
            lane=self.lane,
            sum_loss=math.fsum(item[0] for item in results),
            correct=sum(item[1] for item in results),
            count=sum(item[2] for item in results),
            step=self._step,
            num_batches=len(results),
            complete=not self.left,
        )


class Rounds:
    """The own rounds of a replica: the newest is worked on, the others keep what they have."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._config = config
        self._rounds: dict[Lane, _Round] = {}

    def open(self, num_learned: int, *, is_final: bool) -> None:
        """Opens what is due. ``is_final``: the state will not change any more, whatever dies."""
        config = self._config
        if not config.evaluate:
            return
        if config.evaluate_every and num_learned >= config.evaluate_every:
            self._open(Lane(VALIDATION, num_learned // config.evaluate_every))
        if is_final:
            self._open(TEST_LANE)

    def _open(self, lane: Lane) -> None:
        if lane not in self._rounds and self._config.size(lane):
            self._rounds[lane] = _Round(lane, self._config.size(lane))
            validations = [known for known in self._rounds if known.split == VALIDATION]
            if len(validations) > MAX_KEPT_ROUNDS:
                del self._rounds[min(validations)]

    def wanted(self) -> dict[Lane, IntervalSet]:
        """What the newest validation round and the test round still lack."""
        newest = max((lane for lane in self._rounds if lane.split == VALIDATION), default=None)
        lanes = [lane for lane in (newest, TEST_LANE) if lane in self._rounds]
        return {lane: self._rounds[lane].left for lane in lanes if lane is not None and self._rounds[lane].left}

    def __contains__(self, lane: Lane) -> bool:
        """Whether that is a round of this replica itself."""
        return lane in self._rounds

    def count(self, result: Forwarded, step: int) -> None:
        """Counts a batch into its round, if that is one of ours and lacks it."""
        if result.lane in self._rounds:
            self._rounds[result.lane].count(result, step)

    def evaluations(self) -> tuple[Evaluation, ...]:
        """All rounds that are kept, oldest first."""
        return tuple(self._rounds[lane].evaluation() for lane in sorted(self._rounds))
