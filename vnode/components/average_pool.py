"""``average_pool``: an image averaged over a grid of places, as a VNode without weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec
from vnode.components.shapes import bad_inputs, one_float_input


@dataclass(frozen=True, slots=True)
class AveragePool:
    """Config: side = 1. Input [C, H, W]; output [C, side, side]."""

    name: str = "average_pool"
    stateful: bool = False

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        side = self._read(config)
        spec = one_float_input(self.name, inputs, ranks=(3,))
        if side > min(spec.shape[1:]):
            raise bad_inputs(self.name, f"{list(spec.shape)} has fewer than {side} places to a side")
        return ComponentPlan(TensorSpec("float32", (spec.shape[0], side, side)), forward_flops=spec.num_elements)

    def _read(self, config: Config) -> int:
        with Fields(config, self.name) as f:
            return f.integer("side", 1, low=1, high=256)

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """torch.nn.AdaptiveAvgPool2d."""
        from torch import nn

        return nn.AdaptiveAvgPool2d(self._read(config))


SPEC = AveragePool()
