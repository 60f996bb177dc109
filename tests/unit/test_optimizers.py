"""Goal: the updates are those of torch.optim, and a gradient that is not finite changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dcnr.errors import InvalidInput, InvariantBroken
from dcnr.specs import Config
from vnode.optimizers import AdamW, Optimizer, Sgd

CONFIGS: list[tuple[Optimizer, Config]] = [
    (Sgd(), {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.01, "clip": 0.5}),
    (Sgd(), {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.01, "clip": 0.5}),
    (AdamW(), {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.01, "clip": 0.5}),
]
LIKE_TORCH: list[Callable[[list[dict[str, object]]], torch.optim.Optimizer]] = [
    lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.8),
    lambda groups: torch.optim.SGD(groups, lr=0.1),
    lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9)),
]


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((3, 2), (2,), (2, 2, 2))]


@pytest.mark.parametrize("index", range(len(CONFIGS)))
def test_updates_follow_torch_with_clipping_and_decay_of_matrices(index: int) -> None:
    spec, config = CONFIGS[index]
    update, ours = spec.build(config), tensors(0)
    slots = {name: [torch.zeros_like(tensor) for tensor in ours] for name in spec.slots()}
    theirs = [torch.nn.Parameter(tensor) for tensor in tensors(0)]
    reference = LIKE_TORCH[index](
        [{"params": [theirs[0], theirs[2]], "weight_decay": 0.01}, {"params": [theirs[1]], "weight_decay": 0.0}]
    )
    for step in range(4):
        gradients = tensors(step + 1)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        reference.step()
        update(ours, gradients, slots, 0.1, step)
    for tensor, parameter in zip(ours, theirs, strict=True):
        assert torch.allclose(tensor, parameter, atol=1e-5)


@pytest.mark.parametrize("index", range(len(CONFIGS)))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_bad_gradient_changes_nothing(index: int, value: float) -> None:
    spec, config = CONFIGS[index]
    parameters, gradients = tensors(0), tensors(1)
    slots = {name: [torch.ones_like(tensor) for tensor in parameters] for name in spec.slots()}
    gradients[1][0] = value
    with pytest.raises(InvariantBroken):
        spec.build(config)(parameters, gradients, slots, 0.1, 0)
    assert all(torch.equal(a, b) for a, b in zip(parameters, tensors(0), strict=True))
    assert all(bool((tensor == 1).all()) for group in slots.values() for tensor in group)


def test_unknown_fields_and_wild_values_are_refused() -> None:
    for config in ({"lr": 0.1, "nesterov": True}, {"lr": 11.0}, {"lr": float("nan")}, {}, {"lr": 0.1, "momentum": 1.0}):
        with pytest.raises(InvalidInput):
            Sgd().check(config)
