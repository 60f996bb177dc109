"""What a primary looks at before and after a merge: validation batches that it evaluated. A merge that makes its VNode clearly worse at these is refused."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dcnr.errors import InvariantBroken
from vnode.compute import Compute, EvalResult
from vnode.evaluation import VALIDATION
from vnode.events import Forward
from vnode.vocabulary import Mode, TensorHandle

MAX_BATCHES: Final = 4
"""Two passes over these are a few steps' work, once per merge."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""Of their inputs together, at most, besides those of one batch."""
MAX_WORSE: Final = 0.02
"""Part of the loss by which a merge may raise it."""
LOSS_FLOOR: Final = 0.1
"""Nats: a lower loss counts as this one, since a few batches say no more."""


class HeldOut:
    """The first batches of the newest validation round that this replica opened itself, each with its inputs and target. Any thread.

    A round that only a successor asked for has the number that it likes: one beyond all others would stay for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._round = 0
        self._batches: dict[int, tuple[tuple[TensorHandle, ...], Any]] = {}
        self._bytes = 0

    def forward(self, compute: Compute, job: Forward, inputs: Sequence[TensorHandle], target: Any) -> EvalResult:
        """As `Compute.forward`; what belongs to an own validation round is remembered."""
        result = compute.forward(job.batch, inputs, job.mode, target)
        if job.is_own and job.mode is Mode.EVAL and job.lane.split == VALIDATION:
            self._evaluated(job, tuple(inputs), target)
        return result

    def _evaluated(self, job: Forward, inputs: tuple[TensorHandle, ...], target: Any) -> None:
        size_bytes = sum(int(np.prod(one.shape)) * one.dtype.itemsize for one in inputs)
        with self._lock:
            if job.lane.round > self._round:
                self._round, self._batches, self._bytes = job.lane.round, {}, 0
            fits = len(self._batches) < MAX_BATCHES and (not self._batches or self._bytes + size_bytes <= MAX_BYTES)
            if job.lane.round == self._round and job.batch not in self._batches and fits:
                self._batches[job.batch] = (inputs, target)
                self._bytes += size_bytes

    def loss(self, compute: Compute) -> float | None:
        """Mean loss over them with the weights of now; None while there are none. On the compute thread."""
        with self._lock:
            batches = dict(self._batches)
        found = [compute.forward(batch, inputs, Mode.EVAL, target) for batch, (inputs, target) in sorted(batches.items())]
        count = sum(one.count for one in found)
        return sum(one.sum_loss for one in found) / count if count else None

    def bears(self, before: float | None, compute: Compute) -> bool:
        """Whether the weights of now are not clearly worse than those that gave ``before``: weights that give nothing finite are."""
        try:
            after = self.loss(compute) if before is not None else None
        except InvariantBroken as error:
            if error.code != "not_finite":
                raise
            return False
        return before is None or after is None or after <= before + MAX_WORSE * max(before, LOSS_FLOOR)
