"""``transformer_block``: one causal pre-LN block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec
from vnode.components.shapes import bad_inputs, one_float_input


def block_cost(length: int, width: int) -> tuple[int, int, int]:
    """(parameters, forward FLOPs, activation bytes) of one block per sample."""
    parameters = 12 * width * width + 13 * width
    return parameters, length * (24 * width * width + 4 * length * width), 4 * length * 18 * width


@dataclass(frozen=True, slots=True)
class TransformerBlock:
    """Config: heads, dropout = 0. Input [T, d] with d a multiple of heads; output of the same shape."""

    name: str = "transformer_block"
    stateful: bool = True

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        spec = one_float_input(self.name, inputs, ranks=(2,))
        heads, _ = self._read(config)
        if spec.shape[1] % heads:
            raise bad_inputs(self.name, f"width {spec.shape[1]} is not a multiple of {heads} heads")
        return ComponentPlan(spec, *block_cost(*spec.shape))

    def _read(self, config: Config) -> tuple[int, float]:
        with Fields(config, self.name) as f:
            return f.integer("heads", low=1, high=256), f.number("dropout", 0.0, low=0.0, high=0.9)

    def kept_per_place(self, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
        """A key and a value."""
        return 2 * inputs[0].shape[1]

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """The block."""
        from vnode.torch_layers import CausalBlock

        return CausalBlock(inputs[0].shape[1], *self._read(config))


SPEC = TransformerBlock()
