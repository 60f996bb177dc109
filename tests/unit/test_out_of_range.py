"""Goal: a state whose values lie at the end of all numbers accuses nobody who goes on from it, and whoever can learn nothing from it that counts says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_spans_that_break_off import CONV, STEADY, heard
from test_steadiness import CASE, NUM_STEPS, SCHEMA, done, moved

from benchmarks.tolerance_cases import NARROW, REGISTRY, Case
from dcnr.errors import Corrupt, InvariantBroken, RemoteFault
from dcnr.intervals import IntervalSet
from dcnr.limits import MAX_TENSOR_RMS
from pnode.hosted import Averages
from trust.comparison import judge
from trust.late_draw import UNLEARNED
from trust.overturned import Finding
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.state import MAX_NUMBER, parse, serialise
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state
from vnode.vocabulary import TRAIN_LANE, Mode

VARIANCE, COUNT = "b/component.norm.running_var", "b/component.norm.num_batches_tracked"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def scaled(factor: float) -> bytes:
    """With weights so many times as large: behind a normalisation nothing else shows that."""
    info, values = parse(STEADY, SCHEMA)
    return serialise(SCHEMA, info, {**values, CONV: values[CONV] * np.float32(factor)})


def at_the_edge() -> bytes:
    """But for last bits the variance of one of the batches is none."""
    low, high = 1e17, 1e20
    while high / low > 1.0 + 1e-7:
        middle = (low * high) ** 0.5
        try:
            done(scaled(middle))
            low = middle
        except Corrupt:
            high = middle
    return scaled(low)


def test_who_goes_on_from_weights_whose_variance_is_finite_by_last_bits_is_not_accused() -> None:
    """One machine normalises what is infinite to zeros, another one does not, and both have a loss. In two of ten audits the second run came to the first."""
    honest = at_the_edge()
    claim = done(honest)
    for seed in range(20):
        elsewhere = replace(claim, states={**claim.states, 0: moved(honest, seed)})
        assert judge(heard(elsewhere), to_the_end=True).finding is Finding.DOUBT, seed


def test_who_brings_a_state_that_an_auditor_cannot_write_down_by_its_last_bits_is_not_accused_of_showing_nothing() -> None:
    claim = done(STEADY)
    info, values = parse(claim.states[NUM_STEPS], SCHEMA)
    first_info, first = parse(STEADY, SCHEMA)
    largest = serialise(SCHEMA, first_info, {**first, COUNT: np.array(MAX_NUMBER)})
    last = serialise(SCHEMA, info, {**values, COUNT: np.array(MAX_NUMBER)})
    assert judge(heard(replace(claim, states={0: largest, NUM_STEPS: last})), to_the_end=True).finding is Finding.DOUBT


def test_nobody_is_kept_from_writing_down_what_it_learns_by_what_a_state_counts() -> None:
    """A cheat's own steps pass each audit, whatever it says how many commits there were. Nobody after it could end an interval."""
    info, values = parse(STEADY, SCHEMA)
    compute = TorchCompute(CASE.stage(), REGISTRY, num_batches=NUM_STEPS, seed=CASE.seed)
    info = compute.restore(serialise(SCHEMA, replace(info, updates=MAX_NUMBER), values))
    entry = CASE.entries()[0]
    compute.learn(entry.batch, entry.inputs, entry.target, 0)
    assert parse(compute.snapshot(replace(info, lineage=IntervalSet.span(0, 1))), SCHEMA)[0].updates == MAX_NUMBER


def test_who_learns_what_can_never_be_written_down_has_tried_in_vain() -> None:
    """Every loss may be as good as ever; nothing heals it but another state."""
    compute = TorchCompute(CASE.stage(), REGISTRY, num_batches=NUM_STEPS, seed=CASE.seed)
    info, found = compute.restore(scaled(1e20)), Averages()
    for number, entry in enumerate(CASE.entries()[:3]):
        result = compute.learn(entry.batch, entry.inputs, entry.target, number)
        found.add(entry.batch, 0.1, result.loss)
    assert found.num_unlearned == 0
    with pytest.raises(Corrupt) as raised:
        compute.snapshot(replace(info, lineage=IntervalSet.span(0, 3)))
    found.failed(TRAIN_LANE, 0, raised.value)
    found.add(4, 0.1, 1.0)
    assert found.num_unlearned == UNLEARNED
    found.failed(TRAIN_LANE, 0, Corrupt("somebody's frame", code="tensor_digest"))
    found.is_stuck = False
    found.failed(TRAIN_LANE, 0, Corrupt("somebody's frame", code="tensor_digest"))
    assert found.num_unlearned == 0


TEXT = Case("text", "transformer_block", {"heads": 4}, (8, 64), "sgd", NARROW, batch_size=4, num_steps=4)


def test_a_state_whose_outputs_nobody_takes_is_one_from_which_nothing_is_learned() -> None:
    """Its head normalises them: its loss is as good as ever, and whoever stands behind it refuses each frame."""
    stage = TEXT.stage()
    compute = TorchCompute(stage, REGISTRY, num_batches=4, seed=0)
    schema, entry = compute._schema, TEXT.entries()[0]
    info, values = parse(initial_state(stage, REGISTRY, seed=0, model="m", graph="", num_batches=4), schema)
    name = "w/component.mlp_out.weight"
    compute.restore(serialise(schema, info, {**values, name: values[name] * np.float32(1e9)}))
    with pytest.raises(InvariantBroken, match="far too large") as raised:
        compute.learn(entry.batch, entry.inputs, entry.target, 0)
    assert raised.value.code == "not_finite"
    with pytest.raises(InvariantBroken, match="far too large"):
        compute.forward(entry.batch, entry.inputs, Mode.FORWARD_ONLY)
    compute.forward(entry.batch, entry.inputs, Mode.INFER)


@pytest.mark.parametrize(
    ("kind", "most"), [(TorchCompute, MAX_TENSOR_RMS), (TwoSidedCompute, 1.01 * MAX_TENSOR_RMS)], ids=["worker", "auditor"]
)
def test_what_another_stage_may_not_send_nobody_learns_however_it_came(kind: type[TorchCompute], most: float) -> None:
    """Inside one worker no frame is looked at, and evidence shows what its maker says that it was sent: with it a gradient of honest weights is as large as
    may be, and each interval of whoever wants that a doubt.
    """
    stage = replace(TEXT.stage(), inputs=tuple(replace(one, id="before") for one in TEXT.stage().inputs))
    stage = replace(stage, component_inputs=("before",))
    compute = kind(stage, REGISTRY, num_batches=4, seed=0)
    compute.restore(initial_state(stage, REGISTRY, seed=0, model="m", graph="", num_batches=4))
    entry = TEXT.entries()[0]
    for rms, is_taken in ((0.999 * most, True), (1.001 * most, False)):
        values = np.full_like(entry.inputs[0], rms)
        with contextlib.nullcontext() if is_taken else pytest.raises(RemoteFault, match="far too large"):
            compute.forward(entry.batch, (values,), Mode.INFER)


def test_a_data_set_may_hold_what_it_likes() -> None:
    compute = TorchCompute(TEXT.stage(), REGISTRY, num_batches=4, seed=0)
    compute.restore(TEXT.first())
    compute.forward(0, (np.full_like(TEXT.entries()[0].inputs[0], 10 * MAX_TENSOR_RMS),), Mode.INFER)
