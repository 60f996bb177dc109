"""``linear``: y = x·Wᵀ + b over the last dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec, by_place
from vnode.components.shapes import one_float_input


@dataclass(frozen=True, slots=True)
class Linear:
    """Config: out_features, bias = true. Input [d] or [T, d]."""

    name: str = "linear"
    stateful: bool = True

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        spec = one_float_input(self.name, inputs, ranks=(1, 2))
        out_features, bias = self._read(config)
        *positions, width = spec.shape
        output = TensorSpec("float32", (*positions, out_features))
        rows = spec.num_elements // width
        return ComponentPlan(
            output, width * out_features + bias * out_features, 2 * rows * width * out_features, output.bytes_per_sample
        )

    def _read(self, config: Config) -> tuple[int, bool]:
        with Fields(config, self.name) as f:
            return f.integer("out_features", low=1, high=65536), f.flag("bias", True)

    def kept_per_place(self, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
        """It looks at no other place."""
        return by_place(inputs)

    def checks(self, config: Config) -> CheckPlan:
        """A sketch may stand for the map."""
        return CheckPlan(smooth=True, sketched=("",))

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """A torch.nn.Linear."""
        from torch import nn

        out_features, bias = self._read(config)
        return nn.Linear(inputs[0].shape[-1], out_features, bias=bias)


SPEC = Linear()
