"""``flatten``: all dimensions but the batch become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec
from vnode.components.shapes import one_input


@dataclass(frozen=True, slots=True)
class Flatten:
    """No configuration."""

    name: str = "flatten"
    stateful: bool = False

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        with Fields(config, self.name):
            pass
        spec = one_input(self.name, inputs)
        return ComponentPlan(TensorSpec(spec.dtype, (spec.num_elements,)))

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """torch.nn.Flatten."""
        from torch import nn

        return nn.Flatten()


SPEC = Flatten()
