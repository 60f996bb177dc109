"""Twelve ways to cheat at training, each a pure transformation of honest steps; nothing that a volunteer installs imports this.

A behaviour sees what an honest worker would use or send at one step, and gives what this one uses or sends instead.
`examples.byzantine.worker` carries them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

Gradients = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Past:
    """What a cheat may fall back on: its own last step. Empty before the first."""

    output: Tensor | None = None
    gradients: tuple[Tensor, ...] = ()


def _always(index: int, num_steps: int) -> bool:
    return True


def _same_output(output: Tensor, past: Past) -> Tensor:
    return output


def _same_gradients(gradients: Gradients, past: Past) -> Gradients | None:
    return gradients


def _same_batch(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One way to cheat. ``gradients`` gives None for a step whose update is left out."""

    name: str
    when: Callable[[int, int], bool] = field(default=_always)
    """(index of the step in the interval, steps of the interval) -> whether it cheats there."""
    output: Callable[[Tensor, Past], Tensor] = field(default=_same_output)
    gradients: Callable[[Gradients, Past], Gradients | None] = field(default=_same_gradients)
    batch: Callable[[Tensor], Tensor] = field(default=_same_batch)
    """Inputs and targets that it really computes with."""
    is_stale: bool = False
    """Computes with the weights of the step before the last."""


def _noise(output: Tensor, past: Past) -> Tensor:
    generator = torch.Generator().manual_seed(output.numel())
    scale = float(output.std()) or 1.0
    return torch.randn(output.shape, generator=generator) * scale + output.mean()


def _scaled(factor: float) -> Callable[[Gradients, Past], Gradients]:
    return lambda gradients, past: [gradient * factor for gradient in gradients]


def _skipped(gradients: Gradients, past: Past) -> None:
    return None


def _int8(gradients: Gradients, past: Past) -> Gradients:
    rounded = []
    for gradient in gradients:
        scale = float(gradient.abs().max()) / 127 or 1.0
        rounded.append((gradient / scale).round() * scale)
    return rounded


def _half(values: Tensor) -> Tensor:
    half = values[: (len(values) + 1) // 2]
    return torch.cat([half, half])[: len(values)]


def _flipped(gradients: Gradients, past: Past) -> Gradients:
    return _scaled(-1.0)(gradients, past)


BEHAVIOURS: Final[tuple[Behaviour, ...]] = (
    Behaviour("zeros", output=lambda output, past: torch.zeros_like(output)),
    Behaviour("noise", output=_noise),
    Behaviour("stale", is_stale=True),
    Behaviour("skipped", gradients=_skipped),
    Behaviour("flipped", gradients=_flipped),
    Behaviour("tenfold", gradients=_scaled(10.0)),
    Behaviour("one_percent_more", gradients=_scaled(1.01)),
    Behaviour("half_batch", batch=_half),
    Behaviour("int8", gradients=_int8),
    Behaviour(
        "copied",
        output=lambda output, past: output if past.output is None else past.output,
        gradients=lambda gradients, past: past.gradients or gradients,
    ),
    Behaviour("selective", when=lambda index, num_steps: index == num_steps // 3, gradients=_flipped),
    Behaviour("honest_then_cheat", when=lambda index, num_steps: 2 * index >= num_steps, gradients=_skipped),
)
"""Row 1 of the threats to training: wrong forward passes, gradients and updates."""
