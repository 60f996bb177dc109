"""Goal: random numbers and learning rates are pure functions of their named arguments, the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr.errors import InvalidInput
from dcnr.specs import Config, Fields
from vnode.randomness import Draws
from vnode.schedules import Schedule


def test_words_are_fixed_for_all_time() -> None:
    assert Draws(7, "conv1", 3).words("shift", 4).tolist() == [3617924219, 3072942506, 4216346631, 2455774042]


def test_every_part_of_the_key_counts() -> None:
    base = Draws(1, "a", 2).words("p", 8)
    others = [Draws(2, "a", 2), Draws(1, "b", 2), Draws(1, "a", 3)]
    assert all(not np.array_equal(base, other.words("p", 8)) for other in others)
    assert not np.array_equal(base, Draws(1, "a", 2).words("q", 8))
    assert np.array_equal(base, Draws(1, "a", 2).words("p", 9)[:8])


def test_integers_and_masks_have_the_right_distribution() -> None:
    numbers = Draws(0, "a", 0).integers("p", 50_000, low=-2, high=2)
    counts = np.bincount(numbers + 2, minlength=5)
    assert len(counts) == 5
    assert np.abs(counts - 10_000).max() < 500
    assert abs(Draws(0, "a", 0).keep("p", 50_000, drop=0.1).mean() - 0.9) < 0.01


def learning_rate(config: Config, num_learned: int, num_batches: int) -> float:
    return Schedule.read(Fields(config, "schedule")).rate(num_learned, num_batches)


def test_rates_follow_the_lineage() -> None:
    one_cycle = {"lr": 0.1, "schedule": "one_cycle", "momentum": 0.9}
    assert learning_rate(one_cycle, 0, 100) == pytest.approx(0.004)
    assert learning_rate(one_cycle, 30, 100) == pytest.approx(0.1)
    assert learning_rate(one_cycle, 100, 100) == pytest.approx(1e-5)
    cosine = {"lr": 0.1, "schedule": "cosine", "warmup": 0.1}
    assert [learning_rate(cosine, n, 100) for n in (0, 9, 10, 55, 100)] == pytest.approx([0.01, 0.1, 0.1, 0.05, 0.0])
    assert learning_rate({"lr": 0.1}, 0, 1) == learning_rate({"lr": 0.1}, 10**9, 1) == 0.1
    with pytest.raises(InvalidInput):
        learning_rate({"lr": 0.1, "schedule": "exponential"}, 0, 1)
