"""``add``: the sum of inputs of equal shape, in the order of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec, by_place
from vnode.components.shapes import bad_inputs


@dataclass(frozen=True, slots=True)
class Add:
    """No configuration. Two or more float32 inputs of equal shape."""

    name: str = "add"
    stateful: bool = False

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        with Fields(config, self.name):
            pass
        if len(inputs) < 2 or any(spec != inputs[0] for spec in inputs) or inputs[0].dtype != "float32":
            raise bad_inputs(self.name, f"takes two or more float32 inputs of equal shape, not {[list(s.shape) for s in inputs]}")
        return ComponentPlan(inputs[0], forward_flops=(len(inputs) - 1) * inputs[0].num_elements)

    def kept_per_place(self, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
        """It looks at no other place."""
        return by_place(inputs)

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """A module that adds."""
        import torch
        from torch import nn

        class Sum(nn.Module):
            def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
                total = tensors[0] + tensors[1]
                for tensor in tensors[2:]:
                    total = total + tensor
                return total

        return Sum()


SPEC = Add()
