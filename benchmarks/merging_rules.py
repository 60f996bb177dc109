"""What a primary may do with a delta that came: the outer steps that `benchmarks.merging` compares with the one of workers (`vnode.torch_merging`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vnode.torch_merging import DeltaValues


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delta as an outer step sees it."""

    values: DeltaValues
    anchor: dict[str, torch.Tensor]
    """The weights that the contributor had begun with."""
    share: float
    """What the delta learned, of all that came since that anchor."""
    num_replicas: int


Outer = Callable[[dict[str, torch.Tensor], Arrival], None]
"""(weights, arrival): changes the weights in place."""


def averaged(weights: dict[str, torch.Tensor], arrival: Arrival) -> None:
    """The mean of primary and contributor, weighted by what each learned since the anchor: what the primary has learned is pulled back."""
    for name, value in weights.items():
        value += arrival.share * (arrival.anchor[name] + torch.from_numpy(arrival.values.weights[name]) - value)


class Nesterov:
    """A part of each displacement as workers add it, with Nesterov's momentum over merges, as DiLoCo's outer step has it (Douillard et al. 2023)."""

    def __init__(self, lr: float, momentum: float) -> None:
        self._lr, self._momentum = lr, momentum
        self._velocity: dict[str, torch.Tensor] = {}

    def __call__(self, weights: dict[str, torch.Tensor], arrival: Arrival) -> None:
        self.step(weights, {name: torch.from_numpy(value) / arrival.num_replicas for name, value in arrival.values.weights.items()})

    def step(self, weights: dict[str, torch.Tensor], moved: dict[str, torch.Tensor]) -> None:
        """One outer step for a displacement, whosever it is."""
        for name, value in weights.items():
            velocity = self._momentum * self._velocity.get(name, torch.zeros_like(value)) + moved[name]
            self._velocity[name] = velocity
            value += self._lr * (moved[name] + self._momentum * velocity)


class DelayedNesterov:
    """Momentum only every ``num_replicas`` merges, from what came since; plain steps between (Liu et al. 2024, with c = 0)."""

    def __init__(self, lr: float, momentum: float) -> None:
        self._lr, self._momentum, self._count = lr, momentum, 0
        self._velocity: dict[str, torch.Tensor] = {}
        self._waiting: dict[str, torch.Tensor] = {}

    def __call__(self, weights: dict[str, torch.Tensor], arrival: Arrival) -> None:
        self._count += 1
        is_due = self._count % arrival.num_replicas == 0
        for name, value in weights.items():
            step = torch.from_numpy(arrival.values.weights[name]) / arrival.num_replicas
            zero = torch.zeros_like(value)
            self._waiting[name] = self._waiting.get(name, zero) + step
            if is_due:
                self._velocity[name] = self._momentum * self._velocity.get(name, zero) + self._waiting.pop(name)
                value += self._lr * self._momentum * self._velocity[name]
            value += self._lr * step
