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
            if isinstance(part, nn.Conv2d):
                part.forward = lambda x, of=part: _with_bias(_Convolution.apply(x, of.weight, of.stride, of.padding), of.bias, (-1, 1, 1))  # type: ignore[method-assign, misc]
            elif isinstance(part, nn.Linear):
                part.forward = lambda x, of=part: _with_bias(_Product.apply(x, of.weight), of.bias, (-1,))  # type: ignore[method-assign, misc]
        return info


def shortened(values: Tensor) -> Tensor:
    """To nearest, ties to even."""
    bits = values.contiguous().view(torch.int32)
    rest = (1 << DROPPED_BITS) - 1
    return ((bits + (rest >> 1) + ((bits >> DROPPED_BITS) & 1)) & ~rest).view(torch.float32)


def _with_bias(found: Tensor, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    return found if bias is None else found + bias.view(shape)


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
        inward = conv2d_input(x.shape, weight, short, ctx.stride, ctx.padding) if ctx.needs_input_grad[0] else None
        return inward, conv2d_weight(x, weight.shape, short, ctx.stride, ctx.padding), None, None


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
