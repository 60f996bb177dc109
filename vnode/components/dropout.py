"""``dropout``: elements zeroed while training, as a VNode without weights; nothing in EVAL and INFER."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec
from vnode.components.shapes import one_float_input

MASKED_BYTES: Final = 5
"""Per element, while it is computed: the mask, and what it leaves before that is scaled."""


@dataclass(frozen=True, slots=True)
class Dropout:
    """Config: dropout, the share that is zeroed. The draws belong to (seed, this VNode, batch): every stage that evaluates it sees the same mask."""

    name: str = "dropout"
    stateful: bool = False

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        self._read(config)
        spec = one_float_input(self.name, inputs)
        return ComponentPlan(spec, forward_flops=spec.num_elements, activation_bytes=MASKED_BYTES * spec.num_elements)

    def _read(self, config: Config) -> float:
        with Fields(config, self.name) as f:
            return f.number("dropout", low=0.0, high=0.9)

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """The layer."""
        from vnode.torch_layers import KeyedDropout

        return KeyedDropout(self._read(config))


SPEC = Dropout()
