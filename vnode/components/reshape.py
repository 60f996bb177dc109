"""``reshape``: the same elements in another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.limits import MAX_TENSOR_RANK
from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec
from vnode.components.shapes import one_input


@dataclass(frozen=True, slots=True)
class Reshape:
    """Config: shape, a list of positive integers without the batch dimension."""

    name: str = "reshape"
    stateful: bool = False

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        spec = one_input(self.name, inputs)
        shape = self._read(config)
        if math.prod(shape) != spec.num_elements:
            raise Fields(config, self.name).error(
                "shape", f"{list(shape)} does not hold the {spec.num_elements} elements of {list(spec.shape)}"
            )
        return ComponentPlan(TensorSpec(spec.dtype, shape))

    def _read(self, config: Config) -> tuple[int, ...]:
        shape = config.get("shape")
        with Fields({name: value for name, value in config.items() if name != "shape"}, self.name) as f:
            if not isinstance(shape, tuple) or not 1 <= len(shape) < MAX_TENSOR_RANK:
                raise f.error("shape", f"field 'shape' must be a list of 1 to {MAX_TENSOR_RANK - 1} integers")
            sides = tuple(side for side in shape if isinstance(side, int) and not isinstance(side, bool) and 0 < side < 2**31)
            if len(sides) != len(shape):
                raise f.error("shape", "field 'shape' must hold positive integers")
        return sides

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """torch.nn.Unflatten after a flatten."""
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Unflatten(1, self._read(config)))


SPEC = Reshape()
