"""Goal: pools that are made for speed give what torch's own give, the largest values and their gradients bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vnode.torch_pools import MATRIX_PLACES, AveragePool, MaxPool


@pytest.mark.parametrize("shape", [(3, 2, 6, 6), (2, 3, 7, 9), (1, 1, 2, 2)])
@pytest.mark.parametrize("side", [2, 3])
def test_the_largest_and_their_gradients_are_torchs_also_among_equals(shape: tuple[int, ...], side: int) -> None:
    if min(shape[2:]) < side:
        return
    torch.manual_seed(0)
    for values in (torch.randint(0, 3, shape).float(), torch.randn(shape), torch.zeros(shape)):
        theirs, ours = values.clone().requires_grad_(), values.clone().requires_grad_()
        wanted, found = nn.MaxPool2d(side)(theirs), MaxPool(side)(ours)
        assert torch.equal(found, wanted)
        assert found.is_contiguous()
        down = torch.randn_like(wanted)
        assert torch.equal(torch.autograd.grad(found, ours, down)[0], torch.autograd.grad(wanted, theirs, down)[0])
        assert torch.equal(MaxPool(side)(values), wanted), "without a gradient it goes another way"


@pytest.mark.parametrize("length", [3, 7, 14, 1 + int(MATRIX_PLACES**0.5)])
def test_averages_are_torchs_up_to_rounding_and_no_part_of_a_state(length: int) -> None:
    torch.manual_seed(0)
    sides = (min(4, length), min(4, length))
    pool, images = AveragePool(sides), torch.randn(2, 5, length, length, requires_grad=True)
    wanted = nn.AdaptiveAvgPool2d(sides)(images)
    down = torch.randn_like(wanted)
    for dtype in (torch.float32, torch.float64, torch.float32):
        found = pool(images.to(dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), wanted, rtol=1e-6, atol=1e-6)
    gradients = (torch.autograd.grad(one, images, down)[0] for one in (pool(images), wanted))
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
    assert not pool.state_dict()
