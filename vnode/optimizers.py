"""Optimisers over named parameters whose whole state is in their slots: restored slots continue bit for bit.

Each update is refused before anything changes if the gradient is not finite or its norm exceeds `MAX_GRADIENT_NORM`. With the
configured bounds (lr ≤ 10, momentum ≤ 0.999) a finite state therefore stays finite: one step moves a weight by less than 1e20.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dcnr.errors import InvariantBroken
from dcnr.specs import Config, Fields, OptimizerSpec
from vnode.schedules import Schedule

if TYPE_CHECKING:
    from torch import Tensor

MAX_GRADIENT_NORM = 1e15

Slots = Mapping[str, "Sequence[Tensor]"]
Update = Callable[["Sequence[Tensor]", "Sequence[Tensor]", Slots, float, int], None]
"""(parameters, gradients, slots, learning rate, updates made before) → parameters and slots changed in place."""


class Optimizer(OptimizerSpec, Protocol):
    """What the torch adapter asks of a registered optimiser."""

    @property
    def is_linear(self) -> bool:
        """Whether an update is linear in weights, gradients and slots (unless it clips); else element by element."""
        ...

    def schedule(self, config: Config) -> Schedule:
        """The learning-rate schedule."""
        ...

    def slots(self) -> tuple[str, ...]:
        """Names of the tensors kept per parameter, each of the parameter's shape, zero at the start of a job."""
        ...

    def build(self, config: Config) -> Update:
        """The update function; imports torch here."""
        ...


@dataclass(frozen=True, slots=True)
class Sgd:
    """SGD with momentum: v ← momentum·v + g + wd·w; w ← w − lr·v; without momentum v stays zero in the slot. Weight decay on tensors of two and more
    dimensions only.
    """

    name: str = "sgd"
    slots_per_parameter: int = 1
    is_linear: bool = True

    def check(self, config: Config) -> None:
        """Raises InvalidInput with ``details['field']``."""
        self._read(config)

    def _read(self, config: Config) -> tuple[Schedule, float, float, float]:
        with Fields(config, self.name) as f:
            return (
                Schedule.read(f),
                f.number("momentum", 0.9, low=0.0, high=0.999),
                f.number("weight_decay", 0.0, low=0.0, high=1.0),
                f.number("clip", 0.0, low=0.0, high=1e6),
            )

    def schedule(self, config: Config) -> Schedule:
        """The learning-rate schedule."""
        return self._read(config)[0]

    def slots(self) -> tuple[str, ...]:
        """Names of the tensors kept per parameter, each of the parameter's shape, zero at the start of a job."""
        return ("momentum",)

    def build(self, config: Config) -> Update:
        """The update function."""
        import torch

        _, momentum, weight_decay, clip = self._read(config)

        def update(parameters: Sequence[Tensor], gradients: Sequence[Tensor], slots: Slots, lr: float, updates: int) -> None:
            gradients = _clipped(gradients, clip)
            for decay, group in _groups(parameters, weight_decay):
                torch._fused_sgd_(
                    [parameters[i] for i in group],
                    [gradients[i] for i in group],
                    [slots["momentum"][i] for i in group] if momentum else [],  # torch takes none where there is no momentum
                    weight_decay=decay,
                    momentum=momentum,
                    lr=lr,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                    is_first_step=False,
                )

        return update


@dataclass(frozen=True, slots=True)
class AdamW:
    """AdamW (Loshchilov & Hutter 2019); decoupled weight decay on tensors of two and more dimensions only."""

    name: str = "adamw"
    slots_per_parameter: int = 2
    is_linear: bool = False

    def check(self, config: Config) -> None:
        """Raises InvalidInput with ``details['field']``."""
        self._read(config)

    def _read(self, config: Config) -> tuple[Schedule, float, float, float, float, float]:
        with Fields(config, self.name) as f:
            return (
                Schedule.read(f),
                f.number("beta1", 0.9, low=0.0, high=0.999),
                f.number("beta2", 0.95, low=0.0, high=0.9999),
                f.number("eps", 1e-8, low=1e-12, high=1.0),
                f.number("weight_decay", 0.01, low=0.0, high=1.0),
                f.number("clip", 0.0, low=0.0, high=1e6),
            )

    def schedule(self, config: Config) -> Schedule:
        """The learning-rate schedule."""
        return self._read(config)[0]

    def slots(self) -> tuple[str, ...]:
        """Names of the tensors kept per parameter, each of the parameter's shape, zero at the start of a job."""
        return ("mean", "square")

    def build(self, config: Config) -> Update:
        """The update function."""
        import torch

        _, beta1, beta2, eps, weight_decay, clip = self._read(config)

        def update(parameters: Sequence[Tensor], gradients: Sequence[Tensor], slots: Slots, lr: float, updates: int) -> None:
            gradients = _clipped(gradients, clip)
            for decay, group in _groups(parameters, weight_decay):
                count = torch.tensor(float(updates + 1), device=parameters[group[0]].device)
                torch._fused_adamw_(
                    [parameters[i] for i in group],
                    [gradients[i] for i in group],
                    [slots["mean"][i] for i in group],
                    [slots["square"][i] for i in group],
                    [],
                    [count] * len(group),
                    lr=lr,
                    beta1=beta1,
                    beta2=beta2,
                    weight_decay=decay,
                    eps=eps,
                    amsgrad=False,
                    maximize=False,
                )

        return update


def _clipped(gradients: Sequence[Tensor], clip: float) -> Sequence[Tensor]:
    """Gradients of finite norm, scaled down to ``clip`` (0 = as they are). Raises InvariantBroken."""
    import torch

    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients)))))
    if not norm <= MAX_GRADIENT_NORM:
        raise InvariantBroken("the gradient is not finite or far too large: the batch is skipped", code="not_finite", norm=norm)
    if clip and norm > clip:
        return torch._foreach_mul(list(gradients), clip / norm)
    return gradients


def _groups(parameters: Sequence[Tensor], weight_decay: float) -> list[tuple[float, list[int]]]:
    matrices: list[int] = [i for i, parameter in enumerate(parameters) if parameter.dim() >= 2]
    others: list[int] = [i for i, parameter in enumerate(parameters) if parameter.dim() < 2]
    pairs: list[tuple[float, list[int]]] = [(weight_decay, matrices), (0.0, others)]
    return [(decay, group) for decay, group in pairs if group]
