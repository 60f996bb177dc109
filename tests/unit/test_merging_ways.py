"""Goal: the ways to merge that are measured are those that their names say, and the rates of each are looked for alike."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.merging_digits import Digits
from benchmarks.merging_rates import ALONE, chosen, climbed, conclude
from benchmarks.merging_replicas import Added, Group, Points, Rounds, Setting
from benchmarks.merging_rules import Arrival, DelayedNesterov, Nesterov, Outer, averaged
from benchmarks.result import Result
from vnode.torch_merging import DeltaValues

SETTING = Setting("sgd", 3, 48, batch_size=4, num_stages=1, unit_batches=2, delay_batches=3, hidden=6, width=5)


def learned(group: Group, setting: Setting = SETTING) -> dict[str, Any]:
    """The primary's weights at the end of the job."""
    points = Points(setting)
    for batch in range(setting.num_batches):
        x, y = points.batch(batch)
        group.learn(batch, [x], y)
    group.finish()
    return {name: value.numpy() for name, value in group.weights().items()}


def stepped(outer: Outer, *displacements: float) -> float:
    """One weight that was 0, after displacements that four replicas share."""
    weights = {"w": torch.zeros(1)}
    for moved in displacements:
        outer(weights, Arrival(DeltaValues({"w": np.array([moved], np.float32)}, {}), {"w": torch.ones(1)}, 0.5, 4))
    return float(weights["w"])


def test_an_outer_step_of_rate_one_without_momentum_adds_a_share() -> None:
    (stage,) = SETTING.stages()
    ours, plain = learned(Added(SETTING, stage, 4)), learned(Added(SETTING, stage, 4, outer=lambda: Nesterov(1.0, 0.0)))
    for name, value in ours.items():
        np.testing.assert_allclose(plain[name], value, atol=1e-5)


def test_rounds_without_momentum_go_on_from_the_mean_also_through_an_outer_step() -> None:
    (stage,) = SETTING.stages()
    mean, stepwise = learned(Rounds(SETTING, stage, 4)), learned(Rounds(SETTING, stage, 4, Nesterov(1.0, 0.0)))
    for name, value in mean.items():
        np.testing.assert_allclose(stepwise[name], value, atol=1e-5)


def test_a_job_that_ends_with_a_round_takes_no_further_outer_step() -> None:
    (stage,) = SETTING.stages()
    group = Rounds(SETTING, stage, 4, Nesterov(0.7, 0.9))
    learned(group)
    before = group.weights()
    group.finish()
    assert all(torch.equal(before[name], value) for name, value in group.weights().items())


def test_momentum_is_that_of_nesterov() -> None:
    assert stepped(Nesterov(0.5, 0.9), 4.0) == pytest.approx(0.5 * (1 + 0.9))
    assert stepped(Nesterov(0.5, 0.9), 4.0, 0.0) == pytest.approx(0.5 * (1 + 0.9) + 0.5 * 0.9 * 0.9)


def test_delayed_momentum_comes_with_every_fourth_delta() -> None:
    assert stepped(DelayedNesterov(0.5, 0.9), 4.0, 4.0, 4.0) == pytest.approx(0.5 * 3)
    assert stepped(DelayedNesterov(0.5, 0.9), 4.0, 4.0, 4.0, 4.0) == pytest.approx(0.5 * 4 + 0.5 * 0.9 * 4)


def test_an_average_goes_part_of_the_way_to_where_the_contributor_arrived() -> None:
    assert stepped(averaged, 3.0) == pytest.approx(0.5 * (1 + 3))


@pytest.mark.parametrize(
    ("best", "tried"), [(4.0, [1.0, 2.0, 4.0, 8.0]), (1.0, [0.5, 1.0, 2.0]), (0.25, [0.125, 0.25, 0.5, 1.0, 2.0])]
)
def test_rates_are_tried_until_neither_neighbour_is_better(best: float, tried: list[float]) -> None:
    assert climbed(lambda rate: abs(math.log2(rate / best)), 1.0) == tried


def test_a_climb_ends() -> None:
    assert climbed(lambda rate: -rate, 1.0, most=2) == [1.0, 2.0, 4.0]


def test_what_broke_off_is_chosen_only_where_nothing_else_is() -> None:
    rows = [
        {"part": part, "optimizer": "sgd", "way": "added", "loss": loss, "lr": lr}
        for part, loss, lr in (("sweep", None, 0.4), ("sweep", 0.5, 0.2), ("sweep", 0.6, 0.1), ("judged", 0.1, 0.2))
    ]
    assert chosen(rows)["sgd", "added"]["lr"] == 0.2
    assert chosen(rows[:1])["sgd", "added"]["lr"] == 0.4


def test_every_seed_has_its_own_order_of_the_same_images_and_splits_stay_apart() -> None:
    arrays: dict[str, Any] = {
        f"{split}_x": np.full((8, 1, 28, 28), level, np.float32) for level, split in enumerate(("train", "validation", "test"))
    }
    arrays.update((f"{split}_y", np.arange(8)) for split in ("train", "validation", "test"))
    setting = replace(SETTING, batch_size=8)
    first, second = (Digits(arrays, replace(setting, seed=seed), "test") for seed in (1, 2))
    assert sorted(first.batch(0)[1]) == sorted(second.batch(0)[1]) == list(range(8))
    assert list(first.batch(0)[1]) != list(second.batch(0)[1])
    assert first.batch(0)[0].shape == (8, 784)
    assert first.test()[0].max() == 2
    assert Digits(arrays, setting, "validation").test()[0].max() == 1


def test_who_meets_its_primary_pulls_back_what_others_learned_as_far_as_its_own_steps_count() -> None:
    setting = replace(SETTING, num_replicas=2, delay_batches=0)
    group = Group(setting, setting.stages()[0], setting.num_batches)
    points = Points(setting)
    for batch in range(setting.num_batches):
        x, y = points.batch(batch)
        group.learn(batch, [x], y)
    mine, contributors = group.weights(), group.contributors()
    group.finish()
    for name, value in group.weights().items():
        np.testing.assert_allclose(value, (mine[name] + contributors[0][name]) / 2, atol=1e-6)
        np.testing.assert_array_equal(group.contributors()[0][name], mine[name], "it goes on from what it was held against")


def test_a_run_that_was_broken_off_meets_no_target() -> None:
    row = {
        "part": "sweep",
        "optimizer": "sgd",
        "way": ALONE,
        "loss": 0.5,
        "percent": 90.0,
        "lr": 0.1,
        "outer_lr": 1.0,
        "outer_momentum": 0.0,
    }
    result = Result("merging_rates", "", {"every": [20], "optimizers": {"sgd": {}}}, rounds=[row])
    conclude(result)
    assert [target.met for target in result.targets] == [False, False]
    assert result.medians["sgd"][f"{ALONE}_validation_percent"] == 90.0
