"""``conv_block``: convolution, batch normalisation, activation, dropout, max pool, each but the first optional."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, ComponentPlan, Config, Fields, TensorSpec
from vnode.components.shapes import bad_inputs, one_float_input

ACTIVATIONS = ("none", "relu", "gelu")


@dataclass(frozen=True, slots=True)
class _Settings:
    out_channels: int
    kernel: int
    stride: int
    pool: int
    norm: str
    activation: str
    dropout: float


@dataclass(frozen=True, slots=True)
class ConvBlock:
    """Config: out_channels, kernel = 3 (odd), stride = 1, pool = 1, norm = "batch" | "none", activation = "relu" | "gelu" |
    "none", dropout = 0.

    Input [C, H, W]; padding is kernel // 2.
    """

    name: str = "conv_block"
    stateful: bool = True

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """Output and cost. Raises InvalidInput."""
        spec = one_float_input(self.name, inputs, ranks=(3,))
        s = self._read(config)
        channels = spec.shape[0]
        height, width = _sides(s, spec)
        if min(height, width) < s.pool:
            raise bad_inputs(self.name, f"{list(spec.shape)} is too small for stride {s.stride} and pool {s.pool}")
        weights = channels * s.out_channels * s.kernel**2
        area = height * width
        norm = s.norm == "batch"
        return ComponentPlan(
            output=TensorSpec("float32", (s.out_channels, height // s.pool, width // s.pool)),
            num_parameters=weights + (2 if norm else 1) * s.out_channels,
            forward_flops=2 * weights * area + (4 * norm + 1) * s.out_channels * area,
            activation_bytes=4 * (2 + norm) * s.out_channels * area,
        )

    def least_batch(self, config: Config, inputs: Sequence[TensorSpec]) -> int:
        """Two where each channel has one value per sample: normalising over a single value gives nothing to learn from."""
        s = self._read(config)
        return 2 if s.norm == "batch" and _sides(s, inputs[0]) == (1, 1) else 1

    def _read(self, config: Config) -> _Settings:
        with Fields(config, self.name) as f:
            settings = _Settings(
                out_channels=f.integer("out_channels", low=1, high=8192),
                kernel=f.integer("kernel", 3, low=1, high=31),
                stride=f.integer("stride", 1, low=1, high=16),
                pool=f.integer("pool", 1, low=1, high=16),
                norm=f.choice("norm", "batch", options=("batch", "none")),
                activation=f.choice("activation", "relu", options=ACTIVATIONS),
                dropout=f.number("dropout", 0.0, low=0.0, high=0.9),
            )
            if settings.kernel % 2 == 0:
                raise f.error("kernel", "field 'kernel' must be odd")
        return settings

    def checks(self, config: Config) -> CheckPlan:
        """A sketch may stand for the convolution; ReLU and max pool have kinks, and so may the objective."""
        s = self._read(config)
        rounded = "activation" if s.activation == "gelu" else "norm" if s.norm == "batch" else ""
        return CheckPlan(
            smooth=s.activation != "relu" and s.pool == 1, sketched=("conv",), before_kinks=(rounded,) if rounded else ()
        )

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """A torch.nn.Sequential with named parts."""
        from torch import nn

        from vnode.torch_layers import KeyedDropout
        from vnode.torch_pools import MaxPool

        s = self._read(config)
        module = nn.Sequential()
        module.add_module(
            "conv",
            nn.Conv2d(inputs[0].shape[0], s.out_channels, s.kernel, stride=s.stride, padding=s.kernel // 2, bias=s.norm == "none"),
        )
        if s.norm == "batch":
            module.add_module("norm", nn.BatchNorm2d(s.out_channels))
        if s.activation != "none":
            module.add_module("activation", nn.ReLU() if s.activation == "relu" else nn.GELU())
        if s.dropout:
            module.add_module("drop", KeyedDropout(s.dropout))
        if s.pool > 1:
            module.add_module("pool", MaxPool(s.pool))
        return module


def _sides(s: _Settings, spec: TensorSpec) -> tuple[int, int]:
    """Height and width behind the convolution."""
    height, width = ((side + 2 * (s.kernel // 2) - s.kernel) // s.stride + 1 for side in spec.shape[1:])
    return height, width


SPEC = ConvBlock()
