"""Goal: where a span of a replay comes to nothing finite, or to what nobody can read, a cheat is accused of what it did before, and nobody honest is of
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from test_steadiness import CASE, NUM_STEPS, SCHEMA, beginning, claimed, done, moved, on_another_machine

from benchmarks.tolerance_cases import REGISTRY
from dcnr.errors import Corrupt
from dcnr.intervals import IntervalSet
from trust.comparison import Comparison, judge
from trust.overturned import Finding
from vnode import optimizers
from vnode.checks.claims import Anchored, Claim, Taken
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.residuals import FAR
from vnode.checks.steadiness import has_led_elsewhere
from vnode.checks.torch_record import as_array
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.state import parse, serialise
from vnode.torch_merging import DeltaValues, encode

CONV, MEAN = "w/component.conv.weight", "component.norm.running_mean"
STEADY = beginning(at_the_kink=False)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def heard(claim: Claim, seed: int = 0) -> Iterator[Comparison]:
    """As an auditor compares them."""
    compute = TwoSidedCompute(CASE.stage(), REGISTRY, num_batches=NUM_STEPS, seed=CASE.seed)
    limits = checks_of_stage(CASE.stage(), REGISTRY).replay()
    return replay(compute, SCHEMA, claim, limits, as_array=as_array, rng=np.random.default_rng(seed))


def norms(first: bytes, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of the gradients of all steps, as an honest worker has them that goes on from there."""
    found: list[float] = []
    clipped: Callable[..., object] = optimizers._clipped

    def noted(gradients: list[torch.Tensor], clip: float) -> object:
        found.append(float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))))
        return clipped(gradients, clip)

    with monkeypatch.context() as patched:
        patched.setattr(optimizers, "_clipped", noted)
        done(first)
    return found


def merging(*means: float) -> Anchored:
    """What a primary names that has taken these deltas in: weights that did not move, and running statistics that went there."""
    _, values = parse(STEADY, SCHEMA)
    weights = {name[2:]: np.zeros_like(value) for name, value in values.items() if name.startswith("w/")}
    buffers = {name[2:]: value for name, value in values.items() if name.startswith("b/")}
    deltas = (encode(DeltaValues(weights, {**buffers, MEAN: np.full_like(values[f"b/{MEAN}"], mean)}), "raw") for mean in means)
    return Anchored(tuple(Taken(data, "raw", IntervalSet.span(at, at + 1), 1) for at, data in enumerate(deltas, NUM_STEPS)), STEADY)


@pytest.mark.parametrize("wrong_at", [0, NUM_STEPS - 1])
def test_what_cannot_be_read_behind_the_last_step_of_a_span_hides_no_fault_of_that_step(wrong_at: int) -> None:
    """The search for sides of kinks reads it before the fault is told: whoever cheated in the last step of each span would show what proves nothing."""
    claim = claimed(STEADY, wrong_at=wrong_at)
    found = judge(heard(replace(claim, states={0: STEADY, NUM_STEPS: b"no state"})))
    assert found.finding is Finding.FAULT
    assert found.first_over is not None
    assert found.first_over.step == wrong_at


def test_a_merge_that_gives_nothing_finite_hides_no_fault_before_it() -> None:
    """A delta of somebody who helps it is enough for that: nobody could come to an end with such an interval, which stayed open for ever."""
    claim = replace(claimed(STEADY, wrong_at=5), states={0: STEADY}, anchored={NUM_STEPS: (merging(3e38, -3e38),)})
    assert judge(heard(claim)).finding is Finding.FAULT
    honest = replace(done(STEADY), states={0: STEADY}, anchored={NUM_STEPS: (merging(3e38, -3e38),)})
    with pytest.raises(Corrupt):
        judge(heard(honest))


def test_who_learns_what_gives_nothing_finite_by_other_last_bits_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes a state can lay it there, in an interval that is not drawn: but for last bits the gradient of a batch is as large as may be."""
    largest = max(norms(STEADY, monkeypatch))
    other, limit = next(
        (one, most) for one in map(partial(moved, STEADY), count()) if (most := max(norms(one, monkeypatch))) != largest
    )
    first, honest = (STEADY, other) if limit < largest else (other, STEADY)
    monkeypatch.setattr(optimizers, "MAX_GRADIENT_NORM", min(limit, largest))
    claim = done(honest)
    assert judge(heard(replace(claim, states={**claim.states, 0: first})), to_the_end=True).finding is Finding.DOUBT


def test_who_is_off_where_other_last_bits_give_nothing_finite_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the auditor itself comes to an end, and its second run does not."""
    limit = max(norms(STEADY, monkeypatch))
    seed = next(one for one in count() if max(norms(moved(STEADY, one), monkeypatch)) > limit)
    monkeypatch.setattr(optimizers, "MAX_GRADIENT_NORM", limit)
    assert judge(heard(claimed(STEADY, wrong_at=5), seed)).finding is Finding.DOUBT


def test_what_moves_nothing_here_may_move_by_other_last_bits() -> None:
    """From maps of zeros a stage's statistics move by rounding alone. Who moves them where this machine does not was accused at once: whoever makes a state can
    lay it there. Where no other last bits move them either it is.
    """
    info, values = parse(STEADY, SCHEMA)
    first = serialise(SCHEMA, info, {**values, CONV: np.zeros_like(values[CONV])})
    found = list(heard(on_another_machine(first, CASE.entries()[:3])))
    assert max(one.residual for one in found) == FAR
    assert judge(found, to_the_end=True).finding is Finding.DOUBT
    far = Comparison(0, "buffers", MEAN, FAR, 1e-3)
    assert not has_led_elsewhere(far, far)
