"""Secret projections of linear and convolutional maps: a few columns that follow every step in the place of a whole weight.

For an update that is linear in weights and gradients (SGD with momentum) the projection is S in {-1, +1}^(n x k): every weight enters every column.
For one that goes element by element (AdamW) it is k secret rows, followed exactly: a lie that spares them is not seen in them. After Freivalds 1977,
as far as a single product goes; that the projection is carried through the optimiser is ours.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from dcnr.errors import InvariantBroken
from vnode.state import Array

NUM_SIGNS = 4
NUM_ROWS = 8
TILE_VALUES = 1 << 15
"""Of a state, projected at a time."""
TILE_SIDE = 1 << 10
PRODUCT_VALUES = 1 << 17
"""Multiplications in one product of numpy's: its BLAS would start threads for more than twice as many, which no limit of torch holds."""
NEAR_VALUES = 1 << 12
"""Multipliers that stay beside the processor while one row after another is multiplied by all of them: no threads for so few, and half as dear as pieces."""
LEAST, FEW = 2, 16
"""Rows that are few: products with so few are made by numpy, a piece at a time."""
PIECE_VALUES = 16
"""Shorter pieces of rows are not worth a product each."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Takes the ``n`` entries of one dimension to a few: sums with signs, or some rows. With neither it leaves all as they are."""

    signs: Tensor | None = None
    """Float32 [k, n]: a product with so few columns takes a quarter of the time when they lie in rows."""
    rows: Tensor | None = None

    @classmethod
    def draw(cls, secret: bytes, purpose: str, n: int, *, linear: bool) -> Projection:
        """A function of (secret, purpose): nobody who does not know the secret can tell it."""
        key = np.frombuffer(hashlib.sha256(secret + b"\0dcnr sketch 1\0" + purpose.encode()).digest()[:16], dtype="<u8")
        words = np.random.Philox(key=key.astype(np.uint64)).random_raw(n * NUM_SIGNS)
        if linear:
            signs = np.where(words >> np.uint64(63), 1.0, -1.0).astype(np.float32).reshape(n, NUM_SIGNS)
            return cls(torch.from_numpy(np.ascontiguousarray(signs.T)), None)
        rows = np.sort(np.argsort(words[:n], kind="stable")[: min(n, NUM_ROWS)])
        return cls(None, torch.from_numpy(rows.copy()))

    def take(self, values: Tensor, dim: int) -> Tensor:
        """``values`` with that dimension projected, contiguous: the fused updates go through memory in order."""
        if self.signs is not None:
            if values.dim() == 1:
                return torch.mv(self.signs, values)
            if dim in (-1, values.dim() - 1):
                return _thin(values, self.signs)
            return functional.linear(values.movedim(dim, -1), self.signs).movedim(-1, dim).contiguous()
        return values if self.rows is None else values.index_select(dim, self.rows)

    def beside(self, values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """`take` over the last dimension, and what a linear map of that weight gives: where both are sums, in one pass through ``values``."""
        if self.signs is None:
            return self.take(values, -1), _thin(values, weight)
        both = _thin(values, torch.cat([self.signs, weight]))
        return both[..., :NUM_SIGNS], both[..., NUM_SIGNS:]

    def of_state(self, values: Array, dim: int) -> Array:
        """`take` for float32 values of a state: sums of many of them in float64, rounded once. A tile at a time, which stays near the processor."""
        if self.signs is None:
            return values if self.rows is None else values.take(self.rows.numpy(), axis=dim)
        signs = self.signs.numpy().astype(np.float64)
        flat = values.reshape(math.prod(values.shape[:dim]), values.shape[dim], -1)
        taken = np.zeros((flat.shape[0], NUM_SIGNS, flat.shape[2]))
        for before, summed, behind in _tiles(*flat.shape):
            taken[before, :, behind] += signs[:, summed] @ flat[before, summed, behind].astype(np.float64)
        return taken.astype(np.float32).reshape(*values.shape[:dim], NUM_SIGNS, *values.shape[dim + 1 :])

    @property
    def scale(self) -> float:
        """How much larger than a value its projection is, in the rms."""
        return math.sqrt(self.signs.shape[1]) if self.signs is not None else 1.0


@dataclass(frozen=True, slots=True)
class MapKind:
    """The products of an ``nn.Linear`` or ``nn.Conv2d``, for a weight of which only some outputs or inputs are there."""

    conv: nn.Conv2d | None

    @classmethod
    def of(cls, module: nn.Module) -> MapKind:
        """Raises InvariantBroken for a module that a sketch cannot stand for: a component declared it wrongly."""
        if isinstance(module, nn.Linear):
            return cls(None)
        if isinstance(module, nn.Conv2d) and module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros":
            return cls(module)
        raise InvariantBroken(f"{type(module).__name__} cannot be sketched", code="bad_component")

    @property
    def channel(self) -> int:
        """Which dimension of inputs and outputs the weight goes over."""
        return -1 if self.conv is None else 1

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """What the map gives without its bias."""
        if self.conv is None:
            return _thin(x, weight)
        return functional.conv2d(x, weight, None, self.conv.stride, self.conv.padding)

    def forward(self, x: Tensor, weight: Tensor, inward: Projection) -> tuple[Tensor, Tensor]:
        """The inputs as they are projected, and `product`."""
        if self.conv is None:
            return inward.beside(x, weight)
        return inward.take(x, self.channel), self.product(x, weight)

    def backward(self, gradient: Tensor, weight: Tensor, outward: Projection, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The gradient of the outputs as it is projected, and `input_gradient`."""
        if self.conv is None:
            return outward.beside(gradient, weight.T)
        return outward.take(gradient, self.channel), self.input_gradient(gradient, weight, shape)

    def output_shape(self, x: Sequence[int], weight: Sequence[int]) -> tuple[int, ...]:
        """Of what the map gives for inputs of the one shape under a weight of the other."""
        if self.conv is None:
            return (*x[:-1], weight[0])
        padding = cast(tuple[int, ...], self.conv.padding)
        sizes = zip(x[2:], weight[2:], padding, self.conv.stride, strict=True)
        return (x[0], weight[0], *((size + 2 * pad - kernel) // stride + 1 for size, kernel, pad, stride in sizes))

    def weight_gradient(self, x: Tensor, gradient: Tensor, shape: Sequence[int]) -> Tensor:
        """Of a weight of that shape, from inputs and the gradient of the outputs, either projected."""
        if self.conv is None:
            outward, inward = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
            if inward.shape[1] < outward.shape[1]:  # few columns are ten times as dear as few rows
                return _down(inward, outward).T
            return _down(outward, inward)
        return conv2d_weight(x, shape, gradient, stride=self.conv.stride, padding=self.conv.padding)  # type: ignore[no-any-return,no-untyped-call]

    def input_gradient(self, gradient: Tensor, weight: Tensor, shape: Sequence[int]) -> Tensor:
        """Of a convolution's inputs, of that shape; the weight may be projected over them."""
        assert self.conv is not None
        return conv2d_input(shape, weight, gradient, stride=self.conv.stride, padding=self.conv.padding)  # type: ignore[no-any-return,no-untyped-call]

    def bias_gradient(self, gradient: Tensor) -> Tensor:
        """Sum over everything but the channel."""
        channel = self.channel % gradient.dim()
        return gradient.sum(dim=[dim for dim in range(gradient.dim()) if dim != channel])


def _tiles(num_before: int, num_summed: int, num_behind: int) -> Iterator[tuple[slice, slice, slice]]:
    """Together all of an array of that shape: long rows where there are any, none so large that numpy's product with the signs has threads."""
    behind = min(num_behind, TILE_SIDE)
    summed = min(num_summed, TILE_SIDE, TILE_VALUES // behind)
    before = TILE_VALUES // (summed * behind)
    for start in range(0, num_before, before):
        for middle in range(0, num_summed, summed):
            for last in range(0, num_behind, behind):
                yield slice(start, start + before), slice(middle, middle + summed), slice(last, last + behind)


def _thin(values: Tensor, few: Tensor) -> Tensor:
    """What a linear map without bias gives, contiguous. With a handful of outputs a row, or some rows, at a time are multiplied while they lie near the
    processor: a product of them all copies them to another place first. Else it is the cheaper with the few on its left, where `functional.linear` has
    them on its right.
    """
    rows = values.detach().reshape(-1, values.shape[-1])
    num_rows = min(PRODUCT_VALUES // max(few.numel(), 1), rows.shape[0])
    if num_rows < LEAST or not _is_for_numpy(rows, few, few.shape[0]):
        return torch.mm(few, rows.T).T.reshape(*values.shape[:-1], few.shape[0]).contiguous()
    if few.numel() <= NEAR_VALUES and few.is_contiguous():
        made = torch.from_numpy(np.matvec(few.detach().numpy(), rows.numpy()))
    else:
        made, whole = rows.new_empty(rows.shape[0], few.shape[0]), rows.shape[0] - rows.shape[0] % num_rows
        pieces = rows[:whole].numpy().reshape(-1, num_rows, rows.shape[1])
        np.matmul(pieces, few.detach().numpy().T, out=made[:whole].numpy().reshape(-1, num_rows, few.shape[0]))
        if whole < rows.shape[0]:
            torch.mm(rows[whole:], few.T, out=made[whole:])
    return made.view(*values.shape[:-1], few.shape[0])


def _down(few: Tensor, values: Tensor) -> Tensor:
    """``few`` turned round, times ``values``: sums over the rows of both. Some columns at a time, as `_thin` takes rows."""
    width = values.shape[1]
    num_columns = min(PRODUCT_VALUES // max(few.numel(), 1), width)
    num_columns = 1 << max(num_columns, 1).bit_length() - 1
    if num_columns < PIECE_VALUES or width % num_columns or not _is_for_numpy(values, few, few.shape[1]):
        return torch.mm(few.T, values)
    made = values.new_empty(few.shape[1], width)
    pieces, into = (
        whole.detach().numpy().reshape(-1, width // num_columns, num_columns).transpose(1, 0, 2) for whole in (values, made)
    )
    np.matmul(few.detach().numpy().T, pieces, out=into)
    return made


def _is_for_numpy(values: Tensor, few: Tensor, num_few: int) -> bool:
    """Products by a single vector are none of these: numpy's BLAS makes them another way, with threads from a few thousand values on."""
    return LEAST <= num_few <= FEW and values.numel() > 0 and values.dtype == few.dtype == torch.float32 and values.is_contiguous()
