"""Goal: a merge that makes a VNode clearly worse at batches that nobody learned is refused and leaves nothing behind; one that does not, is not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from test_torch_compute import STAGES, batch_of, fresh
from test_torch_merging import contributor

from dcnr.errors import InvariantBroken, Refused
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from pnode.held_out import LOSS_FLOOR, MAX_BATCHES, MAX_WORSE, HeldOut
from vnode.compute import EvalResult
from vnode.events import Forward
from vnode.merge_events import CaptureAnchor, MergeAsked, MergeDeltas
from vnode.merging import Merging
from vnode.torch_compute import TorchCompute
from vnode.torch_merging import DeltaValues
from vnode.vocabulary import Lane, Mode, Peer, Verdict

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


def evaluate(
    held: HeldOut, compute: Any, batch: int, lane: Lane = FIRST_ROUND, mode: Mode = Mode.EVAL, *, is_own: bool = True
) -> None:
    x, y = batch_of(STAGE, SAME)
    held.forward(compute, Forward(lane, batch, mode, (), is_own=is_own), [x], y)


def moved(num_steps: int) -> DeltaValues:
    compute, info = contributor(STAGE)
    begun = compute.anchor(info)
    x, y = batch_of(STAGE, SAME)
    for number in range(num_steps):
        compute.learn(number, [x], y, number)
    found: DeltaValues = compute.check_delta(compute.delta("raw", begun), "raw")
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


def overflowing() -> DeltaValues:
    """Every value of it is finite, and so are the weights after it; with them nothing that comes out is."""
    delta = moved(1)
    norm = {name: np.full_like(value, 2.0) for name, value in delta.weights.items() if name.endswith("norm.weight")}
    extreme = {
        name: np.full_like(value, -3e38 if name.endswith("running_mean") else 0)
        for name, value in delta.buffers.items()
        if "running" in name
    }
    assert norm
    assert extreme
    return DeltaValues({**delta.weights, **norm}, {**delta.buffers, **extreme})


def test_a_merge_after_which_nothing_finite_comes_out_is_refused_and_undone() -> None:
    compute, info = fresh(STAGE)
    held = HeldOut()
    evaluate(held, compute, 0)
    before, loss = compute.snapshot(info), held.loss(compute)
    with pytest.raises(Refused) as raised:
        merged(compute, held, overflowing())
    assert raised.value.code == "worsens"
    assert compute.snapshot(info) == before
    assert held.loss(compute) == loss


def test_a_look_that_fails_leaves_nothing_of_the_merge_behind() -> None:
    compute, info = fresh(STAGE)

    def fails() -> bool:
        raise InvariantBroken("a batch of another stage", code="bad_inputs")

    before = compute.snapshot(info)
    with pytest.raises(InvariantBroken):
        compute.merge([moved(1)], [8], [1.0], centred=True, bears=fails)
    assert compute.snapshot(info) == before


def test_of_two_deltas_that_came_together_only_the_one_that_overflows_is_refused() -> None:
    compute, _ = fresh(STAGE)
    held, merging = HeldOut(), Merging(100)
    evaluate(held, compute, 0)
    deltas, lineage = {1: moved(8), 2: overflowing()}, IntervalSet.empty()
    names = [ReplicaId(f"v.{number}") for number in range(3)]
    merging.plan([Share(name, 1.0) for name in names])
    for request in deltas:
        batches = IntervalSet.span(8 * request, 8 * request + 8)
        merging.asked(MergeAsked(0.0, request, Peer(names[request], 1), 1, batches, deltas[request]))
    while (job := merging.computation(lineage)) is not None:
        match job:
            case MergeDeltas():
                try:
                    bears = partial(held.bears, held.loss(compute), compute)
                    chosen = [deltas[request] for request in job.requests]
                    compute.merge(chosen, [8] * len(chosen), [0.5] * len(chosen), bears=bears)
                except Refused as error:
                    merging.failed(job, error.message)
                    continue
                merging.merged(job)
                lineage = job.lineage
            case CaptureAnchor():
                merging.captured(job)
    answers = {one.request: one.verdict for one in merging.answers(lineage)}
    assert answers == {1: Verdict.MERGED, 2: Verdict.REFUSED}
    assert lineage == IntervalSet.span(8, 16)


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


def test_a_few_batches_of_the_newest_own_validation_round_are_remembered_and_nothing_else() -> None:
    held, compute = HeldOut(), Losses(1.0)
    evaluate(held, compute, 0, Lane("test", 1))
    evaluate(held, compute, 0, Lane("validation", 2), Mode.INFER)
    assert held.loss(compute) is None
    for batch in range(2 * MAX_BATCHES):
        evaluate(held, compute, batch, Lane("validation", 2))
    evaluate(held, compute, 50, Lane("validation", 1))
    evaluate(held, compute, 60, Lane("validation", 2**31 - 1), is_own=False)

    def remembered() -> list[int]:
        compute.seen.clear()
        held.loss(compute)
        return compute.seen

    assert remembered() == list(range(MAX_BATCHES))
    evaluate(held, compute, 9, Lane("validation", 3))
    assert remembered() == [9]
