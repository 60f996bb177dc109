"""Goal: what an accelerator would send that shortens its products is seen, by a means that does not depend on which kernels a card takes."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.honest import judged
from benchmarks.shortened import ShortenedCompute, shortened
from benchmarks.tolerance_cases import REGISTRY, cases
from vnode.checks.plan import checks_of_stage
from vnode.checks.torch_record import record
from vnode.torch_compute import TorchCompute

SEED = 1_001
NUM_STEPS = 32


def test_factors_keep_ten_bits_rounded_to_nearest() -> None:
    one = 2.0**-10
    given = torch.tensor([1.0, 1.0 + one, 1.0 + one / 2, 1.0 + 1.5 * one, -1.0 - 0.6 * one, 0.0, 3e-39])
    assert shortened(given)[:6].tolist() == [1.0, 1.0 + one, 1.0, 1.0 + 2 * one, -1.0 - one, 0.0]
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    off = (shortened(values) / values - 1.0).abs()
    assert 2.0**-12 < float(off.max()) <= 2.0**-11


def test_whoever_shortens_the_products_of_a_stage_is_accused_and_who_does_not_passes() -> None:
    case = next(one for one in cases(1) if one.name == "conv_block, ReLU, pool")
    case = replace(case, seed=SEED, num_steps=NUM_STEPS, referee_steps=1)
    stage = case.stage()
    checks, faults = checks_of_stage(stage, REGISTRY), []
    for kind in (TorchCompute, ShortenedCompute):
        compute = kind(stage, REGISTRY, num_batches=NUM_STEPS, seed=SEED)
        claim = record(compute, case.first(), case.entries(), state_every=checks.replay().span_steps, sketched=checks)
        faults.append(sum(row["faults"] for row in judged(case, claim, checks, sketched=True)))
    assert faults[0] == 0
    assert faults[1] > 0
