"""Goal: where a unit in the last place leads elsewhere nobody is accused, and everywhere else everybody who cheats is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.detection import CASES
from benchmarks.tolerance_cases import REGISTRY, Case
from trust.comparison import Comparison, judge
from trust.overturned import Finding
from vnode.checks.claims import Claim
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.steadiness import FIRST_STEPS, doubted, has_led_elsewhere, may_have_grown, shaken
from vnode.checks.torch_record import as_array, record
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.state import parse, serialise
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of

NUM_STEPS = 8
[CASE] = [replace(case, num_steps=NUM_STEPS) for case in CASES if (case.name, case.optimizer) == ("conv_block", "sgd")]
SCHEMA = schema_of(CASE.stage(), REGISTRY)
SCALE = "w/component.norm.weight"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def beginning(*, at_the_kink: bool) -> bytes:
    """All values of two channels may lie at their ReLU, to the last bit of what scales them."""
    info, values = parse(CASE.first(), SCHEMA)
    scale = values[SCALE].copy()
    if at_the_kink:
        scale[:2] = 0.0
    return serialise(SCHEMA, info, {**values, SCALE: scale})


def claimed(first: bytes, *, wrong_at: int) -> Claim:
    """What an honest worker says, but for the loss of one step: as far off as only a fault is."""
    compute = TorchCompute(CASE.stage(), REGISTRY, num_batches=NUM_STEPS, seed=CASE.seed)
    claim = record(compute, first, CASE.entries())
    steps = list(claim.steps)
    steps[wrong_at] = replace(steps[wrong_at], loss=steps[wrong_at].loss * 1.1)
    return replace(claim, steps=tuple(steps))


def compared(case: Case, claim: Claim) -> list[Comparison]:
    compute = TwoSidedCompute(case.stage(), REGISTRY, num_batches=case.num_steps, seed=case.seed)
    limits = checks_of_stage(case.stage(), REGISTRY).replay()
    return list(replay(compute, SCHEMA, claim, limits, as_array=as_array))


@pytest.mark.parametrize(
    ("at_the_kink", "wrong_at", "wanted"),
    [
        (True, NUM_STEPS - 1, Finding.DOUBT),
        (True, FIRST_STEPS - 1, Finding.FAULT),
        (False, NUM_STEPS - 1, Finding.FAULT),
    ],
)
def test_a_span_accuses_only_where_last_bits_lead_to_the_same(at_the_kink: bool, wrong_at: int, wanted: Finding) -> None:
    claim = claimed(beginning(at_the_kink=at_the_kink), wrong_at=wrong_at)
    found = compared(CASE, claim)
    outcome = judge(found, to_the_end=True)
    assert outcome.finding is wanted
    assert outcome.first_over is not None
    assert (outcome.first_over.step, outcome.first_over.part) == (wrong_at, "loss")
    assert [(one.step, one.part, one.name) for one in found] == [
        (one.step, one.part, one.name) for one in compared(CASE, claimed(claim.states[0], wrong_at=0))
    ]


def test_a_shaken_state_differs_in_last_bits_of_its_weights_alone() -> None:
    first = CASE.first()
    before, after = parse(first, SCHEMA)[1], parse(shaken(first, SCHEMA), SCHEMA)[1]
    for name, value in before.items():
        if name.startswith("w/"):
            assert (after[name] != value).all()
            assert set(np.sign(after[name] - value).reshape(-1)) <= {-1.0, 1.0}
            assert np.allclose(after[name], value, rtol=2e-7, atol=1e-40)
        else:
            assert np.array_equal(after[name], value)
    assert shaken(first, SCHEMA) == shaken(first, SCHEMA)


def figure(residual: float, *, step: int = FIRST_STEPS, part: str = "loss") -> Comparison:
    return Comparison(step, part, "", residual, 1e-3)


def test_what_is_infinite_or_of_the_first_steps_or_no_fault_is_as_it_was() -> None:
    assert may_have_grown(figure(0.1), 0)
    assert not may_have_grown(figure(0.1), 1)
    assert not may_have_grown(figure(2e-3), 0)
    assert not may_have_grown(figure(math.inf), 0)
    assert doubted(figure(0.1)).ratio == 2.0
    for one in (figure(math.inf), figure(1.5e-3), figure(0.0)):
        assert doubted(one) is one


def test_two_runs_are_apart_by_more_than_honest_machines_are_or_hold_together() -> None:
    assert has_led_elsewhere(figure(0.1), figure(0.1 + 1.1e-4))
    assert has_led_elsewhere(figure(0.1 + 1.1e-4), figure(0.1))
    assert not has_led_elsewhere(figure(0.1), figure(0.1 + 0.9e-4))
    assert not has_led_elsewhere(figure(0.1, part="weights"), figure(0.2, part="weights")), "these were moved"
    assert not has_led_elsewhere(figure(0.1, part="wander"), figure(0.2, part="wander"))
    assert not has_led_elsewhere(figure(math.inf), figure(math.inf))
    assert not has_led_elsewhere(figure(0.0), figure(math.inf)), "nothing was measured"
