"""``byte_embedding``: bytes to vectors, token plus position, followed by any number of transformer blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec
from vnode.components.shapes import bad_inputs, one_input
from vnode.components.transformer_block import block_cost

NUM_BYTES = 256


@dataclass(frozen=True, slots=True)
class ByteEmbedding:
    """Config: width, blocks = 0, heads = 4 (of the blocks), dropout = 0. Input uint8 [T]; output [T, width]."""

    name: str = "byte_embedding"
    stateful: bool = True

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        spec = one_input(self.name, inputs)
        if spec.dtype != "uint8" or len(spec.shape) != 1:
            raise bad_inputs(self.name, f"takes uint8 of one dimension besides the batch, not {spec.dtype} {list(spec.shape)}")
        width, blocks, _, _ = self._read(config)
        length = spec.shape[0]
        parameters, flops, held = (blocks * cost for cost in block_cost(length, width))
        output = TensorSpec("float32", (length, width))
        return ComponentPlan(
            output, (NUM_BYTES + length) * width + parameters, length * width + flops, output.bytes_per_sample + held
        )

    def _read(self, config: Config) -> tuple[int, int, int, float]:
        with Fields(config, self.name) as f:
            width = f.integer("width", low=1, high=16384)
            blocks, heads = f.integer("blocks", 0, low=0, high=64), f.integer("heads", 4, low=1, high=256)
            if blocks and width % heads:
                raise f.error("heads", f"width {width} is not a multiple of {heads} heads")
            return width, blocks, heads, f.number("dropout", 0.0, low=0.0, high=0.9)

    def kept_per_place(self, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
        """A key and a value per block."""
        width, blocks, _, _ = self._read(config)
        return 2 * blocks * width

    def checks(self, config: Config) -> CheckPlan:
        """Which checks apply."""
        return CheckPlan(smooth=True)

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """The embedding as a module."""
        import torch
        from torch import nn

        from vnode.torch_layers import CausalBlock, KeyedDropout
        from vnode.torch_memory import Remembering

        width, blocks, heads, drop = self._read(config)
        length = inputs[0].shape[0]

        class Embedding(Remembering):
            def __init__(self) -> None:
                super().__init__()
                self.token = nn.Embedding(NUM_BYTES, width)
                self.position = nn.Embedding(length, width)
                nn.init.normal_(self.token.weight, std=0.02)
                nn.init.normal_(self.position.weight, std=0.02)
                self.drop = KeyedDropout(drop)
                self.blocks = nn.Sequential(*(CausalBlock(width, heads, drop) for _ in range(blocks)))

            def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
                before = self.memory.length if self.memory is not None else 0
                h_BTD = self.token(x_BT.long()) + self.position.weight[before : before + x_BT.shape[1]]
                return self.blocks(self.drop(h_BTD))  # type: ignore[no-any-return]

        return Embedding()


SPEC = ByteEmbedding()
