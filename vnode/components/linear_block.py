"""``linear_block``: x + Linear(GELU(Linear(LayerNorm(x)))), width unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec, by_place
from vnode.components.shapes import one_float_input


@dataclass(frozen=True, slots=True)
class LinearBlock:
    """Config: dropout = 0.

    Input [d] or [T, d]; output of the same shape. The normalisation has no learned affine (trust: x stays known).
    """

    name: str = "linear_block"
    stateful: bool = True

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        spec = one_float_input(self.name, inputs, ranks=(1, 2))
        self._read(config)
        width = spec.shape[-1]
        rows = spec.num_elements // width
        return ComponentPlan(spec, 2 * width * (width + 1), 4 * rows * width * width, 4 * spec.bytes_per_sample)

    def _read(self, config: Config) -> float:
        with Fields(config, self.name) as f:
            return f.number("dropout", 0.0, low=0.0, high=0.9)

    def kept_per_place(self, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
        """It looks at no other place."""
        return by_place(inputs)

    def checks(self, config: Config) -> CheckPlan:
        """A sketch may stand for each of the two maps."""
        return CheckPlan(smooth=True, sketched=("inner", "outer"))

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """The residual block as a module."""
        import torch
        from torch import nn

        from vnode.torch_layers import KeyedDropout

        width, drop = inputs[0].shape[-1], self._read(config)

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.LayerNorm(width, elementwise_affine=False)
                self.inner = nn.Linear(width, width)
                self.outer = nn.Linear(width, width)
                self.drop = KeyedDropout(drop)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                output: torch.Tensor = x + self.drop(self.outer(nn.functional.gelu(self.inner(self.norm(x)))))
                return output

        return Block()


SPEC = LinearBlock()
