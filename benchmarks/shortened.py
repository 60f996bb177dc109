"""Products whose factors are rounded to ten bits of mantissa (TF32), as accelerators can make them: what audits say of whoever computes so.

Rounded here, on whatever device: which kernels a library takes where it is allowed to shorten depends on the card, its own version and the shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from vnode.state import StateInfo
from vnode.torch_compute import TorchCompute

DROPPED_BITS: Final = 13
"""Of the 23 of a float32 mantissa."""


class ShortenedCompute(TorchCompute):
    """As its base, with shortened products in convolutions and linear maps, forward and backward."""

    def restore(self, state: bytes | memoryview | Path) -> StateInfo:
        """Takes over a state of this stage and job. Raises Corrupt; on an error the former state stays."""
        info = super().restore(state)
        for part in self.part("").modules():
            if type(part) in SHORTENED:
                part.__class__ = SHORTENED[type(part)]
        return info


def shortened(values: Tensor) -> Tensor:
    """To nearest, ties to even."""
    bits = values.contiguous().view(torch.int32)
    rest = (1 << DROPPED_BITS) - 1
    return ((bits + (rest >> 1) + ((bits >> DROPPED_BITS) & 1)) & ~rest).view(torch.float32)


class ShortenedConvolution(nn.Conv2d):
    """Zeros around, one group."""

    def forward(self, input: Tensor) -> Tensor:
        """As its base, up to the rounding."""
        found: Tensor = _Convolution.apply(input, self.weight, self.stride, self.padding)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias.view(-1, 1, 1)


class ShortenedProduct(nn.Linear):
    """One linear map."""

    def forward(self, input: Tensor) -> Tensor:
        """As its base, up to the rounding."""
        found: Tensor = _Product.apply(input, self.weight)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias


SHORTENED: Final[dict[type[nn.Module], type[nn.Module]]] = {nn.Conv2d: ShortenedConvolution, nn.Linear: ShortenedProduct}


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Any, padding: Any) -> Tensor:
        x, weight = shortened(x), shortened(weight)
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return functional.conv2d(x, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        short = shortened(gradient)
        inward = None
        if ctx.needs_input_grad[0]:
            inward = conv2d_input(x.shape, weight, short, ctx.stride, ctx.padding)  # type: ignore[no-untyped-call]
        outward = conv2d_weight(x, weight.shape, short, ctx.stride, ctx.padding)  # type: ignore[no-untyped-call]
        return inward, outward, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, weight = shortened(x), shortened(weight)
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        short = shortened(gradient)
        return short @ weight, short.flatten(0, -2).T @ x.flatten(0, -2)
