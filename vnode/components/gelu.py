"""``gelu``: the activation alone, as a VNode without weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec, by_place
from vnode.components.shapes import one_float_input


@dataclass(frozen=True, slots=True)
class Gelu:
    """No configuration. Output like the input."""

    name: str = "gelu"
    stateful: bool = False

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        with Fields(config, self.name):
            pass
        spec = one_float_input(self.name, inputs)
        return ComponentPlan(spec, forward_flops=spec.num_elements)

    def kept_per_place(self, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
        """It looks at no other place."""
        return by_place(inputs)

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """torch.nn.GELU."""
        from torch import nn

        return nn.GELU()


SPEC = Gelu()
