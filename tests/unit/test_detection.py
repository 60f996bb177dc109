"""Goal: a cheat that changes nothing is not counted as one, and whatever changes something is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.detection import CASES, NUM_BATCHES, NUM_STEPS, REDRAWN, changes_nothing, drawn
from benchmarks.tolerance_cases import REGISTRY, Case
from examples.byzantine.behaviours import BEHAVIOURS
from vnode.checks.claims import Claim
from vnode.checks.torch_record import record
from vnode.torch_compute import TorchCompute

BEHAVIOUR_OF = {behaviour.name: behaviour for behaviour in BEHAVIOURS}
[CLIPPED] = [
    replace(case, seed=2, num_steps=NUM_BATCHES) for case in CASES if (case.name, case.optimizer) == ("byte_embedding", "adamw")
]
"""Whose gradients are longer than what they are clipped to in every step of the first interval."""


def honest(case: Case) -> Claim:
    compute = TorchCompute(case.stage(), REGISTRY, num_batches=case.num_steps, seed=case.seed)
    return record(compute, case.first(), case.entries(NUM_STEPS))


@pytest.mark.parametrize("name", ["tenfold", "one_percent_more"])
def test_gradients_that_are_scaled_and_then_clipped_are_drawn_again(name: str) -> None:
    case, claim = drawn(CLIPPED, BEHAVIOUR_OF[name], "raw", {})
    assert case.seed - CLIPPED.seed in range(REDRAWN, 9 * REDRAWN, REDRAWN)
    assert not changes_nothing(case, claim, honest(case))


@pytest.mark.parametrize("name", ["zeros", "selective", "int8"])
def test_whatever_else_is_cheated_there_counts_at_once(name: str) -> None:
    case, _ = drawn(CLIPPED, BEHAVIOUR_OF[name], "raw", {})
    assert case.seed == CLIPPED.seed


def test_a_claim_differs_by_what_is_sent_by_its_losses_and_by_where_it_ends() -> None:
    mine = honest(CLIPPED)
    assert changes_nothing(CLIPPED, mine, mine)
    [*before, last] = mine.steps
    assert last.output is not None
    sent = replace(last, output=last.output * 1.01)  # type: ignore[operator]
    assert not changes_nothing(CLIPPED, replace(mine, steps=(*before, sent)), mine)
    assert not changes_nothing(CLIPPED, replace(mine, steps=(*before, replace(last, loss=last.loss * 1.01))), mine)
    moved = drawn(CLIPPED, replace(BEHAVIOUR_OF["skipped"], when=lambda index, num_steps: index == num_steps - 1), "raw", {})[1]
    assert not changes_nothing(CLIPPED, replace(mine, states=moved.states), mine)
