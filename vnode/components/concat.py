"""``concat``: inputs joined along one dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec, by_place
from vnode.components.shapes import bad_inputs


@dataclass(frozen=True, slots=True)
class Concat:
    """Config: dim = 0, counted without the batch (0 = channels of an image). Inputs equal but for that dimension."""

    name: str = "concat"
    stateful: bool = False

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        dim = self._read(config)
        if len(inputs) < 2 or dim >= len(inputs[0].shape):
            raise bad_inputs(self.name, f"takes two or more inputs that have a dimension {dim}")
        rests = {(spec.dtype, len(spec.shape), spec.shape[:dim], spec.shape[dim + 1 :]) for spec in inputs}
        if len(rests) != 1:
            raise bad_inputs(self.name, f"inputs must be equal but for dimension {dim}, not {[list(s.shape) for s in inputs]}")
        joined = sum(spec.shape[dim] for spec in inputs)
        first = inputs[0].shape
        return ComponentPlan(TensorSpec(inputs[0].dtype, (*first[:dim], joined, *first[dim + 1 :])))

    def _read(self, config: Config) -> int:
        with Fields(config, self.name) as f:
            return f.integer("dim", 0, low=0, high=6)

    def kept_per_place(self, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
        """It looks at no other place unless it joins places."""
        return by_place(inputs) if self._read(config) == 1 else None

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """A module that concatenates."""
        import torch
        from torch import nn

        dim = self._read(config) + 1

        class Concatenation(nn.Module):
            def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
                return torch.cat(tensors, dim=dim)

        return Concatenation()


SPEC = Concat()
