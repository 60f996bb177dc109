"""Pools of images for the processor: torch's own take a fifth of a small convolutional stage's step."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

MATRIX_PLACES: Final = 256
"""Images of at most so many places are averaged by a product with one small matrix."""


class MaxPool(nn.MaxPool2d):
    """As its base, square and without padding: the same values and the same gradients, bit for bit, also where values of a window are equal."""

    def __init__(self, side: int) -> None:
        super().__init__(side)
        self._side = side

    def forward(self, input: Tensor) -> Tensor:
        """The largest value of each window; rows and columns that fill none are left out."""
        side = self._side
        found: Tensor
        if input.device.type != "cpu" or input.dim() != 4:
            found = super().forward(input)
        elif torch.is_grad_enabled() and input.requires_grad:
            found = _Pooled.apply(input, side)  # type: ignore[no-untyped-call]
        else:
            height, width = (length // side * side for length in input.shape[2:])
            rows = _largest([input[:, :, at:height:side] for at in range(side)])
            found = _largest([rows[..., at:width:side] for at in range(side)]).contiguous()
        return found


def _largest(parts: list[Tensor]) -> Tensor:
    found = parts[0]
    for part in parts[1:]:
        found = torch.maximum(found, part)
    return found


class _Pooled(torch.autograd.Function):
    """torch pools several times as fast where the channels of a place lie together, turning them included; its gradient is fast anyway."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, side: int) -> Tensor:
        turned = values.contiguous(memory_format=torch.channels_last)
        found, index = functional.max_pool2d(turned, side, return_indices=True)
        ctx.side = side
        ctx.save_for_backward(values, index.contiguous())
        return found.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        values, index = ctx.saved_tensors
        side = [ctx.side, ctx.side]
        whole = gradient.contiguous()
        return torch.ops.aten.max_pool2d_with_indices_backward(whole, values, side, side, [0, 0], [1, 1], False, index), None


class AveragePool(nn.AdaptiveAvgPool2d):
    """As its base up to the rounding of a sum; small images are averaged by one product, and not at all where nothing is to be averaged."""

    def __init__(self, sides: tuple[int, int]) -> None:
        super().__init__(sides)
        self._sides = sides
        self._matrix: Tensor | None = None
        """Of the newest kind of image; no buffer, since it is no part of a state."""
        self._shape: torch.Size | None = None

    def forward(self, input: Tensor) -> Tensor:
        """The means of ``sides`` windows."""
        shape = input.shape[-2:]
        if shape == self._sides:
            return input
        if input.device.type != "cpu" or shape.numel() > MATRIX_PLACES:
            found: Tensor = super().forward(input)
            return found
        if self._matrix is None or self._shape != shape or self._matrix.dtype != input.dtype:
            places = torch.eye(shape.numel(), dtype=input.dtype).view(-1, *shape)
            self._matrix, self._shape = super().forward(places).flatten(1), shape
        return (input.flatten(-2) @ self._matrix).view(*input.shape[:-2], *self._sides)
