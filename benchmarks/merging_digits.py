"""MNIST as `benchmarks.merging_replicas` learns it: rows of 784 grey levels, batches drawn as a job draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.merging_replicas import Setting
from dataservice.batches import BatchIndex

WIDTH: Final = 784
HIDDEN: Final = 128


class Digits:
    """The first batches of one pass in the order of the setting's seed; ``split`` is what is tested, all of it."""

    def __init__(self, arrays: Mapping[str, Any], setting: Setting, split: str) -> None:
        self._x, self._y = _rows(arrays, "train")
        self._test = _rows(arrays, split)
        self._index = BatchIndex(setting.seed, (len(self._y),), setting.batch_size, 1)

    def batch(self, number: int) -> tuple[Any, Any]:
        """Inputs and targets of a training batch."""
        chosen = self._index.indices(number)
        return self._x[chosen], self._y[chosen]

    def test(self) -> tuple[Any, Any]:
        """All of the split at once."""
        return self._test


def _rows(arrays: Mapping[str, Any], split: str) -> tuple[Any, Any]:
    return arrays[f"{split}_x"].reshape(-1, WIDTH), arrays[f"{split}_y"]
