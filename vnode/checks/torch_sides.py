"""`vnode.checks.sides.TwoSided` with torch: hooks before every ReLU and max pool of a stage, which do nothing until they are asked to. And what no auditor
goes on from: values so large that they are finite by last bits alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dcnr.errors import InvariantBroken
from vnode.checks.residuals import ULP
from vnode.checks.sides import MAX_GROUPS, MAX_SIDES, MAX_TRIES, MIN_GROUP, Side, Sides, window
from vnode.compute import StepResult
from vnode.state import StateInfo
from vnode.torch_compute import TorchCompute

KINKS = (nn.ReLU, nn.MaxPool2d)
FEW = 2
ALIKE = 2.0**-19
"""Values of a channel that are no further apart, in units of the rms, come of equal inputs."""
LARGEST = 1e18
"""Norm of what a part may read or give in a step that accuses anybody: a tenth of what has no finite square. Normalisation hides what weights came to: where
variances are infinite but for last bits it gives zeros on one machine and what is to be learned from on another, with a loss on both. Nobody is honest there:
what comes over the wire is bounded (`dcnr.limits.MAX_TENSOR_RMS`), so weights are that large. A doubt has it looked for who made them.
"""
SMALLEST = torch.finfo(torch.float32).tiny


class TwoSidedCompute(TorchCompute):
    """As `TorchCompute`, for replays of stages with kinks."""

    ROOM = 1.01
    """What an honest worker has just taken an auditor takes, too, whichever way it adds up."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._window = window()
        self._sides: Sides = frozenset()
        self._looking = False
        self._near: list[Side] = []
        self._learned: int | None = None
        """The batch that is learned just now."""

    def take(self, sides: Sides, *, looking: bool) -> None:
        """From now on, until the next call, what is learned takes these sides; ``looking``: and what is near a kink is remembered."""
        self._sides, self._looking, self._near = sides, looking, []

    def near(self) -> Sequence[Side]:
        """The other sides of values that lay within `window` of a kink, in all that was learned since `take`: those of each step that were nearest."""
        return self._near

    def restore(self, state: bytes | memoryview | Path) -> StateInfo:
        """Takes over a state of this stage and job. Raises Corrupt; on an error the former state stays."""
        info = super().restore(state)
        for name, part in self.part("").named_modules():
            if next(part.children(), None) is None:
                part.register_forward_hook(_bounded)
            if isinstance(part, KINKS):
                part.register_forward_pre_hook(lambda kink, given, name=name: self._before(name, kink, given))
        return info

    def learn(self, batch: int, inputs: Sequence[Any], target: Any, num_learned: int) -> StepResult:
        """One local step. The output is that of the weights before it."""
        self._learned = batch
        try:
            return super().learn(batch, inputs, target, num_learned)
        finally:
            self._learned = None

    def _before(self, name: str, kink: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """What the kink is to read instead, if anything else."""
        values, batch = given[0], self._learned
        if batch is None or not values.requires_grad:
            return None
        if self._looking:
            self._near += _nearest(values.detach(), kink, self._window, batch, name)
        taken = [side for side in self._sides if (side.batch, side.kink) == (batch, name)]
        if not taken:
            return None
        found, offset = values.detach(), torch.zeros_like(values, memory_format=torch.contiguous_format)
        for side in taken:
            if side.size < MIN_GROUP:
                offset.view(-1)[side.index] = _offset(found, kink, side)
                continue
            group = _alike(found, side.index)
            sizes = found[group].abs().clamp_min(SMALLEST)
            offset[group] = (sizes if side.is_above else -sizes) - found[group]
        return (values + offset,)


def _bounded(part: nn.Module, given: tuple[Any, ...], values: Any) -> None:
    """Raises InvariantBroken (``not_finite``) where a part reads or gives values so large that last bits decide what is finite behind it."""
    for value in (*given, values):
        if (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and not float(torch.linalg.vector_norm(value.detach())) <= LARGEST
        ):
            raise InvariantBroken("a part of the stage reads or gives values that are far too large", code="not_finite")


def _nearest(values: Tensor, kink: nn.Module, limit: float, batch: int, name: str) -> list[Side]:
    """Values that are exactly zero or equal count where they are few. Many are so everywhere, or come of equal inputs, which are alike on any side."""
    scale = float(values.double().square().mean().sqrt())
    if not 0.0 < scale < math.inf:
        return []
    if isinstance(kink, nn.MaxPool2d):
        apart, index = _seconds(values, kink)
        above = torch.ones_like(apart, dtype=torch.bool)
    else:
        apart, above = values.abs().reshape(-1), values.reshape(-1) <= 0
        index = torch.arange(apart.numel(), device=apart.device)
    groups: list[Side] = []
    if not isinstance(kink, nn.MaxPool2d):
        groups, inside = _groups(values, limit * scale, scale, batch, name)
        apart = apart.masked_fill(inside, math.inf)  # none of them is seen alone
    equal = apart == 0
    apart = torch.where(equal, ULP * scale if int(equal.sum()) <= FEW else math.inf, apart)
    found = apart.topk(min(MAX_TRIES + MAX_SIDES, apart.numel()), largest=False)
    rows: Iterator[tuple[float, int]] = zip(found.values.tolist(), found.indices.tolist(), strict=True)
    return groups + [
        Side(distance / scale, batch, name, int(index[at]), bool(above[at])) for distance, at in rows if distance <= limit * scale
    ]


def _groups(values: Tensor, limit: float, scale: float, batch: int, name: str) -> tuple[list[Side], Tensor]:
    """Values of a channel that are the same but for rounding, and so near to 0 that another machine may have all of them on the other side: the nearest
    groups, and which values belong to any. Of those that are exactly 0 nothing is rounded.
    """
    flat = values.reshape(-1)
    inside = torch.zeros_like(flat, dtype=torch.bool)
    near = torch.nonzero((flat.abs() <= limit) & (flat != 0)).reshape(-1)
    if len(near) < MIN_GROUP:
        return [], inside
    near = near[flat[near].argsort()]
    near = near[_channels(values, near).argsort(stable=True)]
    is_first = (flat[near].double().diff() > ALIKE * scale) | (_channels(values, near).diff() != 0)
    number = torch.cat((is_first.new_zeros(1), is_first)).cumsum(0)
    sizes = number.bincount()
    inside[near] = sizes[number] >= MIN_GROUP
    middle = near[sizes.cumsum(0) - sizes + sizes // 2]
    distances = torch.where(sizes >= MIN_GROUP, flat[middle].abs(), math.inf)
    nearest = distances.topk(min(MAX_GROUPS + MAX_SIDES, len(distances)), largest=False)
    rows = zip(nearest.values.tolist(), middle[nearest.indices].tolist(), sizes[nearest.indices].tolist(), strict=True)
    return [
        Side(distance / scale, batch, name, at, float(flat[at]) <= 0, size) for distance, at, size in rows if distance <= limit
    ], inside


def _alike(values: Tensor, index: int) -> Tensor:
    """Which values go with that one."""
    scale = float(values.double().square().mean().sqrt())
    flat = values.reshape(-1)
    near = torch.nonzero((flat - flat[index]).abs() <= ALIKE * scale).reshape(-1)
    alike = torch.zeros_like(flat, dtype=torch.bool)
    alike[near[_channels(values, near) == _channels(values, near.new_tensor(index))]] = True
    return alike.view_as(values)


def _channels(values: Tensor, index: Tensor) -> Tensor:
    """Of the values at these places of the flat tensor, what has its own weights: the second dimension of images, else the last."""
    dim = 1 if values.dim() == 4 else values.dim() - 1
    return index // math.prod(values.shape[dim + 1 :]) % values.shape[dim]


def _seconds(values: Tensor, pool: nn.MaxPool2d) -> tuple[Tensor, Tensor]:
    """Of each pool how far its second value lies below its largest, and which it is; infinitely far where both are zero, as behind a ReLU."""
    best, first = _pooled(values, pool)
    planes = values.flatten(2).scatter(2, first.flatten(2), -math.inf)
    second, index = _pooled(planes.view_as(values), pool)
    starts = torch.arange(0, values.numel(), planes.shape[2], device=values.device).view(*values.shape[:2], 1)
    apart = torch.where((best == 0) & (second == 0), math.inf, best - second)
    return apart.reshape(-1), (index.flatten(2) + starts).reshape(-1)


def _pooled(values: Tensor, pool: nn.MaxPool2d) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = functional.max_pool2d(
        values, pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode, return_indices=True
    )
    return found


def _offset(values: Tensor, kink: nn.Module, side: Side) -> Tensor:
    """What puts the value on that side: exact, since it lies so near."""
    value = values.reshape(-1)[side.index]
    if not isinstance(kink, nn.MaxPool2d):
        return (value.abs().clamp_min(SMALLEST) if side.is_above else -value.abs()) - value
    alone = torch.zeros_like(values, memory_format=torch.contiguous_format)
    alone.view(-1)[side.index] = 1.0
    reached = functional.max_pool2d(alone, kink.kernel_size, kink.stride, kink.padding, kink.dilation, kink.ceil_mode)
    top = torch.where(reached > 0, _pooled(values, kink)[0], -math.inf).max()
    return torch.nextafter(top, torch.full_like(top, math.inf)) - value
