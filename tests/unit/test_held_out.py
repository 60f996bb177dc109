"""Goal: a merge that makes a VNode clearly worse at batches that nobody learned is refused and leaves nothing behind; one that does not, is not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from test_torch_compute import STAGES, batch_of, fresh
from test_torch_merging import contributor

from dcnr.errors import Refused
from pnode.held_out import LOSS_FLOOR, MAX_BATCHES, MAX_WORSE, HeldOut
from vnode.compute import EvalResult
from vnode.events import Forward
from vnode.torch_compute import TorchCompute
from vnode.torch_merging import DeltaValues
from vnode.vocabulary import Lane, Mode

STAGE = STAGES["image-sgd"]
FIRST_ROUND = Lane("validation", 1)
SAME = 7
"""All batches are this one: what is learned helps with what is held out."""


class Losses:
    """Gives every batch the loss of now."""

    def __init__(self, loss: float) -> None:
        self.loss, self.seen = loss, list[int]()

    def forward(self, batch: int, inputs: Any, mode: Mode, target: Any = None) -> EvalResult:
        self.seen.append(batch)
        return EvalResult(None, 2 * self.loss, 0, 2)


def evaluate(held: HeldOut, compute: Any, batch: int, lane: Lane = FIRST_ROUND, mode: Mode = Mode.EVAL) -> None:
    x, y = batch_of(STAGE, SAME)
    held.forward(compute, Forward(lane, batch, mode, ()), [x], y)


def moved(num_steps: int) -> DeltaValues:
    compute, _ = contributor(STAGE)
    x, y = batch_of(STAGE, SAME)
    for number in range(num_steps):
        compute.learn(number, [x], y, number)
    found: DeltaValues = compute.check_delta(compute.delta("raw"), "raw")
    return found


def merged(compute: TorchCompute, held: HeldOut, delta: DeltaValues) -> None:
    compute.merge([delta], [8], [1.0], centred=True, bears=partial(held.bears, held.loss(compute), compute))


def test_a_merge_that_helps_is_taken_and_one_that_harms_leaves_no_trace() -> None:
    compute, info = fresh(STAGE)
    held = HeldOut()
    evaluate(held, compute, 0)
    delta = moved(8)
    before = compute.snapshot(info)
    harm = DeltaValues({name: np.float32(-3) * value for name, value in delta.weights.items()}, delta.buffers)
    with pytest.raises(Refused) as raised:
        merged(compute, held, harm)
    assert raised.value.code == "worsens"
    assert compute.snapshot(info) == before, "the centre of merges included"
    merged(compute, held, delta)
    assert compute.snapshot(info) != before


@pytest.mark.parametrize(("loss", "bound"), [(2.0, 2.0 * (1 + MAX_WORSE)), (0.01, 0.01 + MAX_WORSE * LOSS_FLOOR)])
def test_two_percent_are_borne_and_low_losses_count_as_the_floor(loss: float, bound: float) -> None:
    held, compute = HeldOut(), Losses(loss)
    assert held.loss(compute) is None
    assert held.bears(None, compute), "nothing is known before the first round"
    evaluate(held, compute, 0)
    before = held.loss(compute)
    assert before == loss
    for after, is_borne in ((loss, True), (bound * 0.999, True), (bound * 1.001, False), (0.0, True)):
        compute.loss = after
        assert held.bears(before, compute) == is_borne


def test_a_few_batches_of_the_newest_validation_round_are_remembered_and_nothing_else() -> None:
    held, compute = HeldOut(), Losses(1.0)
    evaluate(held, compute, 0, Lane("test", 1))
    evaluate(held, compute, 0, Lane("validation", 2), Mode.INFER)
    assert held.loss(compute) is None
    for batch in range(2 * MAX_BATCHES):
        evaluate(held, compute, batch, Lane("validation", 2))
    evaluate(held, compute, 50, Lane("validation", 1))

    def remembered() -> list[int]:
        compute.seen.clear()
        held.loss(compute)
        return compute.seen

    assert remembered() == list(range(MAX_BATCHES))
    evaluate(held, compute, 9, Lane("validation", 3))
    assert remembered() == [9]
