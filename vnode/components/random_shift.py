"""``random_shift``: augmentation that moves each image by up to ±pixels while training, and does nothing in EVAL and INFER."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec
from vnode.components.shapes import one_float_input


@dataclass(frozen=True, slots=True)
class RandomShift:
    """Config: pixels.

    Input [C, H, W]. The draws belong to (seed, this VNode, batch): every stage that evaluates it sees the same images.
    """

    name: str = "random_shift"
    stateful: bool = False

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        pixels = self._read(config)
        spec = one_float_input(self.name, inputs, ranks=(3,))
        channels, height, width = spec.shape
        padded = TensorSpec("float32", (channels, height + 2 * pixels, width + 2 * pixels))
        return ComponentPlan(spec, activation_bytes=padded.bytes_per_sample)

    def _read(self, config: Config) -> int:
        with Fields(config, self.name) as f:
            return f.integer("pixels", low=0, high=64)

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """The shifting layer."""
        from vnode import torch_layers

        return torch_layers.RandomShift(self._read(config))


SPEC = RandomShift()
